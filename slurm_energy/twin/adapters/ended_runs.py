"""What a served policy has seen of ended runs in the twin, given to the estimators that serve the daemon."""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from slurm_energy.config import Config
from slurm_energy.domain.decision import ClockChoice, RuntimeEstimate
from slurm_energy.domain.gpu_count import GpuScaling
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import ClockTrial, LearnedClock, NamedTrial
from slurm_energy.domain.work import FailedRuns, MeasuredRun, WorkEstimate
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.estimation.decided_runs import COUNTED_RUNS, DecidedRun, measured_slowdown
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.job_history import NameOf
from slurm_energy.estimation.learned_clocks import MAX_RUNS, learned_clocks
from slurm_energy.estimation.run_time import EndedRun
from slurm_energy.estimation.site_clocks import EndedJobs, SiteClocks, site_clocks
from slurm_energy.estimation.site_runs import SiteRuns
from slurm_energy.policy.gnn.outcomes.inference import OutcomeNetwork
from slurm_energy.policy.gnn.outcomes.site import SitePredictions, run_records
from slurm_energy.policy.placement import JobTrials, PlaceInfo
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.knowledge import KnownEnd

MAX_TRIED_RUNS = 4 * MAX_RUNS
"""Of a name, whose trials are kept: the latest on several GPU types."""
_CLOCKS_SECONDS = 3 * 3600.0
"""Between two looks at what all runs say of clocks."""
_FAILED = frozenset({"FAILED", "TIMEOUT"})
_CUT_OFF = frozenset({"TIMEOUT", "CANCELLED"})


class _TriedRun(NamedTuple):
    end: KnownEnd
    records: tuple[ClockTrial, ...]


class ServedRuns:
    """Ended runs of the twin, given to the estimators that serve the daemon."""

    def __init__(self) -> None:
        self._site = SiteRuns()
        self._tried: dict[tuple[str, str], deque[_TriedRun]] = {}
        self._decided_runs: deque[DecidedRun] = deque(maxlen=COUNTED_RUNS)
        self._site_clocks: SiteClocks | None = None
        self._clocks_at_seconds = -inf

    def learn(
        self,
        end: KnownEnd,
        gpu_type: GpuTypeName,
        place: PlaceInfo,
        clock: ClockChoice | None,
        trials: JobTrials | None = None,
        *,
        is_decided: bool = False,
    ) -> None:
        """Take in a job that completed in one go at the clock that was decided, was cut off, or failed.

        Args:
            end: What is known of it.
            gpu_type: On which it ran.
            place: Where it ran.
            clock: What was decided for the type, None for its default clock.
            trials: What was tried while it ran.
            is_decided: Whether its clock was decided, be it the default one.
        """
        job, key = end.job, run_key(end.job)
        if trials is not None and trials.records and job.name:
            runs = self._tried.setdefault((job.user, job_group(job.name, key)), deque(maxlen=MAX_TRIED_RUNS))
            runs.appendleft(_TriedRun(end=end, records=tuple(trials.records)))
        kept_mhz = None if trials is None else trials.ladder.kept_clock_mhz
        ran_mhz = None if clock is None else clock.sm_clock_mhz
        tried = None
        if trials is not None:
            ran_mhz = trials.ladder.running_clock_mhz
            ran_mhz = None if ran_mhz == trials.clocks_mhz[-1] else ran_mhz
            tried = measured_slowdown(gpu_type, ran_mhz, trials.records)
        predicted = 0.0 if clock is None or ran_mhz is None else clock.predicted_slowdown
        if kept_mhz is not None:
            clock = None  # as in the database, where what was predicted belongs to the decided clock alone
        if job.name and end.state in _FAILED:
            self._site.observe(
                FailedRuns(user=job.user, name=job.name, gpu_type=gpu_type, runs=1, script_key=key), job.script
            )
        seconds = end.ended_seconds - end.begun_seconds
        if end.state not in {"COMPLETED", *_CUT_OFF} or end.restarts or end.shared_gpu or seconds <= 0.0:
            return
        slowed, change = (0.0, 0.0) if clock is None else (clock.predicted_slowdown, clock.predicted_energy_change)
        self._site.observe(
            EndedRun(
                user=job.user,
                name=job_group(job.name, key),
                seconds=end.run_seconds / (1.0 + slowed),
                limit_seconds=job.time_limit_seconds if job.time_limit_seconds < inf else None,
                cut_off=end.state in _CUT_OFF,
                gpu_type=gpu_type,
                gpus=end.gpus if job.asked_gpus else None,
                submitted_at_seconds=job.submitted_seconds,
                ended_at_seconds=end.ended_seconds,
                real_seconds=end.run_seconds,
                slowdown=slowed if tried is None else tried,
            ),
            job.script,
        )
        if end.state == "COMPLETED" and is_decided and (tried is not None or kept_mhz is None):
            self._decided_runs.append(
                DecidedRun(
                    user=job.user,
                    gpu_seconds=end.gpus * seconds,
                    ended_at_seconds=end.ended_seconds,
                    slowdown=predicted if tried is None else tried,
                    is_slowed=ran_mhz is not None,
                    is_measured=tried is not None,
                )
            )
        joules = end.energy_joules - place.free_watts * end.gpus * (end.begun_seconds - end.started_seconds)
        if end.state != "COMPLETED" or not job.name or joules <= 0.0 or kept_mhz is not None:
            return
        at_default = seconds / (1.0 + slowed / 2.0)
        self._site.observe(
            MeasuredRun(
                user=job.user,
                name=job.name,
                gpu_type=gpu_type,
                gpus=end.gpus,
                seconds=at_default,
                watts=joules / (1.0 + change) / (at_default * end.gpus),
                ended_at_seconds=end.ended_seconds,
                slowed=slowed,
                script_key=key,
            ),
            job.script,
        )

    def clocks_of(self, job: Job) -> Mapping[GpuTypeName, LearnedClock]:
        """Return what trials in runs of the job's name measured."""
        runs = self._tried.get((job.user, job_group(job.name, run_key(job)))) if job.name else None
        return self._learned(runs) if runs else {}

    @staticmethod
    def _learned(runs: Iterable[_TriedRun]) -> Mapping[GpuTypeName, LearnedClock]:
        trials = [
            NamedTrial(
                user_id=0,
                name=run.end.name,
                script_key=run_key(run.end.job),
                run=run.end.job_id,
                ended_at_seconds=run.end.ended_seconds,
                trial=record,
            )
            for run in runs
            for record in run.records
        ]
        return next((clocks for _, _, clocks in learned_clocks(trials)), {})

    def site_clocks(self, config: Config, now_seconds: float) -> SiteClocks | None:
        """Return what the site's runs say of clocks; None where each job keeps the bound. Made every three hours."""
        if config.policy.slowdown_bound != "mean":
            return None
        if self._site_clocks is None or now_seconds - self._clocks_at_seconds >= _CLOCKS_SECONDS:
            self._clocks_at_seconds = now_seconds
            learned = [(user, group, self._learned(runs)) for (user, group), runs in self._tried.items()]
            bounds = (config.policy.max_slowdown, config.policy.saver_max_slowdown)
            runs = self._site.measured
            ended = EndedJobs(timed=self._site.timed_runs(), decided=self._decided_runs)
            self._site_clocks = site_clocks(learned, runs, bounds, site_board_limits(config), now_seconds, ended)
        return self._site_clocks

    def predictions(self, network: OutcomeNetwork, limits: BoardLimits, now_seconds: float) -> SitePredictions:
        """Return what a network makes of all runs."""
        clocks: dict[NameOf, Mapping[GpuTypeName, LearnedClock]] = {
            name: self._learned(runs) for name, runs in self._tried.items()
        }
        records = list(run_records(self._site.measured, self._site.scripts, clocks))
        return SitePredictions(network, records, limits, now_seconds)

    def scaling(self, job: Job) -> GpuScaling | None:
        """Return how a job's work scales with the number of GPUs, by runs whose users named several."""
        return self._site.history.scaling_of(job.user, job.name, job.script)

    def about(self, job: Job, now_seconds: float) -> tuple[RuntimeEstimate | None, WorkEstimate | None]:
        """Return what is known of a job that is being submitted: how long it takes, and how its work compares."""
        asked = job.asked_limit_seconds or job.time_limit_seconds
        limit = asked if asked < inf else None
        return self._site.look(now_seconds).expected(job.user, job.name, job.script, limit)


def run_key(job: Job) -> str | None:
    """Return the key of a job's script, None where it has none."""
    return None if job.script is None else job.script.key or None
