"""How long the same work takes, and what it costs, on one GPU type against another; for choosing between partitions."""

from dataclasses import dataclass
from functools import lru_cache
from math import isinf
from statistics import geometric_mean
from typing import Literal

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS, BoardLimits
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.data_sheets import DATA_SHEETS

WorkSource = Literal["runs of this name", "names that draw alike", "jobs with like scripts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeCost:
    """Time and energy of the same work on one type over those on another, both at their default clocks."""

    time_ratio: float
    """Geometric mean: 2.5 takes 2.5 times as long."""
    worst_time_ratio: float
    """The largest over the workloads, or over the specifications, that were compared."""
    energy_ratio: float
    """Ratio of joules per unit of work."""
    source: WorkSource | Literal["same type", "measured", "specification"]

    @property
    def is_by_runs(self) -> bool:
        """Whether it is of the job's own work, and not the same for all."""
        return self.source not in {"measured", "specification"}


def relative_cost(
    gpu_type: GpuTypeName, reference: GpuTypeName, limits: BoardLimits = CATALOGUE_LIMITS
) -> RelativeCost | None:
    """Return what the same work needs on `gpu_type` relative to `reference`; None when that is unknown.

    Measured where both ran the same workloads (A100 and A40); else from the data sheets, which say little about energy
    and are marked so: time by tensor throughput and memory bandwidth, the worst time by double precision too, power by
    the boards' limits. Both run as fast as their boards' limits let them.
    """
    if gpu_type == reference:
        return RelativeCost(time_ratio=1.0, worst_time_ratio=1.0, energy_ratio=1.0, source="same type")
    return _different(gpu_type, reference, limits.watts(gpu_type), limits.watts(reference))


@lru_cache(maxsize=1024)
def _different(
    gpu_type: GpuTypeName, reference: GpuTypeName, limit_watts: float, reference_limit_watts: float
) -> RelativeCost | None:
    measured = _measured(gpu_type, reference, limit_watts, reference_limit_watts)
    return measured or _specified(gpu_type, reference, limit_watts, reference_limit_watts)


def relative_speed(
    gpu_type: GpuTypeName, reference: GpuTypeName, limits: BoardLimits = CATALOGUE_LIMITS
) -> float | None:
    """Return work per second on `gpu_type` over that on `reference`, at default clocks; None when unknown."""
    cost = relative_cost(gpu_type, reference, limits)
    return None if cost is None else 1.0 / cost.time_ratio


def _measured(
    gpu_type: GpuTypeName, reference: GpuTypeName, limit_watts: float, reference_limit_watts: float
) -> RelativeCost | None:
    theirs = {curve.workload: curve for curve in curves_of(reference) if curve.source == "measured"}
    shared = [
        (curve.on_board(limit_watts), theirs[curve.workload].on_board(reference_limit_watts))
        for curve in curves_of(gpu_type)
        if curve.source == "measured" and curve.workload in theirs
    ]
    if not shared:
        return None
    times = [one.seconds(one.high_clock_mhz) / other.seconds(other.high_clock_mhz) for one, other in shared]
    energies = [one.joules(one.high_clock_mhz) / other.joules(other.high_clock_mhz) for one, other in shared]
    return RelativeCost(
        time_ratio=geometric_mean(times),
        worst_time_ratio=max(times),
        energy_ratio=geometric_mean(energies),
        source="measured",
    )


def _specified(
    gpu_type: GpuTypeName, reference: GpuTypeName, limit_watts: float, reference_limit_watts: float
) -> RelativeCost | None:
    if isinf(limit_watts) or isinf(reference_limit_watts):
        return None
    one, other = DATA_SHEETS.get(gpu_type), DATA_SHEETS.get(reference)
    if one is None or other is None:
        return None
    ratios = (other.peak_tflops / one.peak_tflops, other.memory_gb_per_second / one.memory_gb_per_second)
    time_ratio = geometric_mean(ratios)
    return RelativeCost(
        time_ratio=time_ratio,
        worst_time_ratio=max(*ratios, other.double_tflops / one.double_tflops),
        energy_ratio=time_ratio * limit_watts / reference_limit_watts,
        source="specification",
    )
