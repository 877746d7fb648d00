"""AMD's management library through its own binding, amdsmi; the only module that imports it.

Every error of the library becomes a DeviceError here. Its energy counter counts in units of its own (15.3 uJ on MI200
and MI300, which each reading names), its powers are whole watts, and what a board cannot tell is the text `N/A`.
Of a board that is divided into partitions only the first tells power and energy: of the others they are unknown.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.energy_model.catalog import gpu_type_from_device_name
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

MAX_COUNTER_JOULES = 1e15
_NOT_SUPPORTED = frozenset({2, 3})
"""AMDSMI_STATUS_NOT_SUPPORTED and _NOT_YET_IMPLEMENTED of amdsmi.h."""
_NO_PERMISSION = 10


class AmdGpu:
    """One GPU behind a processor handle."""

    def __init__(self, smi: ModuleType, handle: Any, identity: GpuIdentity) -> None:
        self._smi = smi
        self._handle = handle
        self._identity = identity

    @property
    def identity(self) -> GpuIdentity:
        """Who it is."""
        return self._identity

    def energy_joules(self) -> float:
        """Return the counter, J: ticks times the resolution in uJ that comes with them."""
        found = self._call("energy counter", "amdsmi_get_energy_count")
        ticks = self._number(found, "energy_accumulator", "energy counter", MAX_COUNTER_JOULES * 1e6)
        resolution = self._number(found, "counter_resolution", "resolution of the energy counter", 1e6)
        if resolution <= 0.0 or ticks * resolution > MAX_COUNTER_JOULES * 1e6:
            raise DeviceError(f"energy counter of {self._who()}: {ticks:.0f} ticks of {resolution} uJ")
        return ticks * resolution / 1e6

    def power_watts(self) -> float:
        """Return the socket's draw, W: present where the board tells it (MI300), else its own average."""
        found = self._call("power", "amdsmi_get_power_info")
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            # 0 stands for a figure that this board does not have: no board draws nothing.
            if not isinstance(found.get(name), str) and found.get(name):
                return self._number(found, name, "power", 1e5)
        raise DeviceNotSupported(f"power of {self._who()} is not available")

    def instant_power_watts(self) -> float:
        """Return the draw of this moment, W."""
        return self._number(self._call("power", "amdsmi_get_power_info"), "current_socket_power", "instant power", 1e5)

    def sm_clock_mhz(self) -> int:
        """Return the present graphics clock, MHz."""
        return int(self._number(self._clock(), "clk", "clock", 1e4))

    def utilisation(self) -> float:
        """Return the share of time the graphics engine worked, 0 to 1."""
        return self._share("gfx_activity")

    def memory_utilisation(self) -> float:
        """Return the share of time the memory was read or written, 0 to 1."""
        return self._share("umc_activity")

    def pcie_received_bytes_per_second(self) -> float:
        """Say that the library has no figure for one direction."""
        raise DeviceNotSupported(f"PCIe traffic of {self._who()} is not available by direction")

    def activity(self) -> Mapping[str, float]:
        """Say that there are no such counters without a profiler's session."""
        raise DeviceNotSupported(f"{self._who()} has no activity counters beside a profiler's")

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the settable graphics clocks, ascending: any whole MHz of its range."""
        clock = self._clock()
        low, high = (int(self._number(clock, name, "range of clocks", 1e4)) for name in ("min_clk", "max_clk"))
        if not 0 < low <= high:
            raise DeviceNotSupported(f"range of clocks of {self._who()} is {low} to {high} MHz")
        return tuple(range(low, high + 1))

    def application_clock_mhz(self) -> int:
        """Say that AMD boards have none."""
        raise DeviceNotSupported(f"{self._who()} has no application clock")

    def power_limit_watts(self) -> float:
        """Return the power cap in force, W; the library tells it in uW."""
        return self._number(self._call("power cap", "amdsmi_get_power_cap_info"), "power_cap", "power cap", 1e11) / 1e6

    def lock_sm_clock(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the graphics clock between two clocks; the board's performance level is manual from then on."""
        self._call("clock range", "amdsmi_set_gpu_clk_range", low_mhz, high_mhz, self._smi.AmdSmiClkType.SYS)

    def unlock_sm_clock(self) -> None:
        """Give the clock back to the driver: its performance level is automatic again, which drops the range."""
        self._call("performance level", "amdsmi_set_gpu_perf_level", self._smi.AmdSmiDevPerfLevel.AUTO)

    def _clock(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._call("clock", "amdsmi_get_clock_info", self._smi.AmdSmiClkType.GFX)
        return found

    def _share(self, name: str) -> float:
        return self._number(self._call("activity", "amdsmi_get_gpu_activity"), name, "activity", 1e3) / 100.0

    def _number(self, found: Mapping[str, Any], name: str, thing: str, high: float) -> float:
        value = found.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= high:
            raise DeviceNotSupported(f"{thing} of {self._who()} is not available ({str(value)[:32]})")
        return float(value)

    def _call(self, thing: str, function: str, *arguments: object) -> Any:
        with _door(self._smi, f"{thing} of {self._who()}"):
            return getattr(self._smi, function)(self._handle, *arguments)

    def _who(self) -> str:
        return f"GPU {self._identity.index} ({self._identity.name}, {self._identity.uuid})"


class AmdDriver:
    """The AMD GPUs of this machine; a context manager."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._smi: ModuleType | None = None

    def __enter__(self) -> "AmdDriver":
        """Load and initialise the library.

        Raises:
            DeviceError: no binding, no library of ROCm, or no driver.
        """
        try:
            import amdsmi  # noqa: PLC0415  # only where these GPUs are
        except (ImportError, OSError, KeyError) as error:
            raise DeviceError(
                f"amdsmi cannot be imported ({str(error)[:100]}): install slurm-energy[amd] of ROCm's release"
            ) from error
        with _door(amdsmi, "amdsmi"):
            amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
        self._smi = amdsmi
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the library; what it says then no longer matters."""
        if self._smi is not None:
            smi, self._smi = self._smi, None
            try:
                with _door(smi, "amdsmi"):
                    smi.amdsmi_shut_down()
            except DeviceError:
                pass

    def gpus(self) -> tuple[AmdGpu, ...]:
        """Return every GPU in the library's order; one that does not answer is left out."""
        if self._smi is None:
            raise DeviceError("amdsmi is not open: use the driver as a context manager")
        with _door(self._smi, "GPUs"):
            handles = list(self._smi.amdsmi_get_processor_handles())
        found = []
        for index, handle in enumerate(handles):
            try:
                found.append(_open_gpu(self._smi, handle, index))
            except DeviceError:
                continue
        return tuple(found)

    def mig_parent(self, mig_uuid: str) -> GpuUuid:
        """Say that AMD GPUs have no MIG slices."""
        raise DeviceNotSupported(f"MIG device {mig_uuid[:64]}: this node's GPUs are AMD's")

    def mig_share(self, mig_uuid: str) -> float:
        """Say that AMD GPUs have no MIG slices."""
        raise DeviceNotSupported(f"MIG device {mig_uuid[:64]}: this node's GPUs are AMD's")


def _open_gpu(smi: ModuleType, handle: Any, index: int) -> AmdGpu:
    with _door(smi, f"GPU {index}"):
        uuid = GpuUuid(str(smi.amdsmi_get_gpu_device_uuid(handle)))
        name = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        bus_id = str(smi.amdsmi_get_gpu_device_bdf(handle))
    minor: int | None = None
    try:
        with _door(smi, f"GPU {index}"):
            render = smi.amdsmi_get_gpu_enumeration_info(handle)["drm_render"]
            minor = render if isinstance(render, int) else None
    except DeviceError:
        pass  # an older library: then only identifiers or the site's own word say which GPU it is
    identity = GpuIdentity(
        index=index,
        uuid=uuid,
        name=name,
        minor_number=minor,
        gpu_type=gpu_type_from_device_name(name),
        pci_bus_id=bus_id,
    )
    return AmdGpu(smi, handle, identity)


@contextmanager
def _door(smi: ModuleType, thing: str) -> Iterator[None]:
    try:
        yield
    except smi.AmdSmiLibraryException as error:
        code, message = error.get_error_code(), f"{thing}: {' '.join(str(error).split())}"
        if code in _NOT_SUPPORTED:
            raise DeviceNotSupported(message) from error
        if code == _NO_PERMISSION:
            raise DevicePermissionDenied(f"{message} (root is needed)") from error
        raise DeviceError(message) from error
    except (smi.AmdSmiException, AttributeError, TypeError, ValueError, KeyError) as error:
        # A binding older than the function, or an answer that it cannot read.
        raise DeviceNotSupported(f"{thing}: {error}") from error
