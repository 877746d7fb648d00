"""What runs of one job name measured, and what is expected of its next run on each GPU type."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, isfinite

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.errors import ValueRangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One completed run on GPUs of one type, brought to their default clock."""

    user: int | str
    """Who ran it: a uid, or a name where there are no uids."""
    name: str
    gpu_type: GpuTypeName
    gpus: int
    seconds: float
    watts: float
    """Mean power of one of its GPUs."""
    ended_at_seconds: float
    script_key: str | None = None
    """What its script shared with others of the same work, see `ScriptFeatures.key`; None where none was read."""
    slowed: float = 0.0
    """Most that its clock made it longer, as a ratio; `seconds` is without half of that."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueRangeError(f"measured run of {self.name[:64]!r}: {self.gpus} GPUs are not at least 1")
        for thing, value in (("run time", self.seconds), ("power", self.watts)):
            if not (isfinite(value) and value > 0.0):
                raise ValueRangeError(f"measured run of {self.name[:64]!r}: {thing} {value} is not a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRuns:
    """How often runs of a name did not run through on GPUs of one type: failed, out of memory, or out of time."""

    user: int | str
    name: str
    gpu_type: GpuTypeName
    runs: int
    script_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkEstimate:
    """How one job name's work compares between GPU types at their default clocks.

    Only ratios are held: how long the next run takes is `RuntimeEstimate`'s to say.
    """

    runs_by_type: Mapping[GpuTypeName, int]
    """The name's own runs behind it; a type may be estimated without any."""
    gpu_types: tuple[GpuTypeName, ...]
    log_seconds: tuple[float, ...]
    """Mean of the logarithm of the run time, by type."""
    log_seconds_doubt: tuple[tuple[float, ...], ...]
    """Standard deviation of the difference of two types' `log_seconds`, [types, types]."""
    log_watts: tuple[float, ...]
    """Mean of the logarithm of one GPU's power, by type."""
    gpus: int = 1
    """Of the runs behind it."""
    watts_spread: float = 0.0
    """Standard deviation of the logarithm of a single run's power."""
    failed_types: frozenset[GpuTypeName] = frozenset()
    """Types on which the name's runs have failed and none has run through."""
    like_names: int = 0
    """Other names with like scripts behind it, where the name has no runs of its own."""

    def for_gpus(self, gpus: int) -> "WorkEstimate":
        """Return the estimate for a job of so many GPUs: another number than the runs had adds to the doubt."""
        if gpus == self.gpus:
            return self
        doubt = tuple(
            tuple(hypot(doubt, _OTHER_WIDTH) if one != other else 0.0 for other, doubt in enumerate(row))
            for one, row in enumerate(self.log_seconds_doubt)
        )
        return replace(self, gpus=gpus, log_seconds_doubt=doubt)

    def __post_init__(self) -> None:
        types = len(self.gpu_types)
        rows = (self.log_seconds, self.log_watts, self.log_seconds_doubt, *self.log_seconds_doubt)
        if any(len(row) != types for row in rows) or len(set(self.gpu_types)) != types:
            raise ValueRangeError(f"work estimate of {types} GPU types has figures of another number of types")
        figures = (*self.log_seconds, *self.log_watts, *(doubt for row in self.log_seconds_doubt for doubt in row))
        if not all(isfinite(figure) and abs(figure) < _MAX_LOG for figure in figures):
            raise ValueRangeError("work estimate has a figure that is not finite")

    @cached_property
    def _place(self) -> Mapping[GpuTypeName, int]:
        return {name: index for index, name in enumerate(self.gpu_types)}

    def doubt(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> float | None:
        """Return the standard deviation of the logarithm of the time ratio of two types; None for one not known."""
        one, other = self._place.get(gpu_type), self._place.get(reference)
        return None if one is None or other is None else self.log_seconds_doubt[one][other]

    def time_ratio(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> float:
        """Return how many times as long the work takes on a type, in the middle of what it may be.

        Raises:
            KeyError: a type is not known.
        """
        return exp(self.log_seconds[self._place[gpu_type]] - self.log_seconds[self._place[reference]])

    def watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the power of one GPU of a type; None for one not known."""
        place = self._place.get(gpu_type)
        return None if place is None else exp(self.log_watts[place])

    def watts_ratio(self, gpu_type: GpuTypeName, reference: GpuTypeName) -> float:
        """Return one GPU's power on a type over that on another.

        Raises:
            KeyError: a type is not known.
        """
        return exp(self.log_watts[self._place[gpu_type]] - self.log_watts[self._place[reference]])


_MAX_LOG = 100.0
_OTHER_WIDTH = 0.15
"""Standard deviation by which the time ratio of two types may differ at another number of GPUs: assumed."""
