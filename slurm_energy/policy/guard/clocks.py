"""The clock that a job may really get on one GPU type: in the table, inside the slowdown bound and every time limit."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from slurm_energy.config import GuardConfig
from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.decision import ClockChoice, Reason, RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.comparison import (
    Candidate,
    TypeComparison,
    clock_choice,
    landing_types,
    rivals_of,
    time_ratio,
)

_NORMAL = NormalDist()
_UPPER_DEVIATIONS = 1.645
"""Below which nineteen of twenty of a normal distribution lie."""
_MAX_LOG = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownRoom:
    """How much longer than at the default clock a job may take on one GPU type, by each rule; negative: no room."""

    bound: float
    """Of the user or the site."""
    time_limit: float = math.inf
    deadline: float = math.inf
    by_mean: bool = False
    """Whether bound and time limit are held against the mean over programs, and the deadline alone against each."""

    @property
    def smallest(self) -> float:
        """What all rules together leave."""
        return min(self.bound, self.time_limit, self.deadline)

    def best_of(self, table: ClockTable) -> OperatingPoint | None:
        """Return the point of least energy that breaks no rule; None where there is none."""
        if self.by_mean:
            return table.best(min(self.bound, self.time_limit), self.deadline)
        return table.best(self.smallest)

    def broken_by(self, slowdown: float, worst: float | None = None) -> tuple[Reason, ...]:
        """Return the rules that a slowdown breaks.

        Args:
            slowdown: What the bound is held against.
            worst: That of the slowest program, which the deadline is held against; None: the same.
        """
        rules = (
            (Reason.SLOWDOWN_BOUND, slowdown, self.bound),
            (Reason.TIME_LIMIT, slowdown, self.time_limit),
            (Reason.DEADLINE, slowdown if worst is None else worst, self.deadline),
        )
        return tuple(reason for reason, needed, room in rules if not needed <= room)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockVerdict:
    """The clock that was allowed, None for the default, and why it is not the one proposed."""

    choice: ClockChoice | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()


def allowed_clock(
    gpu_type: GpuTypeName, proposed_mhz: int, room: SlowdownRoom, min_energy_saving: float, comparison: TypeComparison
) -> ClockVerdict:
    """Return the proposed clock if every rule allows it, else the best clock that they allow.

    The proposal is moved to the nearest supported clock. Slowdown and saving are the guard's own figures, against the
    default clock of the site's boards and over every measured workload; what the policy predicted does not count.
    """
    row = CATALOG.get(gpu_type)
    table, every = comparison.clock_table(gpu_type), comparison.all_clocks(gpu_type)
    if row is None or table is None or every is None:
        note = f"{gpu_type}: energy at lower clocks is unknown, the default clock stays"
        return ClockVerdict(choice=None, reasons=(Reason.UNKNOWN_GPU_TYPE,), notes=(note,))
    nearest = row.nearest_supported_clock_mhz(proposed_mhz)
    point = None if nearest is None else table.at(nearest)
    reasons: list[Reason] = []
    notes: list[str] = []
    if nearest != proposed_mhz:
        reasons.append(Reason.CLOCK_TABLE)
        notes.append(f"{gpu_type}: {proposed_mhz} MHz is not supported, {nearest} MHz is the nearest")
    known = None if nearest is None else every.at(nearest)
    slowest = every.points[0] if known is None else known
    broken = room.broken_by(slowest.slowdown, slowest.worst_slowdown)
    if known is not None and point is None:
        reasons += (*broken, Reason.POOR_EXCHANGE)
        point = room.best_of(table)
        notes.append(f"{exchange_text(gpu_type, known, comparison)}: {_clock_words(point)}")
    elif broken or point is None:
        reasons += broken or (Reason.CLOCK_TABLE,)
        point = room.best_of(table)
        longer = slowest.worst_slowdown if broken == (Reason.DEADLINE,) else slowest.slowdown
        notes.append(
            f"{gpu_type}: {nearest} MHz may take {longer:.1%} longer, {max(0.0, room.smallest):.1%} is allowed: "
            f"{_clock_words(point)}"
        )
    if point is not None and _saves_too_little(point, min_energy_saving):
        reasons.append(Reason.NO_SAVING)
        point = None
    choice = clock_choice(gpu_type, point, comparison.limits)
    return ClockVerdict(choice=choice, reasons=tuple(reasons), notes=tuple(notes))


def exchange_text(gpu_type: GpuTypeName, point: OperatingPoint, comparison: TypeComparison) -> str:
    """Return why a clock is not worth its time, both sides of it."""
    return (
        f"{gpu_type}: {point.sm_clock_mhz} MHz takes {point.mean_slowdown:+.1%} time for {point.energy_change:+.1%} "
        f"energy in the mean of measured programs; {comparison.terms.sentence(comparison.mean_watts(gpu_type))}"
    )


def _clock_words(point: OperatingPoint | None) -> str:
    is_default = point is None or point.sm_clock_mhz == point.default_clock_mhz
    return "the default clock" if point is None or is_default else f"{point.sm_clock_mhz} MHz"


def _saves_too_little(point: OperatingPoint, min_energy_saving: float) -> bool:
    return point.sm_clock_mhz != point.default_clock_mhz and -point.energy_change < min_energy_saving


def time_limit_seconds(job: JobRequest, partition: PartitionState) -> float:
    """Return the limit a job runs under in a partition: its own, else the default, else the longest allowed."""
    limits = (job.time_limit_minutes, partition.default_time_minutes, partition.max_time_minutes)
    minutes = next((minutes for minutes in limits if minutes is not None), math.inf)
    return 60.0 * minutes if minutes >= 0.0 else 0.0


def expected_runtime(case: Case, guard: GuardConfig) -> RuntimeEstimate | None:
    """Return history's estimate, else the site's share of the shortest time limit; None for no limit at all."""
    if case.runtime is not None:
        return case.runtime
    limit = _shortest_limit(case.job, [one for one in case.candidates if one.is_submitted_to])
    if limit == math.inf:
        return None
    seconds = guard.unknown_runtime_share * limit
    return RuntimeEstimate(seconds=seconds, upper_seconds=seconds, source="time-limit")


def slowdown_room(
    gpu_type: GpuTypeName,
    case: Case,
    where: Sequence[Candidate],
    guard: GuardConfig,
    *,
    is_sent: bool = False,
) -> SlowdownRoom:
    """Return what each rule leaves on one GPU type.

    Args:
        gpu_type: The type in question.
        case: The job on its cluster.
        where: The candidates with this type in which the job may land.
        guard: The site's margins.
        is_sent: Whether the job is sent elsewhere than where Slurm would start it.
    """
    type_bound = case.type_bound
    ratio = type_bound.ratio(gpu_type) if is_sent else 1.0
    left = type_bound.left(gpu_type) if is_sent else case.max_slowdown
    limit = _shortest_limit(case.job, where)
    predicted = _predicted_seconds(gpu_type, case, limit, guard.unknown_runtime_share * max(1.0, ratio or 1.0))
    deadline = case.job.options.deadline_seconds
    time_limit = _room(limit * (1.0 - guard.time_limit_margin), predicted)
    is_known = case.runtime is not None and case.runtime.is_known
    if case.clock_terms.by_mean and case.runtime is not None and is_known:
        spread = _spread(case.runtime)
        likely = _likely_room(limit * (1.0 - guard.time_limit_margin), predicted, spread, guard.max_added_timeouts)
        time_limit = max(time_limit, likely)
    if case.limit_room > 0.0 and not is_known:
        # What other jobs leave of their limits says nothing of a name whose run times are known.
        # On a slower type the run is that much nearer to its limit.
        time_limit = max(time_limit, (1.0 + case.limit_room) / max(1.0, ratio or 1.0) - 1.0)
    return SlowdownRoom(
        by_mean=case.clock_terms.by_mean,
        bound=-1.0 if left is None else left,
        time_limit=time_limit,
        deadline=math.inf if deadline is None else _deadline_room(deadline, predicted, case, where, guard),
    )


def _predicted_seconds(gpu_type: GpuTypeName, case: Case, limit_seconds: float, unknown_share: float) -> float:
    """Return when the job has ended at the default clock in about 19 of 20 cases, where runs of its name are known.

    Where history does not say on which type the earlier jobs ran, on a slower type the job is taken to need longer by
    as much as that type is slower than the fastest one the job can land on. Tables never make it shorter.
    """
    assumed = math.inf if limit_seconds == math.inf else unknown_share * limit_seconds
    if case.runtime is None:
        return assumed
    if case.runtime.gpu_type is not None:
        cost = case.comparison.cost(gpu_type, case.runtime.gpu_type)
        if cost is not None:
            least = 0.0 if cost.is_by_runs else 1.0
            return case.runtime.upper_seconds * max(least, cost.worst_time_ratio)
    rivals = rivals_of(case.candidates, case.comparison)
    ratio = None if rivals is None else time_ratio(gpu_type, rivals, case.comparison)
    upper = case.runtime.upper_seconds * (ratio or 1.0)
    # What other jobs took says when this one may end earlier; how much of a limit a first run needs, the site says.
    return upper if case.runtime.is_known else min(upper, assumed)


def _spread(runtime: RuntimeEstimate) -> float:
    """Return the standard deviation of the logarithm of a run time; 0 where it is not known."""
    if not 0.0 < runtime.seconds < runtime.upper_seconds < math.inf:
        return 0.0
    return math.log(runtime.upper_seconds / runtime.seconds) / _UPPER_DEVIATIONS


def _likely_room(limit_seconds: float, upper_seconds: float, spread: float, added: float) -> float:
    """Return by what ratio a run may grow before it is `added` more likely to reach its limit; -1 where none is.

    Run times of one name spread so widely that the upper end of many is their limit: they have no room by that end,
    though hardly one of a hundred would newly reach its limit by a run 5 % longer.

    Args:
        limit_seconds: The limit, less its margin.
        upper_seconds: The end of about nineteen of twenty runs.
        spread: Standard deviation of the logarithm of the run time.
        added: Probability.
    """
    if spread <= 0.0 or not 0.0 < limit_seconds < math.inf or not 0.0 < upper_seconds < math.inf:
        return -1.0
    at_limit = math.log(limit_seconds / upper_seconds) / spread + _UPPER_DEVIATIONS
    inside = _NORMAL.cdf(at_limit) - added
    if not 0.0 < inside < 1.0:
        return -1.0
    return math.expm1(min(spread * (at_limit - _NORMAL.inv_cdf(inside)), _MAX_LOG))


def _deadline_room(
    deadline_seconds: float,
    predicted_seconds: float,
    case: Case,
    where: Sequence[Candidate],
    guard: GuardConfig,
) -> float:
    """Return the room before the deadline; none for a job that waits, since it is not known when it will start."""
    if not all(candidate.has_idle_room for candidate in where):
        return -1.0
    left = (deadline_seconds - case.now_seconds) * (1.0 - guard.time_limit_margin)
    return _room(left, predicted_seconds) if left > 0.0 else -1.0


def _room(seconds: float, predicted_seconds: float) -> float:
    """Return by what ratio the predicted time may grow; infinite where nothing limits it."""
    if seconds == math.inf:
        return math.inf
    if predicted_seconds <= 0.0:
        return math.inf if seconds > 0.0 else -1.0
    return seconds / predicted_seconds - 1.0


def _shortest_limit(job: JobRequest, candidates: Sequence[Candidate]) -> float:
    return min((time_limit_seconds(job, candidate.partition) for candidate in candidates), default=math.inf)


def unknown_reasons(
    candidates: Iterable[Candidate], comparison: TypeComparison, choices: Sequence[ClockChoice]
) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """Return the reason and the sentences for GPU types of whose lower clocks nothing is known; empty for none.

    Args:
        candidates: Where the job may land.
        comparison: For the job: its tables, its site's, or what is expected.
        choices: The clocks that it gets: what trials in runs of its name found needs no table.
    """
    chosen = {choice.gpu_type for choice in choices}
    names = [name for name in landing_types(candidates) if name not in chosen and comparison.all_clocks(name) is None]
    notes = tuple(f"{name}: energy at lower clocks is unknown, no clock is chosen" for name in names)
    return ((Reason.UNKNOWN_GPU_TYPE,) if names else (), notes)
