"""Choosing between partitions: the cheapest one with room now whose GPUs are fast enough; pure arithmetic.

The measure of slowdown is the fastest partition among those with room now: there the job would end first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.operating_point import best_operating_point
from slurm_energy.policy.base import Candidate
from slurm_energy.policy.comparison import TypeComparison


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


def partition_cost(
    candidate: Candidate, fastest: GpuTypeName, max_slowdown: float, comparison: TypeComparison
) -> PartitionCost | None:
    """Return what a partition costs against the fastest one; None if it is too slow or cannot be compared."""
    ratios, energies = [], []
    for name in candidate.gpu_types:
        cost = comparison.cost(name, fastest)
        remaining = remaining_slowdown(name, fastest, max_slowdown, comparison)
        if cost is None or remaining is None:
            return None
        point = best_operating_point(name, remaining, power_limit_watts=comparison.limits.watts(name))
        ratios.append(max(1.0, cost.worst_time_ratio))
        energies.append(cost.energy_ratio * (1.0 if point is None else 1.0 + point.energy_change))
    if not ratios:
        return None
    return PartitionCost(candidate=candidate, worst_time_ratio=max(ratios), energy_ratio=max(energies))


def cheapest(candidates: Sequence[Candidate], max_slowdown: float, comparison: TypeComparison) -> PartitionCost | None:
    """Return the cheapest partition with room now inside the bound; of equals the first; None if none can be told."""
    idle = with_room(candidates)
    fastest = fastest_type(idle, comparison)
    if fastest is None:
        return None
    costs = [partition_cost(candidate, fastest, max_slowdown, comparison) for candidate in idle]
    known = [cost for cost in costs if cost is not None]
    return min(known, key=lambda cost: cost.energy_ratio, default=None)
