"""Hopper's GPM counters: shares of tensor cores and memory bandwidth, read without a profiling session.

DCGM's profiling fields would take a lock that stops a user's own profiler; these do not. Before Hopper there are none.
"""

from types import ModuleType
from typing import Any

from slurm_energy.errors import DeviceNotSupported

_METRICS = {"dram_activity": "NVML_GPM_METRIC_DRAM_BW_UTIL", "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL"}


class GpmCounters:
    """Two samples of one GPU, of which the older is taken again each time."""

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
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = older, newer
        for place, constant in enumerate(_METRICS.values()):
            request.metrics[place].metricId = getattr(self._nvml, constant)
        self._nvml.nvmlGpmMetricsGet(request)
        found = {}
        for place, name in enumerate(_METRICS):
            metric = request.metrics[place]
            share = float(metric.value) / 100.0
            # Above 1 and constantly 0 mean that the counter is not valid; the detector leaves one that stands out.
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and 0.0 <= share <= 1.0:
                found[name] = share
        return found
