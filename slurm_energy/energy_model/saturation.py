"""Square matrix products: how much of a device's peak rate, and of its power, a product of size n reaches.

Measured on one H100; carried to other devices through their peak rates, which is a model and not a measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import Literal

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """y(n) = base + span n^k / (n^k + half^k): from `base` for tiny products to base + span for large ones."""

    base: float
    span: float
    half_size: float
    """Size n at which half of the span is reached."""
    exponent: float

    def at(self, size: float, half_scale: float = 1.0) -> float:
        """Return y(n), with the half size multiplied by `half_scale`."""
        if not size > 0.0:
            raise ValueRangeError(f"matrix size {size} is not a number above 0")
        shortage: float = (half_scale * self.half_size / size) ** self.exponent
        return self.base + self.span / (1.0 + shortage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """The measured shapes of one precision on the measured device."""

    precision: Precision
    efficiency: Rise
    """Reached rate over the peak rate."""
    power: Rise
    """Board power over the board's limit."""
    num_lanes: int
    """Multiply-add lanes of the measured device, which the half size is related to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What the data sheet of a device says."""

    name: str
    peak_gflops: float
    """At the highest clock of `clocks_mhz`, in 10^9 floating-point operations a second."""
    limit_watts: float
    num_lanes: int
    """Multiply-add lanes: cores of a GPU, cores times vector width times units of a CPU."""
    clocks_mhz: tuple[int, ...]
    """Clocks that can be set, ascending."""
    source: str

    def efficiency(self, shape: Saturation, size: float) -> float:
        """Return the share of the peak rate that a product of n x n reaches.

        A product has n^2 independent results: the size that fills the lanes goes with the root of their number.
        """
        return shape.efficiency.at(size, self._half_scale(shape))

    def seconds(self, shape: Saturation, size: float) -> float:
        """Return the time in s of one product of n x n, 2 n^3 operations, at the highest clock."""
        return 2.0 * size**3 / (self.peak_gflops * 1e9 * self.efficiency(shape, size))

    def watts(self, shape: Saturation, size: float) -> float:
        """Return the power in W while such products run one after the other at the highest clock."""
        return self.limit_watts * shape.power.at(size, self._half_scale(shape))

    def _half_scale(self, shape: Saturation) -> float:
        return sqrt(self.num_lanes / shape.num_lanes)


@cache
def saturation(precision: Precision) -> Saturation:
    """Return the shapes of one precision."""
    entry = coefficients("saturation")["precisions"][precision]
    return Saturation(
        precision=precision,
        efficiency=Rise(**entry["efficiency"]),
        power=Rise(**entry["power"]),
        num_lanes=entry["num_lanes"],
    )


@cache
def processors() -> Mapping[str, Processor]:
    """Return the devices whose data sheets are known, by name."""
    return {
        name: Processor(name=name, **{**entry, "clocks_mhz": tuple(entry["clocks_mhz"])})
        for name, entry in coefficients("saturation")["processors"].items()
    }
