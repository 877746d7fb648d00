"""Workloads that simulated GPUs know: every measured curve of the type, and four general ones on all types.

The general ones, `training` (the default), `compute`, `memory` and `host`, are a measured curve of the type where
there is one, else a stand-in: the curve of another type, its clock axis stretched to this type's highest clock and its
watts scaled by the ratio of the board limits. Stand-ins make a laboratory run; they are not data about a GPU.
"""

from dataclasses import dataclass, replace
from typing import Final

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import BoardLimits
from slurm_energy.energy_model.curves import WorkloadCurve, curves_of
from slurm_energy.energy_model.relative_speed import relative_speed
from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.layout import MAX_PROFILES, PROFILE_NAME_BYTES

REFERENCE_TYPE: Final = GpuTypeName("a100-sxm4-80gb")
"""One unit of work is one second of it on this type, a 500 W board, at its default clock."""

_BLOOM = "bloom-backward-stages-0-6"
_GPT3 = "gpt3-175b-backward-stages-0-6"
_A100 = REFERENCE_TYPE
_V100 = GpuTypeName("v100-pcie-16gb")
_GENERAL: Final = {
    # Name: where the curve may come from, the first that the type has itself wins, else the first is the stand-in.
    "training": ((_A100, _BLOOM), (_V100, "dgemm")),
    "compute": ((_A100, _GPT3), (_V100, "dgemm")),
    "memory": ((_V100, "stream"),),
    "host": ((_V100, "lstm"),),
}
_BOARD_WATTS: Final = {_A100: 500.0, _V100: 250.0}
"""Board limits of the GPUs that the lent curves were measured on."""
_SPECIFIED_SPEED: Final = {
    # Geometric mean of tensor throughput (989/312 TFLOP/s) and memory bandwidth (3350/2040 GB/s), NVIDIA data sheets.
    "h100-sxm5-80gb": 2.28,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """P(f) = cubic f^3 + linear f + constant and T(f) = max(memory, compute / f) + fixed, f = clock / reference clock.

    Time shares are relative: only their ratio between two clocks counts.
    """

    name: str
    cubic_watts: float
    linear_watts: float
    constant_watts: float
    memory_share: float
    compute_share: float
    fixed_share: float
    reference_clock_mhz: float
    units_per_second: float = 1.0
    """Units of work per device second at the type's default clock."""

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) < PROFILE_NAME_BYTES:
            raise LabError(f"profile name {self.name!r} is not 1 to {PROFILE_NAME_BYTES - 1} bytes long")
        if self.reference_clock_mhz <= 0 or self.units_per_second <= 0:
            raise LabError(f"profile {self.name}: reference clock and units per second are above 0")


def standard_profiles(
    gpu_type: GpuTypeName, highest_clock_mhz: int, board_limit_watts: float
) -> tuple[LoadProfile, ...]:
    """Return the general profiles and the measured ones of a GPU type, at most as many as the state holds."""
    limits = BoardLimits(site_watts={REFERENCE_TYPE: _BOARD_WATTS[REFERENCE_TYPE], gpu_type: board_limit_watts})
    speed = _SPECIFIED_SPEED.get(gpu_type) or relative_speed(gpu_type, REFERENCE_TYPE, limits) or 1.0
    own = {curve.workload: curve for curve in curves_of(gpu_type)}
    general = [
        _as_general(name, sources, own, highest_clock_mhz, board_limit_watts) for name, sources in _GENERAL.items()
    ]
    measured = [_from_curve(curve.workload, curve) for curve in own.values()]
    return tuple(replace(profile, units_per_second=speed) for profile in (*general, *measured)[:MAX_PROFILES])


def _as_general(
    name: str,
    sources: tuple[tuple[GpuTypeName, str], ...],
    own: dict[str, WorkloadCurve],
    highest_clock_mhz: int,
    board_limit_watts: float,
) -> LoadProfile:
    for _, workload in sources:
        if workload in own:
            return _from_curve(name, own[workload])
    lender, workload = sources[0]
    curve = next(curve for curve in curves_of(lender) if curve.workload == workload)
    scale = board_limit_watts / _BOARD_WATTS[lender]
    stretch = highest_clock_mhz / curve.high_clock_mhz
    return _from_curve(name, curve, watts_scale=scale, clock_scale=stretch)


def _from_curve(name: str, curve: WorkloadCurve, watts_scale: float = 1.0, clock_scale: float = 1.0) -> LoadProfile:
    return LoadProfile(
        name=name,
        cubic_watts=curve.power.cubic_watts * watts_scale,
        linear_watts=curve.power.linear_watts * watts_scale,
        constant_watts=curve.power.constant_watts * watts_scale,
        memory_share=curve.runtime.memory_seconds,
        compute_share=curve.runtime.compute_seconds,
        fixed_share=curve.runtime.fixed_seconds,
        reference_clock_mhz=curve.reference_clock_mhz * clock_scale,
    )
