"""What hooks need of a GPU, whoever made it."""

from dataclasses import dataclass
from typing import Protocol

from slurm_energy.domain.ids import GpuTypeName, GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """Who a GPU is. `minor_number` is N of /dev/nvidiaN and may differ from `index`, the driver's own order."""

    index: int
    uuid: GpuUuid
    name: str
    minor_number: int | None
    gpu_type: GpuTypeName | None
    """Catalogue name, None when the catalogue does not know the device."""
    mig_enabled: bool = False
    pci_bus_id: str | None = None


class Gpu(Protocol):
    """One GPU. Every method may raise DeviceError; DeviceNotSupported and DevicePermissionDenied say why."""

    @property
    def identity(self) -> GpuIdentity:
        """Who it is."""
        ...

    def energy_joules(self) -> float:
        """Return the driver's counter since it was loaded, J."""
        ...

    def power_watts(self) -> float:
        """Return the board's present draw, W."""
        ...

    def sm_clock_mhz(self) -> int:
        """Return the present SM clock, MHz."""
        ...

    def utilisation(self) -> float:
        """Return the share of time a kernel ran, 0 to 1."""
        ...

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the settable SM clocks at the highest memory clock, ascending."""
        ...

    def application_clock_mhz(self) -> int:
        """Return the SM clock set for applications; read only, NVML 13 deprecates it."""
        ...

    def power_limit_watts(self) -> float:
        """Return the power limit in force, W."""
        ...

    def set_power_limit(self, watts: float) -> None:
        """Set the power limit."""
        ...

    def lock_sm_clock(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the SM clock between two supported clocks."""
        ...

    def unlock_sm_clock(self) -> None:
        """Give the SM clock back to the driver."""
        ...


class GpuDriver(Protocol):
    """The GPUs of this machine; a context manager that opens and closes the vendor's library."""

    def __enter__(self) -> "GpuDriver":
        """Open the library."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Close the library."""
        ...

    def gpus(self) -> tuple[Gpu, ...]:
        """Return every GPU in the driver's order; one that does not answer is left out."""
        ...

    def mig_parent(self, mig_uuid: str) -> GpuUuid:
        """Return the GPU that a MIG device is a slice of."""
        ...
