"""Time of a fixed amount of work against the SM clock."""

from dataclasses import dataclass

from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCurve:
    """T(f) = max(memory, compute / f) + fixed, in s for one unit of work, f = SM clock / the curve's reference clock.

    `compute` stretches with the clock, `memory` is the floor that the memory sets, `fixed` is host and link time.
    The common alpha + beta/f is the case memory = 0, fixed = alpha, compute = beta.
    """

    memory_seconds: float
    compute_seconds: float
    fixed_seconds: float

    def __post_init__(self) -> None:
        for name in ("memory_seconds", "compute_seconds", "fixed_seconds"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueRangeError(f"time coefficient {name}={value} is not a finite number from 0 up")
        if self.memory_seconds + self.compute_seconds + self.fixed_seconds <= 0.0:
            raise ValueRangeError("time coefficients are all 0: work takes time")

    def seconds(self, relative_clock: float) -> float:
        """Return the time in s of one unit of work at this real clock."""
        return max(self.memory_seconds, self.compute_seconds / relative_clock) + self.fixed_seconds
