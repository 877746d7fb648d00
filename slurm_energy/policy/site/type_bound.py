"""How far a job may be sent from where Slurm would start it, and which partition within that costs the least.

Two bounds are kept apart: the clock's, against the default clock of the same GPU, and the GPU type's, against the type
on which Slurm would have started the job by itself (`routing.max_type_slowdown`). A user's own bound is of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.policy.site.comparison import (
    ENOUGH_RUNS,
    Candidate,
    TypeComparison,
    rivals_of,
    with_room,
)

_DECIMALS = 9
"""Energies that differ by less are equal: what is equal must not depend on the order of a sum."""


def default_candidate(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return where Slurm would start the job now if it were left alone; None where it would wait.

    Of the partitions that it was submitted to it takes those of the highest tier first, then as they were listed.

    Args:
        candidates: Those with room.
    """
    submitted = [one for one in candidates if one.is_submitted_to]
    return max(submitted, key=lambda one: one.partition.priority_tier, default=None)


def slowdown_left(ratio: float, max_slowdown: float) -> float:
    """Return what a bound leaves to the clock where the GPU type itself takes `ratio` times as long; below 0: broken.

    Exactly the bound for a ratio of 1: (1 + 0.2) / 1 - 1 is less than 0.2, and would leave out the clock on the bound.
    """
    if ratio == 1.0 + max_slowdown:
        return 0.0
    return (max_slowdown - (ratio - 1.0)) / ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeBound:
    """What a job's bounds leave on each GPU type to which it might be sent.

    Where Slurm would make it wait, nothing is known of how long: what counts is that it could start elsewhere now.
    """

    home: tuple[GpuTypeName, ...]
    """Types on which Slurm would start it now; the fastest with room where it would wait; empty: not known."""
    comparison: TypeComparison
    max_slowdown: float
    """Of the clock; of type and clock together where there is none of the type."""
    max_type_slowdown: float | None = None

    def ratio(self, gpu_type: GpuTypeName) -> float | None:
        """Return how many times as long the work may take as where Slurm would start it; None where that is not known.

        Where Slurm might start it on several types, the fastest counts. The worst over programs where the bound is each
        job's, else their mean.
        """
        ratios = []
        for name in self.home:
            cost = self.comparison.cost(gpu_type, name)
            if cost is None:
                return None
            ratios.append(cost.time_ratio if self.comparison.terms.by_mean else cost.worst_time_ratio)
        return max(ratios, default=None)

    def left(self, gpu_type: GpuTypeName) -> float | None:
        """Return the slowdown that a clock on a type may still cause; None where the type itself is too slow."""
        ratio = self.ratio(gpu_type)
        if ratio is None:
            return None
        if self.max_type_slowdown is not None:
            return self.max_slowdown if ratio <= 1.0 + self.max_type_slowdown else None
        left = slowdown_left(max(1.0, ratio), self.max_slowdown)
        return left if left >= 0.0 else None


def type_bound(
    candidates: Sequence[Candidate], comparison: TypeComparison, max_slowdown: float, max_type_slowdown: float | None
) -> TypeBound:
    """Return a job's bounds.

    Args:
        candidates: Where it may start, the partitions that it was submitted to among them.
        comparison: Of GPU types for it.
        max_slowdown: Its clock's bound.
        max_type_slowdown: The site's bound of the type; None where the job's own bound is of both.
    """
    start = default_candidate([one for one in candidates if one.has_idle_room])
    if start is not None:
        home = start.gpu_types
    else:
        rivals = rivals_of(with_room(candidates), comparison)
        home = () if rivals is None else (rivals.fastest,)
    return TypeBound(
        home=home,
        comparison=comparison,
        max_slowdown=max_slowdown,
        max_type_slowdown=max_type_slowdown,
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCost:
    """A partition against others; with GPUs of several types, its worst."""

    candidate: Candidate
    energy_ratio: float
    """Joules of the same work over those of one type at its default clock, at the best clock inside what is left."""
    stays: bool = False
    """Whether it may be slower than the bound, and Slurm starts the job there without our doing."""


def cheapest(candidates: Sequence[Candidate], bound: TypeBound) -> PartitionCost | None:
    """Return the cheapest partition with room now; None if they cannot be compared.

    All are inside the bound, but for the one in which Slurm would start the job without our doing. All are compared
    with the fastest type, and equal ones are distinguished by name, so that nothing depends on the order of the
    candidates. What is found must then cost less than that one by the two's own comparison: its doubt counts against
    moving the job.
    """
    idle = with_room(candidates)
    own = default_candidate(idle)
    rivals = rivals_of(idle, bound.comparison)
    if rivals is None:
        return None
    scale = _Scale(rivals.fastest, bound)
    found = {one.partition.name: scale.cost(one, stays=False) for one in idle}
    if own is not None and found[own.partition.name] is None:
        found[own.partition.name] = scale.cost(own, stays=True)
    known = [cost for cost in found.values() if cost is not None]
    best = min(known, key=_order, default=None)
    staying = None if own is None else found[own.partition.name]
    if best is None or own is None or staying is None or best.candidate is own:
        return best
    direct = _Scale(own.gpu_types[0], bound)
    here, there = direct.cost(own, stays=staying.stays), direct.cost(best.candidate, stays=False)
    is_cheaper = here is not None and there is not None and there.energy_ratio < here.energy_ratio - 10.0**-_DECIMALS
    return best if is_cheaper else staying


def _order(cost: PartitionCost) -> tuple[float, str]:
    return round(cost.energy_ratio, _DECIMALS), cost.candidate.partition.name


class _Scale(NamedTuple):
    """What partitions of one decision are measured by."""

    reference: GpuTypeName
    """Of energy."""
    bound: TypeBound

    def cost(self, candidate: Candidate, *, stays: bool) -> PartitionCost | None:
        """Return what a partition costs; None if it is too slow or cannot be compared.

        Args:
            candidate: The partition.
            stays: Whether the job starts there without our doing, and so whatever the bound: it is on the clock alone.
        """
        energies = []
        comparison = self.bound.comparison
        for name in candidate.gpu_types:
            cost = comparison.cost(name, self.reference)
            left = self.bound.max_slowdown if stays else self.bound.left(name)
            if cost is None or left is None:
                return None
            table = comparison.clock_table(name)
            point = None if table is None else table.best(left)
            energies.append(cost.energy_ratio * (1.0 if point is None else 1.0 + point.energy_change))
        return PartitionCost(candidate=candidate, energy_ratio=max(energies), stays=stays)
