"""How a job's GPU types and partitions compare: by runs of its name if they say enough, else by tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp
from typing import NamedTuple

from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.decision import ClockChoice
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.predicted_clocks import PredictedClocks, PredictedWork
from slurm_energy.domain.work import WorkEstimate
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.operating_point import (
    ClockTable,
    OperatingPoint,
    clock_table_of,
    default_clock_only,
    follows_the_clock,
    mean_measured_watts,
    min_measured_watts,
)
from slurm_energy.energy_model.relative_speed import RelativeCost, WorkSource, relative_cost
from slurm_energy.policy.site.clock_terms import EACH_JOB, ClockTerms, measured_by, worth_their_time

ENOUGH_RUNS = 2
"""Runs on a type from which on something is known of a name there."""
_NINE_OF_TEN = 1.28
"""Standard deviations above the mean of a normal distribution below which nine of ten lie."""
_FAR_LESS = 0.75
"""Boards of one type and sweeps of one program differ by a tenth at most."""
MAX_LOG_STD = 0.4
"""Standard deviation of ln(time ratio) above which runs say too little, and the tables are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeComparison:
    """Compares GPU types for one job."""

    limits: BoardLimits = field(default_factory=BoardLimits)
    work: WorkEstimate | None = None
    """What runs of the job's name say; None for a name without."""
    terms: ClockTerms = EACH_JOB
    """What the site asks of a clock."""
    clocks: Mapping[GpuTypeName, ClockTable] = field(default_factory=dict)
    """What the site's own runs say that clocks do to this job, in the place of the tables."""
    predicted: PredictedWork | None = None
    """What a network expects of the job at lower clocks; None: the tables count."""

    def cost(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> RelativeCost | None:
        """Return what the work needs on a type relative to another at default clocks; None where that is not known.

        The tables' worst ratio is over all workloads that were measured. By runs it is one that nine of ten ratios stay
        below, if the doubt is right; energy is the mean over what it may be. Both grow with the doubt.
        """
        work = self.work
        doubt = None if work is None else work.doubt(gpu_type, reference)
        if work is None or doubt is None or doubt > MAX_LOG_STD or gpu_type == reference:
            return relative_cost(gpu_type, reference, self.limits)
        time_ratio = work.time_ratio(gpu_type, reference)
        has_runs = all(work.runs_by_type.get(name, 0) >= ENOUGH_RUNS for name in (gpu_type, reference))
        return RelativeCost(
            time_ratio=time_ratio,
            worst_time_ratio=time_ratio * exp(_NINE_OF_TEN * doubt),
            energy_ratio=time_ratio * exp(doubt**2 / 2.0) * work.watts_ratio(gpu_type, reference),
            source=_source(work, has_runs),
        )

    def clock_table(self, gpu_type: GpuTypeName) -> ClockTable | None:
        """Return what clocks of a type do to the work; None where the type was not measured at several clocks.

        The tables hold for work that behaves like what was measured. A name whose own runs draw far less does not: the
        power limit never holds it back, and its time may go with the inverse of the clock. Where each job keeps the
        bound, it keeps the default clock. Clocks that save too little for the time that they take are left out.
        """
        table = self.all_clocks(gpu_type)
        return None if table is None else worth_their_time(table, self.terms, self.mean_watts(gpu_type))

    def all_clocks(self, gpu_type: GpuTypeName) -> ClockTable | None:
        """Return the same with the clocks that save too little for their time."""
        own = self.clocks.get(gpu_type)
        if own is not None:
            return own
        table = clock_table_of(gpu_type, power_limit_watts=self.limits.watts(gpu_type))
        if table is not None and self.draws_less(gpu_type):
            # In the mean such work counts like all other; but it must end in time also if it goes with the clock.
            table = follows_the_clock(table) if self.terms.by_mean else default_clock_only(table)
        expected = self.expected(gpu_type)
        if expected is not None:
            table = _expected_table(gpu_type, table, expected)
        return None if table is None else measured_by(table, self.terms)

    def expected(self, gpu_type: GpuTypeName) -> PredictedClocks | None:
        """Return what a network expects of the job's clocks on a type; None where it was not asked."""
        return None if self.predicted is None else self.predicted.clocks.get(gpu_type)

    def mean_watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the mean power of a type's measured programs at its default clock; None where it was not measured."""
        return mean_measured_watts(gpu_type, self.limits.watts(gpu_type))

    def draws_less(self, gpu_type: GpuTypeName) -> bool:
        """Return whether nine of ten runs of the name on a type draw far less than all that was measured there."""
        own, measured = self.watts(gpu_type), min_measured_watts(gpu_type, self.limits.watts(gpu_type))
        if own is None or measured is None or self.work is None:
            return False
        return own * exp(_NINE_OF_TEN * self.work.watts_spread) < _FAR_LESS * measured

    def watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the power of one GPU at the default clock by the name's own runs there; None where they are few."""
        if self.work is None or self.work.runs_by_type.get(gpu_type, 0) < ENOUGH_RUNS:
            return None
        return self.work.watts(gpu_type)


@lru_cache(maxsize=1024)
def _expected_table(gpu_type: GpuTypeName, measured: ClockTable | None, expected: PredictedClocks) -> ClockTable | None:
    """Return a network's expectation at the clocks that may be chosen, in the place of the mean over programs.

    The worst case stays that of the slowest measured program: one of ten jobs takes longer than the network's upper
    quantile, and what was promised to a user holds for each. Where nothing was measured it goes with the clock.

    Args:
        gpu_type: Catalogue name.
        measured: The type's table: its clocks may be chosen. None: all that the driver accepts.
        expected: Of the job.
    """
    row = CATALOG.get(gpu_type)
    clocks = () if row is None else row.sm_clocks_mhz
    if measured is not None:
        clocks = tuple(point.sm_clock_mhz for point in measured.points)
    if not clocks or row is None or clocks[-1] != row.default_sm_clock_mhz:
        return measured
    points = []
    for clock in clocks:
        outcome = expected.at(clock / clocks[-1])
        if outcome is not None:
            slowdown, upper, energy_change = outcome
            known = None if measured is None else measured.at(clock)
            worst = max(upper, clocks[-1] / clock - 1.0 if known is None else known.worst_slowdown)
            points.append(
                OperatingPoint(
                    sm_clock_mhz=clock,
                    default_clock_mhz=clocks[-1],
                    slowdown=worst,
                    worst_slowdown=worst,
                    mean_slowdown=slowdown,
                    energy_change=energy_change,
                    source="model",
                )
            )
    return ClockTable(points)


def _source(work: WorkEstimate, has_runs: bool) -> WorkSource:
    if has_runs:
        return "runs of this name"
    return "names that draw alike" if work.runs_by_type else "jobs with like scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A partition the job may start in, with the GPU types found there."""

    partition: PartitionState
    gpu_types: tuple[GpuTypeName, ...]
    """Catalogue names; types the catalogue does not know are left out."""
    has_idle_room: bool
    """Whether the job could start there now, as far as the snapshot tells."""
    may_be_named: bool = True
    """Whether the answer may send the job there."""
    is_submitted_to: bool = True
    """Whether the job goes there as long as the answer names no partitions."""


def landing_types(candidates: Iterable[Candidate]) -> tuple[GpuTypeName, ...]:
    """Return the GPU types of all candidates, each once, in their order."""
    return tuple(dict.fromkeys(name for candidate in candidates for name in candidate.gpu_types))


def landing_on(candidates: Iterable[Candidate], partitions: tuple[PartitionName, ...] | None) -> tuple[Candidate, ...]:
    """Return the candidates in which the job can start: those named, then those it was submitted to.

    Named partitions are only put first: where they have no room when Slurm looks, the job starts in one of its own.
    """
    every = tuple(candidates)
    tried = first_tried(every, partitions)
    return (
        (*tried, *(one for one in every if one.is_submitted_to and one.partition.name not in partitions))
        if partitions
        else tried
    )


def first_tried(candidates: Iterable[Candidate], partitions: tuple[PartitionName, ...] | None) -> tuple[Candidate, ...]:
    """Return the candidates that Slurm tries before all others: those named, else those it was submitted to."""
    if partitions is None:
        return tuple(candidate for candidate in candidates if candidate.is_submitted_to)
    return tuple(candidate for candidate in candidates if candidate.partition.name in partitions)


def with_room(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that may be named, in which the job could start now, and whose GPU types are known."""
    return tuple(
        candidate
        for candidate in candidates
        if candidate.may_be_named and candidate.has_idle_room and candidate.gpu_types
    )


class Rivals(NamedTuple):
    """GPU types on which the job could run now."""

    types: tuple[GpuTypeName, ...]
    fastest: GpuTypeName
    """In the mean over what their speeds may be."""


def rivals_of(candidates: Sequence[Candidate], comparison: TypeComparison) -> Rivals | None:
    """Return the GPU types of some candidates; None when one cannot be compared with the fastest, or there is none."""
    types = tuple(dict.fromkeys(name for candidate in candidates for name in candidate.gpu_types))
    best: GpuTypeName | None = None
    for name in sorted(types):  # the fastest is the same in whatever order partitions are listed
        if best is None:
            best = name
            continue
        cost = comparison.cost(name, best)
        if cost is None:
            return None
        if cost.time_ratio < 1.0:
            best = name
    return None if best is None else Rivals(types, best)


def time_ratio(gpu_type: GpuTypeName, rivals: Rivals, comparison: TypeComparison) -> float | None:
    """Return how many times as long work may take on a type as on any of its rivals, at least 1; None if unknown.

    Each is compared directly: what runs say of one pair and tables of another need not fit together. The fastest has 1.
    """
    worst = 1.0
    for other in () if gpu_type == rivals.fastest else rivals.types:
        cost = comparison.cost(gpu_type, other)
        if cost is None:
            return None
        worst = max(worst, cost.worst_time_ratio)
    return worst


def clock_choice(gpu_type: GpuTypeName, point: OperatingPoint | None, board_limits: BoardLimits) -> ClockChoice | None:
    """Return an operating point of such boards as an answer; None for the default clock and for no point at all."""
    if point is None or point.sm_clock_mhz == point.default_clock_mhz:
        return None
    return ClockChoice(
        gpu_type=gpu_type,
        sm_clock_mhz=point.sm_clock_mhz,
        default_clock_mhz=point.default_clock_mhz,
        predicted_slowdown=point.slowdown,
        predicted_energy_change=point.energy_change,
        worst_slowdown=point.worst_slowdown,
        mean_slowdown=point.mean_slowdown,
        power_limit_watts=board_limits.known_watts(gpu_type),
        is_assumed=point.source == "model",
    )
