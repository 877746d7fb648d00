"""Figures of a run, against values worked out by hand."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from arena_samples import make_outcome, small_world

from slurm_energy.evaluation.metrics import Spread, metrics_of
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import Series


def make_jobs() -> list[Job]:
    return [Job(job_id=n, submitted_seconds=0.0, true_units=1.0, gpu_counts=(1, 2)) for n in (1, 2, 3)]


def test_energy_counts_all_work_also_that_of_jobs_in_flight(tmp_path: Path) -> None:
    found = metrics_of(make_outcome(), small_world(tmp_path))
    assert (found.true_units, found.lost_units) == (150.0, 5.0)
    assert [found.joules_per_unit, found.active_joules_per_unit] == pytest.approx([10.0, 1000.0 / 150.0])
    assert (found.total_joules, found.active_joules, found.mean_power_watts) == (1500.0, 1000.0, 15.0)


def test_times_are_of_finished_jobs_and_the_rest_is_counted_beside_them(tmp_path: Path) -> None:
    found = metrics_of(make_outcome(), small_world(tmp_path))
    assert (found.jobs, found.completed_jobs, found.finished_jobs, found.unfinished_jobs) == (3, 1, 1, 2)
    assert found.run == Spread(mean_seconds=30.0, p95_seconds=30.0, p99_seconds=30.0)
    assert found.wait == Spread(mean_seconds=0.0, p95_seconds=0.0, p99_seconds=0.0)
    assert found.turnaround == Spread(mean_seconds=30.0, p95_seconds=30.0, p99_seconds=30.0)
    assert found.mean_wait_so_far_seconds == pytest.approx((0.0 + 60.0 + 20.0) / 3.0)


def test_makespan_reaches_to_the_end_while_jobs_are_unfinished(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    assert metrics_of(make_outcome(), world).makespan_seconds == 100.0
    done = make_outcome(state=["COMPLETED"] * 3, ended_seconds=np.array([40.0, 90.0, 95.0]))
    found = metrics_of(done, world)
    assert (found.makespan_seconds, found.energy_time_product_joule_seconds) == (95.0, 95.0 * 1500.0)


def test_a_lower_clock_shows_as_slowdown_when_the_jobs_are_known(tmp_path: Path) -> None:
    world = small_world(tmp_path)
    outcome = make_outcome(units=np.array([400.0, 0.0, 0.0]))
    # 400 units on 2 devices at the default clock: 400 x 0.11 / 2 = 22 s.
    assert metrics_of(outcome, world, make_jobs()).mean_bounded_slowdown == pytest.approx(30.0 / 22.0)
    assert metrics_of(outcome, world).mean_bounded_slowdown == 1.0


def test_short_runs_count_as_ten_seconds_in_the_slowdown(tmp_path: Path) -> None:
    outcome = make_outcome(run_seconds=np.array([1.0, 0.0, 0.0]), eligible_seconds=np.array([0.0, 0.0, 80.0]))
    assert metrics_of(outcome, small_world(tmp_path)).mean_bounded_slowdown == pytest.approx((10.0 + 1.0) / 10.0)


@pytest.mark.parametrize(
    ("state", "ended", "deadline", "misses"),
    [
        ("COMPLETED", 40.0, 40.0, 0),
        ("COMPLETED", 40.0, 39.0, 1),
        ("FAILED", 40.0, 50.0, 0),
        ("TIMEOUT", 40.0, 50.0, 1),
        ("CANCELLED", 40.0, 50.0, 1),
        ("RUNNING", inf, 99.0, 1),
        ("RUNNING", inf, 100.0, 0),
        ("PENDING", inf, 101.0, 0),
        ("COMPLETED", 40.0, inf, 0),
    ],
)
def test_a_deadline_is_missed_by_whoever_does_not_come_to_its_end_in_time(
    tmp_path: Path, state: str, ended: float, deadline: float, misses: int
) -> None:
    outcome = make_outcome(
        state=[state, "RUNNING", "PENDING"],
        ended_seconds=np.array([ended, inf, inf]),
        deadline_seconds=np.array([deadline, inf, inf]),
    )
    found = metrics_of(outcome, small_world(tmp_path))
    assert (found.deadline_jobs, found.deadline_misses) == (int(deadline < inf), misses)


def test_utilisation_tells_gpus_from_cpu_sockets(tmp_path: Path) -> None:
    outcome = make_outcome(place_is_cpu=(False, True), total_gpus=8, total_cpu_sockets=4)
    found = metrics_of(outcome, small_world(tmp_path))
    assert (found.gpu_utilisation_share, found.cpu_utilisation_share) == (60.0 / 800.0, 40.0 / 400.0)


def test_a_run_without_jobs_has_no_means(tmp_path: Path) -> None:
    empty = np.zeros(0)
    names = ("submitted", "eligible", "started", "last_started", "ended", "run", "deadline", "gpu", "cpu")
    outcome = make_outcome(
        state=[],
        job_id=np.zeros(0, dtype=np.int64),
        place=np.zeros(0, dtype=np.int64),
        gpus=np.zeros(0, dtype=np.int64),
        restarts=np.zeros(0, dtype=np.int64),
        decisions=0,
        energy_joules=empty,
        units=empty,
        units_lost=empty,
        units_per_second=empty,
        **{f"{name}_seconds": empty for name in names},
    )
    found = metrics_of(outcome, small_world(tmp_path, published_log_seconds=20.0))
    assert (found.jobs, found.makespan_seconds, found.wait, found.joules_per_unit) == (0, 0.0, None, None)
    assert (found.mean_bounded_slowdown, found.mean_decision_seconds) == (None, None)
    assert (found.published_units, found.published_joules_per_unit) == (0.0, None)


def test_carbon_and_cost_are_the_run_s_own_and_the_budget_follows_its_series(tmp_path: Path) -> None:
    budget = Series(times_seconds=(0.0, 25.0), values=(15.0, 25.0))
    outcome = replace(make_outcome(), carbon_grams=0.4, cost=1.5)
    found = metrics_of(outcome, small_world(tmp_path, power_budget_watts=budget))
    # 20 W until 50 s, then 10 W.
    assert (found.carbon_grams, found.cost) == (0.4, 1.5)
    assert found.seconds_above_power_budget == 25.0


def test_figures_without_a_series_are_none(tmp_path: Path) -> None:
    found = metrics_of(make_outcome(), small_world(tmp_path))
    assert (found.carbon_grams, found.cost, found.seconds_above_power_budget) == (None, None, None)
    assert (found.published_units, found.published_joules_per_unit) == (None, None)


def test_the_published_metric_counts_the_last_tick_twice(tmp_path: Path) -> None:
    outcome = make_outcome(
        last_started_seconds=np.array([10.0, 60.0, inf]),
        ended_seconds=np.array([45.0, inf, inf]),
        units=np.array([70.0, 50.0, 0.0]),
    )
    found = metrics_of(outcome, small_world(tmp_path, published_log_seconds=20.0))
    # Job 1 at 2 units/s: ticks at 20 and 40 count 20 s each, and 45 mod 20 = 5 s on top; job 2: ticks 60, 80, 100.
    assert found.published_units == pytest.approx(2.0 * 45.0 + 1.25 * 60.0)
    assert found.published_joules_per_unit == pytest.approx(1500.0 / 165.0)
