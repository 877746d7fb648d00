"""Power of a GPU from its activity counters and its SM clock, for programs that nobody has swept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError

TERMS = (
    "1",
    "f^3",
    "engine^p f",
    "engine^p f^3",
    "dram^q",
    "dram^q f",
    "dram^q f^3",
    "arithmetic^q f",
    "arithmetic^q f^3",
)
"""What each coefficient is multiplied with; f is the clock over the reference clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Share of the time in which parts of a GPU were active, 0..1, as DCGM's profiling counters say."""

    engine: float
    """Graphics or compute engine (`gr_engine_active`), at most the utilisation that NVML reports."""
    dram: float
    """Memory interface (`dram_active`)."""
    arithmetic: float
    """Floating-point pipes: fp64 and fp32 together, at most 1."""

    def __post_init__(self) -> None:
        for name in ("engine", "dram", "arithmetic"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueRangeError(f"activity {name}={value} is not a share from 0 to 1")

    def consistent(self) -> "Activity":
        """Return the same activity with no part more active than the engine that drives it."""
        return Activity(
            engine=self.engine, dram=min(self.dram, self.engine), arithmetic=min(self.arithmetic, self.engine)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityPower:
    """P = sum of non-negative coefficients times TERMS; the exponents make a little activity cost much."""

    engine_exponent: float
    unit_exponent: float
    watts_per_term: Sequence[float]
    """In the order of TERMS."""
    reference_clock_mhz: float = 0.0
    low_clock_mhz: float = 0.0
    """Lowest clock that was measured."""

    def watts(self, activity: Activity, sm_clock_mhz: float) -> float:
        """Return mean board power in W; ValueRangeError for a clock that was not measured."""
        if not self.low_clock_mhz <= sm_clock_mhz <= self.reference_clock_mhz:
            raise ValueRangeError(
                f"clock {sm_clock_mhz} MHz is outside what was measured: "
                f"{self.low_clock_mhz} to {self.reference_clock_mhz} MHz"
            )
        found = terms(activity, sm_clock_mhz / self.reference_clock_mhz, self.engine_exponent, self.unit_exponent)
        return sum(watts * term for watts, term in zip(self.watts_per_term, found, strict=True))


def terms(activity: Activity, relative_clock: float, engine_exponent: float, unit_exponent: float) -> tuple[float, ...]:
    """Return TERMS for one activity at one clock."""
    whole = activity.consistent()
    clock, cube = relative_clock, relative_clock**3
    engine, dram = whole.engine**engine_exponent, whole.dram**unit_exponent
    arithmetic = whole.arithmetic**unit_exponent
    return (
        1.0,
        cube,
        engine * clock,
        engine * cube,
        dram,
        dram * clock,
        dram * cube,
        arithmetic * clock,
        arithmetic * cube,
    )


@cache
def activity_power(gpu_type: GpuTypeName) -> ActivityPower | None:
    """Return the predictor that was fitted for a GPU type, None where nobody measured counters and power."""
    entry = coefficients("activity")["gpu_types"].get(gpu_type)
    if entry is None:
        return None
    return ActivityPower(
        engine_exponent=entry["engine_exponent"],
        unit_exponent=entry["unit_exponent"],
        watts_per_term=tuple(entry["watts_per_term"]),
        reference_clock_mhz=entry["reference_clock_mhz"],
        low_clock_mhz=entry["low_clock_mhz"],
    )
