"""Power over time as sensors give it: irregular, with gaps, and averaged; and beside it what counts work."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError

Floats = NDArray[np.float64]
COUNTER_SPAN_SECONDS = 0.3
"""Energy counters move every 52 to 103 ms: power is their difference over at least this time."""
MAX_GAP_SECONDS = 1.5
"""Nothing is assumed of a longer time between two samples."""
MAX_SAMPLES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One window of samples at one clock.

    Args:
        seconds: Time stamps, in any order and not necessarily regular.
        watts: Power at them; NaN where there is none.
        sm_clock_mhz: The clock really reached, None when unknown.
        work_rates: Counters that grow in proportion to the work done, as rates per second at the same time stamps
            (NaN where not read): PCIe bytes/s, memory utilisation, tensor or DRAM activity. Never the share of time in
            which a kernel ran: that does not fall when kernels become slower.
    """

    seconds: Floats
    watts: Floats
    sm_clock_mhz: float | None = None
    work_rates: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = np.shape(self.seconds)
        if len(shape) != 1 or shape[0] > MAX_SAMPLES:
            raise ValueRangeError(f"trace: time stamps of shape {shape}; one dimension, at most {MAX_SAMPLES} samples")
        for name, values in {"watts": self.watts, **self.work_rates}.items():
            if np.shape(values) != shape:
                raise ValueRangeError(f"trace: {name} has shape {np.shape(values)}, the time stamps {shape}")

    @classmethod
    def from_energy_counter(
        cls,
        seconds: Floats,
        joules: Floats,
        *,
        sm_clock_mhz: float | None = None,
        work_rates: Mapping[str, Floats] | None = None,
    ) -> "Trace":
        """Return the trace of a counter that was read at some times: differences over three reading intervals or more.

        A counter that fell or stood still leaves a gap.
        """
        times, counter = np.asarray(seconds, float), np.asarray(joules, float)
        watts = np.full(times.shape, np.nan)
        if times.size > 3:
            typical = float(np.median(np.diff(times)))
            reach = max(1, round(COUNTER_SPAN_SECONDS / typical / 2.0)) if typical > 0 else 1
            back, ahead = np.arange(times.size) - reach, np.arange(times.size) + reach
            inside = (back >= 0) & (ahead < times.size)
            span = times[ahead[inside]] - times[back[inside]]
            step = counter[ahead[inside]] - counter[back[inside]]
            with np.errstate(divide="ignore", invalid="ignore"):
                watts[inside] = np.where((step > 0) & (span > 0) & (span < MAX_GAP_SECONDS), step / span, np.nan)
        return cls(seconds=times, watts=watts, sm_clock_mhz=sm_clock_mhz, work_rates=work_rates or {})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """A trace at regular times, and which of them lie in a gap."""

    start_seconds: float
    step_seconds: float
    watts: Floats
    missing: NDArray[np.bool_]

    @property
    def span_seconds(self) -> float:
        """How long it is."""
        return self.watts.size * self.step_seconds


def regular(trace: Trace, step_seconds: float | None = None) -> Grid | None:
    """Return the trace at regular times, by straight lines between samples; None when it has less than 20 samples."""
    times, watts = np.asarray(trace.seconds, float), np.asarray(trace.watts, float)
    good = np.isfinite(times) & np.isfinite(watts)
    times, first = np.unique(times[good], return_index=True)
    watts = watts[good][first]
    if times.size < 20:
        return None
    steps = np.diff(times)
    step = step_seconds or float(np.clip(np.median(steps), 0.02, 1.0))
    count = int((times[-1] - times[0]) / step) + 1
    if not 20 <= count <= 4 * MAX_SAMPLES:
        return None
    grid = times[0] + step * np.arange(count)
    after = np.clip(np.searchsorted(times, grid, side="right"), 1, times.size - 1)
    missing = steps[after - 1] > max(MAX_GAP_SECONDS, 5.0 * step)
    return Grid(start_seconds=float(times[0]), step_seconds=step, watts=np.interp(grid, times, watts), missing=missing)


def moving_mean(values: Floats, width: int) -> Floats:
    """Return the mean of `width` values around each, of fewer at the ends."""
    width = max(1, min(width | 1, values.size - 1 + values.size % 2))
    half = width // 2
    sums = np.concatenate(([0.0], np.cumsum(values)))
    low = np.maximum(np.arange(values.size) - half, 0)
    high = np.minimum(np.arange(values.size) + half + 1, values.size)
    return np.asarray((sums[high] - sums[low]) / (high - low))


def finer(values: Floats, factor: int) -> Floats:
    """Return a band-limited signal at `factor` times as many regular times."""
    if factor <= 1:
        return values
    # The mirrored signal has no jump where its end meets its beginning.
    mirrored = np.concatenate((values, values[::-1]))
    spectrum = np.fft.rfft(mirrored)
    return np.asarray(np.fft.irfft(spectrum, mirrored.size * factor)[: values.size * factor] * factor)
