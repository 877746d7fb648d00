"""Values of a specification written into the shared structures."""

from slurm_energy.lab.simgpu.layout import Curve, Gpu, Load
from slurm_energy.lab.simgpu.profiles import LoadProfile
from slurm_energy.lab.simgpu.specs import SimulatedGpuSpec

BLOCK_SECONDS = 2.0
_LOAD_MEMORY_BYTES = 8 << 30


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


def encode_load(profile: LoadProfile | Curve, utilisation: float, target_seconds: float, pid: int) -> Load:
    """Return a load as the library takes it; the library adds what tells the process from a later one."""
    return Load(
        pid=pid,
        utilisation=utilisation,
        target_seconds=target_seconds,
        memory_bytes=_LOAD_MEMORY_BYTES,
        curve=encode_curve(profile) if isinstance(profile, LoadProfile) else profile,
    )


def encode_gpu(spec: SimulatedGpuSpec, gpu: Gpu) -> None:
    """Fill a GPU's structure; what is left out starts at 0."""
    _encode_identity(spec, gpu)
    _encode_clocks(spec, gpu)
    _encode_power(spec, gpu)
    gpu.block_seconds = BLOCK_SECONDS
    gpu.account[0].temperature_c = spec.ambient_c + spec.kelvin_per_watt * spec.idle_watts
    gpu.profile_count = len(spec.profiles)
    for place, profile in enumerate(spec.profiles):
        gpu.profiles[place].name = profile.name.encode()
        gpu.profiles[place].units_per_second = profile.units_per_second
        gpu.profiles[place].curve = encode_curve(profile)


def _encode_identity(spec: SimulatedGpuSpec, gpu: Gpu) -> None:
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


def _encode_clocks(spec: SimulatedGpuSpec, gpu: Gpu) -> None:
    gpu.clock_count = len(spec.sm_clocks_mhz)
    gpu.clocks_mhz[: len(spec.sm_clocks_mhz)] = spec.sm_clocks_mhz
    gpu.memory_clock_count = len(spec.memory_clocks_mhz)
    gpu.memory_clocks_mhz[: len(spec.memory_clocks_mhz)] = spec.memory_clocks_mhz
    gpu.idle_clock_mhz = spec.idle_clock_mhz
    if spec.site_locked_clocks_mhz is not None:
        gpu.locked_low_mhz, gpu.locked_high_mhz = spec.site_locked_clocks_mhz
        gpu.site_locked_low_mhz, gpu.site_locked_high_mhz = spec.site_locked_clocks_mhz


def _encode_power(spec: SimulatedGpuSpec, gpu: Gpu) -> None:
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
