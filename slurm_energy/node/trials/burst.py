"""Readings of a job's GPUs at ten a second over one window: what the detector is given, at a cost that is watched.

A reading that a board does not support is not asked for again. An energy counter takes 4 ms on newer boards, so it is
read in a burst only where there is no instant power, else at both ends of the window. PCIe traffic takes 20 ms a read
and is the first to go where readings take long.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slurm_energy.device.gpu import Gpu
from slurm_energy.domain.energy import MAX_WATTS_PER_GPU
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError, DeviceNotSupported

TICK_SECONDS = 0.1
"""Between two readings, of device time."""
MAX_WALL_SHARE = 0.35
"""Of the time between two readings that one may take; PCIe traffic is given up, then the interval grows."""
MAX_TICK_SECONDS = 0.25
"""Readings farther apart answer nothing."""
NONE = math.nan


@dataclass(slots=True, kw_only=True)
class GpuColumns:
    """One GPU's readings in one window; a reading that failed is NaN."""

    seconds: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    clocks_mhz: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    work_rates: dict[str, list[float]] = field(default_factory=dict)

    @property
    def mean_utilisation(self) -> float:
        """Mean share of time in which a kernel ran; 0 where it was not read."""
        return _mean(self.utilisation)

    @property
    def busy_clock_mhz(self) -> float | None:
        """Median SM clock while the GPU was busy."""
        busy = sorted(
            clock
            for clock, share in zip(self.clocks_mhz, self.utilisation, strict=True)
            if share > 0.0 and not math.isnan(clock)
        )
        return busy[len(busy) // 2] if busy else None

    def mean_watts(self) -> float | None:
        """Return the mean power: by the counter where it was read at both ends and moved, else of the readings."""
        known = [(at, joules) for at, joules in zip(self.seconds, self.joules, strict=True) if not math.isnan(joules)]
        if len(known) >= 2 and known[-1][0] > known[0][0]:
            watts = (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])
            if 0.0 < watts <= MAX_WATTS_PER_GPU:
                return watts
        watts = _mean(self.watts)
        return watts if watts > 0.0 else None

    def as_trace(self) -> dict[str, object]:
        """Return what the detector is given."""
        has_watts = any(not math.isnan(value) for value in self.watts)
        return {
            "seconds": self.seconds,
            "watts" if has_watts else "joules": _or_none(self.watts if has_watts else self.joules),
            "sm_clock_mhz": self.busy_clock_mhz,
            "work_rates": {name: _or_none(values) for name, values in self.work_rates.items()},
        }


class Burst:
    """One window's readings of all GPUs."""

    def __init__(self, reader: "BurstReader") -> None:
        self._reader = reader
        self.gpus = {uuid: GpuColumns() for uuid in reader.gpus}

    def read(self) -> None:
        """Add one reading of every GPU."""
        for uuid, columns in self.gpus.items():
            self._reader.read(uuid, columns)

    def read_counters(self) -> None:
        """Read the energy counters, where they are not read all the time: at both ends of a window."""
        for uuid, columns in self.gpus.items():
            if columns.joules:
                columns.joules[-1] = self._reader.counter(uuid)


class BurstReader:
    """Reads GPUs, and knows what each of them supports and what a reading costs."""

    def __init__(self, gpus: Mapping[GpuUuid, Gpu], monotonic: Callable[[], float], time_scale: float) -> None:
        self.gpus = dict(gpus)
        self._monotonic = monotonic
        self._time_scale = time_scale
        self._unsupported: set[tuple[GpuUuid, str]] = set()
        self._wall_seconds = 0.0

    def timed(self, burst: Burst) -> None:
        """Add one reading of every GPU to a burst, and learn what it takes."""
        before = self._monotonic()
        burst.read()
        taken = self._monotonic() - before
        self._wall_seconds = taken if not self._wall_seconds else 0.9 * self._wall_seconds + 0.1 * taken
        if self._wall_seconds > MAX_WALL_SHARE * TICK_SECONDS / self._time_scale:
            self._unsupported.update((uuid, "pcie_bytes") for uuid in self.gpus)

    @property
    def tick_seconds(self) -> float:
        """Wall time between two readings."""
        return max(TICK_SECONDS / self._time_scale, self._wall_seconds / MAX_WALL_SHARE)

    @property
    def is_too_slow(self) -> bool:
        """Whether readings take so long that they answer nothing."""
        return self.tick_seconds * self._time_scale > MAX_TICK_SECONDS

    def read(self, uuid: GpuUuid, columns: GpuColumns) -> None:
        """Add one reading of one GPU."""
        gpu = self.gpus[uuid]
        columns.seconds.append(self._monotonic() * self._time_scale)
        watts = self._value(uuid, "instant_power", gpu.instant_power_watts)
        columns.watts.append(watts if 0.0 <= watts <= MAX_WATTS_PER_GPU else NONE)
        columns.joules.append(self.counter(uuid) if (uuid, "instant_power") in self._unsupported else NONE)
        columns.utilisation.append(_or_zero(self._value(uuid, "utilisation", gpu.utilisation)))
        columns.clocks_mhz.append(self._value(uuid, "clock", gpu.sm_clock_mhz))
        rates = {
            "memory_utilisation": self._value(uuid, "memory_utilisation", gpu.memory_utilisation),
            "pcie_bytes": self._value(uuid, "pcie_bytes", gpu.pcie_received_bytes_per_second),
            **self._activity(uuid, gpu),
        }
        for name, value in rates.items():
            values = columns.work_rates.setdefault(name, [])
            values.extend([NONE] * (len(columns.seconds) - 1 - len(values)))
            values.append(value)
        for values in columns.work_rates.values():
            values.extend([NONE] * (len(columns.seconds) - len(values)))

    def counter(self, uuid: GpuUuid) -> float:
        """Return the energy counter, NaN where there is none."""
        return self._value(uuid, "counter", self.gpus[uuid].energy_joules)

    def _activity(self, uuid: GpuUuid, gpu: Gpu) -> Mapping[str, float]:
        if (uuid, "activity") in self._unsupported:
            return {}
        try:
            return gpu.activity()
        except DeviceError:
            # Counters that fail once are left alone: something else of the user's may be reading them.
            self._unsupported.add((uuid, "activity"))
            return {}

    def _value(self, uuid: GpuUuid, name: str, read: Callable[[], float]) -> float:
        key = uuid, name
        if key in self._unsupported:
            return NONE
        try:
            value = float(read())
        except DeviceNotSupported:
            self._unsupported.add(key)
            return NONE
        except DeviceError:
            return NONE
        return value if math.isfinite(value) and value >= 0.0 else NONE


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else 0.0


def _or_none(values: list[float]) -> list[float | None]:
    """Return the values as JSON has them."""
    return [None if math.isnan(value) else value for value in values]


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
