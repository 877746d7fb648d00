"""The bounds of the published geo-distributed world: every figure of the analysis, to its printed digits."""

import pytest
from chsac_world import MEAN_UNITS, SITES, chsac_world, with_free_watts

from slurm_energy.evaluation.bounds import (
    StationaryLoad,
    bound_for_processed,
    energy_latency_frontier,
    largest_feasible_load,
    steady_state_bound,
)
from slurm_energy.twin.world.file import shipped_world

LOAD = 0.16 * MEAN_UNITS
WEEK = 604_800.0
FRONTIER = {
    4220: 8.476,
    3500: 8.589,
    3000: 8.690,
    2500: 8.791,
    2000: 8.898,
    1750: 8.968,
    1500: 9.040,
    1425: 9.072,
    1200: 9.198,
    1000: 9.357,
    800: 9.597,
    686: 9.816,
    600: 10.10,
    500: 10.96,
    450: 11.75,
}
BY_RATE = {
    0.01: 10.829,
    0.02: 8.476,
    0.03: 7.871,
    0.04: 7.734,
    0.045: 7.689,
    0.05: 7.680,
    0.055: 7.766,
    0.06: 7.954,
}


@pytest.mark.parametrize(("load", "joules_per_unit"), [(LOAD, 8.476), (8642.0, 8.482), (8675.0, 8.474)])
def test_the_bound_at_the_published_load(load: float, joules_per_unit: float) -> None:
    bound = steady_state_bound(chsac_world(), {"training": load})
    assert bound.joules_per_unit == pytest.approx(joules_per_unit, abs=5e-4)


def test_the_shipped_world_has_the_same_bound() -> None:
    ours, shipped = (steady_state_bound(world, {"training": LOAD}) for world in (chsac_world(), shipped_world("chsac")))
    assert shipped.watts == pytest.approx(ours.watts)
    assert shipped.price_watts_by_pool == pytest.approx(ours.price_watts_by_pool)


def test_who_runs_what_at_the_bound() -> None:
    bound = steady_state_bound(chsac_world(), {"training": LOAD})
    settings = {run.pool: (run.gpus_per_job, run.relative_clock) for run in bound.runs}
    shares = {run.pool: run.units_per_second / LOAD for run in bound.runs}
    assert settings == {"me-central": (1, 0.8), "ap-southeast": (1, 0.7), "eu-west": (1, 0.7)}
    assert shares == pytest.approx({"me-central": 0.782, "ap-southeast": 0.160, "eu-west": 0.058}, abs=5e-4)
    assert bound.job_watts / bound.units_per_second == pytest.approx(6.846, abs=5e-4)
    assert bound.busy_gpus == pytest.approx(675, abs=0.5)
    assert bound.watts == pytest.approx(73_500, abs=50)
    assert bound.base_watts == pytest.approx(21_152)
    assert bound.marginal_joules_by_kind["training"] == pytest.approx(6.46, abs=5e-3)


def test_free_gpus_at_idle_power_cost_more() -> None:
    world = with_free_watts(chsac_world(), {site[1]: float(site[4]) for site in SITES})
    bound = steady_state_bound(world, {"training": LOAD})
    assert bound.base_watts == pytest.approx(39_120)
    assert bound.joules_per_unit == pytest.approx(9.724, abs=5e-4)


def test_free_gpus_without_power_leave_the_jobs_own_energy() -> None:
    world = with_free_watts(chsac_world(), {site[1]: 0.0 for site in SITES})
    bound = steady_state_bound(world, {"training": LOAD})
    shares: dict[str, float] = {}
    for run in bound.runs:
        shares[run.pool] = shares.get(run.pool, 0.0) + run.units_per_second / LOAD
    assert bound.joules_per_unit == pytest.approx(6.789, abs=5e-4) == bound.job_watts / bound.units_per_second
    assert shares == pytest.approx({"me-central": 0.819, "ap-southeast": 0.181}, abs=5e-4)


@pytest.mark.parametrize(("rate", "joules_per_unit"), BY_RATE.items())
def test_the_bound_at_other_arrival_rates(rate: float, joules_per_unit: float) -> None:
    bound = steady_state_bound(chsac_world(), {"training": 8.0 * rate * MEAN_UNITS})
    assert bound.joules_per_unit == pytest.approx(joules_per_unit, abs=1e-3)


def test_the_largest_arrival_rate() -> None:
    load = largest_feasible_load(chsac_world(), {"training": 1.0})["training"]
    assert load / (8.0 * MEAN_UNITS) == pytest.approx(0.0611, abs=5e-5)


def test_the_frontier_of_energy_and_run_time() -> None:
    load = StationaryLoad(units_per_second_by_kind={"training": LOAD}, mean_units_by_kind={"training": MEAN_UNITS})
    points = energy_latency_frontier(chsac_world(), load, list(FRONTIER))
    found = {int(point.limit_seconds): point.bound.joules_per_unit for point in points}
    assert found == pytest.approx(FRONTIER, rel=5e-4)
    assert all(point.mean_run_seconds <= point.limit_seconds * (1 + 1e-6) for point in points)


def test_a_growing_queue_may_show_less_per_unit_than_the_full_load_but_not_less_than_its_own_bound() -> None:
    units = 8.0 * 0.06 * MEAN_UNITS * WEEK
    full = bound_for_processed(chsac_world(), {"training": units}, {"training": units}, WEEK)
    assert full.joules_per_unit == pytest.approx(7.954, abs=1e-3)
    # A rule that left work undone at this rate showed 7.794 J/unit.
    assert 7.665 < full.min_joules_per_unit < 7.794 < full.joules_per_unit


def test_leaving_work_undone_does_not_help_at_the_published_rate() -> None:
    units = LOAD * WEEK
    bound = bound_for_processed(chsac_world(), {"training": units}, {"training": units}, WEEK)
    assert bound.min_joules_per_unit == pytest.approx(bound.joules_per_unit, rel=1e-6)
