"""GPUs that a laboratory can simulate: the catalogue's figures, and the rest that only a simulation needs."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model import catalog
from slurm_energy.errors import LabError
from slurm_energy.lab.simgpu.layout import MAX_CLOCKS, MAX_GPUS, MAX_MEMORY_CLOCKS, MAX_PROFILES
from slurm_energy.lab.simgpu.profiles import LoadProfile, standard_profiles

_NAMESPACE: Final = uuid.UUID("5f0d9f5e-2a7c-4c0b-9d0e-6d3b5b1f9a41")
_FIRST_PCI_BUS: Final = 7
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpuSpec:
    """One GPU as the driver reports it and as it behaves."""

    name: str
    uuid: str
    minor_number: int
    """N of /dev/nvidiaN."""
    slurm_position: int | None = None
    """Where the laboratory's Slurm counts it; None: at its minor number."""
    pci_bus: int
    pci_device_id: int
    architecture: int
    """NVML_DEVICE_ARCH_*."""
    compute_capability: tuple[int, int]
    memory_bytes: int
    sm_clocks_mhz: tuple[int, ...]
    """Ascending."""
    memory_clocks_mhz: tuple[int, ...]
    """Descending."""
    idle_clock_mhz: int
    power_limit_watts: float
    """The board's default."""
    min_power_limit_watts: float
    max_power_limit_watts: float
    idle_watts: float
    idle_context_watts: float
    capping_floor_watts: float = 0.0
    """Power limits below this do not hold."""
    holding_share: float = 1.0
    """Boards hold a little less than their limit: 0.98 is 2 % less."""
    mig_capable: bool = False
    memory_lock_capable: bool = True
    ambient_c: float = 28.0
    kelvin_per_watt: float = 0.09
    thermal_seconds: float = 15.0
    profiles: tuple[LoadProfile, ...] = field(default=(), repr=False)
    site_locked_clocks_mhz: tuple[int, int] | None = None
    """Range that the site locked before any job ran."""
    site_power_limit_watts: float | None = None
    """Limit that the site set before any job ran; None: the default."""

    def __post_init__(self) -> None:
        clocks = self.sm_clocks_mhz
        if not 1 <= len(clocks) <= MAX_CLOCKS or list(clocks) != sorted(set(clocks)) or clocks[0] <= 0:
            raise LabError(f"GPU {self.uuid}: SM clocks are 1 to {MAX_CLOCKS} ascending values above 0 MHz")
        if not 1 <= len(self.memory_clocks_mhz) <= MAX_MEMORY_CLOCKS:
            raise LabError(f"GPU {self.uuid}: {len(self.memory_clocks_mhz)} memory clocks, 1 to {MAX_MEMORY_CLOCKS}")
        if len(self.profiles) > MAX_PROFILES:
            raise LabError(f"GPU {self.uuid}: {len(self.profiles)} profiles, at most {MAX_PROFILES}")
        limit = self.site_power_limit_watts or self.power_limit_watts
        if not 0 < self.min_power_limit_watts <= limit <= self.max_power_limit_watts:
            raise LabError(
                f"GPU {self.uuid}: power limit {limit} W is not between {self.min_power_limit_watts} and "
                f"{self.max_power_limit_watts} W"
            )
        locked = self.site_locked_clocks_mhz
        if locked is not None and not clocks[0] <= locked[0] <= locked[1] <= clocks[-1]:
            raise LabError(f"GPU {self.uuid}: locked clocks {locked} MHz are not in {clocks[0]} to {clocks[-1]} MHz")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """What the catalogue does not say of a type; assumptions for the simulation are marked in the table."""

    nvml_name: str
    pci_device_id: int
    architecture: int
    compute_capability: tuple[int, int]
    memory_clocks_mhz: tuple[int, ...]
    min_limit_watts: float
    idle_watts: float
    idle_context_watts: float
    board_limit_watts: float | None = None
    capping_floor_watts: float = 0.0
    holding_share: float = 1.0
    mig_capable: bool = False
    memory_lock_capable: bool = True
    reversed_minors: bool = False


_MODELS: Final = {
    "a100-sxm4-80gb": _Model(
        nvml_name="NVIDIA A100-SXM4-80GB",
        pci_device_id=0x20B210DE,
        architecture=7,
        compute_capability=(8, 0),
        memory_clocks_mhz=(1593,),
        min_limit_watts=100.0,
        idle_watts=60.0,  # AcmeTrace, 1st to 10th percentile
        idle_context_watts=85.0,  # assumed
        board_limit_watts=500.0,  # the Perseus boards drew 464 to 478 W
        mig_capable=True,
    ),
    "a40": _Model(
        nvml_name="NVIDIA A40",
        pci_device_id=0x223510DE,
        architecture=7,
        compute_capability=(8, 6),
        memory_clocks_mhz=(7251, 405),
        min_limit_watts=100.0,
        idle_watts=22.0,  # idle A40 in the catalogue's source
        idle_context_watts=70.0,  # assumed; lightest training in the Zeus sweep: 80 W
        capping_floor_watts=107.0,  # Zeus sweep: 106.9 W under a limit of 100 W
        holding_share=0.977,  # Perseus sweep: 293 of 300 W held
    ),
    "v100-pcie-16gb": _Model(
        nvml_name="Tesla V100-PCIE-16GB",
        pci_device_id=0x1DB410DE,
        architecture=5,
        compute_capability=(7, 0),
        memory_clocks_mhz=(877,),
        min_limit_watts=100.0,
        idle_watts=24.0,  # assumed; the LSTM of the sweep drew 26 W at its lowest clocks
        idle_context_watts=25.0,
        memory_lock_capable=False,
        reversed_minors=True,
    ),
    "h100-sxm5-80gb": _Model(
        nvml_name="NVIDIA H100 80GB HBM3",
        pci_device_id=0x233010DE,
        architecture=9,
        compute_capability=(9, 0),
        memory_clocks_mhz=(2619, 1593),
        min_limit_watts=200.0,
        idle_watts=71.0,  # measured
        idle_context_watts=117.0,  # measured
        mig_capable=True,
    ),
}
SIMULATED_TYPES: Final = tuple(GpuTypeName(name) for name in _MODELS)
LAB_GPU_TYPES: Final = {"v100": GpuTypeName("v100-pcie-16gb"), "3090": GpuTypeName("a40")}
"""GRES types that mean another board here than in the catalogue: the V100 that was measured is a PCIe one, and an A40
stands for a type of digits."""
LAB_POWER_LIMITS_WATTS: Final = {
    "a100": 500.0,  # the Perseus boards drew 464 to 478 W
}
"""Limits of simulated boards that are not the catalogue's, by GRES type."""


def standard_gpus(gpu_type: str, count: int, node_name: str) -> tuple[SimulatedGpuSpec, ...]:
    """Return the GPUs of one node in the driver's order, with UUIDs that depend on node and index only.

    On V100 nodes the minor numbers run against the driver's order, on purpose: NVML's device 0 is /dev/nvidia(N-1).

    Args:
        gpu_type: Catalogue name or a GRES type that the catalogue or the laboratory knows, such as `a100`.
        count: 1 to 16.
        node_name: Part of the UUIDs.

    Raises:
        LabError: no such type, or a count outside its bound.
    """
    name = LAB_GPU_TYPES.get(gpu_type) or catalog.gpu_type_from_slurm_type(gpu_type)
    if name is None or name not in _MODELS:
        raise LabError(f"GPU type {gpu_type!r} cannot be simulated; known: {', '.join(_MODELS)}")
    if not 1 <= count <= MAX_GPUS:
        raise LabError(f"{count} simulated GPUs on node {node_name}: 1 to {MAX_GPUS} are possible")
    reverse = _MODELS[name].reversed_minors
    return tuple(
        _standard_gpu(name, index, count - 1 - index if reverse else index, node_name) for index in range(count)
    )


def mixed_gpus(gpu_types: Sequence[str], node_name: str, minor_numbers: Sequence[int]) -> tuple[SimulatedGpuSpec, ...]:
    """Return the GPUs of a node of several types, with type and minor number of each in the driver's order."""
    gpus = []
    for index, (gpu_type, minor) in enumerate(zip(gpu_types, minor_numbers, strict=True)):
        gpu = standard_gpus(gpu_type, index + 1, node_name)[index]
        gpus.append(replace(gpu, minor_number=minor))
    return tuple(gpus)


def _standard_gpu(name: GpuTypeName, index: int, minor_number: int, node_name: str) -> SimulatedGpuSpec:
    model = _MODELS[name]
    row = catalog.CATALOG[name]
    limit_watts = model.board_limit_watts or row.power_limit_watts
    assert limit_watts is not None
    return SimulatedGpuSpec(
        name=model.nvml_name,
        uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{node_name}/{index}')}",
        minor_number=minor_number,
        pci_bus=_FIRST_PCI_BUS + 8 * index,
        pci_device_id=model.pci_device_id,
        architecture=model.architecture,
        compute_capability=model.compute_capability,
        memory_bytes=int((row.memory_gib or 16.0) * _GIB),
        sm_clocks_mhz=row.sm_clocks_mhz,
        memory_clocks_mhz=model.memory_clocks_mhz,
        idle_clock_mhz=row.sm_clocks_mhz[0],
        power_limit_watts=limit_watts,
        min_power_limit_watts=model.min_limit_watts,
        max_power_limit_watts=limit_watts,
        idle_watts=model.idle_watts,
        idle_context_watts=model.idle_context_watts,
        capping_floor_watts=model.capping_floor_watts,
        holding_share=model.holding_share,
        mig_capable=model.mig_capable,
        memory_lock_capable=model.memory_lock_capable,
        profiles=standard_profiles(name, row.sm_clocks_mhz[-1], limit_watts),
    )
