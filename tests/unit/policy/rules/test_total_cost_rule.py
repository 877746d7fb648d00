"""The rule that pays for everything: hosts, waking, time, slowdown, scarcity, a power budget and wrong tables."""

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from rule_factory import A30, L4, FakeRun, make_job, make_view

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule, policy_fault
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.scarcity import MAX_HEADROOM, Scarcity, TypeScarcity
from slurm_energy.policy.rules.tables import active_joules, bounds_of


def prices(**changes: Any) -> Prices:
    free = Prices(
        time_watts=0.0,
        slowdown_joules=0.0,
        share=0.0,
        opened_nodes=0.0,
        waking=0.0,
        power=0.0,
        device_watts=np.zeros(3),
    )
    return free._replace(**changes)


def priced(units: float = 1000.0, **changes: Any) -> PricedJob:
    return PricedJob(units=units, bounds=None, spare_watts=inf)._replace(**changes)


@pytest.mark.parametrize("watts", [0.0, 7.0, 300.0])
@pytest.mark.parametrize("scarce", [0.0, 50.0])
def test_the_least_cost_is_that_of_every_option_worked_out_one_by_one(watts: float, scarce: float) -> None:
    view, job = make_view(), make_job(gpu_counts=(1, 2, 4, 8))
    table = view.options(job)
    mu = np.array([scarce, 0.0, scarce / 2.0])
    chosen = CostTable(table, PlaceCosts.of(view.places)).choose(
        priced(), prices(time_watts=watts, device_watts=mu), view.room(job), view
    )
    costs = {}
    for place in range(3):
        for count, gpus in enumerate(table.gpu_counts):
            for clock in range(table.seconds_per_unit.shape[2]):
                seconds = float(table.seconds_per_unit[place, count, clock])
                if np.isfinite(seconds):
                    watts_above = float(table.watts[place, count, clock] - table.free_watts[place, count, clock])
                    costs[place, gpus, clock] = seconds * (watts_above + watts + mu[place] * gpus)
    assert chosen is not None
    assert costs[chosen[:3]] == pytest.approx(min(costs.values()))


def test_a_slowdown_has_a_price_that_short_jobs_feel_and_long_ones_do_not() -> None:
    view, job = make_view(), make_job(gpu_counts=(1,))
    options = CostTable(view.options(job), PlaceCosts.of(view.places))
    table = view.options(job)

    def slowdown(units: float) -> float:
        found = options.choose(priced(units), prices(slowdown_joules=1e5), view.room(job), view)
        assert found is not None
        seconds = table.seconds_per_unit[found.place, 0]
        return float(seconds[found.clock] / seconds[np.isfinite(seconds)][-1])

    assert slowdown(10.0) == pytest.approx(1.0)
    assert slowdown(1e7) > 1.05


def test_a_job_pays_for_nodes_that_it_keeps_awake_and_opens() -> None:
    view, job = make_view(), make_job(gpu_counts=(1,))
    free = CostTable(view.options(job), PlaceCosts.of(view.places)).choose(priced(), prices(), view.room(job), view)
    assert free is not None
    places = [
        replace(place, node_watts=1e5 if index == free.place else 0.0, gpus_per_node=4)
        for index, place in enumerate(view.places)
    ]
    options = CostTable(view.options(job), PlaceCosts.of(places))
    for paid in (prices(share=1.0), prices(opened_nodes=1.0)):
        found = options.choose(priced(), paid, view.room(job), view)
        assert found is not None
        assert found.place != free.place
    view.free_gpus[free.place] -= 1  # somebody keeps the node awake already
    found = options.choose(priced(), prices(opened_nodes=1.0), view.room(job), view)
    assert found is not None
    assert found.place == free.place


def test_no_start_passes_the_power_that_is_left() -> None:
    view, job = make_view(), make_job(gpu_counts=(1, 2, 4, 8))
    table = view.options(job)
    options = CostTable(table, PlaceCosts.of(view.places))
    for spare in (20.0, 60.0, 200.0):
        found = options.choose(priced(spare_watts=spare), prices(time_watts=1e4), view.room(job), view)
        if found is not None:
            where = found.place, table.count_index(found.gpus), found.clock
            assert table.watts[where] - table.free_watts[where] <= spare
    assert options.choose(priced(spare_watts=0.0), prices(), view.room(job), view) is None


def test_bounds_hold_whatever_is_paid() -> None:
    view, job = make_view(), make_job(gpu_counts=(1, 2), max_slowdown=0.05)
    table = view.options(job)
    found = CostTable(table, PlaceCosts.of(view.places)).choose(
        priced(bounds=bounds_of(job, 0.0)), prices(), view.room(job), view
    )
    assert found is not None
    seconds = table.seconds_per_unit[found.place, table.count_index(found.gpus)]
    assert seconds[found.clock] <= 1.05 * seconds[np.isfinite(seconds)][-1] * (1.0 + 1e-9)


def test_options_left_out_could_never_win() -> None:
    view, job = make_view(), make_job(gpu_counts=(1, 2))
    table = view.options(job)
    options = CostTable(table, PlaceCosts.of(view.places))
    best = options.choose(priced(), prices(), view.room(job), view)
    active = active_joules(table)
    assert best is not None
    assert active[best.place, table.count_index(best.gpus), best.clock] == pytest.approx(float(active.min()))


def test_scarcity_rises_while_devices_are_scarce_and_falls_while_they_are_not() -> None:
    view = make_view()
    scarcity = Scarcity(view.places)
    scarcity.move(view, 100.0)
    assert not scarcity.device_watts.any()
    view.free_gpus = [0, 0, 0]
    for _ in range(50):
        scarcity.move(view, 100.0)
    high = scarcity.device_watts.copy()
    assert (high > 0.0).all()
    view.free_gpus = list(view.totals)
    scarcity.move(view, 100.0)
    assert (scarcity.device_watts < high).all()


def test_missed_deadlines_keep_more_devices_free_and_kept_ones_fewer() -> None:
    scarcity = Scarcity(make_view().places, headroom=0.02)
    for _ in range(10):
        scarcity.deadline(missed=True)
    assert scarcity.headroom == pytest.approx(0.04)
    for _ in range(1000):
        scarcity.deadline(missed=True)
    assert scarcity.headroom == MAX_HEADROOM
    for _ in range(10_000):
        scarcity.deadline(missed=False)
    assert scarcity.headroom == 0.02


def test_a_type_that_fills_gets_dearer_and_the_others_do_not() -> None:
    view = make_view()
    found = TypeScarcity(view.places, headroom=0.1)
    view.free_gpus = [1, 64, 512]  # of 16, 128 and 512
    for arrivals in range(1, 4):
        found.move(view, 100.0)
        assert found.device_watts.tolist() == pytest.approx([0.1 * 100.0 * (0.1 - 1 / 16) * arrivals, 0.0, 0.0])
    view.num_waiting = 5  # for whatever
    found.move(view, 100.0)
    assert not found.device_watts[1:].any()
    view.free_gpus = list(view.totals)
    for _ in range(3):
        found.move(view, 100.0)
    assert not found.device_watts.any()


def test_places_of_one_type_share_its_price_and_cpus_have_none() -> None:
    view = make_view(devices=(L4, replace(L4, name="xeon", is_cpu=True), L4, A30), totals=(10, 10, 30, 10))
    found = TypeScarcity(view.places, headroom=0.5)
    view.free_gpus = [0, 0, 10, 10]  # a quarter of the type is free
    found.move(view, 100.0)
    assert found.device_watts.tolist() == pytest.approx([2.5, 0.0, 2.5, 0.0])


def test_without_a_spare_share_no_type_ever_has_a_price() -> None:
    view = make_view()
    found = TypeScarcity(view.places, headroom=0.0)
    view.free_gpus = [0, 0, 0]
    found.move(view, 100.0)
    assert not found.device_watts.any()


def test_running_on_after_every_other_job_has_a_price_and_running_beside_them_has_none() -> None:
    view, job = make_view(), make_job(gpu_counts=(1, 2, 4, 8))
    table = view.options(job)
    options = CostTable(table, PlaceCosts.of(view.places))

    def seconds(**changes: float) -> float:
        found = options.choose(priced(), prices(**changes), view.room(job), view)
        assert found is not None
        return 1000.0 * float(table.seconds_per_unit[found.place, table.count_index(found.gpus), found.clock])

    cheapest = seconds()
    fastest = 1000.0 * float(table.seconds_per_unit.min())
    assert seconds(makespan_watts=1e9, last_end_seconds=cheapest) == cheapest
    between = 0.5 * (cheapest + fastest)
    assert seconds(makespan_watts=1e9, last_end_seconds=0.0) == pytest.approx(fastest)
    assert fastest <= seconds(makespan_watts=1e9, last_end_seconds=between) <= between
    assert seconds(makespan_watts=1e-9, last_end_seconds=0.0) == cheapest  # a price that is less than the saving


def test_the_first_of_two_long_jobs_is_fast_and_the_second_only_as_fast_as_it_must_be() -> None:
    view = make_view()
    rule = create_rule("total-cost:V=0,makespan=1e6,correct=0")
    rule.begin(view, Random(1))

    def place(job_id: int, units: float) -> tuple[float, float]:
        job = make_job(job_id=job_id, estimated_units=units)
        rule.route(job, view)
        found = rule.place(job, view)
        assert isinstance(found, Placement)
        table = view.options(job)
        seconds = table.seconds_per_unit[found.place, table.count_index(found.gpus), found.clock]
        return units * float(seconds), units * float(table.seconds_per_unit.min())

    first, least = place(1, 10_000.0)
    assert first == pytest.approx(least)
    second, least = place(2, 1_000.0)
    assert least < second <= first
    rule.ended(FakeRun(job_id=1))
    third, least = place(3, 1_000.0)
    assert third <= second
    rule.ended(FakeRun(job_id=2))
    rule.ended(FakeRun(job_id=3))
    alone, least = place(4, 1_000.0)
    assert alone == pytest.approx(least)


def test_settings_are_read_and_checked() -> None:
    assert create_rule("total-cost:V=5,slowdown=0.3,headroom=0.1").name == "total-cost"
    assert create_rule("total-cost:by_place=1,awake_time=0.1,max_node_wait=0.1").name == "total-cost"
    with pytest.raises(ConfigError, match="no setting"):
        create_rule("total-cost:speed=1")
    assert create_rule("total-cost:type_headroom=0.05,makespan=75000").name == "total-cost"
    with pytest.raises(ValueRangeError, match="type_headroom"):
        create_rule("total-cost:type_headroom=1")
    with pytest.raises(ValueRangeError, match="max_node_wait"):
        create_rule("total-cost:max_node_wait=2")
    with pytest.raises(ValueRangeError, match="headroom"):
        create_rule("total-cost:headroom=2")


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("opening", "opened_nodes"),
        ("span", "makespan"),
        ("spare", "type_headroom"),
        ("pack", "awake_time"),
        ("wait", "max_node_wait"),
    ],
)
def test_a_setting_of_an_earlier_release_is_answered_with_its_present_name(former: str, present: str) -> None:
    for make, text in (
        (create_rule, f"total-cost:{former}=0.1"),
        (create_contender, f"daemon/total-cost:{former}=0.1"),
        (create_contender, f"learned-price:checkpoint=shipped,{former}=0.1"),
    ):
        with pytest.raises(ConfigError, match=f"setting '{former}' is called '{present}' now"):
            make(text)
    fault = policy_fault(f"total-cost:{former}=0.1")
    assert fault is not None and present in fault
