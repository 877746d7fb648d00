import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import convert_jobs

from slurm_energy.domain.cluster import JobDependency, JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.errors import SlurmError

DATA = Path(__file__).parents[2] / "data" / "slurm"


def job_row(**fields: Any) -> dict[str, Any]:
    row = {
        "job_id": 7,
        "job_state": "RUNNING",
        "user_id": 1000,
        "user_name": "alice",
        "name": "train",
        "partition": "a100",
        "submit_time": 1000,
        "start_time": 1100,
        "end_time": 4700,
        "time_limit": 60,
        "nodes": "n1",
        "node_count": 1,
        "cpus": 8,
        "tres_per_node": "gres:gpu:2",
    }
    return {**row, **fields}


def converted(**fields: Any) -> JobState:
    (job,) = convert_jobs({"jobs": [job_row(**fields)]}).items
    return job


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def test_plain_numbers_and_number_objects_give_the_same_job() -> None:
    plain = converted(exit_code=0, priority=5, restart_cnt=1)
    objects = converted(
        job_state=["RUNNING"],
        submit_time=number(1000),
        start_time=number(1100),
        end_time=number(4700),
        time_limit=number(60),
        node_count=number(1),
        cpus=number(8),
        priority=number(5),
        restart_cnt=1,
        exit_code={"status": ["SUCCESS"], "return_code": number(0), "signal": {"id": {"set": False, "number": 0}}},
    )
    assert plain == objects
    assert plain == JobState(
        job_id=JobId(7),
        user_name="alice",
        user_id=1000,
        name="train",
        state="RUNNING",
        partitions=(PartitionName("a100"),),
        submitted_at_seconds=1000.0,
        started_at_seconds=1100.0,
        restart_count=1,
        time_limit_minutes=60.0,
        nodes="n1",
        node_count=1,
        gpu_count=2,
        cpus=8,
        priority=5,
    )


def test_a_running_job_has_no_end_although_slurm_tells_the_latest_possible_one() -> None:
    assert converted(job_state="RUNNING", end_time=4700).ended_at_seconds is None


def test_a_waiting_job_has_no_start_although_slurm_tells_the_expected_one() -> None:
    job = converted(job_state="PENDING", start_time=9000, nodes="")
    assert (job.started_at_seconds, job.ended_at_seconds) == (None, None)


@pytest.mark.parametrize(
    ("value", "state"),
    [
        ("RUNNING", "RUNNING"),
        (["RUNNING", "COMPLETING"], "RUNNING"),
        (["COMPLETING"], "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("TIMEOUT", "TIMEOUT"),
        (["PENDING", "REQUEUED"], "PENDING"),
        (["REQUEUE_HOLD"], "PENDING"),
        ("CONFIGURING", "RUNNING"),
        (["CANCELLED", "NODE_FAIL"], "CANCELLED"),
    ],
)
def test_base_state_is_found_among_flags(value: object, state: str) -> None:
    assert converted(job_state=value).state == state


def test_the_tasks_of_an_array_and_its_waiting_set_are_told_apart() -> None:
    waiting = converted(array_job_id=1234, array_task_id=None, array_task_string="3-1000%500", job_state="PENDING")
    task = converted(array_job_id=1234, array_task_id=2, array_task_string="")
    newer = converted(array_job_id=number(1234), array_task_id=number(2))
    alone = converted(array_job_id=number(0), array_task_id={"set": False, "infinite": False, "number": 0})
    assert (waiting.array_job_id, waiting.array_task) == (1234, "3-1000%500")
    assert (task.array_job_id, task.array_task) == (newer.array_job_id, newer.array_task) == (1234, "2")
    assert (alone.array_job_id, alone.array_task) == (None, None)


def test_suspended_time_is_what_passed_without_running() -> None:
    # Ran 600 s, stood still for 600 s, was resumed at 2300.
    assert converted(suspend_time=2300, pre_sus_time=600).suspended_seconds == 600.0
    assert converted(suspend_time=0, pre_sus_time=0).suspended_seconds == 0.0


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, 0),
        (256, 1),
        (15, 143),
        ({"return_code": number(3), "signal": {"id": {"set": False, "number": 0}}}, 3),
        ({"return_code": {"set": False, "number": 0}, "signal": {"id": number(15), "name": "TERM"}}, 143),
        ({"return_code": 2, "signal": {"signal_id": 9}}, 137),
        (None, None),
        ("N/A", None),
    ],
)
def test_exit_code_is_read_in_every_shape(value: object, code: int | None) -> None:
    assert converted(job_state="FAILED", exit_code=value).exit_code == code


def test_held_gpus_come_from_gres_detail_when_the_tres_text_lacks_them() -> None:
    job = converted(
        tres_alloc_str="cpu=1,mem=512M,node=1,billing=1", gres_detail=["gpu:h100:4(IDX:0-3)"] * 2, tres_per_node=""
    )
    assert job.gpu_count == 8


def test_gpus_of_an_ended_job_come_from_its_request() -> None:
    assert converted(job_state="COMPLETED", gres_detail=[], tres_per_node="", tres_per_job="gres/gpu:4").gpu_count == 4


def test_gpus_are_unknown_when_the_answer_has_no_word_on_them() -> None:
    row = job_row()
    del row["tres_per_node"]
    assert convert_jobs({"jobs": [row]}).items[0].gpu_count is None


@pytest.mark.parametrize("value", [-2, 4294967294, 18446744073709551614])
def test_a_mark_of_unknown_energy_is_never_joules(value: int) -> None:
    assert converted(tres_alloc_str=f"cpu=1,energy={value},node=1").energy_joules is None


@pytest.mark.parametrize(
    ("time_limit", "expected"),
    [
        (60, 60.0),
        ("UNLIMITED", None),
        ("1-00:00:00", 1440.0),
        (4294967295, None),
        (number(1), 1.0),
        (None, None),
        ({"set": False, "infinite": True, "number": 0}, None),
        ("Partition_Limit", None),
        (0, None),
    ],
)
def test_time_limit_is_read_in_every_shape(time_limit: object, expected: float | None) -> None:
    assert converted(time_limit=time_limit).time_limit_minutes == expected


@pytest.mark.parametrize("time", ["N/A", 0, None, 4294967294, "Unknown", {"set": False}, -1])
def test_a_time_that_is_none_is_none(time: object) -> None:
    assert converted(start_time=time).started_at_seconds is None


def test_a_bad_row_is_counted_with_its_reason_and_costs_only_itself() -> None:
    rows = [
        job_row(),
        {},
        "text",
        None,
        job_row(job_id=0),
        job_row(job_id=True),
        job_row(job_state="BORED"),
        job_row(submit_time=None),
        job_row(user_id=None),
        job_row(job_id=8),
    ]
    result = convert_jobs({"jobs": rows})
    assert [job.job_id for job in result.items] == [7, 8]
    assert result.skipped == {
        "no known state": 2,
        "not an object": 2,
        "no job id": 2,
        "no submit time": 1,
        "no user id": 1,
    }


def test_a_pending_job_tells_whom_it_waits_for_and_a_running_one_nobody() -> None:
    text = "afterok:12(unfulfilled),afterany:13_*(unfulfilled)"
    assert converted(job_state="PENDING", dependency=text).dependencies == (
        JobDependency(job_id=JobId(12), needs_success=True),
        JobDependency(job_id=JobId(13), needs_success=False),
    )
    assert converted(dependency=text).dependencies == ()
    assert converted(job_state="PENDING", dependency=None).dependencies == ()


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"state_reason": "None"}, True),
        ({"state_reason": "Resources"}, True),
        ({"state_reason": "Priority", "priority": {"set": True, "infinite": False, "number": 17}}, True),
        ({"state_reason": "ReqNodeNotAvail"}, True),
        ({}, True),
        ({"state_reason": "JobHeldUser"}, False),
        ({"state_reason": "JobHeldAdmin"}, False),
        ({"state_reason": "launch_failed_requeued_held"}, False),
        ({"state_reason": "None", "priority": 0}, False),
        ({"state_reason": "None", "priority": {"set": True, "infinite": False, "number": 0}}, False),
        ({"state_reason": "None", "hold": True}, False),
        ({"state_reason": "Dependency"}, False),
        ({"state_reason": "DependencyNeverSatisfied"}, False),
        ({"state_reason": "None", "dependency": "singleton(unfulfilled)"}, False),
        ({"state_reason": "BeginTime"}, False),
        ({"state_reason": "JobArrayTaskLimit"}, False),
        ({"state_reason": "QOSMaxGRESPerUser"}, False),
        ({"state_reason": "AssocGrpGRES"}, False),
        ({"state_reason": "Licenses"}, False),
        ({"job_state": "RUNNING", "priority": 0, "dependency": "afterok:3"}, True),
    ],
)
def test_a_job_that_would_not_start_if_there_were_room_does_not_wait_for_it(
    fields: dict[str, Any], waits: bool
) -> None:
    assert converted(**{"job_state": "PENDING", **fields}).waits_for_room is waits


@pytest.mark.parametrize(
    ("reason", "of_its_size"),
    [
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxGRESPerJob", True),
        ("QOSMaxGRESPerNode", True),
        ("QOSMinGRES", True),
        ("PartitionTimeLimit", True),
        ("PartitionNodeLimit", True),
        ("QOSMaxGRESPerUser", False),
        ("AssocGrpGRES", False),
        ("QOSGrpGRES", False),
        ("AssocMaxJobsLimit", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("Resources", False),
    ],
)
def test_a_limit_that_passes_when_other_jobs_end_is_told_from_one_on_the_jobs_size(
    reason: str, of_its_size: bool
) -> None:
    assert converted(job_state="PENDING", state_reason=reason).blocked_by_limit is of_its_size


def test_held_devices_are_told_apart_by_node() -> None:
    fields = {"nodes": "n[1-2]", "gres_detail": ["gpu:a100:2(IDX:0,3)", "gpu:a100:1(IDX:2)"]}
    assert converted(**fields).gpu_positions == (("n1", (0, 3)), ("n2", (2,)))
    assert converted(**fields).gpu_types == ("a100",)
    assert converted(**{**fields, "nodes": "n[1-3]"}).gpu_positions == ()
    assert converted(**{**fields, "nodes": "n[1-"}).gpu_positions == ()
    assert converted(**{**fields, "gres_detail": ["gpu:a100:2", None]}).gpu_positions == ()
    assert converted(job_state="COMPLETED", **fields).gpu_positions == ()


def test_positions_in_a_real_answer_are_as_many_as_the_held_gpus() -> None:
    for release in ("24.11", "25.11", "22.05-running"):
        jobs = convert_jobs(json.loads((DATA / f"squeue-{release}.json").read_text())).items
        told = [job for job in jobs if job.gpu_positions]
        assert told
        assert all(sum(len(held) for _, held in job.gpu_positions) == job.gpu_count for job in told)


def test_types_asked_for_are_kept_and_an_untyped_request_has_none() -> None:
    both = "gres/gpu:a100:2,gres/gpu:h100:1"
    assert converted(job_state="PENDING", tres_per_node=both).gpu_types == ("a100", "h100")
    assert converted(job_state="PENDING").gpu_types == ()


def test_gpu_types_of_digits_are_held_and_asked_for() -> None:
    held = converted(gres_detail=["gpu:3090:1(IDX:2)"])
    assert (held.gpu_count, held.gpu_types, held.gpu_positions) == (1, ("3090",), (("n1", (2,)),))
    asked = converted(job_state="PENDING", tres_per_node="gres:gpu:3090:1")
    assert (asked.gpu_count, asked.gpu_types) == (1, ("3090",))


def test_a_job_that_another_cluster_of_the_federation_runs_has_ended_here() -> None:
    job = converted(job_state=["REVOKED"], start_time=0, end_time=0)
    assert (job.state, job.started_at_seconds, job.ended_at_seconds) == ("REVOKED", None, None)


def test_a_range_of_gpus_has_an_upper_end() -> None:
    job = converted(job_state="PENDING", tres_per_node="", tres_per_job="gres:gpu:2-8")
    assert (job.gpu_count, job.gpu_max_count) == (2, 8)
    assert converted(job_state="PENDING").gpu_max_count is None


@pytest.mark.parametrize(
    ("fields", "mebibytes"),
    [
        ({"memory_per_node": number(131072)}, 131072.0),
        ({"memory_per_node": {"set": False, "infinite": False, "number": 0}, "memory_per_cpu": number(512)}, 4096.0),
        ({"memory_per_node": None, "memory_per_cpu": 64000, "cpus": 4, "node_count": 2}, 128000.0),
        ({"memory_per_node": number(0)}, None),
        # squeue 23.02.6: 8 CPUs were asked for and their cores' other threads came with them
        ({"memory_per_cpu": number(15000), "cpus": 16, "tres_alloc_str": "cpu=16,mem=120000M,node=1"}, 120000.0),
        ({"memory_per_cpu": 15000, "cpus": 16, "tres_req_str": "cpu=8,mem=117.1875G,node=1"}, 120000.0),
        ({"memory_per_cpu": 15000, "cpus": 16, "node_count": 2, "tres_alloc_str": "mem=240000M"}, 120000.0),
        ({"memory_per_node": number(60001), "tres_alloc_str": "mem=58.59G"}, 60001.0),
        ({}, None),
    ],
)
def test_memory_is_told_for_each_node(fields: dict[str, Any], mebibytes: float | None) -> None:
    assert converted(**fields).memory_per_node_mib == mebibytes


CORES_LEFT = {"sockets": [{"cores": [{"status": ["ALLOCATED"]}, {"status": ["UNALLOCATED"]}]}]}


@pytest.mark.parametrize(
    ("fields", "exclusive"),
    [
        ({"shared": ["none"]}, True),
        ({"exclusive": ["true"]}, True),
        ({"job_resources": {"nodes": {"whole": True}}}, True),
        ({"shared": ["oversubscribe"], "exclusive": ["false"]}, False),
        ({"shared": [], "exclusive": [], "job_resources": {"nodes": {"whole": False}}}, False),
        ({"shared": ["user"]}, False),
        ({"shared": ["topo"]}, True),
        ({"shared": ["user"], "job_resources": {"nodes": {"whole": True}}}, False),
        ({"exclusive": ["mcs"], "job_resources": {"nodes": {"whole": True}}}, False),
        # 26.05: --exclusive=user runs on a node that it does not fill
        ({"shared": [], "job_resources": {"nodes": {"whole": True, "allocation": [CORES_LEFT]}}}, False),
        ({"shared": [], "job_resources": {"nodes": {"whole": True, "allocation": [{"name": "n1"}]}}}, True),
        # 26.05: a job that waits
        ({"shared": [], "job_resources": None, "submit_line": "/usr/bin/sbatch -t 5 --exclusive --wrap x"}, True),
        ({"shared": [], "submit_line": "sbatch --energy=off --excl=user job.sh"}, False),
        ({"shared": [], "submit_line": "sbatch --wrap srun --exclusive"}, False),
        ({"shared": [], "submit_line": "sbatch --nosuch --exclusive"}, False),
        ({"shared": [], "submit_line": "sbatch job.sh --exclusive"}, False),
        ({"shared": [], "submit_line": 7}, False),
        ({"shared": None, "job_resources": "none"}, False),
    ],
)
def test_a_job_that_keeps_all_others_from_its_nodes_is_exclusive(fields: dict[str, Any], exclusive: bool) -> None:
    assert converted(**fields).exclusive is exclusive


@pytest.mark.parametrize(
    ("value", "seconds"), [(1729802248, 1729802248.0), (number(1729802248), 1729802248.0), (0, None), (number(0), None)]
)
def test_a_deadline_is_a_unix_time_or_none(value: object, seconds: float | None) -> None:
    assert converted(deadline=value).deadline_seconds == seconds


def test_a_hostile_job_name_stays_a_name() -> None:
    name = "x; rm -rf /\n$(id)\x1b[31m<script>'\"\x00\ud800"
    assert converted(name=name).name == "x; rm -rf /\n$(id)\x1b[31m<script>'\"\ufffd\ufffd"


@pytest.mark.parametrize("document", [None, [], "text", {}, {"jobs": {}}, {"jobs": [], "errors": [{"error": "no"}]}])
def test_an_answer_that_is_not_squeues_is_an_error(document: object) -> None:
    with pytest.raises(SlurmError, match="Slurm's answer"):
        convert_jobs(document)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


NEW_FIELDS = ("dependency", "deadline", "memory_per_node", "memory_per_cpu", "shared", "exclusive", "job_resources")


@given(
    st.dictionaries(
        st.sampled_from([*job_row(), "gres_detail", "exit_code", "array_task_id", *NEW_FIELDS]), json_values
    )
)
def test_no_value_of_any_field_is_more_than_a_skipped_row(fields: dict[str, Any]) -> None:
    result = convert_jobs({"jobs": [job_row(**fields)]})
    assert len(result.items) + result.skipped_rows == 1


@pytest.mark.parametrize("release", ["21.08", "22.05-running", "22.05-ended", "24.11", "25.11"])
def test_real_answers_are_read_without_a_lost_row(release: str) -> None:
    document = json.loads((DATA / f"squeue-{release}.json").read_text())
    result = convert_jobs(document)
    assert result.skipped == {}
    assert len(result.items) == len(document["jobs"]) > 0
    assert all(job.gpu_count is not None and job.submitted_at_seconds > 1e9 for job in result.items)


@pytest.mark.parametrize("release", ["24.11", "25.11"])
def test_every_request_form_of_a_real_answer_gives_the_gpus_that_were_held(release: str) -> None:
    document = json.loads((DATA / f"squeue-{release}.json").read_text())
    held = {row["job_id"]: row["gres_detail"] for row in document["jobs"] if row["gres_detail"]}
    asked = convert_jobs({"jobs": [{**row, "gres_detail": []} for row in document["jobs"]]}).items
    counted = convert_jobs(document).items
    assert len(held) == 8
    assert {job.job_id: job.gpu_count for job in asked if job.job_id in held} == {
        job.job_id: job.gpu_count for job in counted if job.job_id in held
    }
