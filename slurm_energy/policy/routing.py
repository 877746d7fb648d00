"""Choosing between partitions: the cheapest one with room now whose GPUs are fast enough; pure arithmetic.

The measure of slowdown is the fastest partition among those with room now: there the job would end first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.base import Candidate
from slurm_energy.policy.comparison import ENOUGH_RUNS, TypeComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCost:
    """A partition against the fastest one; with GPUs of several types, its worst."""

    candidate: Candidate
    worst_time_ratio: float
    energy_ratio: float
    """Joules of the same work, at the best clock inside what the bound leaves."""


def with_room(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that may be named, in which the job could start now, and whose GPU types are known."""
    return tuple(
        candidate
        for candidate in candidates
        if candidate.may_be_named and candidate.has_idle_room and candidate.gpu_types
    )


def fastest_type(candidates: Sequence[Candidate], comparison: TypeComparison) -> GpuTypeName | None:
    """Return the fastest GPU type of all candidates; None when two of them cannot be compared, or there is none."""
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
    return best


def time_ratio(gpu_type: GpuTypeName, fastest: GpuTypeName, comparison: TypeComparison) -> float | None:
    """Return how many times as long work may take on a type as on the fastest one, at least 1; None if unknown."""
    cost = comparison.cost(gpu_type, fastest)
    return None if cost is None else max(1.0, cost.worst_time_ratio)


def remaining_slowdown(
    gpu_type: GpuTypeName, fastest: GpuTypeName, max_slowdown: float, comparison: TypeComparison
) -> float | None:
    """Return the slowdown that a clock on this type may still cause; None when the type itself breaks the bound."""
    ratio = time_ratio(gpu_type, fastest, comparison)
    if ratio is None or ratio > 1.0 + max_slowdown:
        return None
    return (1.0 + max_slowdown) / ratio - 1.0


def slurms_own(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return where Slurm would start the job now if it were left alone; None where it would wait or nobody can tell.

    Of the partitions that it was submitted to it takes those of the highest tier first, then as they were listed.
    """
    submitted = [one for one in candidates if one.is_submitted_to and one.has_idle_room]
    first = max(submitted, key=lambda one: one.partition.priority_tier, default=None)
    return first if first is not None and first.gpu_types else None


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
    if not is_guess:
        return False
    runs = work.runs_by_type
    return runs.get(there, 0) >= ENOUGH_RUNS > runs.get(here, 0)


def partition_cost(
    candidate: Candidate,
    fastest: GpuTypeName,
    max_slowdown: float,
    comparison: TypeComparison,
    *,
    stays: bool = False,
) -> PartitionCost | None:
    """Return what a partition costs against the fastest one; None if it is too slow or cannot be compared.

    Args:
        candidate: The partition.
        fastest: The fastest type with room.
        max_slowdown: Bound of the job.
        comparison: Of GPU types.
        stays: Whether the job starts there without our doing, and so whatever the bound: it is on the clock alone.
    """
    ratios, energies = [], []
    for name in candidate.gpu_types:
        cost = comparison.cost(name, fastest)
        remaining = max_slowdown if stays else remaining_slowdown(name, fastest, max_slowdown, comparison)
        if cost is None or remaining is None:
            return None
        table = comparison.clock_table(name)
        point = None if table is None else table.best(remaining)
        ratios.append(max(1.0, cost.worst_time_ratio))
        energies.append(cost.energy_ratio * (1.0 if point is None else 1.0 + point.energy_change))
    if not ratios:
        return None
    return PartitionCost(candidate=candidate, worst_time_ratio=max(ratios), energy_ratio=max(energies))


def cheapest(candidates: Sequence[Candidate], max_slowdown: float, comparison: TypeComparison) -> PartitionCost | None:
    """Return the cheapest partition with room now; of equals the first; None if none can be told.

    All are inside the bound, but for the one in which Slurm would start the job without our doing.
    """
    idle, own = with_room(candidates), slurms_own(candidates)
    fastest = fastest_type(idle, comparison)
    if fastest is None:
        return None
    costs = [
        partition_cost(candidate, fastest, max_slowdown, comparison)
        or (partition_cost(candidate, fastest, max_slowdown, comparison, stays=True) if candidate is own else None)
        for candidate in idle
    ]
    known = [cost for cost in costs if cost is not None]
    return min(known, key=lambda cost: cost.energy_ratio, default=None)
