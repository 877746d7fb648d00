"""Cases for the proofs: two partitions whose GPU types compare by symbols; what a job may give is there or missing."""

from types import SimpleNamespace
from typing import Any, cast

from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.operating_point import ClockTable
from slurm_energy.energy_model.relative_speed import RelativeCost
from slurm_energy.evaluation.gate.logic.symbols import Path
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.clock_terms import EACH_JOB
from slurm_energy.policy.site.comparison import Candidate, TypeComparison
from slurm_energy.policy.site.type_bound import type_bound

A100, A40, UNKNOWN = map(GpuTypeName, ("a100-sxm4-80gb", "a40", "no-such-gpu"))
HOME, OTHER, GHOST = map(PartitionName, ("home", "other", "ghost"))
NOW = 1_800_000_000.0


class SymbolComparison:
    """Compares GPU types by symbols; a type that is left out cannot be compared."""

    terms = EACH_JOB

    def __init__(
        self, path: Path, *, known: bool = True, table: ClockTable | None = None, every: ClockTable | None = None
    ) -> None:
        self.limits = BoardLimits()
        self.path = path
        self.known = known
        self.table = table
        self.every = every
        self.own_watts: float | None = None
        self.costs: dict[tuple[GpuTypeName, GpuTypeName], RelativeCost] = {}

    def cost(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> RelativeCost | None:
        """Return the same symbols at every question."""
        if gpu_type == reference:
            return RelativeCost(time_ratio=1.0, worst_time_ratio=1.0, energy_ratio=1.0, source="measured")
        if not self.known:
            return None
        found = self.costs.get((gpu_type, reference))
        if found is None:
            # Middle ratios only say which type is the faster one; worst ones are what is reckoned with.
            middle = self.path.choice("time ratio", (0.75, 4.0 / 3.0))
            source: Any = self.path.choice("source of ratios", ("runs of this name", "measured"))
            for pair, least in (((gpu_type, reference), middle), ((reference, gpu_type), 1.0 / middle)):
                self.costs[pair] = RelativeCost(
                    time_ratio=least,
                    worst_time_ratio=self.path.real("worst time ratio", least),
                    energy_ratio=1.0,
                    source=source,
                )
            found = self.costs[gpu_type, reference]
        return found

    def clock_table(self, _gpu_type: GpuTypeName) -> ClockTable | None:
        """Return the clocks that are worth their time."""
        return self.table

    def all_clocks(self, _gpu_type: GpuTypeName) -> ClockTable | None:
        """Return those that were measured."""
        return self.every

    def mean_watts(self, _gpu_type: GpuTypeName) -> float | None:
        """Return a power."""
        return 300.0

    def watts(self, _gpu_type: GpuTypeName) -> float | None:
        """Return what runs of the name drew."""
        return self.own_watts


def partition(name: PartitionName, **changes: Any) -> PartitionState:
    """Return an open partition."""
    given = {"name": name, "is_default": name == HOME, "up": True}
    return PartitionState(**cast(Any, given | changes))


def candidate(name: PartitionName, gpu_type: GpuTypeName | None, **changes: Any) -> Candidate:
    """Return a candidate with room."""
    types = () if gpu_type is None else (gpu_type,)
    given = {"partition": partition(name), "gpu_types": types, "has_idle_room": True, "is_submitted_to": name == HOME}
    return Candidate(**cast(Any, given | changes))


def case_of(job: JobRequest, comparison: SymbolComparison, **changes: Any) -> Case:
    """Return a case that compares GPU types by symbols."""
    given = {
        "job": job, "comparison": comparison, "now_seconds": NOW, "runtime": None, "candidates": (),
        "max_slowdown": 0.0, "may_route": False, "learned_clocks": {}, "board_limits": BoardLimits(),
        "site_tables": {}, "limit_room": -1.0,
        "scaling": None, "gpu_counts": (), "user_groups": None, "claimed_gpus": {}, "clock_terms": EACH_JOB,
    }  # fmt: skip
    given |= changes
    symbols = cast(TypeComparison, comparison)
    given.setdefault(
        "type_bound", type_bound(cast(Any, given["candidates"]), symbols, cast(Any, given["max_slowdown"]), None)
    )
    return cast(Case, SimpleNamespace(**given))


def job_of(**changes: Any) -> JobRequest:
    """Return a job of one GPU."""
    options = {key: changes.pop(key) for key in ("deadline_seconds", "trials", "gpu_counts") if key in changes}
    given = {"user_id": 1000, "gpus": (GpuDemand(count=1),), "options": EnergyOptions(**options)}
    return JobRequest(**cast(Any, given | changes))
