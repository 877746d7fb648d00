from math import isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import NOW, after, make_job
from task_vectors import task_vector

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.job import EnergyOptions, GpuDemand, JobRequest
from slurm_energy.graph.job_features import (
    JobWishes,
    QueueFacts,
    array_tasks,
    compute_share,
    matrix_size,
    priority_ceiling,
    rounded_share,
    submitted_vector,
)
from slurm_energy.graph.schema import LARGEST, TASK

FACTS = QueueFacts(
    highest_priority=200.0, user_shares={1001: 0.25}, critical_path_seconds={7: 7200.0}, dependents={7: 3}
)


def columns(vector: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> dict[str, float]:
    assert vector.shape == (len(TASK),)
    return {feature.name: float(entry) for feature, entry in zip(TASK, vector, strict=True)}


def expected(**values: float) -> dict[str, Any]:
    """Every column, scaled one by one; those that are not named are 0."""
    return {feature.name: pytest.approx(feature.scaled(values.get(feature.name)), abs=1e-6) for feature in TASK}


def test_a_pending_job_has_all_its_columns() -> None:
    job = make_job(
        7,
        gpus=2,
        gpu_max_count=8,
        cpus=16,
        memory_per_node_mib=65536.0,
        node_count=2,
        exclusive=True,
        array_task="1-3",
        qos="high",
        deadline_seconds=NOW + 7200.0,
        estimated_seconds=2400.0,
        dependencies=after(3),
        kind="matrix-800",
    )
    assert columns(task_vector(job, NOW, FACTS)) == expected(
        is_pending=1,
        estimated_seconds=2400.0,
        estimate_known=1,
        upper_seconds=3600.0,
        time_limit_seconds=3600.0,
        time_limit_known=1,
        gpus_least=2,
        gpus_most=8,
        cpus=16,
        memory_gib=64.0,
        memory_known=1,
        nodes=2,
        is_exclusive=1,
        is_array=1,
        priority=0.5,
        has_qos=1,
        has_deadline=1,
        deadline_slack=(7200.0 - 2400.0) / (7200.0 + 2400.0),
        waited_seconds=600.0,
        user_share=0.25,
        critical_path_seconds=7200.0,
        dependents=3,
        is_blocked=1,
        matrix_size=800,
    )


def test_a_running_job_shows_how_far_it_is() -> None:
    job = make_job(8, running_on="n1", estimated_seconds=600.0, suspended_seconds=150.0, kind="dgemm")
    assert columns(task_vector(job, NOW, QueueFacts())) == expected(
        is_running=1,
        estimated_seconds=600.0,
        estimate_known=1,
        upper_seconds=3600.0,
        time_limit_seconds=3600.0,
        time_limit_known=1,
        gpus_least=1,
        gpus_most=1,
        nodes=1,
        waited_seconds=300.0,
        ran_seconds=150.0,
        progress=0.25,
        critical_path_seconds=600.0,
        compute_share=compute_share("dgemm"),
    )


def test_products_go_with_the_clock_and_copies_do_not() -> None:
    assert 0.0 <= compute_share("stream") < 0.7 < compute_share("dgemm") <= 1.0
    assert isnan(compute_share("unheard-of"))


def test_a_submitted_job_carries_its_wishes() -> None:
    job = JobRequest(
        user_id=1001,
        time_limit_minutes=60.0,
        tasks=4,
        cpus_per_task=2,
        gpus=(GpuDemand(count=2, max_count=4),),
        options=EnergyOptions(deadline_seconds=NOW + 500.0),
        submitted_at_seconds=NOW,
    )
    vector = submitted_vector(
        job,
        NOW,
        FACTS,
        runtime=RuntimeEstimate(seconds=1500.0, upper_seconds=2000.0, source="history"),
        wishes=JobWishes(max_slowdown=0.1, time_weight=0.3, energy_weight=0.7),
    )
    assert columns(vector) == expected(
        is_submitted=1,
        estimated_seconds=1500.0,
        estimate_known=1,
        upper_seconds=2000.0,
        time_limit_seconds=3600.0,
        time_limit_known=1,
        gpus_least=2,
        gpus_most=4,
        cpus=8,
        nodes=1,
        has_deadline=1,
        deadline_slack=-0.5,
        user_share=0.25,
        critical_path_seconds=1500.0,
        max_slowdown=0.1,
        time_weight=0.3,
        energy_weight=0.7,
    )


@pytest.mark.parametrize(
    "job",
    [
        make_job(1, gpus=None, time_limit_minutes=None, priority=None),
        make_job(1, running_on="n1", started_at_seconds=None),
        make_job(1, deadline_seconds=nan, estimated_seconds=nan, memory_per_node_mib=float("inf")),
        make_job(1, running_on="n1", started_at_seconds=NOW + 50.0, estimated_seconds=0.0),
        make_job(1, submitted_at_seconds=NOW + 1000.0, deadline_seconds=NOW - 1000.0, estimated_seconds=0.0),
    ],
)
def test_what_is_missing_leaves_no_gap(job: JobState) -> None:
    vector = task_vector(job, NOW, QueueFacts())
    assert np.isfinite(vector).all()
    assert columns(vector)["deadline_slack"] == 0.0 == columns(vector)["progress"]


@pytest.mark.parametrize(
    ("text", "tasks"),
    [(None, 1), ("4", 1), ("3-1000%500", 998), ("1,5-7", 4), ("0-9:3", 4), ("x", 1), ("0-999999999", 1_000_000)],
)
def test_an_array_counts_its_tasks(text: str | None, tasks: int) -> None:
    assert array_tasks(text) == tasks


def test_a_kind_tells_the_size_of_its_products() -> None:
    assert [matrix_size(kind) for kind in ("matrix-800", "matmul-1600", "gemm-32")] == [800.0, 1600.0, 32.0]
    assert all(isnan(matrix_size(kind)) for kind in ("", "dgemm", "matrix-", "xmatrix-800", "matrix-80x"))


def test_a_ceiling_is_little_above_the_priority() -> None:
    for priority in (1.0, 3.0, 100.0, 101.0, 4e9):
        assert priority <= priority_ceiling(priority) * (1 + 1e-12) < priority * 2.0**0.126
    assert priority_ceiling(100.0) == priority_ceiling(101.0)
    assert priority_ceiling(0.0) == 0.0


def test_shares_are_in_steps() -> None:
    assert rounded_share(100, 300) == rounded_share(100, 301) == pytest.approx(1 / 3, abs=1 / 64)
    assert rounded_share(0, 0) == 0.0


@given(
    ago=st.integers(0, 10**6),
    left=st.none() | st.integers(-(10**6) + 1, 10**6),
    limit=st.none() | st.integers(1, 10_000),
    shift=st.sampled_from([10**7, 10**8, 1_800_000_000]),
)
def test_a_submitted_job_looks_the_same_at_another_date(
    ago: int, left: int | None, limit: int | None, shift: int
) -> None:
    def seen(now: float) -> list[float]:
        job = JobRequest(
            user_id=1001,
            time_limit_minutes=limit,
            options=EnergyOptions(deadline_seconds=None if left is None else now + left),
            submitted_at_seconds=now - ago,
        )
        found: list[float] = submitted_vector(job, now, FACTS).tolist()
        return found

    assert seen(NOW + shift) == seen(NOW)
    assert all(abs(value) <= LARGEST for value in seen(NOW))
