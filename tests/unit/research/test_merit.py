"""The cost of a run, against values worked out by hand."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from arena_samples import make_outcome
from results_samples import world_in

from research.results.cases import plan_of
from research.results.merit import Merit, least_cost_joules_per_unit, merit_figures, user_seconds
from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.arena.run import ArenaRun, finished_run
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import Series


def jobs_named(*names: str) -> list[Job]:
    outcome = make_outcome()
    return [
        Job(job_id=n, submitted_seconds=submitted, true_units=1.0, name=name)
        for n, submitted, name in zip((1, 2, 3), outcome.submitted_seconds.tolist(), names, strict=True)
    ]


def ran(folder: Path, rule: str, **changes: object) -> ArenaRun:
    run = finished_run(plan_of(world_in(folder), hours=2.0, warm_up_hours=0.5), rule, rule, 1)
    return replace(run, **changes)  # type: ignore[arg-type]  # per field


def test_users_wait_for_each_job_from_submission_to_end() -> None:
    jobs = jobs_named("a", "a", "b")
    assert user_seconds(make_outcome(), jobs, of_graphs=False) == 30.0 + 100.0 + 20.0


def test_users_of_a_graph_wait_once_until_its_last_task_has_ended() -> None:
    jobs = jobs_named("a", "a", "b")  # 10..40 and 0..100 are one graph
    assert user_seconds(make_outcome(), jobs, of_graphs=True) == 100.0 + 20.0
    done = make_outcome(ended_seconds=np.array([40.0, 25.0, inf]), counted_from_seconds=15.0)
    assert user_seconds(done, jobs, of_graphs=True) == 25.0 + 20.0


def test_a_cost_is_the_sum_of_energy_time_misses_and_what_is_above_the_budget(tmp_path: Path) -> None:
    run = ran(tmp_path, "price:V=50")
    budget = Series(times_seconds=(0.0,), values=(1.0,))  # all but one watt is above it
    run = replace(run, world=replace(run.world, power_budget_watts=budget))
    run = replace(run, record=replace(run.record, metrics=replace(run.record.metrics, deadline_misses=7)))
    found = merit_figures(run, Merit(time_watts=50.0, miss_joules=1000.0, budget_factor=2.0))
    metrics = run.record.metrics
    above = metrics.total_joules - run.outcome.counted_seconds
    whole = metrics.total_joules + 50.0 * metrics.system_job_seconds + 7000.0 + 2.0 * above
    assert found["cost_joules_per_unit"] == pytest.approx(whole / metrics.true_units, rel=1e-3)
    assert found["cost_misses_joules_per_unit"] == pytest.approx(7000.0 / metrics.true_units)
    assert found["cost_energy_joules_per_unit"] == pytest.approx(metrics.joules_per_unit)


@pytest.mark.parametrize("rule", ["greedy", "price:V=50", "slurm-default", "masked-random", "adaptive-price:V=50"])
@pytest.mark.parametrize("time_watts", [0.0, 50.0, 5000.0])
def test_no_cost_is_below_its_bound(tmp_path: Path, rule: str, time_watts: float) -> None:
    found = merit_figures(ran(tmp_path, rule), Merit(time_watts=time_watts))
    assert found["bound_cost_joules_per_unit"] <= found["cost_joules_per_unit"] * (1.0 + 1e-9)


def test_the_bound_is_tight_where_jobs_need_not_wait(tmp_path: Path) -> None:
    """The price rule does at every start what the programme does, while devices are left over."""
    run = ran(tmp_path, "price:V=50")
    found = merit_figures(run, Merit(time_watts=50.0))
    assert found["cost_joules_per_unit"] < 1.06 * found["bound_cost_joules_per_unit"]
    cheaper = least_cost_joules_per_unit(run, Merit(time_watts=0.0))
    assert cheaper is not None and cheaper < found["bound_cost_joules_per_unit"]


def test_a_formula_says_what_counts_and_a_price_below_nothing_is_refused() -> None:
    text = Merit(of_graphs=True, miss_joules=72_000.0, budget_factor=3.0).formula
    assert text == (
        "(energy + 20 W x time of each graph from submission to end + 72 kJ for each missed deadline + "
        "3 x energy above the budget) / unit"
    )
    with pytest.raises(ValueRangeError, match="time_watts=-1"):
        Merit(time_watts=-1.0)
