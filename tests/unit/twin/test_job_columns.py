"""Columns of a run's jobs against the jobs themselves."""

import numpy as np
import pytest
from small_worlds import FirstFit, drive, make_engine, make_job, make_pool, make_world

from slurm_energy.twin.engine import outcome as module
from slurm_energy.twin.engine.job import ENDED, Job, JobRun, plain_job
from slurm_energy.twin.engine.outcome import job_columns
from slurm_energy.twin.world import Outage


def runs_of(jobs: list[Job], *, fails: bool) -> tuple[list[JobRun], bool]:
    outages = (Outage(pool="pool", at_seconds=40.0, until_seconds=60.0, nodes=1, gpus=0),) if fails else ()
    world, rule = make_world(make_pool(nodes=2), outages=outages), FirstFit()
    engine = make_engine(world, jobs, rule, horizon=400.0)
    drive(engine, rule, lambda engine: None)
    return list(engine.runs.values()), engine.outcome("first-fit").restarts.sum() > 0


def test_columns_are_the_attributes_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    some: list[Job] = [
        make_job(number, 3.0 * number, 90.0, number % 4 + 1, cpus=number % 3, deadline_seconds=50.0 + number)
        for number in range(40)
    ]
    jobs = [*some, *(plain_job(number, 3.0 * number, 90.0, "training", (2,), 0) for number in range(40, 99))]
    for fails in (False, True):
        rows, restarted = runs_of(jobs, fails=fails)
        assert restarted == fails
        for block in (7, 99, 1000):
            monkeypatch.setattr(module, "_BLOCK", block)
            numbers, indices, states = job_columns(rows, has_restarts=fails)
            of_job = ("submitted_seconds", "true_units", "deadline_seconds", "cpus")
            for name, column in {**numbers, **indices}.items():
                expected = [getattr(row.job if name in of_job else row, name) for row in rows]
                np.testing.assert_array_equal(column, expected, err_msg=name)
            assert {name for name, column in indices.items() if column.dtype == np.int64} == set(indices)
            assert set(states) >= {"COMPLETED", "RUNNING", "PENDING"}


def test_columns_of_plain_jobs_are_the_same_when_what_others_have_is_not_read() -> None:
    jobs = [plain_job(number, 3.0 * number, 90.0, "training", (2,), 0) for number in range(99)]
    rows, _ = runs_of(jobs, fails=False)
    numbers, indices, states = job_columns(rows, has_restarts=False, only_plain_jobs=True)
    expected = job_columns(rows, has_restarts=False)
    assert states == expected.states
    for name, column in {**expected.numbers, **expected.indices}.items():
        np.testing.assert_array_equal({**numbers, **indices}[name], column, err_msg=name)


def test_a_job_that_never_started_has_no_times_and_no_devices() -> None:
    rows = [JobRun(make_job(1, 5.0)), JobRun(make_job(2, 6.0))]
    rows[1].state, rows[1].phase, rows[1].ended_seconds = "CANCELLED", ENDED, 8.0
    numbers, indices, states = job_columns(rows, has_restarts=False)
    assert states == ["PENDING", "CANCELLED"]
    assert numbers["ended_seconds"].tolist() == [np.inf, 8.0]
    for name in ("first_started_seconds", "started_seconds"):
        assert numbers[name].tolist() == [np.inf] * 2
    for name in ("run_seconds", "gpu_seconds", "energy_joules", "units_done"):
        assert numbers[name].tolist() == [0.0] * 2 == [getattr(row, name) for row in rows]
    assert (indices["place"].tolist(), indices["gpus"].tolist(), indices["set_clock"].tolist()) == (
        [-1] * 2,
        [0] * 2,
        [-1] * 2,
    )


def test_no_jobs_give_empty_columns() -> None:
    numbers, indices, states = job_columns([], has_restarts=False)
    assert {len(column) for column in (*numbers.values(), *indices.values())} == {0}
    assert states == []
