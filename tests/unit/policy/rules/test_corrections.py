"""What ended jobs say of wrong tables, and a budget kept around a rule."""

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest
from rule_factory import FakeRun, FakeView, make_job, make_view

from slurm_energy.policy.placement import Placement
from slurm_energy.policy.rules.corrections import Corrections
from slurm_energy.policy.rules.total_cost import BudgetKeeper, PowerPrice


def ran(corrections: Corrections, job_id: int, *, slower: float = 1.0, thirstier: float = 1.0, **changes: Any) -> None:
    view, job = make_view(), make_job(job_id=job_id, gpu_counts=(1,))
    placement = Placement(0, 1, 7)
    corrections.expect(job, placement, view)
    table = view.options(job)
    seconds = float(table.seconds_per_unit[0, 0, 7]) * job.true_units * slower
    watts = float(table.watts[0, 0, 7]) * thirstier
    ended = FakeRun(job_id, gpus=1, run_seconds=seconds, energy_joules=watts * seconds, units=job.true_units)
    corrections.learn(replace(ended, **changes))


def test_wrong_tables_are_put_right_where_the_kind_ran_and_nowhere_else() -> None:
    corrections = Corrections()
    for number in range(20):
        ran(corrections, number, slower=1.3, thirstier=0.8)
    view, job = make_view(), make_job(gpu_counts=(1,))
    table = view.options(job)
    found = corrections.corrected("training", table, view.places)
    assert found.seconds_per_unit[0, 0, 7] == pytest.approx(1.3 * table.seconds_per_unit[0, 0, 7], rel=0.02)
    assert found.watts[0, 0, 7] == pytest.approx(0.8 * table.watts[0, 0, 7], rel=0.02)
    assert found.joules_per_unit[0, 0, 7] == pytest.approx(
        found.seconds_per_unit[0, 0, 7] * found.watts[0, 0, 7], rel=1e-9
    )
    np.testing.assert_array_equal(found.watts[1:], table.watts[1:])
    assert corrections.corrected("inference", table, view.places) is table
    assert corrections.corrected("training", table, view.places) is found


def test_true_tables_stay_the_object_they_are() -> None:
    corrections = Corrections()
    for number in range(5):
        ran(corrections, number, slower=1.005)
    view, job = make_view(), make_job(gpu_counts=(1,))
    assert corrections.corrected("training", view.options(job), view.places) is view.options(job)


@pytest.mark.parametrize(
    "changes",
    [{"state": "FAILED"}, {"state": "TIMEOUT"}, {"units": 0.0}, {"clock": 3}, {"run_seconds": 0.0}],
    ids=lambda change: next(iter(change)),
)
def test_a_run_that_says_nothing_of_the_table_changes_nothing(changes: dict[str, Any]) -> None:
    corrections = Corrections()
    ran(corrections, 1, slower=3.0, **changes)
    view, job = make_view(), make_job(gpu_counts=(1,))
    assert corrections.corrected("training", view.options(job), view.places) is view.options(job)


def test_a_job_that_nobody_placed_is_left_alone() -> None:
    Corrections().learn(FakeRun(77))


def kept(budget_watts: float, power_watts: float) -> tuple[BudgetKeeper, FakeView]:
    view = make_view(power_budget_watts=budget_watts, power_watts=power_watts, free_gpus=[10, 128, 512])
    keeper = BudgetKeeper()
    keeper.begin(view, Random(0))
    for number in range(6):
        keeper.watch(make_job(job_id=number, gpu_counts=(1,)), Placement(0, 1, 5), view)
        view.running.append(FakeRun(number, gpus=1, clock=5))
    return keeper, view


def test_clocks_go_down_while_the_budget_is_exceeded() -> None:
    keeper, view = kept(budget_watts=1000.0, power_watts=1100.0)
    changed = keeper.control(view)
    assert changed
    assert all(clock < 5 for clock in changed.values())


def test_clocks_never_go_above_those_at_which_jobs_started() -> None:
    keeper, view = kept(budget_watts=1e6, power_watts=1000.0)
    assert keeper.control(view) == {}
    view.running[0].clock = 2
    assert keeper.control(view) == {0: 5}


def test_what_a_start_may_add_is_what_the_budget_leaves_unless_nothing_runs() -> None:
    keeper, view = kept(budget_watts=1000.0, power_watts=900.0)
    assert keeper.spare_watts(view) == 100.0
    view.free_gpus = list(view.totals)
    assert keeper.spare_watts(view) == inf


def test_joules_get_a_price_while_power_is_short_and_lose_it_again() -> None:
    view = make_view(power_budget_watts=1000.0, power_watts=990.0)
    power = PowerPrice()
    for _ in range(20):
        power.move(view)
    high = power.price
    view.num_waiting = 3
    power.move(view)
    assert power.price > high > 0.0
    view.num_waiting, view.power_watts = 0, 100.0
    for _ in range(200):
        power.move(view)
    assert power.price == 0.0
    view.power_budget_watts = inf
    power.move(view)
    assert power.price == 0.0
