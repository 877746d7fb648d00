import json
from dataclasses import fields
from math import inf
from pathlib import PurePath
from typing import Any

import pytest
from measured_data import MEASURED

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.errors import WorkloadError
from slurm_energy.slurm.convert_accounting import convert_accounting
from slurm_energy.slurm.sacct_parsable import convert_parsable
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads.accounting import workload_of_accounting
from slurm_energy.twin.workloads.replay import LoadOptions, ReplayKind


def state(number: int = 1, **fields: Any) -> JobState:
    row: dict[str, Any] = {
        "job_id": JobId(number),
        "user_name": "alice",
        "user_id": -1,
        "name": "train",
        "state": "COMPLETED",
        "partitions": (PartitionName("gpu"),),
        "submitted_at_seconds": 1000.0,
        "started_at_seconds": 1100.0,
        "ended_at_seconds": 1700.0,
        "gpu_count": 2,
        "cpus": 8,
    }
    return JobState(**{**row, **fields})


def replay(*states: JobState, options: LoadOptions | None = None) -> Workload:
    return workload_of_accounting(states, options or LoadOptions(), source=PurePath("site.json"))


def test_job_runs_as_long_as_it_did_and_starts_the_clock() -> None:
    late = state(2, submitted_at_seconds=1500.0, account="lab", time_limit_minutes=30.0, suspended_seconds=100.0)
    found = replay(late, state(1))
    first, second = found.jobs
    assert (first.job_id, first.submitted_seconds, first.true_units, first.gpu_counts) == (1, 0.0, 1200.0, (2,))
    assert (first.kind, first.time_limit_seconds, first.cpus, first.user) == ("replay", inf, 8, "alice")
    assert (second.submitted_seconds, second.true_units) == (500.0, 1000.0)
    assert (second.time_limit_seconds, second.account, second.partitions) == (1800.0, "lab", ())
    assert found.name == "site"


def test_jobs_that_did_not_run_to_an_end_are_left_aside_and_counted() -> None:
    found = replay(
        state(1, state="PENDING", started_at_seconds=None, ended_at_seconds=None),
        state(2, state="RUNNING", ended_at_seconds=None),
        state(3, state="CANCELLED", started_at_seconds=None),
        state(4, state="CANCELLED", ended_at_seconds=1100.0),
        state(5, gpu_count=0),
        state(6, gpu_count=None),
        state(7),
    )
    assert [job.job_id for job in found.jobs] == [7]
    assert "2 not ended, 2 never ran, 2 without GPU" in found.source
    assert found.bad_rows == 0


def test_processors_can_stand_for_devices() -> None:
    found = replay(state(1, gpu_count=0, cpus=9), state(2), options=LoadOptions(processors_per_device=4))
    assert [job.gpu_counts for job in found.jobs] == [(3,), (2,)]


@pytest.mark.parametrize("ending", ["FAILED", "OUT_OF_MEMORY", "CANCELLED", "DEADLINE"])
def test_job_that_did_not_finish_fails_after_its_run(ending: str) -> None:
    (job,) = replay(state(1, state=ending)).jobs
    assert job.fails_after_units == 1200.0
    assert job.true_units > 1200.0


def test_job_that_met_its_limit_meets_it_again() -> None:
    (job,) = replay(state(1, state="TIMEOUT", time_limit_minutes=10.0)).jobs
    assert job.true_units / 2 > job.time_limit_seconds == 600.0


def test_attempts_of_one_job_are_one_job() -> None:
    found = replay(
        state(77, state="NODE_FAIL"),
        state(77, state="REQUEUED", submitted_at_seconds=1701.0, started_at_seconds=1800.0, ended_at_seconds=1900.0),
        state(77, submitted_at_seconds=2000.0, started_at_seconds=2100.0, ended_at_seconds=2150.0),
    )
    assert [(job.job_id, job.submitted_seconds, job.true_units) for job in found.jobs] == [(77, 0.0, 100.0)]


def test_number_that_comes_again_is_another_job() -> None:
    found = replay(
        state(77), state(77, submitted_at_seconds=9000.0, started_at_seconds=9100.0, ended_at_seconds=9200.0)
    )
    assert [(job.job_id, job.submitted_seconds, job.true_units) for job in found.jobs] == [
        (77, 0.0, 1200.0),
        (78, 8000.0, 200.0),
    ]


def test_tasks_of_an_array_are_jobs_of_their_own() -> None:
    tasks = [state(50, array_job_id=JobId(50), array_task=str(task)) for task in range(3)]
    found = replay(*tasks)
    assert len({job.job_id for job in found.jobs}) == 3
    assert {job.array_id for job in found.jobs} == {50}


def test_kinds_follow_job_name_partition_and_account() -> None:
    options = LoadOptions(
        kinds=(ReplayKind(name="other"), ReplayKind(name="bloom", seconds_per_unit=3.0), ReplayKind(name="ncf")),
        kind_by_label={"train": "bloom", "small": "ncf"},
        keep_partitions=True,
    )
    found = replay(
        state(1), state(2, name="x", partitions=("small", "gpu")), state(3, name="x", account="ncf"), options=options
    )
    assert [(job.kind, job.true_units) for job in found.jobs] == [("bloom", 400.0), ("ncf", 1200.0), ("ncf", 1200.0)]
    options = LoadOptions(kinds=options.kinds, keep_partitions=True)
    (job,) = replay(state(1, name="\n"), options=options).jobs
    assert (job.kind, job.partitions) == ("other", ("gpu",))


def test_job_that_ends_before_it_starts_is_bad() -> None:
    with pytest.raises(WorkloadError, match=r"'site.json', job 9, column elapsed: '-100' s is out of its bound"):
        replay(state(9, ended_at_seconds=1000.0))
    found = replay(state(9, ended_at_seconds=1000.0), state(1), options=LoadOptions(skip_bad=True))
    assert ([job.job_id for job in found.jobs], found.bad_rows) == ([1], 1)


def test_rows_that_the_converter_left_out_are_counted() -> None:
    found = workload_of_accounting([state(1)], LoadOptions(), source=PurePath("s"), bad_rows=4)
    assert found.bad_rows == 4


def test_text_and_json_of_the_same_jobs_are_the_same_workload() -> None:
    text = (
        "JobID|JobIDRaw|JobName|User|Account|Partition|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES|NNodes\n"
        "5|5|train|alice|lab|gpu|COMPLETED|1970-01-01T00:16:40|1970-01-01T00:18:20|1970-01-01T00:28:20|00:10:00|"
        "01:00:00|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|1\n"
        "5.batch|5.batch|batch||lab||COMPLETED|1970-01-01T00:16:40|1970-01-01T00:18:20|1970-01-01T00:28:20|00:10:00||"
        "cpu=8,gres/gpu=2|1\n"
    )
    row = {
        "job_id": 5,
        "name": "train",
        "user": "alice",
        "account": "lab",
        "partition": "gpu",
        "state": {"current": ["COMPLETED"]},
        "time": {"submission": 1000, "start": 1100, "end": 1700, "limit": {"set": True, "number": 60}},
        "tres": {"allocated": [{"type": "cpu", "count": 8}, {"type": "gres", "name": "gpu:a100", "count": 2}]},
    }
    from_text = replay(*convert_parsable(text).items)
    from_json = replay(*convert_accounting({"jobs": [row]}).items)
    assert [_row(job) for job in from_text.jobs] == [_row(job) for job in from_json.jobs]
    assert [job.true_units for job in from_text.jobs] == [1200.0]


def _row(job: Job) -> tuple[Any, ...]:
    return tuple(getattr(job, field.name) for field in fields(Job))


def test_accounting_of_real_slurm_can_be_replayed() -> None:
    replayed = 0
    for path in sorted(MEASURED.rglob("slurmdb-job-*.json")):
        states = convert_accounting(json.loads(path.read_text())).items
        found = workload_of_accounting(states, LoadOptions(processors_per_device=1), source=path)
        replayed += len(found.jobs)
    assert replayed > 0
