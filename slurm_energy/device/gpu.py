"""What hooks need of a GPU, of any vendor: read its settings; set, verify and restore its clock.

NVML does not say whether and where clocks are locked. What a site locks by itself is therefore stated by
`node.site_locked_clocks_mhz`; without an entry there, restoring means giving the clock back to the driver.

Only what was changed here is restored, and power limits are never changed: they are read, for what a board can draw.
A limit that another (an administrator, a job as root) sets during a job is theirs and stays, and one that
cannot be read any more is no failure.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

VERIFY_READS = 4
VERIFY_PAUSE_SECONDS = 0.005
"""A lock takes a few milliseconds to show in the clock."""
_Value = TypeVar("_Value")


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

    def instant_power_watts(self) -> float:
        """Return the draw of this moment, W, not averaged over a second as `power_watts` is on newer boards."""
        ...

    def memory_utilisation(self) -> float:
        """Return the share of time the memory was read or written, 0 to 1."""
        ...

    def pcie_received_bytes_per_second(self) -> float:
        """Return what the GPU receives over PCIe now; the call waits about 20 ms."""
        ...

    def activity(self) -> Mapping[str, float]:
        """Return shares of what the GPU can do that it did since the call before, by name; the first has none.

        Only from counters that leave a user's profiler alone.
        """
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

    def mig_share(self, mig_uuid: str) -> float:
        """Return which share of its GPU's slices a MIG device has."""
        ...


def is_amd_node(devices: str = "/dev") -> bool:
    """Return whether this machine's GPUs are AMD's (its compute driver is there); with NVIDIA's beside, these count."""
    return os.path.exists(f"{devices}/kfd") and not os.path.exists(f"{devices}/nvidiactl")  # noqa: PTH110  # a hook's time


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSettings:
    """What a GPU was set to before a job; None where the device does not tell."""

    power_limit_watts: float | None
    application_clock_mhz: int | None
    lowest_clock_mhz: int | None
    highest_clock_mhz: int | None
    site_clock_mhz: int | None
    """The site's own lock, None when the driver has the clock."""

    @property
    def default_clock_mhz(self) -> int | None:
        """The clock of a job that is not slowed: the site's lock, else the highest."""
        return self.highest_clock_mhz if self.site_clock_mhz is None else self.site_clock_mhz


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOutcome:
    """What became of a request to lock the clock."""

    applied_clock_mhz: int | None
    flags: tuple[QualityFlag, ...] = ()
    event: str | None = None
    in_force: bool = True
    """Whether a lock may be in force; False only when the device surely refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOutcome:
    """Whether everything is back; `events` say what went wrong or needed a second try."""

    restored: bool
    events: tuple[str, ...] = ()


def save_settings(gpu: Gpu, supported_mhz: tuple[int, ...], site_clock_mhz: int | None) -> SavedSettings:
    """Return the settings in force; reads only."""
    return SavedSettings(
        power_limit_watts=reading(gpu.power_limit_watts),
        application_clock_mhz=reading(gpu.application_clock_mhz),
        lowest_clock_mhz=supported_mhz[0] if supported_mhz else None,
        highest_clock_mhz=supported_mhz[-1] if supported_mhz else None,
        site_clock_mhz=site_clock_mhz,
    )


def reading(read: Callable[[], _Value]) -> _Value | None:
    """Return what the device says, None when it says nothing."""
    try:
        return read()
    except DeviceError:
        return None


def lock_clock(gpu: Gpu, low_mhz: int, high_mhz: int, pause: Callable[[float], None]) -> ClockOutcome:
    """Lock the SM clock and verify it, with one retry; never raises DeviceError."""
    outcome = _lock_once(gpu, low_mhz, high_mhz, pause)
    if not outcome.flags or not outcome.in_force:
        return outcome
    pause(VERIFY_PAUSE_SECONDS)
    again = _lock_once(gpu, low_mhz, high_mhz, pause)
    # A lock that was taken once stays in force though the second try failed.
    return outcome if again.applied_clock_mhz is None else again


def _lock_once(gpu: Gpu, low_mhz: int, high_mhz: int, pause: Callable[[float], None]) -> ClockOutcome:
    flags: tuple[QualityFlag, ...]
    try:
        gpu.lock_sm_clock(low_mhz, high_mhz)
    except DevicePermissionDenied as error:
        flags = (QualityFlag.CLOCK_REFUSED, QualityFlag.NO_PERMISSION)
        return ClockOutcome(applied_clock_mhz=None, flags=flags, event=str(error), in_force=False)
    except DeviceNotSupported as error:
        flags = (QualityFlag.CLOCK_REFUSED,)
        return ClockOutcome(applied_clock_mhz=None, flags=flags, event=str(error), in_force=False)
    except DeviceError as error:
        return ClockOutcome(applied_clock_mhz=None, flags=(QualityFlag.CLOCK_REFUSED,), event=str(error))
    trouble = _verify_clock(gpu, high_mhz, pause)
    flags = () if trouble is None else (QualityFlag.CLOCK_UNVERIFIED,)
    return ClockOutcome(applied_clock_mhz=high_mhz, flags=flags, event=trouble)


def restore_settings(
    gpu: Gpu, saved: SavedSettings, *, clock_changed: bool, pause: Callable[[float], None]
) -> RestoreOutcome:
    """Put the clock back, with one retry; never raises DeviceError.

    Args:
        gpu: The device.
        saved: What was there.
        clock_changed: Whether a lock may have been set; a clock that was never touched stays untouched.
        pause: Waits the given seconds.
    """
    events: list[str] = []
    restored = not clock_changed or _twice(lambda: _give_clock_back(gpu, saved), "clock", events, pause)
    return RestoreOutcome(restored=restored, events=tuple(events))


def _verify_clock(gpu: Gpu, high_mhz: int, pause: Callable[[float], None]) -> str | None:
    """Return None when the clock is at or under the lock, else what was seen."""
    seen: int | None = None
    for attempt in range(VERIFY_READS):
        try:
            seen = gpu.sm_clock_mhz()
        except DeviceError as error:
            return str(error)
        if seen <= high_mhz:
            return None
        if attempt + 1 < VERIFY_READS:
            pause(VERIFY_PAUSE_SECONDS)
    return f"clock of GPU {gpu.identity.uuid} reads {seen} MHz after a lock at {high_mhz} MHz"


def _give_clock_back(gpu: Gpu, saved: SavedSettings) -> None:
    if saved.site_clock_mhz is not None:
        gpu.lock_sm_clock(saved.lowest_clock_mhz or saved.site_clock_mhz, saved.site_clock_mhz)
    else:
        gpu.unlock_sm_clock()


def _twice(act: Callable[[], None], thing: str, events: list[str], pause: Callable[[float], None]) -> bool:
    for attempt in range(2):
        try:
            act()
        except DeviceError as error:
            events.append(f"restoring the {thing}, try {attempt + 1}: {error}")
            if attempt == 0:
                pause(VERIFY_PAUSE_SECONDS)
        else:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterReading:
    """The energy counter, or why there is none."""

    joules: float | None
    problem: str | None = None
    flags: tuple[QualityFlag, ...] = ()


def read_counter(device: Gpu | None, absence: str | None) -> CounterReading:
    """Return the counter; `absence` says why there is no device."""
    if device is None:
        return CounterReading(joules=None, problem=absence or "the GPU is gone")
    try:
        return CounterReading(joules=device.energy_joules())
    except DeviceNotSupported as error:
        return CounterReading(joules=None, problem=str(error), flags=(QualityFlag.COUNTER_UNSUPPORTED,))
    except DevicePermissionDenied as error:
        return CounterReading(joules=None, problem=str(error), flags=(QualityFlag.NO_PERMISSION,))
    except DeviceError as error:
        return CounterReading(joules=None, problem=str(error))
