"""NVIDIA's management library, called by ctypes; the only module that knows NVML.

Functions have the names and C types of nvml.h; tests compare them with those of nvidia-ml-py, whose 8,000 lines take as
long to import as a fifth of a hook. Every NVML error becomes a DeviceError here, and every mW and mJ becomes W and J.
Only the graphics clock is ever locked. Application clocks are read, never set (deprecated in NVML 13), and
memory clocks are left alone (a lock changes the whole power curve, and needs Ampere or newer).
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.domain.units import joules_from_millijoules, watts_from_milliwatts
from slurm_energy.energy_model.catalog import gpu_type_from_device_name
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

SYSTEM_LIBRARY = "libnvidia-ml.so.1"
CLOCK_GRAPHICS = 0
CLOCK_SM = 1
MIG_ENABLED = 1
ERROR_NOT_SUPPORTED = 3
ERROR_NO_PERMISSION = 4
ERROR_INSUFFICIENT_SIZE = 7
ERROR_FUNCTION_NOT_FOUND = 13
TEXT_BYTES = 96
"""Room for a name or a UUID."""
_NOT_AVAILABLE = 0xFFFFFFFF
"""NVML fills a field it cannot tell with all ones."""
_MAX_CLOCKS = 256
"""Room for a list of clocks; where it does not suffice, NVML says how much does."""
_Value = TypeVar("_Value")


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Utilisation(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlLibrary:
    """The library's functions. `thing` is what a call is for: errors name it."""

    def __init__(self, path: str) -> None:
        """Load the library; empty means the system's.

        Raises:
            DeviceError: it cannot be loaded.
        """
        try:
            self._library = ctypes.CDLL(path or SYSTEM_LIBRARY)
        except OSError as error:
            named = f"node.nvml_library {path}" if path else f"the NVIDIA driver's {SYSTEM_LIBRARY}"
            raise DeviceError(f"{named} cannot be loaded: {error}") from error

    def call(self, thing: str, function: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            DeviceError: it fails; DeviceNotSupported, DevicePermissionDenied: that is why.
        """
        self._check(thing, self._code(thing, function, *arguments))

    def number(self, thing: str, function: str, *arguments: object) -> int:
        """Return the unsigned int that a function writes to its last argument."""
        value = ctypes.c_uint()
        self.call(thing, function, *arguments, ctypes.byref(value))
        return value.value

    def text(self, thing: str, function: str, *arguments: object) -> str:
        """Return the text that a function writes to its last argument but one, which is followed by its room."""
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self.call(thing, function, *arguments, text, ctypes.c_uint(TEXT_BYTES))
        return text.value.decode("utf-8", "replace")

    def handle(self, thing: str, function: str, argument: object) -> ctypes.c_void_p:
        """Return the handle that a function writes to its second argument."""
        handle = ctypes.c_void_p()
        self.call(thing, function, argument, ctypes.byref(handle))
        return handle

    def clocks(self, thing: str, function: str, *arguments: object) -> list[int]:
        """Return the list of clocks that a function gives: its last arguments are their number and the list, MHz."""
        count = ctypes.c_uint(_MAX_CLOCKS)
        found = (ctypes.c_uint * _MAX_CLOCKS)()
        code = self._code(thing, function, *arguments, ctypes.byref(count), found)
        if code == ERROR_INSUFFICIENT_SIZE:
            found = (ctypes.c_uint * count.value)()
            code = self._code(thing, function, *arguments, ctypes.byref(count), found)
        self._check(thing, code)
        return found[: count.value]

    def _code(self, thing: str, function: str, *arguments: object) -> int:
        try:
            return int(getattr(self._library, function)(*arguments))
        except AttributeError:
            raise DeviceNotSupported(f"{thing}: this driver has no {function}") from None

    def _check(self, thing: str, code: int) -> None:
        if code == 0:
            return
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        message = f"{thing}: {self._library.nvmlErrorString(code).decode('utf-8', 'replace')}"
        if code in {ERROR_NOT_SUPPORTED, ERROR_FUNCTION_NOT_FOUND}:
            raise DeviceNotSupported(message)
        if code == ERROR_NO_PERMISSION:
            raise DevicePermissionDenied(f"{message} (root or CAP_SYS_ADMIN is needed)")
        raise DeviceError(message)


class NvmlGpu:
    """One GPU behind an NVML handle."""

    def __init__(self, library: NvmlLibrary, handle: ctypes.c_void_p, identity: GpuIdentity) -> None:
        self._library = library
        self._handle = handle
        self._identity = identity

    def __repr__(self) -> str:
        return f"NvmlGpu({self._identity.index}, {self._identity.uuid})"

    @property
    def identity(self) -> GpuIdentity:
        """Who it is."""
        return self._identity

    def energy_joules(self) -> float:
        """Return the counter since the driver was loaded, J; the call takes about 4 ms."""
        thing, millijoules = self._thing("energy counter"), ctypes.c_ulonglong()
        function = "nvmlDeviceGetTotalEnergyConsumption"
        self._library.call(thing, function, self._handle, ctypes.byref(millijoules))
        return joules_from_millijoules(_available(thing, millijoules.value))

    def power_watts(self) -> float:
        """Return the board's present draw, W."""
        return watts_from_milliwatts(self._number("power", "nvmlDeviceGetPowerUsage"))

    def sm_clock_mhz(self) -> int:
        """Return the present SM clock, MHz."""
        return self._number("SM clock", "nvmlDeviceGetClockInfo", ctypes.c_uint(CLOCK_SM))

    def utilisation(self) -> float:
        """Return the share of the last sample period in which a kernel ran, 0 to 1."""
        rates = Utilisation()
        function = "nvmlDeviceGetUtilizationRates"
        self._library.call(self._thing("utilisation"), function, self._handle, ctypes.byref(rates))
        return min(int(rates.gpu) / 100.0, 1.0)

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the settable SM clocks at the highest memory clock, ascending."""
        memory_clocks = self._clocks("memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory_clocks:
            raise DeviceNotSupported(f"{self._who()} names no memory clock")
        highest = ctypes.c_uint(max(memory_clocks))
        return tuple(sorted(set(self._clocks("supported clocks", "nvmlDeviceGetSupportedGraphicsClocks", highest))))

    def application_clock_mhz(self) -> int:
        """Return the SM clock set for applications, MHz."""
        return self._number("application clock", "nvmlDeviceGetApplicationsClock", ctypes.c_uint(CLOCK_GRAPHICS))

    def power_limit_watts(self) -> float:
        """Return the power limit in force, W."""
        return watts_from_milliwatts(self._number("power limit", "nvmlDeviceGetPowerManagementLimit"))

    def lock_sm_clock(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the SM clock between two supported clocks; Volta and newer."""
        bounds = (ctypes.c_uint(low_mhz), ctypes.c_uint(high_mhz))
        self._library.call(self._thing("clock lock"), "nvmlDeviceSetGpuLockedClocks", self._handle, *bounds)

    def unlock_sm_clock(self) -> None:
        """Give the SM clock back to the driver."""
        self._library.call(self._thing("clock lock"), "nvmlDeviceResetGpuLockedClocks", self._handle)

    def _number(self, what: str, function: str, *arguments: object) -> int:
        thing = self._thing(what)
        return _available(thing, self._library.number(thing, function, self._handle, *arguments))

    def _clocks(self, what: str, function: str, *arguments: object) -> list[int]:
        return self._library.clocks(self._thing(what), function, self._handle, *arguments)

    def _thing(self, what: str) -> str:
        return f"{what} of {self._who()}"

    def _who(self) -> str:
        return f"GPU {self._identity.index} ({self._identity.name}, {self._identity.uuid})"


def _available(thing: str, value: int) -> int:
    if value in {_NOT_AVAILABLE, 0xFFFFFFFFFFFFFFFF}:
        raise DeviceNotSupported(f"{thing} is not available ({value})")
    return value


class NvmlDriver:
    """The NVIDIA GPUs of this machine; a context manager."""

    def __init__(self, library: str = "") -> None:
        """Store the path of libnvidia-ml.so.1; empty means the system's."""
        self._path = library
        self._library: NvmlLibrary | None = None

    def __enter__(self) -> "NvmlDriver":
        """Load and initialise the library.

        Raises:
            DeviceError: no library, no driver, or no right to use it.
        """
        library = NvmlLibrary(self._path)
        library.call("NVML", "nvmlInit_v2")
        self._library = library
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the library; what it says then no longer matters."""
        if self._library is not None:
            library, self._library = self._library, None
            with suppress(DeviceError):
                library.call("NVML", "nvmlShutdown")

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return every GPU in NVML's order; one that is lost or in use by another driver is left out."""
        library = self._opened()
        found = []
        for index in range(library.number("GPU count", "nvmlDeviceGetCount_v2")):
            try:
                found.append(_open_gpu(library, index))
            except DeviceError:
                continue
        return tuple(found)

    def mig_parent(self, mig_uuid: str) -> GpuUuid:
        """Return the GPU that a MIG device is a slice of.

        Raises:
            DeviceError: no GPU has such a slice.
        """
        if mig_uuid.startswith("MIG-GPU-"):  # drivers before 470: MIG-GPU-<uuid>/<instance>/<instance>
            return GpuUuid(mig_uuid[4:].partition("/")[0])
        library, thing = self._opened(), f"MIG device {mig_uuid[:64]}"
        mig_device = library.handle(thing, "nvmlDeviceGetHandleByUUID", ctypes.c_char_p(mig_uuid.encode()))
        parent = library.handle(thing, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig_device)
        return GpuUuid(library.text(thing, "nvmlDeviceGetUUID", parent))

    def _opened(self) -> NvmlLibrary:
        if self._library is None:
            raise DeviceError("NVML is not open: use the driver as a context manager")
        return self._library


def _open_gpu(library: NvmlLibrary, index: int) -> NvmlGpu:
    thing = f"GPU {index}"
    handle = library.handle(thing, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
    name = library.text(thing, "nvmlDeviceGetName", handle)
    identity = GpuIdentity(
        index=index,
        uuid=GpuUuid(library.text(thing, "nvmlDeviceGetUUID", handle)),
        name=name,
        minor_number=_or_none(lambda: library.number(thing, "nvmlDeviceGetMinorNumber", handle)),
        gpu_type=gpu_type_from_device_name(name),
        mig_enabled=_or_none(lambda: _mig_mode(library, thing, handle)) == MIG_ENABLED,
        pci_bus_id=_or_none(lambda: _pci_bus_id(library, thing, handle)),
    )
    return NvmlGpu(library, handle, identity)


def _mig_mode(library: NvmlLibrary, thing: str, handle: ctypes.c_void_p) -> int:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    library.call(thing, "nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    return current.value


def _pci_bus_id(library: NvmlLibrary, thing: str, handle: ctypes.c_void_p) -> str:
    info = PciInfo()
    library.call(thing, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
    return str(info.bus_id.decode("ascii", "replace"))


def _or_none(read: Callable[[], _Value]) -> _Value | None:
    try:
        return read()
    except DeviceError:
        return None
