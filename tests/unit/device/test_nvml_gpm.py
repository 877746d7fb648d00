"""Hopper's GPM counters behind a made binding, and the readings of a burst that a board may lack."""

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.device.nvml import GpmCounters, NvmlGpu
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError, DeviceNotSupported


class BindingError(Exception):
    """As the binding's own."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Metric(ctypes.Structure):
    """The part of NVML's structure that is used."""

    _fields_ = (("metricId", ctypes.c_uint), ("nvmlReturn", ctypes.c_uint), ("value", ctypes.c_double))


class Request(ctypes.Structure):
    """As above."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("numMetrics", ctypes.c_uint),
        ("sample1", ctypes.c_uint),
        ("sample2", ctypes.c_uint),
        ("metrics", Metric * 8),
    )


def binding(supported: bool = True, percent: tuple[float, float] = (40.0, 70.0), status: int = 0) -> Any:
    """Return a module with what the reader uses; its samples are numbers."""
    calls: list[Any] = []

    def metrics_get(request: Request) -> None:
        calls.append((request.sample1, request.sample2, [metric.metricId for metric in request.metrics[:2]]))
        for metric, value in zip(request.metrics, percent, strict=False):
            metric.value, metric.nvmlReturn = value, status

    module = ModuleType("pynvml")
    numbers = iter((11, 12))
    module.__dict__.update(
        NVMLError=BindingError,
        NVML_SUCCESS=0,
        NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_FUNCTION_NOT_FOUND=13,
        NVML_ERROR_NO_PERMISSION=4,
        NVML_PCIE_UTIL_RX_BYTES=1,
        NVML_GPM_METRIC_DRAM_BW_UTIL=10,
        NVML_GPM_METRIC_ANY_TENSOR_UTIL=5,
        NVML_GPM_METRICS_GET_VERSION=1,
        c_nvmlGpmMetricsGet_t=Request,
        nvmlGpmQueryDeviceSupport=lambda _handle: SimpleNamespace(isSupportedDevice=int(supported)),
        nvmlGpmSampleAlloc=lambda: next(numbers),
        nvmlGpmSampleGet=lambda _handle, sample: calls.append(sample),
        nvmlGpmMetricsGet=metrics_get,
        calls=calls,
    )
    return module


def gpu(module: Any) -> NvmlGpu:
    identity = GpuIdentity(index=0, uuid=GpuUuid("GPU-0"), name="H100", minor_number=0, gpu_type=None)
    return NvmlGpu(module, "handle", identity)


def test_the_first_call_has_nothing_and_later_ones_compare_with_the_sample_before() -> None:
    module = binding()
    counters = GpmCounters(module, "handle")
    assert counters.since_last() == {}
    assert counters.since_last() == {"dram_activity": 0.4, "tensor_activity": 0.7}
    counters.since_last()
    assert module.calls == [11, 12, (11, 12, [10, 5]), 11, (12, 11, [10, 5])]


def test_shares_that_cannot_be_and_metrics_that_failed_are_left_out() -> None:
    for module in (binding(percent=(140.0, -5.0)), binding(status=3)):
        counters = GpmCounters(module, "handle")
        counters.since_last()
        assert counters.since_last() == {}


def test_a_board_without_them_says_so_and_nothing_is_sampled() -> None:
    module = binding(supported=False)
    with pytest.raises(DeviceNotSupported, match="no GPM counters"):
        gpu(module).activity()
    assert module.calls == []


def test_no_profiling_session_is_begun() -> None:
    module = binding()
    device = gpu(module)
    device.activity()
    device.activity()
    # The made binding has nothing else: any other call would be an AttributeError, which is an error of the device.
    assert device.activity() == {"dram_activity": 0.4, "tensor_activity": 0.7}


def fields(status: int, milliwatts: int = 250_500) -> Any:
    value = SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))
    module = binding()
    module.nvmlDeviceGetFieldValues = lambda _handle, ids: [value] if ids == [186] else []
    return gpu(module)


def test_instant_power_is_field_186_in_watts() -> None:
    assert fields(0).instant_power_watts() == 250.5


def test_a_field_that_is_not_supported_is_told_apart_from_one_that_failed() -> None:
    with pytest.raises(DeviceNotSupported):
        fields(3).instant_power_watts()
    with pytest.raises(DeviceError) as error:
        fields(999).instant_power_watts()
    assert not isinstance(error.value, DeviceNotSupported)


def test_pcie_traffic_is_what_the_gpu_receives_in_bytes() -> None:
    module = binding()
    module.nvmlDeviceGetPcieThroughput = lambda _handle, direction: 1000 if direction == 1 else 0
    assert gpu(module).pcie_received_bytes_per_second() == 1_024_000.0
