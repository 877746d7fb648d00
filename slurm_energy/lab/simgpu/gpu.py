"""One simulated GPU of an open state: what it does, its specification as written there, what a test does to it."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.layout import (
    MAX_LOADS,
    Call,
    Curve,
    Fault,
    GpuStruct,
    LoadStruct,
    OperatingPointStruct,
    RhythmKind,
    RhythmStruct,
)
from slurm_energy.lab.simgpu.native import MappedState
from slurm_energy.lab.simgpu.profiles import LoadProfile
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec

BLOCK_SECONDS = 2.0
_LOAD_MEMORY_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReading:
    """One process' context on a GPU."""

    slot: int
    pid: int
    utilisation: float
    target_seconds: float
    """Work to do, in device seconds at the default clock; 0: until it is removed."""
    done_seconds: float
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedReading:
    """All of a GPU at one moment of device time."""

    device_seconds: float
    energy_joules: float
    """True energy since the state was made; no fault touches it."""
    counter_joules: float
    """What the driver's counter shows."""
    power_watts: float
    sm_clock_mhz: int
    utilisation: float
    temperature_c: float
    loads: tuple[LoadReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How a load's power and speed go over time; without one both stay."""

    kind: RhythmKind
    period_seconds: float = 1.0
    """Of work at the default clock; of device time for a timer."""
    high_share: float = 0.7
    low_level: float = 0.35
    """Share of the load's watts outside the high part."""
    jitter: float = 0.0
    """Standard deviation of an iteration's length over its mean."""
    stall_chance: float = 0.0
    """That an iteration ends with a wait of `stall_seconds`, whatever the clock."""
    stall_seconds: float = 0.0
    evaluation_every: int = 0
    """Iterations between two evaluations of `evaluation_seconds`; 0: none."""
    evaluation_seconds: float = 0.0
    seed: int = 0


class SimulatedGpu:
    """One GPU of an open state; every reading is of the moment of the call."""

    def __init__(self, mapped: MappedState, index: int) -> None:
        self._mapped = mapped
        self._native = mapped.native
        self.index = index
        gpu = mapped.pointer.contents.gpus[index]
        self.name: str = gpu.name.decode()
        self.uuid: str = gpu.uuid.decode()
        self.minor_number: int = gpu.minor_number
        self.slurm_position: int = gpu.slurm_position
        self.sm_clocks_mhz: tuple[int, ...] = tuple(gpu.clocks_mhz[: gpu.clock_count])

    @contextmanager
    def _settled(self) -> Iterator[GpuStruct]:
        with self._mapped.locked() as state:
            self._native.simgpu_settle(self._mapped.pointer, self.index)
            yield state.gpus[self.index]

    def reading(self) -> SimulatedReading:
        """Return everything that changes with time, of one moment."""
        point = OperatingPointStruct()
        with self._settled() as gpu:
            account = gpu.account[gpu.account_current & 1]
            self._native.simgpu_evaluate(ctypes.addressof(gpu), ctypes.byref(point))
            return SimulatedReading(
                device_seconds=account.device_seconds,
                energy_joules=account.energy_joules,
                counter_joules=self._native.simgpu_counter_millijoules(ctypes.addressof(gpu)) / 1000.0,
                power_watts=point.watts,
                sm_clock_mhz=point.sm_clock_mhz,
                utilisation=point.utilisation,
                temperature_c=account.temperature_c,
                loads=tuple(
                    LoadReading(
                        slot=slot,
                        pid=load.pid,
                        utilisation=load.utilisation,
                        target_seconds=load.target_seconds,
                        done_seconds=account.done_seconds[slot],
                        paused=bool(load.paused),
                    )
                    for slot, load in enumerate(gpu.loads)
                    if load.in_use
                ),
            )

    def energy_joules_exact(self) -> float:
        """Return the true energy since the state was made, J, without the counter's steps and faults."""
        return self.reading().energy_joules

    @property
    def loads(self) -> tuple[LoadReading, ...]:
        """Contexts of processes that live."""
        return self.reading().loads

    @property
    def locked_clocks_mhz(self) -> tuple[int, int] | None:
        """The locked range, None when the clock is the driver's."""
        with self._settled() as gpu:
            return (gpu.locked_low_mhz, gpu.locked_high_mhz) if gpu.locked_high_mhz else None

    @property
    def site_locked_clocks_mhz(self) -> tuple[int, int] | None:
        """The range that was locked when the state was made."""
        with self._settled() as gpu:
            return (gpu.site_locked_low_mhz, gpu.site_locked_high_mhz) if gpu.site_locked_high_mhz else None

    @property
    def power_limit_watts(self) -> float:
        """The power limit in force."""
        with self._settled() as gpu:
            return float(gpu.power_limit_milliwatts / 1000.0)

    @property
    def site_power_limit_watts(self) -> float:
        """The power limit when the state was made."""
        with self._settled() as gpu:
            return float(gpu.site_limit_milliwatts / 1000.0)

    @property
    def calls(self) -> dict[Call, int]:
        """How often each kind of NVML call was made on this GPU, failed ones included."""
        with self._settled() as gpu:
            return {call: int(gpu.calls[call]) for call in Call}

    @property
    def faults(self) -> frozenset[Fault]:
        """Faults that are on."""
        with self._settled() as gpu:
            return frozenset(fault for fault in Fault if gpu.faults >> fault & 1)

    def set_fault(self, fault: Fault, on: bool = True) -> None:
        """Switch a fault on or off, also while jobs run."""
        with self._mapped.locked():
            self._native.simgpu_fault_set(self._mapped.pointer, self.index, fault, int(on))

    def set_block_seconds(self, wall_seconds: float) -> None:
        """Set how long a blocking call takes; 2 s unless set."""
        with self._mapped.locked() as state:
            state.gpus[self.index].block_seconds = wall_seconds

    def add_load(
        self,
        profile: LoadProfile | str = "training",
        *,
        utilisation: float = 1.0,
        target_seconds: float = 0.0,
        pid: int | None = None,
        rhythm: Rhythm | None = None,
    ) -> int:
        """Load the GPU as a process would and return the slot for `remove_load`.

        Args:
            profile: A profile, or the name of one of this GPU.
            utilisation: 0 to 1; 0 is an idle context.
            target_seconds: Work in device seconds at the default clock, after which the context idles; 0: for ever.
            pid: Process whose end ends the load; None: this one.
            rhythm: How power and speed go over time; None: they stay.

        Raises:
            LabError: no such profile, all slots are taken, or a rhythm that means nothing.
        """
        load = encode_load(self._curve(profile), utilisation, target_seconds, os.getpid() if pid is None else pid)
        if rhythm is not None:
            load.rhythm = RhythmStruct(**{item.name: getattr(rhythm, item.name) for item in fields(rhythm)})
        with self._mapped.locked():
            slot = self._native.simgpu_load_add(self._mapped.pointer, self.index, ctypes.byref(load))
        if slot < 0:
            raise LabError(
                f"GPU {self.uuid} has {MAX_LOADS} loads already, or utilisation {utilisation} or rhythm out of range"
            )
        return int(slot)

    def _curve(self, profile: LoadProfile | str) -> LoadProfile | Curve:
        if isinstance(profile, LoadProfile):
            return profile
        with self._settled() as gpu:
            known = {entry.name.decode(): entry.curve for entry in gpu.profiles[: gpu.profile_count]}
            if profile not in known:
                raise LabError(f"GPU {self.uuid} has no profile {profile!r}; known: {', '.join(known)}")
            return Curve.from_buffer_copy(known[profile])

    def remove_load(self, slot: int) -> None:
        """Free what `add_load` took."""
        with self._mapped.locked():
            self._native.simgpu_load_remove(self._mapped.pointer, self.index, slot)

    def reload_driver(self) -> None:
        """Do what a reboot does: locks and limits are forgotten, the counter starts at 0."""
        with self._mapped.locked():
            self._native.simgpu_driver_reload(self._mapped.pointer, self.index)


def _milliwatts(watts: float) -> int:
    return round(watts * 1000.0)


def encode_curve(profile: LoadProfile) -> Curve:
    """Return a profile's curves as the library takes them."""
    return Curve(
        cubic_watts=profile.cubic_watts,
        linear_watts=profile.linear_watts,
        constant_watts=profile.constant_watts,
        memory_share=profile.memory_share,
        compute_share=profile.compute_share,
        fixed_share=profile.fixed_share,
        reference_clock_mhz=profile.reference_clock_mhz,
    )


def encode_load(profile: LoadProfile | Curve, utilisation: float, target_seconds: float, pid: int) -> LoadStruct:
    """Return a load as the library takes it; the library adds what tells the process from a later one."""
    return LoadStruct(
        pid=pid,
        utilisation=utilisation,
        target_seconds=target_seconds,
        memory_bytes=_LOAD_MEMORY_BYTES,
        curve=encode_curve(profile) if isinstance(profile, LoadProfile) else profile,
    )


def encode_gpu(spec: SimulatedGpuSpec, gpu: GpuStruct) -> None:
    """Fill a GPU's structure; what is left out starts at 0."""
    _encode_identity(spec, gpu)
    _encode_clocks(spec, gpu)
    _encode_power(spec, gpu)
    gpu.block_seconds = BLOCK_SECONDS
    gpu.account[0].temperature_c = spec.ambient_c + spec.kelvin_per_watt * spec.idle_watts
    gpu.account[0].average_watts = spec.idle_watts
    gpu.profile_count = len(spec.profiles)
    for place, profile in enumerate(spec.profiles):
        gpu.profiles[place].name = profile.name.encode()
        gpu.profiles[place].units_per_second = profile.units_per_second
        gpu.profiles[place].curve = encode_curve(profile)


def _encode_identity(spec: SimulatedGpuSpec, gpu: GpuStruct) -> None:
    gpu.name = spec.name.encode()
    gpu.uuid = spec.uuid.encode()
    gpu.serial = f"15{spec.pci_bus:02d}{int(spec.uuid[4:12], 16):010d}".encode()
    gpu.minor_number = spec.minor_number
    gpu.slurm_position = spec.minor_number if spec.slurm_position is None else spec.slurm_position
    gpu.pci_bus = spec.pci_bus
    gpu.pci_device_id = spec.pci_device_id
    gpu.architecture = spec.architecture
    gpu.compute_major, gpu.compute_minor = spec.compute_capability
    gpu.mig_capable = int(spec.mig_capable)
    gpu.memory_lock_capable = int(spec.memory_lock_capable)
    gpu.memory_bytes = spec.memory_bytes
    gpu.persistence = 1


def _encode_clocks(spec: SimulatedGpuSpec, gpu: GpuStruct) -> None:
    gpu.clock_count = len(spec.sm_clocks_mhz)
    gpu.clocks_mhz[: len(spec.sm_clocks_mhz)] = spec.sm_clocks_mhz
    gpu.memory_clock_count = len(spec.memory_clocks_mhz)
    gpu.memory_clocks_mhz[: len(spec.memory_clocks_mhz)] = spec.memory_clocks_mhz
    gpu.idle_clock_mhz = spec.idle_clock_mhz
    if spec.site_locked_clocks_mhz is not None:
        gpu.locked_low_mhz, gpu.locked_high_mhz = spec.site_locked_clocks_mhz
        gpu.site_locked_low_mhz, gpu.site_locked_high_mhz = spec.site_locked_clocks_mhz


def _encode_power(spec: SimulatedGpuSpec, gpu: GpuStruct) -> None:
    gpu.default_limit_milliwatts = _milliwatts(spec.power_limit_watts)
    gpu.min_limit_milliwatts = _milliwatts(spec.min_power_limit_watts)
    gpu.max_limit_milliwatts = _milliwatts(spec.max_power_limit_watts)
    gpu.site_limit_milliwatts = _milliwatts(spec.site_power_limit_watts or spec.power_limit_watts)
    gpu.power_limit_milliwatts = gpu.site_limit_milliwatts
    gpu.idle_watts = spec.idle_watts
    gpu.idle_context_watts = spec.idle_context_watts
    gpu.capping_floor_watts = spec.capping_floor_watts
    gpu.holding_share = spec.holding_share
    gpu.ambient_c = spec.ambient_c
    gpu.kelvin_per_watt = spec.kelvin_per_watt
    gpu.thermal_seconds = spec.thermal_seconds
