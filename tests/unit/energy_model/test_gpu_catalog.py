from dataclasses import fields

import pytest

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import (
    CATALOG,
    gpu_type,
    gpu_type_from_device_name,
    gpu_type_from_slurm_type,
)


@pytest.mark.parametrize(
    ("device_name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A40", "a40"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA A400", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("", None),
    ],
)
def test_nvml_device_name_gives_the_catalogue_name(device_name: str, expected: str | None) -> None:
    assert gpu_type_from_device_name(device_name) == expected


@pytest.mark.parametrize(
    ("slurm_type", "expected"),
    [
        ("a100", "a100-sxm4-80gb"),
        ("A100", "a100-sxm4-80gb"),
        ("a40", "a40"),
        ("v100", "v100-sxm2-16gb"),
        ("nvidia_a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("tesla_v100-sxm2-16gb", "v100-sxm2-16gb"),
        ("nvidia_h100_80gb_hbm3", "h100-sxm5-80gb"),
        ("a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("1g.10gb", None),
        ("mi250", None),
        ("", None),
    ],
)
def test_gres_type_gives_the_catalogue_name(slurm_type: str, expected: str | None) -> None:
    assert gpu_type_from_slurm_type(slurm_type) == expected


@pytest.mark.parametrize("name", CATALOG)
def test_every_known_figure_names_its_source(name: GpuTypeName) -> None:
    row = CATALOG[name]
    figures = {field.name for field in fields(row)} - {"name", "device_names", "slurm_names", "sources"}
    known = {figure for figure in figures if getattr(row, figure) not in (None, ())}
    assert known == set(row.sources)


@pytest.mark.parametrize("name", [name for name, row in CATALOG.items() if row.sm_clocks_mhz])
def test_supported_clocks_ascend_to_the_default_clock(name: GpuTypeName) -> None:
    row = CATALOG[name]
    assert list(row.sm_clocks_mhz) == sorted(set(row.sm_clocks_mhz))
    assert row.sm_clocks_mhz[-1] == row.default_sm_clock_mhz


def test_v100_clocks_are_half_step_clocks_rounded_down() -> None:
    row = CATALOG[GpuTypeName("v100-pcie-16gb")]
    assert row.sm_clocks_mhz[-5:] == (1350, 1357, 1365, 1372, 1380)


def test_h100_clocks_are_those_a_real_one_listed() -> None:
    row = CATALOG[GpuTypeName("h100-sxm5-80gb")]
    assert (row.sm_clocks_mhz[0], row.default_sm_clock_mhz, len(row.sm_clocks_mhz)) == (345, 1980, 110)


def test_unsupported_clock_snaps_to_the_nearest_supported_one() -> None:
    row = CATALOG[GpuTypeName("a100-sxm4-80gb")]
    assert row.nearest_supported_clock_mhz(1234) == 1230
    assert row.nearest_supported_clock_mhz(9999) == 1410
    assert row.nearest_supported_clock_mhz(1) == 210
    assert row.nearest_supported_clock_mhz(1237.5) == 1245


def test_clock_of_a_type_without_known_clocks_snaps_to_nothing() -> None:
    assert CATALOG[GpuTypeName("t4")].nearest_supported_clock_mhz(1000) is None


def test_no_two_types_share_a_name() -> None:
    names = [name.lower() for row in CATALOG.values() for name in row.device_names]
    aliases = [alias for row in CATALOG.values() for alias in row.slurm_names]
    assert len(names) == len(set(names))
    assert len(aliases) == len(set(aliases))


def test_type_outside_the_catalogue_is_none() -> None:
    assert gpu_type(GpuTypeName("mi300x")) is None
