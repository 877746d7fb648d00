"""Slices of an A100 (MIG): how fast a job runs on one, and what part of the GPU's power it stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError

WHOLE_SLICES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceCurve:
    """Speed of one job on c of 7 compute slices, relative to the whole GPU: min(1, 1 / (fixed + stretch 7 / c))."""

    model: str
    batch_size: int
    speed_by_slices: Mapping[int, float]
    """As measured, by compute slices; a slice that is missing did not hold the job or was not tried."""
    fixed: float
    stretch: float
    """Share of the time that grows as the slice shrinks, over that on the whole GPU."""
    fit_error: float

    def speed(self, compute_slices: int) -> float:
        """Return the relative speed: as measured, else by the fit."""
        if not 1 <= compute_slices <= WHOLE_SLICES:
            raise ValueRangeError(f"{compute_slices} compute slices are not between 1 and {WHOLE_SLICES}")
        measured = self.speed_by_slices.get(compute_slices)
        return self.law(compute_slices) if measured is None else measured

    def law(self, compute_slices: int) -> float:
        """Return the relative speed by the fit."""
        return min(1.0, 1.0 / (self.fixed + self.stretch * WHOLE_SLICES / compute_slices))


@cache
def slice_curves() -> tuple[SliceCurve, ...]:
    """Return every measured job."""
    return tuple(
        SliceCurve(**{**entry, "speed_by_slices": {int(n): s for n, s in entry["speed_by_slices"].items()}})
        for entry in coefficients("mig")["curves"]
    )


def slice_watts(compute_slices: int, speed: float, whole_watts: float, idle_watts: float) -> float:
    """Return the power in W that a job on a slice stands for, so that the parts of a full GPU add up to its power.

    A model, not a measurement: the power of a single slice was never measured. Idle power is divided by compute slices;
    what is above it is energy for work and goes with the speed.

    Args:
        compute_slices: Of 7.
        speed: Relative to the whole GPU.
        whole_watts: Power when the job has the whole GPU.
        idle_watts: Power of the idle GPU.
    """
    if not 0.0 <= idle_watts <= whole_watts:
        raise ValueRangeError(f"idle power {idle_watts} W is not between 0 and the {whole_watts} W of the busy GPU")
    return idle_watts * compute_slices / WHOLE_SLICES + (whole_watts - idle_watts) * speed
