"""Choosing between partitions: the cheapest one with room now whose GPUs are fast enough; pure arithmetic.

The measure of slowdown are the other partitions with room now: in any of them the job could run instead. The measure of
energy is the partition in which Slurm would start it if it were left alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.base import Candidate
from slurm_energy.policy.comparison import ENOUGH_RUNS, TypeComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCost:
    """A partition against others; with GPUs of several types, its worst."""

    candidate: Candidate
    energy_ratio: float
    """Joules of the same work over those of one type at its default clock, at the best clock inside what is left."""
    stays: bool = False
    """Whether it may be slower than the bound, and Slurm starts the job there without our doing."""


class Rivals(NamedTuple):
    """GPU types on which the job could run now."""

    types: tuple[GpuTypeName, ...]
    fastest: GpuTypeName
    """In the mean over what their speeds may be."""


def with_room(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that may be named, in which the job could start now, and whose GPU types are known."""
    return tuple(
        candidate
        for candidate in candidates
        if candidate.may_be_named and candidate.has_idle_room and candidate.gpu_types
    )


def rivals_of(candidates: Sequence[Candidate], comparison: TypeComparison) -> Rivals | None:
    """Return the GPU types of some candidates; None when one cannot be compared with the fastest, or there is none."""
    types = tuple(dict.fromkeys(name for candidate in candidates for name in candidate.gpu_types))
    best: GpuTypeName | None = None
    for name in types:
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


def remaining_slowdown(
    gpu_type: GpuTypeName, rivals: Rivals, max_slowdown: float, comparison: TypeComparison
) -> float | None:
    """Return the slowdown that a clock on this type may still cause; None when the type itself breaks the bound."""
    ratio = time_ratio(gpu_type, rivals, comparison)
    left = None if ratio is None else slowdown_left(ratio, max_slowdown)
    return None if left is None or left < 0.0 else left


def slowdown_left(ratio: float, max_slowdown: float) -> float:
    """Return what a bound leaves to the clock where the GPU type itself takes `ratio` times as long; below 0: broken.

    Exactly the bound for a ratio of 1: (1 + 0.2) / 1 - 1 is less than 0.2, and would leave out the clock on the bound.
    """
    if ratio == 1.0 + max_slowdown:
        return 0.0
    return (max_slowdown - (ratio - 1.0)) / ratio


def slurms_own(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return where Slurm would start the job now if it were left alone; None where it would wait.

    Of the partitions that it was submitted to it takes those of the highest tier first, then as they were listed.

    Args:
        candidates: Those with room.
    """
    submitted = [one for one in candidates if one.is_submitted_to]
    return max(submitted, key=lambda one: one.partition.priority_tier, default=None)


def lacks_runs_at_home(chosen: Candidate, own: Candidate | None, comparison: TypeComparison) -> bool:
    """Return whether a name should run where Slurm starts it before it is sent elsewhere again.

    Tables sent its first runs elsewhere: data sheets, or workloads that draw far more than it does. What those runs
    measured has nothing to be compared with until some run stayed: then runs decide, and no longer the tables.

    Args:
        chosen: Where the job would be sent.
        own: Where Slurm would start it.
        comparison: Of GPU types for the job.
    """
    work = comparison.work
    if work is None or own is None or own is chosen or len(chosen.gpu_types) != 1 or len(own.gpu_types) != 1:
        return False
    there, here = chosen.gpu_types[0], own.gpu_types[0]
    cost = comparison.cost(there, here)
    is_guess = cost is not None and (
        cost.source == "specification" or (cost.source == "measured" and comparison.draws_less(there))
    )
    runs = work.runs_by_type
    return is_guess and runs.get(there, 0) >= ENOUGH_RUNS > runs.get(here, 0)


def cheapest(candidates: Sequence[Candidate], max_slowdown: float, comparison: TypeComparison) -> PartitionCost | None:
    """Return the cheapest partition with room now; of equals the first; None if none can be told.

    All are inside the bound, but for the one in which Slurm would start the job without our doing. Energy is compared
    with that one: whatever is in doubt counts against moving the job.
    """
    idle = with_room(candidates)
    own = slurms_own(idle)
    rivals = rivals_of(idle, comparison)
    if rivals is None:
        return None
    scale = _Scale(rivals, own.gpu_types[0] if own is not None else rivals.fastest, max_slowdown, comparison)
    costs = []
    for candidate in idle:
        cost = scale.cost(candidate, stays=False)
        costs.append(scale.cost(candidate, stays=True) if cost is None and candidate is own else cost)
    known = [cost for cost in costs if cost is not None]
    return min(known, key=lambda cost: cost.energy_ratio, default=None)


class _Scale(NamedTuple):
    """What partitions of one decision are measured by."""

    rivals: Rivals
    reference: GpuTypeName
    """Of energy."""
    max_slowdown: float
    comparison: TypeComparison

    def cost(self, candidate: Candidate, *, stays: bool) -> PartitionCost | None:
        """Return what a partition costs; None if it is too slow or cannot be compared.

        Args:
            candidate: The partition.
            stays: Whether the job starts there without our doing, and so whatever the bound: it is on the clock alone.
        """
        energies = []
        for name in candidate.gpu_types:
            cost = self.comparison.cost(name, self.reference)
            ratio = time_ratio(name, self.rivals, self.comparison)
            if cost is None or ratio is None:
                return None
            left = self.max_slowdown if stays else slowdown_left(ratio, self.max_slowdown)
            if left < 0.0:
                return None
            table = self.comparison.clock_table(name)
            point = None if table is None else table.best(left)
            energies.append(cost.energy_ratio * (1.0 if point is None else 1.0 + point.energy_change))
        return PartitionCost(candidate=candidate, energy_ratio=max(energies), stays=stays)
