"""Comparisons that leave the first stretch of their runs out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from arena_samples import make_outcome, small_world, world_file

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.plan import ArenaPlan, checked_plan
from slurm_energy.evaluation.arena.run import finished_run
from slurm_energy.evaluation.arena.run_bounds import frontier_excess_percent
from slurm_energy.evaluation.metrics import joules_above_budget, metrics_of, seconds_above_budget
from slurm_energy.twin.world import Series

HOUR = 3600.0


def make_plan(folder: Path, **changes: object) -> ArenaPlan:
    plan = ArenaPlan(
        policies=("greedy",), world=str(world_file(folder)), horizon_seconds=3.0 * HOUR, warm_up_seconds=HOUR
    )
    return replace(plan, **changes)  # type: ignore[arg-type]  # per field


def test_jobs_are_those_that_came_after_it_and_energy_and_work_are_of_all(tmp_path: Path) -> None:
    outcome = make_outcome(counted_from_seconds=5.0)
    found = metrics_of(outcome, small_world(tmp_path))
    assert (found.jobs, found.finished_jobs, found.unfinished_jobs) == (2, 1, 1)
    assert (found.true_units, found.total_joules) == (150.0, 1500.0)
    assert found.mean_power_watts == pytest.approx(1500.0 / 95.0)
    assert found.makespan_seconds == 90.0
    assert found.gpu_utilisation_share == pytest.approx(100.0 / (12 * 95.0))


def test_time_in_the_system_is_clipped_to_what_is_counted(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    assert metrics_of(make_outcome(), world).system_job_seconds == 30.0 + 100.0 + 20.0
    assert metrics_of(make_outcome(counted_from_seconds=30.0), world).system_job_seconds == 10.0 + 70.0 + 20.0
    assert metrics_of(make_outcome(counted_from_seconds=90.0), world).system_job_seconds == 0.0 + 10.0 + 10.0


def test_power_above_a_budget_counts_from_then_on(tmp_path: Path) -> None:
    budget = Series(times_seconds=(0.0, 80.0), values=(15.0, 5.0))  # samples: 20 W until 50 s, then 10 W
    world = small_world(tmp_path, power_budget_watts=budget)
    assert (seconds_above_budget(make_outcome(), world), joules_above_budget(make_outcome(), world)) == (70.0, 350.0)
    later = make_outcome(counted_from_seconds=40.0)
    assert (seconds_above_budget(later, world), joules_above_budget(later, world)) == (30.0, 150.0)
    assert joules_above_budget(later, small_world(tmp_path)) is None


@pytest.mark.parametrize("generator", ["poisson", "daily"])
@pytest.mark.parametrize("rule", ["greedy", "price:V=200", "slurm-default", "masked-random"])
def test_no_run_is_below_its_bounds(tmp_path: Path, generator: str, rule: str) -> None:
    plan = make_plan(tmp_path, generator=generator, settings=(("hours", 3), ("rate_per_second", 0.05)))
    run = finished_run(plan, rule, rule, 2)
    bounds = run.record.bounds
    assert bounds is not None and bounds.gap_percent >= 0.0
    assert bounds.by_arrival_times == (generator == "daily")
    assert run.record.metrics.jobs == sum(job.submitted_seconds >= HOUR for job in run.jobs)
    excess = frontier_excess_percent(run.world, run.jobs, run.outcome)
    assert excess is not None and -1e-6 < excess < 100.0


def test_the_load_is_what_was_done_in_the_counted_time(tmp_path: Path) -> None:
    """Energy per unit of the steady state: the same from two lengths of warm-up, and not that of the empty start."""
    per_unit = [
        finished_run(
            make_plan(tmp_path, warm_up_seconds=hours * HOUR, horizon_seconds=24 * HOUR), "greedy", "greedy", 1
        )
        for hours in (4.0, 6.0)
    ]
    one, two = (run.record.metrics.joules_per_unit for run in per_unit)
    assert one == pytest.approx(two, rel=0.02)
    bounds = per_unit[0].record.bounds
    assert bounds is not None
    excess = frontier_excess_percent(per_unit[0].world, per_unit[0].jobs, per_unit[0].outcome)
    assert bounds.frontier_turnaround_gap_percent == pytest.approx(excess, abs=0.3)
    units = [float(np.sum(run.outcome.units)) / run.outcome.counted_seconds for run in per_unit]
    assert units[0] == pytest.approx(units[1], rel=0.06)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warm_up_seconds": 3.0 * HOUR}, "leaves nothing"),
        ({"warm_up_seconds": -1.0}, "not a finite time"),
        ({"compat": True}, "exclude each other"),
    ],
)
def test_a_warm_up_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        checked_plan(make_plan(tmp_path, **changes))
