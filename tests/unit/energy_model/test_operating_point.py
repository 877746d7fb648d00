import csv
import math
from collections import defaultdict

import measured_data
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operating_points import best_operating_point

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.energy_model.catalog import CATALOG, catalogue_limit_watts
from slurm_energy.energy_model.curves import curves_of, shipped_curves
from slurm_energy.energy_model.operating_point import (
    ClockCost,
    OperatingPoint,
    clock_table,
    clock_table_of,
)
from slurm_energy.errors import ValueRangeError

SWEEP = measured_data.MEASURED / "perseus_dvfs" / "stage_clock_sweep.csv"
A100 = GpuTypeName("a100-sxm4-80gb")
MEASURED = sorted(shipped_curves())
BOUNDS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20, 0.30, 0.50, 1.0, 2.0)

cost = st.tuples(st.floats(0.1, 100.0), st.floats(0.1, 100.0))
workloads = st.integers(1, 12).flatmap(
    lambda clocks: st.lists(st.lists(cost, min_size=clocks, max_size=clocks), min_size=1, max_size=4)
)
bound = st.floats(0.0, 2.0)


def costs_of(rows: list[list[tuple[float, float]]]) -> list[list[ClockCost]]:
    return [
        [
            ClockCost(sm_clock_mhz=500 + 15 * index, slowdown=seconds / row[-1][0] - 1.0, joules=joules)
            for index, (seconds, joules) in enumerate(row)
        ]
        for row in rows
    ]


def check_bound(point: OperatingPoint, name: GpuTypeName, limit_watts: float, max_slowdown: float) -> None:
    """By every curve and by the readings, against what a board of this limit reaches at its default clock."""
    for curve in curves_of(name):
        board = curve.on_board(limit_watts)
        assert board.seconds(point.sm_clock_mhz) <= (1.0 + max_slowdown + 1e-8) * board.seconds(point.default_clock_mhz)
        here, default = board.reading(point.sm_clock_mhz), board.reading(point.default_clock_mhz)
        if here is not None and default is not None:
            assert here.seconds <= (1.0 + max_slowdown + 1e-8) * default.seconds


def test_oracle_equals_the_exhaustive_optimum_of_every_measured_sweep() -> None:
    sweeps: dict[tuple[str, str, str, str], list[tuple[int, float, float]]] = defaultdict(list)
    with SWEEP.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["gpu"], row["model"], row["stage"], row["instruction"])
            sweeps[key].append((int(row["sm_clock_mhz"]), float(row["time_s"]), float(row["energy_j"])))
    assert len(sweeps) == 64
    for key, points in sweeps.items():
        _, default_time, default_energy = max(points)
        costs = [ClockCost(sm_clock_mhz=mhz, slowdown=t / default_time - 1.0, joules=e) for mhz, t, e in points]
        table = clock_table([costs])
        for limit in BOUNDS:
            inside = [(e, mhz) for mhz, t, e in points if t <= (1.0 + limit) * default_time * (1 + 1e-12)]
            least = min(inside)[0]
            best = table.best(limit)
            assert best is not None, key
            assert (1.0 + best.energy_change) * default_energy == pytest.approx(least, rel=1e-8), (key, limit)


@given(rows=workloads, limit=bound)
def test_oracle_equals_the_exhaustive_optimum_over_several_workloads(
    rows: list[list[tuple[float, float]]], limit: float
) -> None:
    best = clock_table(costs_of(rows)).best(limit)
    clocks = range(len(rows[0]))
    slowdown = [round(max(row[i][0] / row[-1][0] - 1.0 for row in rows), 9) for i in clocks]
    change = [round(sum(row[i][1] / row[-1][1] - 1.0 for row in rows) / len(rows), 9) for i in clocks]
    expected = min((change[i], -i) for i in clocks if slowdown[i] <= limit)
    assert best is not None
    assert (best.energy_change, best.sm_clock_mhz) == (expected[0], 500 + 15 * -expected[1])


@pytest.mark.parametrize("name", MEASURED)
@given(bounds=st.tuples(bound, bound))
def test_smaller_bound_never_gives_less_energy(name: GpuTypeName, bounds: tuple[float, float]) -> None:
    tight, loose = best_operating_point(name, min(bounds)), best_operating_point(name, max(bounds))
    assert tight is not None and loose is not None
    assert tight.energy_change >= loose.energy_change


@pytest.mark.parametrize("name", MEASURED)
@given(limit=bound)
def test_slowdown_stays_inside_the_bound_for_every_curve_of_the_type(name: GpuTypeName, limit: float) -> None:
    point = best_operating_point(name, limit)
    assert point is not None
    assert point.sm_clock_mhz in CATALOG[name].sm_clocks_mhz
    assert point.default_clock_mhz == CATALOG[name].default_sm_clock_mhz
    check_bound(point, name, catalogue_limit_watts(name), limit)


@pytest.mark.parametrize("name", MEASURED)
def test_bound_of_zero_never_costs_time(name: GpuTypeName) -> None:
    point = best_operating_point(name, 0.0)
    assert point is not None
    assert point.slowdown == 0.0
    assert point.energy_change <= 0.0


@pytest.mark.parametrize("limit", [-0.01, math.nan])
def test_bound_below_zero_gives_no_clock(limit: float) -> None:
    assert best_operating_point(GpuTypeName("a100-sxm4-80gb"), limit) is None


@pytest.mark.parametrize("name", ["h100-sxm5-80gb", "t4", "a100-sxm4-40gb", "mi300x"])
def test_type_that_nobody_swept_gets_no_clock(name: str) -> None:
    assert best_operating_point(GpuTypeName(name), 0.2) is None


def test_known_workload_gets_its_own_clock() -> None:
    name = GpuTypeName("v100-pcie-16gb")
    stream, dgemm = best_operating_point(name, 0.05, "stream"), best_operating_point(name, 0.05, "dgemm")
    assert stream is not None and dgemm is not None
    assert stream.sm_clock_mhz < 1100
    assert dgemm.sm_clock_mhz > 1200
    assert best_operating_point(name, 0.05, "no such workload") is None


def test_a100_of_500_watts_saves_a_tenth_at_five_percent_slowdown() -> None:
    point = best_operating_point(A100, 0.05, power_limit_watts=500.0)
    assert point is not None
    assert (point.sm_clock_mhz, point.default_clock_mhz) == (1290, 1410)
    assert (point.slowdown, point.energy_change) == pytest.approx((0.0485, -0.110), abs=0.001)


@pytest.mark.parametrize("max_slowdown", [0.02, 0.05, 0.10, 0.20, 0.50])
def test_a100_of_400_watts_is_measured_against_the_clock_that_its_limit_leaves(max_slowdown: float) -> None:
    point = best_operating_point(A100, max_slowdown, power_limit_watts=400.0)
    assert point is not None
    assert point.default_clock_mhz == 1410
    check_bound(point, A100, 400.0, max_slowdown)
    changes = []
    for curve in curves_of(A100):
        watts = {reading.sm_clock_mhz: reading.watts for reading in curve.readings}
        seconds = {reading.sm_clock_mhz: reading.seconds for reading in curve.readings}
        free = max(clock for clock in watts if watts[clock] <= 400.0)
        assert free < 1320
        # What 15 MHz more or less make of it is the whole difference from a board that runs at `free` exactly.
        real = min(point.sm_clock_mhz, free)
        changes.append(watts[real] * seconds[real] / (watts[free] * seconds[free]) - 1.0)
    assert point.energy_change == pytest.approx(sum(changes) / len(changes), abs=0.015)


def test_limit_that_nobody_names_is_the_catalogues_and_not_that_of_the_measured_boards() -> None:
    assert CATALOG[A100].power_limit_watts == 400.0
    assert best_operating_point(A100, 0.05) == best_operating_point(A100, 0.05, power_limit_watts=400.0)
    assert best_operating_point(A100, 0.05) != best_operating_point(A100, 0.05, power_limit_watts=500.0)


@pytest.mark.parametrize("name", MEASURED)
@given(limits=st.tuples(st.floats(10.0, 600.0), st.floats(10.0, 600.0)), max_slowdown=st.sampled_from((0.0, 0.05, 0.2)))
def test_lower_board_limit_never_slows_a_clock_beyond_the_bound(
    name: GpuTypeName, limits: tuple[float, float], max_slowdown: float
) -> None:
    for limit_watts in limits:
        point = best_operating_point(name, max_slowdown, power_limit_watts=limit_watts)
        assert point is not None
        assert 0.0 <= point.slowdown <= max_slowdown
        assert point.energy_change <= 0.0
        check_bound(point, name, limit_watts, max_slowdown)
    chosen = best_operating_point(name, max_slowdown, power_limit_watts=max(limits))
    lower = clock_table_of(name, power_limit_watts=min(limits))
    assert chosen is not None and lower is not None
    there = lower.at(chosen.sm_clock_mhz)
    assert there is not None and there.slowdown <= chosen.slowdown + 1e-9


def test_of_clocks_that_run_alike_under_the_board_limit_the_highest_is_taken() -> None:
    costs = [
        ClockCost(sm_clock_mhz=900, slowdown=0.0, joules=5.0),
        ClockCost(sm_clock_mhz=1000, slowdown=0.0, joules=5.0 + 1e-12),
        ClockCost(sm_clock_mhz=1100, slowdown=0.0, joules=5.0),
    ]
    best = clock_table([costs]).best(0.0)
    assert best is not None and best.sm_clock_mhz == 1100


def test_reference_of_the_bound_is_the_default_clock_night_after_night() -> None:
    name = GpuTypeName("a100-sxm4-80gb")
    first = best_operating_point(name, 0.05)
    for _ in range(3):
        clock_table_of.cache_clear()
        assert best_operating_point(name, 0.05) == first
    assert first is not None and first.default_clock_mhz == 1410


def test_workloads_measured_at_different_clocks_are_refused() -> None:
    one = [ClockCost(sm_clock_mhz=900, slowdown=0.0, joules=5.0)]
    other = [ClockCost(sm_clock_mhz=915, slowdown=0.0, joules=5.0)]
    with pytest.raises(ValueRangeError, match="different clocks"):
        clock_table([one, other])


def test_board_of_a_lower_power_limit_leaves_less_to_save_and_is_slowed_no_more() -> None:
    measured = clock_table_of(A100, power_limit_watts=500.0)
    limited = clock_table_of(A100, power_limit_watts=400.0)
    assert measured is not None and limited is not None
    free, held = measured.at(1290), limited.at(1290)
    assert free is not None and held is not None
    assert held.slowdown <= free.slowdown
    assert held.energy_change > free.energy_change + 0.05


def test_board_of_a_higher_power_limit_is_not_guessed_at() -> None:
    name = GpuTypeName("a40")
    measured, higher = clock_table_of(name), clock_table_of(name, power_limit_watts=1000.0)
    assert measured is not None and higher is not None
    assert measured.points == higher.points


def test_bound_holds_for_the_readings_themselves_where_they_are_slower_than_the_curve() -> None:
    point = best_operating_point(GpuTypeName("a40"), 0.05)
    assert point is not None
    check_bound(point, GpuTypeName("a40"), 300.0, 0.05)
    slowdowns = []
    for curve in curves_of(GpuTypeName("a40")):
        seconds = {reading.sm_clock_mhz: reading.seconds for reading in curve.readings}
        slowdowns.append(seconds[1335] / seconds[1740] - 1.0)
    assert max(slowdowns) > 0.08
