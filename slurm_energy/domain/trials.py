"""What running jobs measured of clocks: each trial, and the clock that the next run of the name begins with."""

from dataclasses import dataclass
from math import isfinite

from slurm_energy.domain.ids import GpuTypeName, is_gpu_type_name
from slurm_energy.errors import ValueRangeError

CAUTION = 1.5
"""A slowdown counts with this many standard errors more."""
OUTDATED = "before the job changed"
"""Reason of a trial that was answered for work that the job did not continue with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTrial:
    """One window of a job at a lower clock, beside one at its default clock."""

    gpu_type: GpuTypeName
    sm_clock_mhz: int
    default_clock_mhz: int
    at_seconds: float
    """Elapsed time of the job."""
    watts: float
    """Mean power of one GPU at the clock."""
    default_watts: float
    slowdown: float | None
    """Ratio against the default clock; None: not known."""
    error: float | None
    """Standard error of it."""
    kept: bool
    """Whether the job continued at this clock."""
    source: str = ""
    """`power`, `progress`, or empty where nothing was answered."""
    reason: str = ""
    """Why the slowdown is not known, or is no longer the job's."""

    def __post_init__(self) -> None:
        if not is_gpu_type_name(self.gpu_type):
            raise ValueRangeError(f"GPU type {self.gpu_type[:64]!r} is not lower-case letters, digits, '.', '_' or '-'")
        figures = (self.at_seconds, self.watts, self.default_watts, self.slowdown or 0.0, self.error or 0.0)
        if not all(isfinite(figure) for figure in figures) or (self.slowdown is None) != (self.error is None):
            raise ValueRangeError(
                f"trial at {self.sm_clock_mhz} MHz has a figure that is not finite, or half an answer"
            )

    @property
    def is_outdated(self) -> bool:
        """Whether the job itself dropped the answer."""
        return self.slowdown is not None and bool(self.reason)

    @property
    def energy_change(self) -> float | None:
        """Ratio: -0.1 is 10 % fewer joules for the same work than at the default clock; None: not known."""
        if self.slowdown is None or self.default_watts <= 0.0:
            return None
        return self.watts / self.default_watts * (1.0 + self.slowdown) - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTrial:
    """One trial with the job name it belongs to."""

    user_id: int
    name: str
    script_key: str | None
    run: int
    """One number for all trials of one job."""
    ended_at_seconds: float
    """When that job ended."""
    trial: ClockTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedClock:
    """What runs of one name measured of the clock that they continued with on one GPU type."""

    sm_clock_mhz: int
    default_clock_mhz: int
    slowdown: float
    error: float
    """Standard error of it, over all windows at this clock."""
    energy_change: float
    runs: int = 1
    """Runs that measured this clock."""
    measured_at_seconds: float = 0.0
    """When the latest of them ended."""
    others: "tuple[LearnedClock, ...]" = ()
    """The same of the other clocks that they tried: one of them may be the best inside another job's bound."""
    by_trial: bool = True
    """Whether trials inside a run measured it; else whole runs at several clocks did."""

    @property
    def upper(self) -> float:
        """What the slowdown exceeds in one case of 15."""
        return self.slowdown + CAUTION * self.error
