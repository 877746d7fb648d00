"""What a network expects of lower clocks for the work of one job, by GPU type, and from which evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedClocks:
    """Slowdown and energy at some clocks of one GPU type, against its default clock."""

    relative_clocks: tuple[float, ...]
    """Ascending, over the default clock; the last is 1."""
    slowdown: tuple[float, ...]
    """Expected, as a ratio."""
    upper_slowdown: tuple[float, ...]
    """What nine of ten stay below: a bound is held against it."""
    energy_change: tuple[float, ...]
    """Expected, as a ratio: -0.1 is 10 % fewer joules."""

    def __post_init__(self) -> None:
        columns = (self.relative_clocks, self.slowdown, self.upper_slowdown, self.energy_change)
        if len({len(column) for column in columns}) != 1 or not self.relative_clocks:
            raise ValueRangeError("predicted clocks have columns of different lengths, or none")
        if not all(isfinite(value) for column in columns for value in column):
            raise ValueRangeError("predicted clocks have a figure that is not finite")
        clocks = self.relative_clocks
        if list(clocks) != sorted(set(clocks)) or clocks[0] <= 0.0 or clocks[-1] != 1.0:
            raise ValueRangeError("predicted clocks are not ascending ratios above 0 up to 1")
        if min(self.slowdown) < 0.0 or min(self.upper_slowdown) < 0.0 or min(self.energy_change) < -1.0:
            raise ValueRangeError("predicted clocks have a slowdown below 0, or save more than everything")

    def at(self, relative_clock: float) -> tuple[float, float, float] | None:
        """Return expected slowdown, its upper quantile and energy change at a clock; None below the lowest."""
        clocks = self.relative_clocks
        if not clocks[0] - 1e-9 <= relative_clock <= 1.0 + 1e-9:
            return None
        above = next((index for index, clock in enumerate(clocks) if clock >= relative_clock - 1e-9), len(clocks) - 1)
        below = max(above - 1, 0)
        span = clocks[above] - clocks[below]
        share = 1.0 if span <= 0.0 else min(1.0, (relative_clock - clocks[below]) / span)
        slowdown, upper, energy = (
            column[below] + share * (column[above] - column[below])
            for column in (self.slowdown, self.upper_slowdown, self.energy_change)
        )
        return slowdown, max(slowdown, upper), energy


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWork:
    """What a network expects of a job on every GPU type of its site."""

    clocks: Mapping[GpuTypeName, PredictedClocks]
    own_runs: int = 0
    """Runs of the job's own name behind it."""
    alike_runs: int = 0
    """Runs of jobs with like scripts, or of the same user, behind it."""
    version: str = ""
    """Of the network."""

    @property
    def evidence(self) -> str:
        """What it is known from, in words."""
        own, alike = self.own_runs, self.alike_runs
        return (
            f"{own} {'run' if own == 1 else 'runs'} of this name and {alike} of similar jobs"
            if own or alike
            else "all runs of this site"
        )
