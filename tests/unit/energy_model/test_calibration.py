import json
import math

import pytest
from measured_data import MEASURED
from operating_points import best_operating_point

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.curves import CURVES_PATH, curves_of

fitting = pytest.importorskip(
    "slurm_energy.energy_model.calibration.clocks", reason="scipy is not installed: the dev extra has it"
)
from slurm_energy.energy_model.calibration.clocks import (  # noqa: E402  # needs scipy
    SweepPoint,
    calibrated_table,
    fit_sweep,
    read_sweeps,
    smoothed_readings,
)
from slurm_energy.errors import ValueRangeError  # noqa: E402  # needs scipy


def made_sweep(limit_watts: float = 1e9) -> list[SweepPoint]:
    """Points of P = 250 f^3 + 20 f + 60, T = max(2, 1.6 / f) + 0.3 on a board with a limit."""
    points = []
    for mhz in range(500, 1001, 10):
        real = mhz / 1000
        while 250 * real**3 + 20 * real + 60 > limit_watts:
            real -= 1e-4
        points.append(
            SweepPoint(sm_clock_mhz=mhz, watts=250 * real**3 + 20 * real + 60, seconds=max(2.0, 1.6 / real) + 0.3)
        )
    return points


def test_fit_finds_the_coefficients_that_made_the_data() -> None:
    fit = fit_sweep(made_sweep(), 1000, 500.0)
    assert (fit.power.cubic_watts, fit.power.constant_watts) == pytest.approx((250.0, 60.0), rel=0.02)
    assert fit.runtime.seconds(1.0) == pytest.approx(2.3, rel=0.01)
    assert fit.runtime.seconds(0.5) == pytest.approx(3.5, rel=0.01)
    assert fit.power_error < 0.005
    assert fit.runtime_error < 0.005


def test_fit_finds_the_power_at_which_a_board_held_the_clock() -> None:
    fit = fit_sweep(made_sweep(limit_watts=240.0), 1000, 245.0)
    assert fit.power_limit_watts == pytest.approx(240.0, rel=0.02)
    assert fit.power.relative_clock_at(fit.power_limit_watts, 1.0) == pytest.approx(0.874, abs=0.02)
    assert fit.power_error < 0.01


def test_single_bad_reading_is_no_slowdown_but_a_step_is() -> None:
    seconds = [4.0, 4.0, 4.0, 2.0, 2.0, 9.0, 2.0, 2.0, 2.0, 2.0]
    points = [SweepPoint(sm_clock_mhz=100 + index, watts=1.0, seconds=value) for index, value in enumerate(seconds)]
    assert [reading.seconds for reading in smoothed_readings(points)] == [4.0] * 4 + [2.0] * 6


def test_single_bad_power_reading_is_taken_out() -> None:
    watts = [100.0, 110.0, 120.0, 500.0, 140.0, 150.0, 160.0]
    points = [SweepPoint(sm_clock_mhz=100 + index, watts=value, seconds=1.0) for index, value in enumerate(watts)]
    assert max(reading.watts for reading in smoothed_readings(points)) <= 160.0


def test_lower_clock_counts_as_at_least_as_slow_as_every_higher_one() -> None:
    points = [SweepPoint(sm_clock_mhz=mhz, watts=1.0, seconds=3.0 if mhz >= 150 else 1.0) for mhz in range(100, 200)]
    points += [SweepPoint(sm_clock_mhz=mhz, watts=1.0, seconds=1.0) for mhz in range(200, 300)]
    found = {reading.sm_clock_mhz: reading.seconds for reading in smoothed_readings(points)}
    assert (found[100], found[160], found[250]) == (3.0, 3.0, 1.0)


def test_sweep_of_three_clocks_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="3 clocks is too short"):
        fit_sweep(made_sweep()[:3], 1000, 500.0)


@pytest.mark.slow
def test_shipped_table_equals_a_fit_of_the_data_sets() -> None:
    shipped = json.loads(CURVES_PATH.read_text())["gpu_types"]
    fitted = calibrated_table(read_sweeps(MEASURED))["gpu_types"]
    assert fitted.keys() == shipped.keys()
    for gpu, entry in fitted.items():
        assert entry["origin"] == shipped[gpu]["origin"]
        assert entry["curves"].keys() == shipped[gpu]["curves"].keys()
        for workload, curve in entry["curves"].items():
            assert curve["readings"] == shipped[gpu]["curves"][workload]["readings"]
            for part in ("power", "runtime"):
                assert shipped[gpu]["curves"][workload][part] == pytest.approx(curve[part], rel=1e-3, abs=1e-3)
            assert shipped[gpu]["curves"][workload]["power_error"] == pytest.approx(curve["power_error"], abs=1e-3)
            assert shipped[gpu]["curves"][workload]["runtime_error"] == pytest.approx(curve["runtime_error"], abs=1e-3)


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "a40", "v100-pcie-16gb"])
def test_stated_errors_of_the_shipped_table_are_true(gpu: str) -> None:
    sweeps = read_sweeps(MEASURED)[gpu]
    for curve in curves_of(GpuTypeName(gpu)):
        points = sweeps[curve.workload]
        power = sum(abs(curve.watts(p.sm_clock_mhz) / p.watts - 1) for p in points) / len(points)
        time = sum(abs(curve.seconds(p.sm_clock_mhz) / p.seconds - 1) for p in points) / len(points)
        assert (curve.power_error, curve.runtime_error) == pytest.approx((power, time), abs=2e-4)


@pytest.mark.parametrize("max_slowdown", [0.02, 0.05, 0.10, 0.20, 0.30])
@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "a40", "v100-pcie-16gb"])
def test_saving_that_is_promised_is_the_one_that_was_measured(gpu: str, max_slowdown: float) -> None:
    """The readings as they are: at most half a point less saving than promised, at most three points more."""
    point = best_operating_point(GpuTypeName(gpu), max_slowdown, power_limit_watts=math.inf)
    assert point is not None
    changes = []
    for points in read_sweeps(MEASURED)[gpu].values():
        joules = {one.sm_clock_mhz: one.watts * one.seconds for one in points}
        changes.append(joules[point.sm_clock_mhz] / joules[point.default_clock_mhz] - 1.0)
    measured = sum(changes) / len(changes)
    assert -0.03 <= measured - point.energy_change <= 0.005
