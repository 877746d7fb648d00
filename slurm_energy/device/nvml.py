"""NVIDIA's management library through its own binding; the only module that imports it.

Every NVML error becomes a DeviceError here, and every mW and mJ becomes W and J.
Only the graphics clock is ever locked. Application clocks are read, never set (deprecated in NVML 13), and
memory clocks are left alone (a lock changes the whole power curve, and needs Ampere or newer).
"""

import _thread
import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.domain.units import joules_from_millijoules, watts_from_milliwatts
from slurm_energy.energy_model.catalog import gpu_type_from_device_name
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

_POWER_INSTANT_FIELD = 186
_NOT_AVAILABLE = 0xFFFFFFFF
"""NVML fills a field it cannot tell with all ones."""


class NvmlGpu:
    """One GPU behind an NVML handle."""

    def __init__(self, nvml: ModuleType, handle: Any, identity: GpuIdentity) -> None:
        self._nvml = nvml
        self._handle = handle
        self._identity = identity
        self._gpm: GpmCounters | None = None

    def __repr__(self) -> str:
        return f"NvmlGpu({self._identity.index}, {self._identity.uuid})"

    @property
    def identity(self) -> GpuIdentity:
        """Who it is."""
        return self._identity

    def energy_joules(self) -> float:
        """Return the counter since the driver was loaded, J; the call takes about 4 ms."""
        return joules_from_millijoules(self._number("energy counter", "nvmlDeviceGetTotalEnergyConsumption"))

    def power_watts(self) -> float:
        """Return the board's present draw, W."""
        return watts_from_milliwatts(self._number("power", "nvmlDeviceGetPowerUsage"))

    def sm_clock_mhz(self) -> int:
        """Return the present SM clock, MHz."""
        return self._number("SM clock", "nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)

    def utilisation(self) -> float:
        """Return the share of the last sample period in which a kernel ran, 0 to 1."""
        rates = self._call("utilisation", "nvmlDeviceGetUtilizationRates")
        return min(max(int(rates.gpu) / 100.0, 0.0), 1.0)

    def instant_power_watts(self) -> float:
        """Return the draw of this moment (field 186), W."""
        value = self._call("instant power", "nvmlDeviceGetFieldValues", [_POWER_INSTANT_FIELD])[0]
        with _door(self._nvml, f"instant power of {self._who()}"):
            if value.nvmlReturn != self._nvml.NVML_SUCCESS:
                raise self._nvml.NVMLError(value.nvmlReturn)
        return watts_from_milliwatts(int(value.value.uiVal))

    def memory_utilisation(self) -> float:
        """Return the share of the last sample period in which memory was read or written, 0 to 1."""
        rates = self._call("memory utilisation", "nvmlDeviceGetUtilizationRates")
        return min(max(int(rates.memory) / 100.0, 0.0), 1.0)

    def pcie_received_bytes_per_second(self) -> float:
        """Return the PCIe traffic into the GPU over the last 20 ms, which the call waits for."""
        direction = self._nvml.NVML_PCIE_UTIL_RX_BYTES
        return 1024.0 * self._number("PCIe traffic", "nvmlDeviceGetPcieThroughput", direction)

    def activity(self) -> Mapping[str, float]:
        """Return what Hopper's GPM counters say since the call before; they need no profiling session."""
        with _door(self._nvml, f"GPM counters of {self._who()}"):
            if self._gpm is None:
                self._gpm = GpmCounters(self._nvml, self._handle)
            return self._gpm.since_last()

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the settable SM clocks at the highest memory clock, ascending."""
        memory_clocks = self._call("memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory_clocks:
            raise DeviceNotSupported(f"{self._who()} names no memory clock")
        clocks = self._call("supported clocks", "nvmlDeviceGetSupportedGraphicsClocks", max(memory_clocks))
        return tuple(sorted({int(clock) for clock in clocks}))

    def application_clock_mhz(self) -> int:
        """Return the SM clock set for applications, MHz."""
        return self._number("application clock", "nvmlDeviceGetApplicationsClock", self._nvml.NVML_CLOCK_GRAPHICS)

    def power_limit_watts(self) -> float:
        """Return the power limit in force, W."""
        return watts_from_milliwatts(self._number("power limit", "nvmlDeviceGetPowerManagementLimit"))

    def lock_sm_clock(self, low_mhz: int, high_mhz: int) -> None:
        """Keep the SM clock between two supported clocks; Volta and newer."""
        self._call("clock lock", "nvmlDeviceSetGpuLockedClocks", low_mhz, high_mhz)

    def unlock_sm_clock(self) -> None:
        """Give the SM clock back to the driver."""
        self._call("clock lock", "nvmlDeviceResetGpuLockedClocks")

    def _number(self, thing: str, function: str, *arguments: object) -> int:
        value = int(self._call(thing, function, *arguments))
        if value < 0 or value == _NOT_AVAILABLE:
            raise DeviceNotSupported(f"{thing} of {self._who()} is not available ({value})")
        return value

    def _call(self, thing: str, function: str, *arguments: object) -> Any:
        with _door(self._nvml, f"{thing} of {self._who()}"):
            return getattr(self._nvml, function)(self._handle, *arguments)

    def _who(self) -> str:
        return f"GPU {self._identity.index} ({self._identity.name}, {self._identity.uuid})"


class NvmlDriver:
    """The NVIDIA GPUs of this machine; a context manager."""

    def __init__(self, library: str = "") -> None:
        """Store the path of libnvidia-ml.so.1; empty means the system's."""
        self._library = library
        self._nvml: ModuleType | None = None

    def __enter__(self) -> "NvmlDriver":
        """Load and initialise the library.

        Raises:
            DeviceError: no library, no driver, or no right to use it.
        """
        if self._library:
            try:
                # The binding opens the library by its plain name and then gets the one that is already loaded.
                ctypes.CDLL(self._library, mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise DeviceError(f"node.nvml_library {self._library} cannot be loaded: {error}") from error
        try:
            pynvml = _import_binding()
        except ImportError as error:
            raise DeviceError("the package nvidia-ml-py is missing: install slurm-energy again") from error
        with _door(pynvml, "NVML"):
            pynvml.nvmlInit()
        self._nvml = pynvml
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the library; what it says then no longer matters."""
        if self._nvml is not None:
            nvml, self._nvml = self._nvml, None
            try:
                with _door(nvml, "NVML"):
                    nvml.nvmlShutdown()
            except DeviceError:
                pass

    def gpus(self) -> tuple[NvmlGpu, ...]:
        """Return every GPU in NVML's order; one that is lost or in use by another driver is left out."""
        nvml = self._opened()
        with _door(nvml, "GPU count"):
            count = int(nvml.nvmlDeviceGetCount())
        found = []
        for index in range(count):
            try:
                found.append(_open_gpu(nvml, index))
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
        nvml = self._opened()
        with _door(nvml, f"MIG device {mig_uuid[:64]}"):
            device = nvml.nvmlDeviceGetHandleByUUID(mig_uuid)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
            return GpuUuid(str(nvml.nvmlDeviceGetUUID(parent)))

    def mig_share(self, mig_uuid: str) -> float:
        """Return the compute slices of a MIG device over those that its GPU can be divided into: 1/7 on an A100.

        Raises:
            DeviceError: the driver does not tell.
        """
        nvml = self._opened()
        with _door(nvml, f"slices of MIG device {mig_uuid[:64]}"):
            device = nvml.nvmlDeviceGetHandleByUUID(mig_uuid)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
            held = int(nvml.nvmlDeviceGetAttributes(device).gpuInstanceSliceCount)
            whole = int(nvml.nvmlDeviceGetMaxMigDeviceCount(parent))
        if not 0 < held <= whole:
            raise DeviceError(f"MIG device {mig_uuid[:64]} has {held} of {whole} slices by the driver")
        return held / whole

    def _opened(self) -> ModuleType:
        if self._nvml is None:
            raise DeviceError("NVML is not open: use the driver as a context manager")
        return self._nvml


def _import_binding() -> ModuleType:
    """Return the binding.

    It takes one function each of `ctypes.util`, `string` and `threading`, which import twenty modules between them.
    Where they are not loaded, small ones stand in while the binding is imported, and the real ones if it needs more.
    """
    small: dict[str, dict[str, object]] = {
        "ctypes.util": {"find_library": lambda _: None},  # to search on Windows
        "string": {"capwords": lambda text, separator: separator.join(map(str.capitalize, text.split(separator)))},
        "threading": {"Lock": _thread.allocate_lock},
    }
    stand_ins = [name for name in small if name not in sys.modules]
    for name in stand_ins:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(small[name])
    try:
        import pynvml  # noqa: PLC0415  # 8 ms that jobs without a GPU do not pay
    except (AttributeError, ImportError) as error:
        _forget(stand_ins)
        if isinstance(error, ImportError) and sys.flags.no_site and "site" not in sys.modules:
            import site  # noqa: PLC0415  # a hook starts without, and finds packages at their usual place only

            site.main()
        import pynvml  # noqa: PLC0415
    finally:
        _forget(stand_ins)
    binding: ModuleType = pynvml
    return binding


def _forget(stand_ins: list[str]) -> None:
    """Let later imports have the real modules."""
    while stand_ins:
        del sys.modules[stand_ins.pop()]


def _open_gpu(nvml: ModuleType, index: int) -> NvmlGpu:
    with _door(nvml, f"GPU {index}"):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = str(nvml.nvmlDeviceGetName(handle))
        uuid = GpuUuid(str(nvml.nvmlDeviceGetUUID(handle)))
    minor: int | None = _or_none(nvml, index, lambda: int(nvml.nvmlDeviceGetMinorNumber(handle)))
    mig: bool | None = _or_none(
        nvml, index, lambda: int(nvml.nvmlDeviceGetMigMode(handle)[0]) == int(nvml.NVML_DEVICE_MIG_ENABLE)
    )
    pci_bus_id: str | None = _or_none(nvml, index, lambda: str(nvml.nvmlDeviceGetPciInfo(handle).busId))
    identity = GpuIdentity(
        index=index,
        uuid=uuid,
        name=name,
        minor_number=minor,
        gpu_type=_gpu_type(name),
        mig_enabled=bool(mig),
        pci_bus_id=pci_bus_id,
    )
    return NvmlGpu(nvml, handle, identity)


def _or_none(nvml: ModuleType, index: int, read: Callable[[], Any]) -> Any:
    try:
        with _door(nvml, f"GPU {index}"):
            return read()
    except DeviceError:
        return None


def _gpu_type(name: str) -> GpuTypeName | None:
    return gpu_type_from_device_name(name)


@contextmanager
def _door(nvml: ModuleType, thing: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        code = getattr(error, "value", None)
        message = f"{thing}: {error}"
        if code in {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}:
            raise DeviceNotSupported(message) from error
        if code == nvml.NVML_ERROR_NO_PERMISSION:
            raise DevicePermissionDenied(f"{message} (root or CAP_SYS_ADMIN is needed)") from error
        raise DeviceError(message) from error
    except (AttributeError, TypeError, ValueError, UnicodeDecodeError) as error:
        # A binding older than the function, or a driver's answer the binding cannot read.
        raise DeviceNotSupported(f"{thing}: {error}") from error


_GPM_METRICS = {"dram_activity": "NVML_GPM_METRIC_DRAM_BW_UTIL", "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL"}


class GpmCounters:
    """Hopper's counters of tensor cores and memory bandwidth: two samples, of which the older is taken again each time.

    They are read without a profiling session. DCGM's profiling fields take a lock that stops a user's own profiler.
    """

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        """Allocate the samples; errors of NVML are the caller's to translate.

        Raises:
            DeviceNotSupported: the board has no such counters.
        """
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise DeviceNotSupported("no GPM counters before Hopper")
        self._nvml = nvml
        self._handle = handle
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        self._taken = 0

    def since_last(self) -> dict[str, float]:
        """Return shares by name since the call before, 0 to 1; what says nothing is left out."""
        older, newer = self._samples[(self._taken + 1) % 2], self._samples[self._taken % 2]
        self._nvml.nvmlGpmSampleGet(self._handle, newer)
        self._taken += 1
        if self._taken < 2:
            return {}
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = older, newer
        for place, constant in enumerate(_GPM_METRICS.values()):
            request.metrics[place].metricId = getattr(self._nvml, constant)
        self._nvml.nvmlGpmMetricsGet(request)
        found = {}
        for place, name in enumerate(_GPM_METRICS):
            metric = request.metrics[place]
            share = float(metric.value) / 100.0
            # Above 1 and constantly 0 mean that the counter is not valid; the detector leaves one that stands out.
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and 0.0 <= share <= 1.0:
                found[name] = share
        return found
