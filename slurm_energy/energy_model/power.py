"""Power of a busy GPU against its SM clock."""

from dataclasses import dataclass

from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """P(f) = cubic f^3 + linear f + constant, with f = SM clock / the curve's reference clock.

    The cubic part is switching power with a voltage that rises with the clock, the linear part is switching at constant
    voltage, the constant is leakage, memory and idle. No part is negative, so a lower clock never draws more.
    """

    cubic_watts: float
    linear_watts: float
    constant_watts: float

    def __post_init__(self) -> None:
        for name in ("cubic_watts", "linear_watts", "constant_watts"):
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise ValueRangeError(f"power coefficient {name}={value} is not a finite number from 0 up")

    def watts(self, relative_clock: float) -> float:
        """Return the power in W that the load would draw at this real clock, without a board limit."""
        return self.cubic_watts * relative_clock**3 + self.linear_watts * relative_clock + self.constant_watts

    def relative_clock_at(self, limit_watts: float, highest: float) -> float:
        """Return the highest relative clock up to `highest` that stays inside the limit; 0 when not even idle does."""
        if self.watts(highest) <= limit_watts:
            return highest
        low, high = 0.0, highest
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.watts(middle) <= limit_watts else (low, middle)
        return low
