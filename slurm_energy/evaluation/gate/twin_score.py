"""What a candidate saves in the twin: fresh seeds until the figure is known well enough, and how true the twin is."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log
from typing import NamedTuple

import numpy as np

from slurm_energy.config import Config
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import CATALOG, gpu_type_from_slurm_type
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.gate.off_policy import saving_score
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageResult, StageVerdict, replicate_interval
from slurm_energy.evaluation.metrics import Metrics, metrics_of
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.policy.registry import create_policy
from slurm_energy.twin.adapters.served import ServedPolicy
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import World
from slurm_energy.twin.world.device_model import DeviceModel


class TwinOutcome(NamedTuple):
    """What came of one seed, candidate against incumbent on the same jobs."""

    saving: float
    """Of the energy per unit of work, as a ratio."""
    slower: float
    """Mean turnaround, as a ratio: 0.02 is 2 % longer."""
    timeouts: int
    """Jobs more that were cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinRuns:
    """A cluster's twin with the jobs that it is given."""

    world: World
    make_workload: Callable[[int], Workload]
    """Makes the jobs of a seed, fresh objects at each call."""
    config: Config
    horizon_seconds: float | None = None
    user_ids: Mapping[str, int] = field(default_factory=dict)
    """Of the users in the workload, by login name: a candidate's clocks of names are by number."""

    def compare(self, candidate: CandidatePolicy, incumbent: CandidatePolicy, seed: int) -> TwinOutcome:
        """Return what came of a seed.

        Raises:
            EvaluationError: a run did no work.
        """
        mine, theirs = self._metrics(candidate, seed), self._metrics(incumbent, seed)
        if not mine.true_units or not theirs.true_units:
            raise EvaluationError(f"no work was done in the twin of {self.world.name} with seed {seed}")
        saving = 1.0 - (mine.total_joules / mine.true_units) / (theirs.total_joules / theirs.true_units)
        return TwinOutcome(
            saving=saving,
            slower=mine.system_job_seconds / max(theirs.system_job_seconds, 1e-9) - 1.0,
            timeouts=mine.jobs_by_state.get("TIMEOUT", 0) - theirs.jobs_by_state.get("TIMEOUT", 0),
        )

    def replay(self, candidate: CandidatePolicy, seed: int) -> tuple[Outcome, Workload]:
        """Return what became of a seed's jobs under a candidate."""
        config = candidate.configured(self.config)
        workload = self.make_workload(seed)
        logins = {user_id: login for login, user_id in self.user_ids.items()}
        clocks = {
            (logins[int(user_id)], group): _for_devices(found, self.world)
            for (user_id, group), found in candidate.clocks_by_name().items()
            if int(user_id) in logins
        }
        rule = ServedPolicy(create_policy(config), config, clocks)
        return run(self.world, workload, rule, seed=seed, horizon_seconds=self.horizon_seconds), workload

    def _metrics(self, candidate: CandidatePolicy, seed: int) -> Metrics:
        outcome, workload = self.replay(candidate, seed)
        return metrics_of(outcome, self.world, workload.jobs[: len(outcome.job_id)])


def _for_devices(clocks: Mapping[GpuTypeName, LearnedClock], world: World) -> Mapping[GpuTypeName, LearnedClock]:
    """Return clocks with those of the boards that stand for a GPU type in the twin: the same share of the highest."""
    found = dict(clocks)
    for gpu_type, clock in clocks.items():
        device = device_of(gpu_type, world)
        known = None if device is None else gpu_type_from_slurm_type(device.name)
        row = None if known is None else CATALOG.get(known)
        if known is None or known in found or row is None or not row.sm_clocks_mhz:
            continue
        highest = max(row.sm_clocks_mhz)
        nearest = row.nearest_supported_clock_mhz(highest * clock.sm_clock_mhz / clock.default_clock_mhz)
        if nearest is not None:
            found[known] = replace(clock, sm_clock_mhz=nearest, default_clock_mhz=highest)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """When the self-evaluation ends."""

    tolerance: float = 0.005
    """Standard error of the mean of the seeds that is good enough: more seeds make it less, more jobs do not."""
    min_seeds: int = 3
    max_seeds: int = 20
    seconds: float = 900.0
    max_slowdown: float = 0.05
    """Longer mean turnaround than this stops the candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinScore:
    """What the loop found."""

    outcomes: tuple[TwinOutcome, ...]
    saving: FigureInterval
    ended: str
    """Why it ended."""
    within: bool
    """Whether the mean's standard error over seeds is within the tolerance."""


def self_evaluation(
    compare: Callable[[int], TwinOutcome],
    limits: LoopLimits,
    first_seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> TwinScore:
    """Return what fresh seeds say, one after the other until they say it well enough.

    All seeds draw from the same jobs, as a bootstrap does: how far they are apart is how uncertain the saving is, and
    more of them do not make it surer. The loop ends as soon as their mean is known well enough, or with the budget of
    seeds or seconds, and says which.

    Args:
        compare: Runs candidate and incumbent on a seed.
        limits: Tolerance and budget.
        first_seed: The seeds are this one and those after it.
        clock: Seconds.
    """
    began, found = clock(), list[TwinOutcome]()
    ended, within = f"the budget of {limits.max_seeds} seeds is spent", False
    while len(found) < limits.max_seeds:
        found.append(compare(first_seed + len(found)))
        savings = [outcome.saving for outcome in found]
        error = float(np.std(savings, ddof=1)) / len(savings) ** 0.5 if len(savings) > 1 else inf
        if len(found) >= limits.min_seeds and error <= limits.tolerance:
            ended, within = f"the standard error of {error:.2%} is within the tolerance of {limits.tolerance:.2%}", True
            break
        if clock() - began >= limits.seconds:
            ended = f"the budget of {limits.seconds:.0f} s is spent"
            break
    return TwinScore(
        outcomes=tuple(found), saving=replicate_interval([one.saving for one in found]), ended=ended, within=within
    )


def twin_result(found: TwinScore | None, limits: LoopLimits) -> StageResult:
    """Return what the twin says; a candidate that surely costs energy, or makes jobs late, is stopped."""
    if found is None:
        return StageResult(stage="twin", verdict=StageVerdict.NOT_JUDGED, summary="there is no twin of this cluster")
    if len(found.outcomes) < limits.min_seeds:
        return StageResult(
            stage="twin",
            verdict=StageVerdict.NOT_JUDGED,
            summary=f"{len(found.outcomes)} of at least {limits.min_seeds} seeds were run: {found.ended}",
        )
    saving = found.saving
    slower = replicate_interval([one.slower for one in found.outcomes])
    timeouts = sum(one.timeouts for one in found.outcomes)
    objections = []
    if not isfinite(saving.mean):
        objections.append("its energy is no number")
    if saving.high < 0.0:
        objections.append(f"it needs {-saving.mean:.1%} more energy, outside the interval")
    if slower.low > limits.max_slowdown:
        objections.append(f"jobs stay {slower.mean:.1%} longer in the system, {limits.max_slowdown:.0%} is allowed")
    if timeouts > 0:
        objections.append(f"{timeouts} more jobs are cut off by their time limit")
    text = "; ".join(objections) or f"{saving.mean:+.2%} energy saved ({saving.low:+.2%} to {saving.high:+.2%})"
    notes = []
    if not objections and all(one.saving == 0.0 and one.slower == 0.0 for one in found.outcomes):
        notes.append("every replay ended alike: the twin does not know what changes, so that canary alone can judge it")
    return StageResult(
        stage="twin",
        verdict=StageVerdict.STOPPED if objections else StageVerdict.PASSED,
        summary=f"{text}; {len(found.outcomes)} seeds: {found.ended}",
        score=0.0 if objections else saving_score(saving),
        figures={
            "seeds": float(len(found.outcomes)),
            "standard_error": saving.error,
            "within_tolerance": float(found.within),
            "timeouts_more": float(timeouts),
        },
        intervals={"saving in the twin": saving, "longer in the system": slower},
        series={"saving by seed": tuple(one.saving for one in found.outcomes)},
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedDay:
    """Energy of one past day: what the twin made of its jobs under the incumbent, and what was measured."""

    twin_joules: float
    measured_joules: float


def reproducibility_result(
    digests: Sequence[str],
    days: Sequence[PredictedDay],
    failures: Mapping[str, int],
    max_error: float,
) -> StageResult:
    """Return whether a candidate repeats itself, and whether the twin shows what happened last week.

    Args:
        digests: Of its decisions over the probe, from runs that must be alike: one here, one in the sandbox's process.
        days: The last week's.
        failures: How often earlier candidates were stopped, by stage.
        max_error: Median error of the twin from which on it says nothing.
    """
    alike = len(set(digests)) == 1
    figures = {f"earlier_stops_{name.replace('-', '_')}": float(number) for name, number in failures.items()}
    notes: tuple[str, ...] = ()
    intervals = {}
    median = None
    ratios = [log(day.twin_joules / day.measured_joules) for day in days if day.measured_joules > 0 < day.twin_joules]
    if ratios:
        quantiles = [float(np.exp(value) - 1.0) for value in np.quantile(ratios, (0.1, 0.5, 0.9))]
        median = quantiles[1]
        figures |= {"twin_error_p10": quantiles[0], "twin_error_median": median, "twin_error_p90": quantiles[2]}
        intervals["error of the twin last week"] = FigureInterval(mean=median, low=quantiles[0], high=quantiles[2])
        notes = (f"the twin was off by {median:+.1%} in the median over {len(ratios)} days",)
    else:
        notes = ("no day of last week was measured: how true the twin is, is not known",)
    objections = [] if alike else ["the same states and seed gave other decisions"]
    if median is not None and abs(median) > max_error:
        objections.append(f"the twin is {median:+.0%} off last week, {max_error:.0%} is allowed: calibrate it")
    return StageResult(
        stage="reproducibility",
        verdict=StageVerdict.STOPPED if objections else StageVerdict.PASSED,
        summary="; ".join(objections) or f"the same decisions in {len(digests)} runs; {notes[0]}",
        score=0.0 if objections else 1.0 - 0.5 * min(1.0, abs(median or 0.0) / max_error),
        figures=figures,
        intervals=intervals,
        notes=notes,
    )


def device_of(gpu_type: str, world: World) -> DeviceModel | None:
    """Return the world's device that stands for a GPU type."""
    known = gpu_type_from_slurm_type(gpu_type) or gpu_type
    return next(
        (device for name, device in world.devices.items() if known == name or known.startswith(f"{name}-")), None
    )
