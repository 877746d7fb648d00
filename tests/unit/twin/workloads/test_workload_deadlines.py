"""Generators of jobs with deadlines, limits and priorities."""

from collections import Counter
from math import inf, log

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.twin.workloads.generating import ROUND_SECONDS
from slurm_energy.twin.workloads.registry import create_workload

SHORT: dict[str, float | int | str] = {"hours": 6, "rate_per_second": 0.02, "ingresses": 4}


def test_deadlines_are_put_on_the_jobs_of_the_daily_generator() -> None:
    settings = {**SHORT, "min_slack": 0.5, "max_slack": 8, "reference_seconds_per_unit": 0.05, "deadline_share": 0.5}
    due, daily = create_workload("deadlines", settings, 4), create_workload("daily", SHORT, 4)
    assert [(job.submitted_seconds, job.true_units) for job in due.jobs] == [
        (job.submitted_seconds, job.true_units) for job in daily.jobs
    ]
    slack = np.array(
        [
            (job.deadline_seconds - job.submitted_seconds) / (0.05 * job.true_units)
            for job in due.jobs
            if job.deadline_seconds < inf
        ]
    )
    assert len(slack) / len(due.jobs) == pytest.approx(0.5, abs=0.05)
    assert 0.5 <= slack.min() < 0.52 and 7.7 < slack.max() <= 8.0
    assert np.log(slack).mean() == pytest.approx(log(2.0), abs=0.1)  # the middle of a uniform logarithm
    assert all(job.is_plain == (job.deadline_seconds == inf) for job in due.jobs)


def test_limits_are_round_and_longer_than_the_run_they_are_drawn_for() -> None:
    settings = {**SHORT, "gpu_mix": "1:1,4:1", "deadline_share": 0, "limit_seconds_per_unit": 2}
    for job in create_workload("deadlines", settings, 4).jobs:
        run_seconds = 2.0 * job.true_units / job.gpu_counts[0]
        assert run_seconds * 1.1 <= job.time_limit_seconds
        assert job.time_limit_seconds in ROUND_SECONDS and not job.is_plain


def test_mixed_work_has_urgent_batches_among_the_same_training_jobs() -> None:
    jobs = create_workload("mixed", {**SHORT, "request_rate_per_second": 0.04, "request_deadline_seconds": 90}, 4).jobs
    kinds = Counter(job.kind for job in jobs)
    assert kinds["inference"] / kinds["training"] == pytest.approx(2.0, rel=0.15)
    assert [job.job_id for job in jobs] == list(range(1, len(jobs) + 1))
    assert {(job.priority, job.deadline_seconds - job.submitted_seconds) for job in jobs if job.kind == "training"} == {
        (0.0, inf)
    }
    batches = [job for job in jobs if job.kind == "inference"]
    assert {job.priority for job in batches} == {1.0}
    assert [job.deadline_seconds - job.submitted_seconds for job in batches] == pytest.approx([90.0] * len(batches))
    training = [(job.submitted_seconds, job.true_units) for job in jobs if job.kind == "training"]
    assert training == [(job.submitted_seconds, job.true_units) for job in create_workload("daily", SHORT, 4).jobs]


def test_tasks_of_graphs_and_mixed_jobs_take_further_settings() -> None:
    graphs = create_workload("graphs", {"hours": 2, "max_gpus": 3}, 1)
    assert {job.gpu_counts for job in graphs.jobs} == {(1, 2, 3)}
    due = create_workload("matrix", {"hours": 2, "min_slack": 2, "max_slack": 10}, 1)
    plain = create_workload("matrix", {"hours": 2}, 1)
    assert [job.true_units for job in due.jobs] == [job.true_units for job in plain.jobs]
    assert all(job.deadline_seconds < inf for job in due.jobs)
    assert all(job.deadline_seconds == inf and job.is_plain for job in plain.jobs)


@pytest.mark.parametrize(
    ("generator", "settings"),
    [
        ("deadlines", {"min_slack": 3, "max_slack": 2}),
        ("deadlines", {"deadline_share": 1.5}),
        ("mixed", {"request_deadline_seconds": 0}),
        ("mixed", {"request_rate_per_second": -1}),
        ("matrix", {"max_slack": 2}),
        ("graphs", {"max_gpus": 0}),
    ],
)
def test_settings_that_cannot_be_are_refused(generator: str, settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        create_workload(generator, settings, 1)
