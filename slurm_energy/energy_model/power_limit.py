"""What a lower power limit does to training: relative speed and power, as measured on A40, P100, RTX6000 and V100.

The board lowers its clock until it stays inside the limit. The clock itself was not recorded: it is the hidden quantity
f = ((limit - static) / (demand - static))^(1/3), at most 1, that ties time a + b/f and power c + d f^3 together.
"""

from dataclasses import dataclass
from functools import cache

from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.errors import ValueRangeError

LOWEST_CLOCK = 0.046
"""Of f, the cube root of 1e-4: a limit at or below the static power still lets the board run a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimitCurve:
    """One training program on one GPU type."""

    gpu: str
    """a40, p100, rtx6000, v100."""
    dataset: str
    network: str
    batch_size: int
    optimizer: str
    low_limit_watts: float
    high_limit_watts: float
    """Limits that were measured; nothing outside is answered."""
    static_watts: float
    demand_watts: float
    """Limit below which the program is held back."""
    fixed_seconds: float
    clock_seconds: float
    """Time of one epoch: fixed + clock / f."""
    constant_watts: float
    cubic_watts: float
    """Mean board power: constant + cubic f^3. It may pass a limit that is too low for the board."""
    time_error: float
    power_error: float
    """Mean relative errors of the fit over the measured limits."""

    def relative_clock(self, limit_watts: float) -> float:
        """Return f, the clock that the limit leaves over the clock without any."""
        if not self.low_limit_watts <= limit_watts <= self.high_limit_watts:
            raise ValueRangeError(
                f"power limit {limit_watts} W is outside what was measured of {self.network} on {self.gpu}: "
                f"{self.low_limit_watts:g} to {self.high_limit_watts:g} W"
            )
        share = (limit_watts - self.static_watts) / (self.demand_watts - self.static_watts)
        return max(LOWEST_CLOCK, min(1.0, float(max(0.0, share) ** (1.0 / 3.0))))

    def seconds(self, limit_watts: float) -> float:
        """Return the time in s of one epoch under a limit."""
        return self.fixed_seconds + self.clock_seconds / self.relative_clock(limit_watts)

    def watts(self, limit_watts: float) -> float:
        """Return the mean board power in W under a limit."""
        return self.constant_watts + self.cubic_watts * self.relative_clock(limit_watts) ** 3

    def relative_speed(self, limit_watts: float) -> float:
        """Return the speed under a limit over that under the highest measured one."""
        return self.seconds(self.high_limit_watts) / self.seconds(limit_watts)


@cache
def power_limit_curves() -> tuple[PowerLimitCurve, ...]:
    """Return every fitted program."""
    return tuple(PowerLimitCurve(**entry) for entry in coefficients("power_limit")["curves"])


def power_limit_curves_of(gpu: str, network: str | None = None) -> tuple[PowerLimitCurve, ...]:
    """Return the programs of one GPU type, or of one network on it; none where nobody measured it."""
    return tuple(curve for curve in power_limit_curves() if curve.gpu == gpu and network in (None, curve.network))
