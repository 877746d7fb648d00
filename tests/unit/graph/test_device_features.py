from math import nan

import numpy as np
import pytest

from slurm_energy.domain.cluster import GpuReading
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.data_sheets import DATA_SHEETS
from slurm_energy.graph.place_features import (
    ALLOCATED,
    FREE,
    catalogue_type,
    device_rows,
    device_state,
    device_type,
    processor_type,
)
from slurm_energy.graph.schema import GPU, column

A100 = GpuTypeName("a100-sxm4-80gb")


def of(name: str, row: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> float:
    return float(row[column(GPU, name)])


def value(name: str, figure: float) -> float:
    return GPU[column(GPU, name)].scaled(figure)


def test_every_type_of_the_catalogue_has_a_data_sheet() -> None:
    assert DATA_SHEETS.keys() == CATALOG.keys()


def test_a_known_type_has_the_figures_of_the_catalogue_and_the_curves() -> None:
    row = device_rows([device_type(A100)], [FREE])[0]
    curves = [curve.on_board(400.0) for curve in curves_of(A100)]
    at_80 = sum(curve.watts(1128.0) / curve.watts(1410.0) for curve in curves) / len(curves)
    assert of("is_known_type", row) == 1.0
    assert of("memory_gib", row) == pytest.approx(value("memory_gib", 80.0))
    assert of("peak_tflops", row) == pytest.approx(value("peak_tflops", 312.0))
    assert of("power_at_80", row) == pytest.approx(at_80)
    assert 0.0 < of("slowdown_at_80", row) <= of("slowdown_at_60", row) <= of("slowdown_at_40", row)
    assert of("power_at_40", row) <= of("power_at_60", row) <= of("power_at_80", row) <= 1.0


def test_a_small_device_is_filled_by_smaller_products() -> None:
    rows = device_rows([device_type(GpuTypeName("t4")), device_type(GpuTypeName("h100-sxm5-80gb"))], [FREE, FREE])
    for name in ("saturation_200", "saturation_400", "saturation_800", "saturation_1600"):
        assert of(name, rows[0]) > of(name, rows[1]) > 0.0
    assert of("saturation_1600", rows[1]) > of("saturation_200", rows[1])


def test_an_unknown_type_has_no_figures() -> None:
    row = device_rows([device_type(None)], [ALLOCATED])[0]
    assert [GPU[index].name for index in np.flatnonzero(row)] == ["is_allocated"]


def test_the_boards_of_the_site_set_the_limit() -> None:
    limits = BoardLimits(site_watts={A100: 250.0})
    here, usual = device_type(A100, limits=limits), device_type(A100)
    assert here.power_limit_watts == 250.0
    rows = device_rows([here, usual], [FREE, FREE])
    assert of("power_limit_watts", rows[0]) == pytest.approx(value("power_limit_watts", 250.0))
    assert of("slowdown_at_80", rows[0]) < of("slowdown_at_80", rows[1])


def test_a_processor_of_the_saturation_table_is_known() -> None:
    name = processor_type(("avx2", "Xeon E5 2680 v3"))
    row = device_rows([device_type(name, is_cpu=True)], [FREE])[0]
    assert name == "xeon-e5-2680-v3"
    assert of("is_known_type", row) == of("is_cpu", row) == 1.0
    assert of("peak_tflops", row) == pytest.approx(value("peak_tflops", 0.96))
    assert of("saturation_200", row) > 0.2


def test_a_reading_is_put_in_relation_to_the_type() -> None:
    reading = GpuReading(
        index=0,
        utilisation=0.5,
        memory_used_gib=20.0,
        sm_clock_mhz=705.0,
        power_watts=100.0,
        temperature_celsius=60.0,
        efficiency_change=-0.1,
        is_slowed=True,
    )
    state = device_state(device_type(A100), reading, is_allocated=True)
    assert state == (1.0, 1.0, 0.5, 0.75, 0.5, 0.25, 60.0, -0.1, 1.0)


@pytest.mark.parametrize("bad", [nan, float("inf"), float("-inf"), None])
def test_a_reading_that_is_not_finite_is_unknown(bad: float | None) -> None:
    reading = GpuReading(index=0, utilisation=bad, memory_used_gib=bad, power_watts=bad, temperature_celsius=bad)
    row = device_rows([device_type(None)], [device_state(device_type(A100), reading, is_allocated=False)])[0]
    assert [GPU[index].name for index in np.flatnonzero(row)] == ["has_reading"]


def test_no_devices_have_no_rows() -> None:
    assert device_rows([], []).shape == (0, len(GPU))


def test_the_site_says_what_a_gres_type_is() -> None:
    assert catalogue_type("a100", {}) == A100
    assert catalogue_type("a100", {"a100": "a100-pcie-40gb"}) == "a100-pcie-40gb"
    assert catalogue_type(None, {"gpu": "t4"}) == "t4"
    assert catalogue_type("k40c", {}) == "k40c"
    assert catalogue_type(None, {}) is catalogue_type("strange", {}) is catalogue_type("a100", {"a100": "x"}) is None
