import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.curves import PowerCurve, Reading, RuntimeCurve, WorkloadCurve, curves_of, shipped_curves
from slurm_energy.errors import ValueRangeError

coefficient = st.floats(min_value=0.0, max_value=500.0)
clock = st.floats(min_value=0.05, max_value=1.2)
ALL_CURVES = [curve for curves in shipped_curves().values() for curve in curves]


def make_curve(power_limit_watts: float = 1000.0) -> WorkloadCurve:
    return WorkloadCurve(
        gpu_type=GpuTypeName("a100-sxm4-80gb"),
        workload="made-up",
        power=PowerCurve(cubic_watts=300.0, linear_watts=0.0, constant_watts=100.0),
        runtime=RuntimeCurve(memory_seconds=0.0, compute_seconds=1.0, fixed_seconds=0.0),
        reference_clock_mhz=1000,
        low_clock_mhz=200,
        high_clock_mhz=1000,
        power_limit_watts=power_limit_watts,
        power_error=0.0,
        runtime_error=0.0,
    )


def make_measured_curve() -> WorkloadCurve:
    """Readings that are slower than the curve."""
    readings = (Reading(400, 100.0, 3.0), Reading(800, 200.0, 1.4), Reading(1000, 380.0, 1.0))
    return replace(make_curve(), readings=readings)


@given(cubic=coefficient, linear=coefficient, constant=coefficient, clocks=st.tuples(clock, clock))
def test_lower_clock_never_draws_more_power(
    cubic: float, linear: float, constant: float, clocks: tuple[float, float]
) -> None:
    curve = PowerCurve(cubic_watts=cubic, linear_watts=linear, constant_watts=constant)
    assert curve.watts(min(clocks)) <= curve.watts(max(clocks))


@given(memory=coefficient, compute=coefficient, fixed=st.floats(0.001, 500.0), clocks=st.tuples(clock, clock))
def test_lower_clock_never_ends_work_sooner(
    memory: float, compute: float, fixed: float, clocks: tuple[float, float]
) -> None:
    curve = RuntimeCurve(memory_seconds=memory, compute_seconds=compute, fixed_seconds=fixed)
    assert curve.seconds(min(clocks)) >= curve.seconds(max(clocks))


def test_runtime_without_memory_floor_is_alpha_plus_beta_over_f() -> None:
    curve = RuntimeCurve(memory_seconds=0.0, compute_seconds=3.0, fixed_seconds=2.0)
    assert curve.seconds(0.5) == 2.0 + 3.0 / 0.5


def test_memory_bound_runtime_is_flat_above_its_knee() -> None:
    curve = RuntimeCurve(memory_seconds=4.0, compute_seconds=2.0, fixed_seconds=0.5)
    assert curve.seconds(1.0) == curve.seconds(0.5) == 4.5
    assert curve.seconds(0.25) == 8.5


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_coefficient_that_is_no_finite_number_from_zero_up_is_refused(bad: float) -> None:
    with pytest.raises(ValueRangeError, match="cubic_watts"):
        PowerCurve(cubic_watts=bad, linear_watts=1.0, constant_watts=1.0)
    with pytest.raises(ValueRangeError, match="compute_seconds"):
        RuntimeCurve(memory_seconds=1.0, compute_seconds=bad, fixed_seconds=1.0)


def test_work_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="all 0"):
        RuntimeCurve(memory_seconds=0.0, compute_seconds=0.0, fixed_seconds=0.0)


def test_board_limit_holds_the_real_clock_where_power_meets_it() -> None:
    curve = make_curve(power_limit_watts=100.0 + 300.0 * 0.8**3)
    assert curve.real_clock_mhz(1000) == pytest.approx(800.0)
    assert curve.real_clock_mhz(700) == 700
    assert curve.watts(1000) == pytest.approx(253.6)
    assert curve.seconds(1000) == pytest.approx(1.25)


def test_energy_is_power_times_time() -> None:
    curve = make_curve()
    assert curve.joules(500) == pytest.approx((100.0 + 300.0 * 0.125) * 2.0)


def test_slower_readings_count_where_the_curve_is_too_kind() -> None:
    curve = make_measured_curve()
    assert curve.slowdown(800) == pytest.approx(0.4)
    assert curve.slowdown(900) == pytest.approx(0.2)
    assert curve.slowdown(400) == pytest.approx(2.0)
    assert curve.slowdown(300) == pytest.approx(1000 / 300 - 1)
    assert curve.slowdown(1000) == 0.0
    assert make_curve().slowdown(800) == pytest.approx(0.25)


def test_energy_is_that_of_the_readings_where_there_are_any() -> None:
    curve = make_measured_curve()
    assert curve.joules(800) == pytest.approx(200.0 * 1.4)
    assert curve.joules(900) == pytest.approx(290.0 * 1.2)
    assert curve.joules(1000) == pytest.approx(380.0)


def test_board_limit_holds_the_readings_where_they_meet_it() -> None:
    held = make_measured_curve().on_board(290.0)
    assert held.reading(1000) == held.reading(900) == pytest.approx((900.0, 290.0, 1.2))
    assert held.reading(800) == (800, 200.0, 1.4)
    assert held.slowdown(1000) == 0.0
    assert held.joules(1000) == pytest.approx(290.0 * 1.2)


@pytest.mark.parametrize("limit_watts", [1e-6, 1.0, 99.0])
def test_limit_below_every_reading_leaves_the_lowest_clock_and_nothing_to_choose(limit_watts: float) -> None:
    held = make_measured_curve().on_board(limit_watts)
    assert held.real_clock_mhz(1000) == 200
    assert held.reading(1000) == held.readings[0]
    assert (held.slowdown(400), held.joules(400)) == (0.0, held.joules(1000))


def test_limit_above_that_of_the_measured_boards_changes_nothing() -> None:
    curve = make_measured_curve()
    higher = curve.on_board(1e6)
    assert [(higher.slowdown(mhz), higher.joules(mhz)) for mhz in (400, 900, 1000)] == [
        (curve.slowdown(mhz), curve.joules(mhz)) for mhz in (400, 900, 1000)
    ]


@pytest.mark.parametrize("curve", ALL_CURVES, ids=lambda curve: f"{curve.gpu_type}-{curve.workload}")
def test_shipped_readings_cover_the_clocks_of_their_curve_and_none_is_faster_at_a_lower_one(
    curve: WorkloadCurve,
) -> None:
    if curve.gpu_type in {"v100-sxm2-16gb", "v100-sxm2-32gb"}:
        assert curve.readings == ()
        return
    clocks = [reading.sm_clock_mhz for reading in curve.readings]
    assert (clocks[0], clocks[-1], clocks) == (curve.low_clock_mhz, curve.high_clock_mhz, sorted(set(clocks)))
    assert all(lower.seconds >= higher.seconds > 0.0 for lower, higher in pairwise(curve.readings))
    assert all(reading.watts > 0.0 for reading in curve.readings)


def test_limit_below_idle_power_leaves_no_clock() -> None:
    assert PowerCurve(cubic_watts=1.0, linear_watts=0.0, constant_watts=50.0).relative_clock_at(40.0, 1.0) < 1e-9


def test_clock_outside_the_measured_range_is_refused() -> None:
    with pytest.raises(ValueRangeError, match=r"199 MHz .* 200 to 1000 MHz"):
        make_curve().seconds(199)


@pytest.mark.parametrize("curve", ALL_CURVES, ids=lambda curve: f"{curve.gpu_type}-{curve.workload}")
def test_shipped_curve_never_draws_more_at_a_lower_clock_nor_above_its_limit(curve: WorkloadCurve) -> None:
    watts = [curve.watts(mhz) for mhz in range(curve.low_clock_mhz, curve.high_clock_mhz + 1)]
    assert all(lower <= higher + 1e-9 for lower, higher in pairwise(watts))
    assert watts[0] > 0.0 and watts[-1] <= curve.power_limit_watts + 1e-6


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "a40"])
def test_shipped_table_meets_its_goals_on_a100_and_a40(name: str) -> None:
    curves = curves_of(GpuTypeName(name))
    assert len(curves) == 8
    assert max(curve.power_error for curve in curves) <= 0.04
    assert max(curve.runtime_error for curve in curves) <= 0.03


def test_type_that_nobody_swept_has_no_curves() -> None:
    assert curves_of(GpuTypeName("h100-sxm5-80gb")) == ()


def test_curves_taken_from_another_board_are_marked_as_a_model() -> None:
    assert {curve.source for curve in curves_of(GpuTypeName("v100-sxm2-16gb"))} == {"model"}
    assert {curve.source for curve in curves_of(GpuTypeName("v100-pcie-16gb"))} == {"measured"}
