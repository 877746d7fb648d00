"""One GPU model as the catalogue knows it. Standard library only: the node hooks import it at every job."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.domain.ids import GpuTypeName

FIGURES = (
    "sm_clocks_mhz",
    "max_sm_clock_mhz",
    "memory_clock_mhz",
    "power_limit_watts",
    "min_power_limit_watts",
    "idle_watts",
    "idle_context_watts",
    "memory_gib",
)
"""Fields of GpuType that are measured or specified, each with its entry in `sources`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A GPU model; a figure that is neither measured nor specified is None, never a guess."""

    name: GpuTypeName
    device_names: tuple[str, ...]
    """What NVML calls it, without a leading `NVIDIA`; compared without regard to case."""
    slurm_names: tuple[str, ...] = ()
    """GRES types that sites use for it, in lower case with `-`; the catalogue name and NVML's names count as well."""
    sm_clocks_mhz: tuple[int, ...] = ()
    """Every SM clock that the driver accepts, ascending; empty when unknown."""
    max_sm_clock_mhz: int | None = None
    """Highest SM clock: where the GPU runs under load unless a clock is locked or power or heat holds it back."""
    memory_clock_mhz: int | None = None
    power_limit_watts: float | None = None
    """The board's limit as shipped."""
    min_power_limit_watts: float | None = None
    idle_watts: float | None = None
    """Power with no CUDA context open."""
    idle_context_watts: float | None = None
    """Power with an open CUDA context that does nothing."""
    memory_gib: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each figure comes from, by field name."""

    @property
    def default_sm_clock_mhz(self) -> int | None:
        """The clock that slowdown and savings are measured against: the highest."""
        return self.max_sm_clock_mhz

    @property
    def min_sm_clock_mhz(self) -> int | None:
        """Lowest clock that the driver accepts."""
        return self.sm_clocks_mhz[0] if self.sm_clocks_mhz else None

    def nearest_supported_clock_mhz(self, sm_clock_mhz: float) -> int | None:
        """Return the supported clock nearest to the given one, the higher of two equally near; None if unknown."""
        if not self.sm_clocks_mhz:
            return None
        above = bisect_left(self.sm_clocks_mhz, sm_clock_mhz)
        neighbours = self.sm_clocks_mhz[max(0, above - 1) : above + 1]
        return min(neighbours, key=lambda clock: (abs(clock - sm_clock_mhz), -clock))
