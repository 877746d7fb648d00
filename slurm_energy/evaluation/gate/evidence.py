"""What the gate works with, made from a site's database: twin, log of decisions, load and earlier candidates."""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from zlib import crc32

from slurm_energy.config import Config
from slurm_energy.domain.cluster import JobState
from slurm_energy.energy_model.facility import Facility, StepSeries, site_facility
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.evaluation.gate.decisions import NOTHING_KNOWN, GuardedCandidate
from slurm_energy.evaluation.gate.fusion import PastOutcome
from slurm_energy.evaluation.gate.impact import LoadHistory
from slurm_energy.evaluation.gate.off_policy import LoggedDecision
from slurm_energy.evaluation.gate.states import EdgeState, idle_state
from slurm_energy.evaluation.gate.twin_score import PredictedDay, TwinRuns
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.policy.candidate import CandidatePolicy, read_candidate
from slurm_energy.store.site_history import ClockedRun
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.formats import load_workload
from slurm_energy.twin.world.file import load_world

_DAY_SECONDS = 86_400.0
_RECENT_DAYS = 28.0
_MIN_RUNS = 3
"""Of a name on a type, so that what one of them needed can be held against the others."""
_MAX_ARCHIVED = 20
"""The newest, which a candidate is compared with: each decides the whole probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateHistory:
    """What is known of the cluster and of earlier candidates; what is missing leaves its stage not judged."""

    twin: TwinRuns | None = None
    log: Sequence[LoggedDecision] = ()
    """Decisions with their probability; `candidate_action` is worked out for the candidate that is judged."""
    load: LoadHistory | None = None
    last_week: Sequence[PredictedDay] = ()
    archived: Sequence[CandidatePolicy] = ()
    """Policies that were live, or were stopped, before."""
    outcomes: Sequence[PastOutcome] = ()
    """What came of those that were promoted."""
    earlier_stops: Sequence[str] = ()
    """The stage that stopped each earlier candidate."""
    known: JobHistory = NOTHING_KNOWN
    """What the daemon knows of earlier jobs: decisions are judged on the same."""


def history_of_site(evidence: SiteEvidence, candidate: CandidatePolicy, config: Config) -> GateHistory:
    """Return what a site's database says; a part that cannot be read leaves its stage not judged.

    Raises:
        SlurmEnergyError: the candidate's policy cannot be made.
    """
    return GateHistory(
        twin=_twin(evidence, config),
        log=_log(evidence, candidate, config),
        load=_load(evidence.states, evidence.runs, config, evidence.now_seconds),
        archived=_archived(evidence.archive, candidate),
        known=evidence.known,
    )


def first_seed_of(candidate: CandidatePolicy) -> int:
    """Return where the seeds of a candidate's self-evaluation begin: elsewhere for each."""
    return crc32(candidate.candidate_id.encode()) % 9_000 * 100


def _twin(evidence: SiteEvidence, config: Config) -> TwinRuns | None:
    if evidence.world is None or evidence.held_out is None:
        return None
    return TwinRuns(
        world=load_world(evidence.world),
        make_workload=_Resampled(evidence.held_out),
        config=config,
        user_ids={state.user_name: state.user_id for state in evidence.states},
    )


@dataclass(frozen=True, slots=True)
class _Resampled:
    """The held-out jobs, drawn by user: what a candidate saves must not hang on the jobs of a few."""

    path: Path

    def __call__(self, seed: int) -> Workload:
        """Return the jobs of a seed: each user's own none, once, or several times over, as a bootstrap draws them."""
        found = _loaded(self.path)
        users = sorted({job.user for job in found.jobs})
        random = Random(seed)  # noqa: S311  # not for secrets
        drawn = [random.choice(users) for _ in users]
        jobs: list[Job] = []
        for user in drawn:
            jobs += [copy(job) for job in found.jobs if job.user == user]
        jobs = sorted(jobs, key=lambda job: job.submitted_seconds)
        for number, job in enumerate(jobs, start=1):
            job.job_id, job.after_ok, job.after_any, job.array_id = number, (), (), None
        return Workload(name=found.name, jobs=tuple(jobs), source=f"{found.source}, users drawn by seed {seed}")


@lru_cache(maxsize=2)
def _loaded(path: Path) -> Workload:
    return load_workload(path)


def _log(evidence: SiteEvidence, candidate: CandidatePolicy, config: Config) -> tuple[LoggedDecision, ...]:
    """Return measured runs with what the candidate would have done; those of names with few runs are left out."""
    alike = defaultdict(list)
    for run in evidence.runs:
        alike[run.user_id, run.name, run.gpu_type, run.gpus].append(run)
    decider = GuardedCandidate(candidate, config, known=evidence.known)
    found = []
    for (user_id, name, gpu_type, gpus), some in alike.items():
        usual = median(run.joules for run in some)
        if len(some) < _MIN_RUNS or usual <= 0.0:
            continue
        state = _idle_cluster(some[0])
        clocks = {one.gpu_type: one.sm_clock_mhz for one in decider.decide(state).clocks}
        wanted = clocks.get(gpu_type, some[0].default_clock_mhz)
        chances = _chances(some)
        found += [
            LoggedDecision(
                user=str(user_id),
                group=f"{user_id}/{name}/{gpu_type}/{gpus}",
                action=f"{run.sm_clock_mhz} MHz",
                probability=chances[run.sm_clock_mhz] if run.probability < 1.0 else 1.0,
                cost=run.joules / usual,
                candidate_action=f"{wanted} MHz",
            )
            for run in some
        ]
    return tuple(found)


def _chances(runs: Sequence[ClockedRun]) -> dict[int, float]:
    """Return how likely each clock was while a canary was there: of all policies together that chose it."""
    policies: dict[int, dict[str, float]] = defaultdict(dict)
    for run in runs:
        if run.probability < 1.0:
            policies[run.sm_clock_mhz][run.decided_by] = run.probability
    return {clock: min(1.0, sum(found.values())) for clock, found in policies.items()}


def _idle_cluster(run: ClockedRun) -> EdgeState:
    return idle_state(
        user_id=run.user_id,
        name=job_group(run.name, run.script_key),
        gpu_type=run.gpu_type,
        gpus=run.gpus,
        now_seconds=run.ended_at_seconds,
    )


def _load(
    states: Sequence[JobState], runs: Sequence[ClockedRun], config: Config, now_seconds: float
) -> LoadHistory | None:
    """Return the GPU-hours of each whole day, and what a GPU in use draws."""
    spans = [
        (state.started_at_seconds, state.ended_at_seconds, state.gpu_count)
        for state in states
        if state.started_at_seconds is not None and state.ended_at_seconds is not None and state.gpu_count
    ]
    held = sum(run.gpus * run.device_seconds for run in runs)
    if not spans or held <= 0.0:
        return None
    first = ceil(min(start for start, _, _ in spans) / _DAY_SECONDS)
    days = int(max(end for _, end, _ in spans) // _DAY_SECONDS) - first
    hours = [0.0] * max(0, days)
    for start, end, gpus in spans:
        for day in range(max(0, int(start // _DAY_SECONDS) - first), min(days, int(end // _DAY_SECONDS) - first + 1)):
            begin = (first + day) * _DAY_SECONDS
            hours[day] += gpus * max(0.0, min(end, begin + _DAY_SECONDS) - max(start, begin)) / 3600.0
    facility = _facility(config)
    return LoadHistory(
        gpu_hours=tuple(hours),
        watts_per_gpu=facility.pue * sum(run.joules for run in runs) / held,
        price_per_kwh=config.policy.price_per_kwh or _recent(facility.price, now_seconds),
        carbon_grams_per_kwh=_recent(facility.intensity, now_seconds),
    )


def _facility(config: Config) -> Facility:
    """Return the site's prices and intensities; none of both where a file cannot be read."""
    try:
        return site_facility(config.facility)
    except SlurmEnergyError:
        return Facility(pue=config.facility.pue)


def _recent(series: StepSeries | None, now_seconds: float) -> float | None:
    """Return the mean of the last 28 days, None where a part is not known."""
    return None if series is None else series.mean(now_seconds - _RECENT_DAYS * _DAY_SECONDS, now_seconds)


def _archived(folders: Sequence[Path], candidate: CandidatePolicy) -> tuple[CandidatePolicy, ...]:
    found = []
    for folder in folders[:_MAX_ARCHIVED]:
        try:
            known = read_candidate(folder)
        except SlurmEnergyError:
            continue  # of an older version, or damaged: it can no longer be compared
        if known.candidate_id != candidate.candidate_id:
            found.append(known)
    return tuple(found)
