"""Power budget, carbon and price: what rules see, and what a run costs."""

from typing import Any

import pytest
from small_worlds import Answers, FirstFit, make_job, make_pool, make_world, run_jobs, started, steps_of

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement
from slurm_energy.twin.world import Series, World

KWH = 3.6e6


def test_the_power_budget_of_the_hour_is_in_the_view() -> None:
    world = make_world(power_budget_watts=steps_of(1_000.0, 500.0, 2_000.0, every=100.0))
    seen: dict[float, float] = {}

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen[view.now_seconds] = view.power_budget_watts
        return FirstFit().place(job, view)

    run_jobs(world, [make_job(number, submitted=90.0 * number, units=1.0) for number in range(4)], Answers(place=place))
    assert seen == {0.0: 1_000.0, 90.0: 1_000.0, 180.0: 500.0, 270.0: 2_000.0}


def test_a_world_without_a_budget_shows_none() -> None:
    seen = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append((view.power_budget_watts, view.carbon_grams_per_kwh(0), view.price_per_kwh(0)))
        return FirstFit().place(job, view)

    run_jobs(make_world(), [make_job(1)], Answers(place=place))
    assert seen == [(float("inf"), 0.0, 0.0)]


@pytest.mark.parametrize("name", ["power_budget_watts", "price_per_kwh", "carbon_grams_per_kwh"])
def test_a_rule_that_waits_for_a_change_is_asked_when_it_comes(name: str) -> None:
    series = steps_of(100.0, 900.0, 300.0, every=100.0)
    given: dict[str, Any] = {name: series if name == "power_budget_watts" else {"": series}}
    world = make_world(**given)

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        value = {
            "power_budget_watts": view.power_budget_watts,
            "price_per_kwh": view.price_per_kwh(0),
            "carbon_grams_per_kwh": view.carbon_grams_per_kwh(0),
        }[name]
        return Placement(0, 1, -1) if value == 300.0 else None

    outcome = run_jobs(world, [make_job(1, units=10.0)], Answers(place=place))
    assert started(outcome) == {1: 200.0}


def regional_world(**changes: Any) -> World:
    """Return two regions of one node with 4 GPUs (40 W free) each."""
    pools = (make_pool("a", region="north"), make_pool("b", region="south"))
    return make_world(*pools, **changes)


def test_carbon_is_each_region_s_energy_between_changes_times_its_value() -> None:
    world = regional_world(
        carbon_grams_per_kwh={"north": steps_of(100.0, 400.0, every=50.0), "": steps_of(10.0, every=1.0)},
    )
    outcome = run_jobs(world, [make_job(1, submitted=20.0, units=60.0)], horizon_seconds=100.0)
    north = (40.0 * 20.0 + 230.0 * 30.0) * 100.0 + (230.0 * 30.0 + 40.0 * 20.0) * 400.0
    south = 40.0 * 100.0 * 10.0
    assert outcome.carbon_grams == pytest.approx((north + south) / KWH)
    assert outcome.cost is None


def test_a_region_without_a_series_costs_nothing() -> None:
    world = regional_world(price_per_kwh={"north": steps_of(0.5, every=1.0)})
    outcome = run_jobs(world, [make_job(1, units=10.0)])
    assert outcome.cost == pytest.approx(230.0 * 10.0 * 0.5 / KWH)
    assert outcome.carbon_grams is None


def test_prices_below_0_give_money_back() -> None:
    outcome = run_jobs(make_world(price_per_kwh={"": steps_of(-0.2, every=1.0)}), [], horizon_seconds=90_000.0)
    assert outcome.cost == pytest.approx(-0.2 * 1.0)


def test_a_constant_value_is_a_factor_on_the_total() -> None:
    world = make_world(
        carbon_grams_per_kwh={"": steps_of(250.0, every=1.0)}, price_per_kwh={"": steps_of(*([0.3] * 40), every=7.0)}
    )
    jobs = [make_job(number, submitted=11.0 * number, units=31.0, gpus=number % 4 + 1) for number in range(20)]
    outcome = run_jobs(world, jobs)
    assert outcome.carbon_grams == pytest.approx(outcome.total_joules * 250.0 / KWH, rel=1e-12)
    assert outcome.cost == pytest.approx(outcome.total_joules * 0.3 / KWH, rel=1e-12)
    assert outcome.balance_error < 1e-12


def test_the_first_value_holds_before_the_first_time_and_the_last_for_ever() -> None:
    world = make_world(price_per_kwh={"": Series(times_seconds=(30.0, 60.0), values=(1.0, 3.0))})
    outcome = run_jobs(world, [], horizon_seconds=100.0)
    assert outcome.cost == pytest.approx(40.0 * (60.0 * 1.0 + 40.0 * 3.0) / KWH)


def test_a_series_that_begins_before_time_0_holds_its_value_of_then() -> None:
    world = make_world(price_per_kwh={"": Series(times_seconds=(-100.0, -50.0, 60.0), values=(9.0, 1.0, 3.0))})
    assert run_jobs(world, [], horizon_seconds=100.0).cost == pytest.approx(40.0 * (60.0 + 40.0 * 3.0) / KWH)


def test_changes_after_the_end_do_not_keep_a_run_going() -> None:
    world = make_world(price_per_kwh={"": steps_of(*([0.3] * 100), every=1_000.0)})
    assert run_jobs(world, [make_job(1, units=10.0)]).end_seconds == 10.0


def test_series_and_worlds_that_cannot_be_are_refused() -> None:
    nan = float("nan")
    for times, values in (
        ((), ()),
        ((0.0,), (1.0, 2.0)),
        ((5.0, 0.0), (1.0, 2.0)),
        ((0.0, nan), (1.0, 2.0)),
        ((0.0,), (nan,)),
    ):
        with pytest.raises(ValueRangeError, match="series"):
            Series(times_seconds=times, values=values)
    for changes in (
        {"launch_seconds": -1.0},
        {"backfill_interval_seconds": nan},
        {"latency_seconds": {("door", ""): -1.0}},
        {"backfill_depth": 0},
        {"partitions": ()},
    ):
        with pytest.raises(ValueRangeError, match="world small"):
            make_world(**changes)


def test_rules_see_the_power_that_jobs_under_way_will_add() -> None:
    """A job that launches draws as its free devices do, and 200 W each once it computes."""
    seen: dict[float, tuple[float, float]] = {}

    def control(view: ClusterView) -> dict[int, int]:
        seen[view.now_seconds] = (view.power_watts, view.coming_watts)
        return {}

    rule = Answers(control=control, control_interval_seconds=5.0)
    run_jobs(make_world(launch_seconds=7.0), [make_job(1, units=10.0, gpus=2)], rule)
    assert seen == {0.0: (40.0, 0.0), 5.0: (40.0, 380.0), 10.0: (420.0, 0.0)}


def test_a_job_that_waited_for_power_is_asked_for_when_clocks_fall() -> None:
    """The cluster may draw 420 W: a second job at 200 W fits in only when the first runs at 100 W."""
    rule = Answers(
        place=lambda job, view: Placement(0, 1, -1) if view.power_watts + 190.0 <= view.power_budget_watts else None,
        control=lambda view: {1: 1} if view.now_seconds == 50.0 else {},
        control_interval_seconds=50.0,
    )
    world = make_world(power_budget_watts=steps_of(320.0, every=1.0))
    assert started(run_jobs(world, [make_job(1), make_job(2)], rule)) == {1: 0.0, 2: 50.0}
