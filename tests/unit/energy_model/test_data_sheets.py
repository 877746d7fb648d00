"""Data sheets against the specification table that they are checked with."""

import csv

import pytest
from measured_data import MEASURED

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.coefficients import coefficients
from slurm_energy.energy_model.data_sheets import DATA_SHEETS
from slurm_energy.energy_model.saturation import saturation

TABLE = MEASURED / "gpu_specs" / "gpu_specs.csv"
NAMES = {
    "a100-sxm4-80gb": "A100 SXM4 80 GB",
    "a100-sxm4-40gb": "A100 SXM4 40 GB",
    "a100-pcie-80gb": "A100 PCIe 80 GB",
    "a100-pcie-40gb": "A100 PCIe 40 GB",
    "a40": "A40 PCIe",
    "a30": "A30 PCIe",
    "v100-sxm2-16gb": "Tesla V100 SXM2 16 GB",
    "v100-sxm2-32gb": "Tesla V100 SXM2 32 GB",
    "v100-pcie-16gb": "Tesla V100 PCIe 16 GB",
    "v100-pcie-32gb": "Tesla V100 PCIe 32 GB",
    "h100-sxm5-80gb": "H100 SXM5 80 GB",
    "h100-pcie-80gb": "H100 PCIe 80 GB",
    "h200-sxm5-141gb": "H200 SXM 141 GB",
    "p100-sxm2-16gb": "Tesla P100 SXM2",
    "p100-pcie-16gb": "Tesla P100 PCIe 16 GB",
    "t4": "Tesla T4",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "quadro-rtx-6000": "Quadro RTX 6000",
}
OPERATIONS = {
    "GV100": 128,
    "TU102": 128,
    "TU104": 128,
    "GA100": 512,
    "GA102": 256,
    "AD102": 256,
    "AD104": 256,
    "GH100": 1024,
}
"""Of one tensor core per clock, by chip; half precision, without sparsity."""
RATED_LOWER = {"h100-sxm5-80gb", "h100-pcie-80gb", "h200-sxm5-141gb", "l4", "l40", "l40s", "p100-pcie-16gb"}
"""The data sheet states less than cores and boost clock would give."""
PCIE_GB_PER_SECOND = {"PCIe 3.0 x16": 16.0, "PCIe 4.0 x16": 32.0, "PCIe 5.0 x16": 64.0}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows: dict[str, dict[str, str]] = {}
        for row in csv.DictReader(file):
            rows.setdefault(row["name"], row)
    return rows


def test_every_data_sheet_is_checked() -> None:
    assert NAMES.keys() == DATA_SHEETS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_lanes_memory_double_precision_and_bus_are_those_of_the_specification_table(
    name: str, table: dict[str, dict[str, str]]
) -> None:
    sheet, row = DATA_SHEETS[GpuTypeName(name)], table[NAMES[name]]
    assert sheet.lanes == int(row["shading_units"])
    assert sheet.memory_gb_per_second == float(row["memory_bandwidth_gb_s"])
    assert sheet.double_tflops == pytest.approx(float(row["double_float_performance_gflop_s"]) / 1e3, rel=1e-3)
    assert sheet.pcie_gb_per_second == PCIE_GB_PER_SECOND[row["bus_interface"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_what_cores_and_clock_give_or_less_where_it_is_rated_lower(
    name: str, table: dict[str, dict[str, str]]
) -> None:
    row = table[NAMES[name]]
    tensor_cores, clock = int(row["tensor_cores"]), float(row["boost_clock_mhz"])
    worked_out = tensor_cores * clock * OPERATIONS.get(row["gpu_name"], 0) / 1e6
    if not tensor_cores:
        worked_out = float(row["half_float_performance_gflop_s"]) / 1e3
    share = DATA_SHEETS[GpuTypeName(name)].peak_tflops / worked_out
    if name in RATED_LOWER:
        assert (0.49 if name == "l40" else 0.92) < share < 0.99
    else:
        assert share == pytest.approx(1.0, abs=0.01)


def test_the_h100_is_the_one_whose_saturation_was_measured() -> None:
    sheet = DATA_SHEETS[GpuTypeName("h100-sxm5-80gb")]
    assert sheet.lanes == saturation("bf16").num_lanes
    assert sheet.peak_tflops == coefficients("saturation")["precisions"]["bf16"]["peak_gflops"] / 1e3
