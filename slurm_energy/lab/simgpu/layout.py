"""Mirror of the structures in native/simgpu.h; `check_layout` compares it with what the compiled library says."""

import ctypes
import json
from collections.abc import Mapping
from enum import IntEnum

from slurm_energy.errors import LabError

VERSION = 3
MAX_GPUS = 16
MAX_LOADS = 16
MAX_PROFILES = 16
MAX_CLOCKS = 256
MAX_MEMORY_CLOCKS = 4
NAME_BYTES = 96
PROFILE_NAME_BYTES = 32
CALL_KINDS = 32
LOCK_BYTES = 64


class Fault(IntEnum):
    """What can go wrong with one GPU; the number is a bit of `GpuStruct.faults`."""

    ENERGY_UNSUPPORTED = 0
    """No energy counter: NOT_SUPPORTED."""
    ENERGY_STUCK = 1
    """The counter stays where it was when the fault began."""
    ENERGY_RESET = 2
    """The counter starts again at 0 when the fault begins, and goes on from there also after it ends."""
    ENERGY_ERROR = 3
    """Reading the counter: UNKNOWN."""
    ENERGY_BLOCKS = 4
    """Reading the counter takes `block_seconds` (2 s) of wall time."""
    POWER_UNSUPPORTED = 5
    """Power and power limits: NOT_SUPPORTED."""
    POWER_BLOCKS = 6
    """Reading power takes `block_seconds`."""
    NO_PERMISSION = 7
    """Every call that sets something: NO_PERMISSION, also for root; others than root always get it."""
    CLOCK_IGNORED = 8
    """Setting or resetting clocks succeeds and changes nothing."""
    CLOCK_ERROR = 9
    """Setting or resetting clocks: UNKNOWN."""
    CLOCK_UNSUPPORTED = 10
    """Setting or resetting clocks: NOT_SUPPORTED."""
    CLOCK_BLOCKS = 11
    """Setting or resetting locked clocks takes `block_seconds`."""
    RESET_FAILS_ONCE = 12
    """The next reset of clocks: UNKNOWN; then the fault is over."""
    RESET_FAILS = 13
    """Every reset of clocks: UNKNOWN."""
    LIMIT_ERROR = 14
    """Setting the power limit: UNKNOWN."""
    LOST = 15
    """The GPU fell off the bus: every call GPU_IS_LOST."""
    MIG = 16
    """MIG mode is on: clocks and utilisation NOT_SUPPORTED, power and energy are the whole board's."""
    SYMBOL_MISSING = 17
    """An old driver's library: energy counter and locked clocks FUNCTION_NOT_FOUND, as the binding says it."""


class Call(IntEnum):
    """Calls that are counted per GPU, whether they succeed or not."""

    HANDLE = 0
    ENERGY = 1
    POWER = 2
    CLOCK_READ = 3
    CLOCK_LOCK = 4
    CLOCK_RESET = 5
    LIMIT_SET = 6
    APPLICATION_SET = 7
    APPLICATION_RESET = 8
    MEMORY_LOCK = 9
    MEMORY_RESET = 10


class RhythmKind(IntEnum):
    """How a program's power goes over time."""

    STEADY = 0
    ITERATIONS = 1
    """High, then low power, again and again, as work goes on."""
    APERIODIC = 2
    """Levels and lengths at random."""
    TIMER = 3
    """Steady work; device time alone makes the low power."""


class Curve(ctypes.Structure):
    """struct simgpu_curve."""

    _fields_ = (
        ("cubic_watts", ctypes.c_double),
        ("linear_watts", ctypes.c_double),
        ("constant_watts", ctypes.c_double),
        ("memory_share", ctypes.c_double),
        ("compute_share", ctypes.c_double),
        ("fixed_share", ctypes.c_double),
        ("reference_clock_mhz", ctypes.c_double),
    )


class RhythmStruct(ctypes.Structure):
    """struct simgpu_rhythm."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("evaluation_every", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("period_seconds", ctypes.c_double),
        ("high_share", ctypes.c_double),
        ("low_level", ctypes.c_double),
        ("jitter", ctypes.c_double),
        ("stall_chance", ctypes.c_double),
        ("stall_seconds", ctypes.c_double),
        ("evaluation_seconds", ctypes.c_double),
    )


class Profile(ctypes.Structure):
    """struct simgpu_profile."""

    _fields_ = (
        ("name", ctypes.c_char * PROFILE_NAME_BYTES),
        ("units_per_second", ctypes.c_double),
        ("curve", Curve),
    )


class LoadStruct(ctypes.Structure):
    """struct simgpu_load."""

    _fields_ = (
        ("in_use", ctypes.c_uint32),
        ("paused", ctypes.c_uint32),
        ("pid", ctypes.c_int32),
        ("default_clock_mhz", ctypes.c_uint32),
        ("pid_start", ctypes.c_uint64),
        ("pid_namespace", ctypes.c_uint64),
        ("utilisation", ctypes.c_double),
        ("target_seconds", ctypes.c_double),
        ("memory_bytes", ctypes.c_uint64),
        ("curve", Curve),
        ("rhythm", RhythmStruct),
    )


class Account(ctypes.Structure):
    """struct simgpu_account."""

    _fields_ = (
        ("device_seconds", ctypes.c_double),
        ("energy_joules", ctypes.c_double),
        ("published_joules", ctypes.c_double),
        ("temperature_c", ctypes.c_double),
        ("average_watts", ctypes.c_double),
        ("done_seconds", ctypes.c_double * MAX_LOADS),
    )


class GpuStruct(ctypes.Structure):
    """struct simgpu_gpu."""

    _fields_ = (
        ("name", ctypes.c_char * NAME_BYTES),
        ("uuid", ctypes.c_char * NAME_BYTES),
        ("serial", ctypes.c_char * 32),
        ("minor_number", ctypes.c_uint32),
        ("slurm_position", ctypes.c_uint32),
        ("pci_domain", ctypes.c_uint32),
        ("pci_bus", ctypes.c_uint32),
        ("pci_device", ctypes.c_uint32),
        ("pci_device_id", ctypes.c_uint32),
        ("architecture", ctypes.c_uint32),
        ("compute_major", ctypes.c_int32),
        ("compute_minor", ctypes.c_int32),
        ("mig_capable", ctypes.c_uint32),
        ("memory_lock_capable", ctypes.c_uint32),
        ("memory_bytes", ctypes.c_uint64),
        ("clock_count", ctypes.c_uint32),
        ("memory_clock_count", ctypes.c_uint32),
        ("clocks_mhz", ctypes.c_uint32 * MAX_CLOCKS),
        ("memory_clocks_mhz", ctypes.c_uint32 * MAX_MEMORY_CLOCKS),
        ("idle_clock_mhz", ctypes.c_uint32),
        ("locked_low_mhz", ctypes.c_uint32),
        ("locked_high_mhz", ctypes.c_uint32),
        ("application_clock_mhz", ctypes.c_uint32),
        ("power_limit_milliwatts", ctypes.c_uint32),
        ("default_limit_milliwatts", ctypes.c_uint32),
        ("min_limit_milliwatts", ctypes.c_uint32),
        ("max_limit_milliwatts", ctypes.c_uint32),
        ("site_locked_low_mhz", ctypes.c_uint32),
        ("site_locked_high_mhz", ctypes.c_uint32),
        ("site_limit_milliwatts", ctypes.c_uint32),
        ("persistence", ctypes.c_uint32),
        ("idle_watts", ctypes.c_double),
        ("idle_context_watts", ctypes.c_double),
        ("capping_floor_watts", ctypes.c_double),
        ("holding_share", ctypes.c_double),
        ("ambient_c", ctypes.c_double),
        ("kelvin_per_watt", ctypes.c_double),
        ("thermal_seconds", ctypes.c_double),
        ("faults", ctypes.c_uint64),
        ("stuck_joules", ctypes.c_double),
        ("counter_offset_joules", ctypes.c_double),
        ("block_seconds", ctypes.c_double),
        ("calls", ctypes.c_uint64 * CALL_KINDS),
        ("account_current", ctypes.c_uint32),
        ("profile_count", ctypes.c_uint32),
        ("account", Account * 2),
        ("loads", LoadStruct * MAX_LOADS),
        ("profiles", Profile * MAX_PROFILES),
    )


class StateStruct(ctypes.Structure):
    """struct simgpu_state: the whole file."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("size_bytes", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("time_scale", ctypes.c_double),
        ("manual_seconds", ctypes.c_double),
        ("start_monotonic_seconds", ctypes.c_double),
        ("counter_interval_seconds", ctypes.c_double),
        ("power_averaging_seconds", ctypes.c_double),
        ("node_name", ctypes.c_char * 64),
        ("driver_version", ctypes.c_char * 80),
        ("lock", ctypes.c_uint64 * (LOCK_BYTES // 8)),
        ("gpus", GpuStruct * MAX_GPUS),
    )


class OperatingPointStruct(ctypes.Structure):
    """struct simgpu_operating_point."""

    _fields_ = (
        ("sm_clock_mhz", ctypes.c_uint32),
        ("contexts", ctypes.c_uint32),
        ("watts", ctypes.c_double),
        ("utilisation", ctypes.c_double),
        ("slice", ctypes.c_double),
        ("work_rate", ctypes.c_double),
    )


_MIRRORS: Mapping[str, type[ctypes.Structure]] = {
    "simgpu_curve": Curve,
    "simgpu_rhythm": RhythmStruct,
    "simgpu_profile": Profile,
    "simgpu_load": LoadStruct,
    "simgpu_account": Account,
    "simgpu_gpu": GpuStruct,
    "simgpu_state": StateStruct,
    "simgpu_operating_point": OperatingPointStruct,
}


def mirrored_layout() -> dict[str, object]:
    """Return version, offset and size of every field, and the numbers of faults and calls, as this module has them."""
    table: dict[str, object] = {"version": VERSION}
    for name, mirror in _MIRRORS.items():
        places = {"": [0, ctypes.sizeof(mirror)]}
        for field, *_ in mirror._fields_:
            descriptor = getattr(mirror, field)
            places[field] = [descriptor.offset, descriptor.size]
        table[name] = places
    table["faults"] = {fault.name: fault.value for fault in Fault} | {"COUNT": len(Fault)}
    table["calls"] = {call.name: call.value for call in Call} | {"COUNT": len(Call)}
    return table


def check_layout(compiled_json: bytes) -> None:
    """Compare this mirror with the table of a compiled library.

    Raises:
        LabError: they differ, so the library was built from other sources.
    """
    compiled = json.loads(compiled_json)
    mirrored = mirrored_layout()
    different = sorted(key for key in compiled.keys() | mirrored.keys() if compiled.get(key) != mirrored.get(key))
    if different:
        raise LabError(f"simulated NVML library does not fit this package (differs in {', '.join(different)}): rebuild")
