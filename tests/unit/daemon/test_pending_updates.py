"""Updates of waiting jobs: their texts, what Slurm says of them, and how a job is put back."""

from dataclasses import replace

import pytest
from policy_factory import NOW, make_config, make_job
from test_pending_jobs import look, one, snapshot, submitted, texts, waiting

from slurm_energy.daemon.pending.tracked import TrackedJobs, count_field, updatable
from slurm_energy.daemon.pending.updates import complaints, is_right_missing, is_unchanged
from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyOptions


def test_a_changed_job_that_a_limit_would_hold_is_put_back_and_left_alone() -> None:
    options = tuple(GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=1) for gpus in (1, 2, 4))
    ranged = make_job(
        4,
        partitions=("a100",),
        time_limit_minutes=60.0,
        count_options=options,
        options=EnergyOptions(gpu_counts=(1, 2, 4)),
    )
    tracked = TrackedJobs()
    job = waiting(submitted(tracked, ranged))
    look(tracked, snapshot(job, seconds=5))
    fewer = make_config(routing_open=True, unmeasured_gpu_count=2)
    look(tracked, snapshot(job, seconds=10), config=fewer)
    one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 10)
    held = replace(job, gpu_count=2, time_limit_minutes=120.0, waits_for_room=False, blocked_by_limit=True)
    result = look(tracked, snapshot(held, seconds=20), config=fewer)
    assert texts(result) == ["JobId=7 TresPerNode=gres:gpu:4 TimeLimit=60"]
    one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 20)
    result = look(tracked, snapshot(job, seconds=30), config=fewer)
    assert [(change.outcome, change.gpus, change.note[:8]) for change in result.changes] == [("changed", 4, "put back")]
    assert texts(look(tracked, snapshot(job, seconds=40), config=fewer)) == [], "it is not changed again"


def test_a_job_that_waited_for_a_limit_of_its_own_is_not_touched() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked), waits_for_room=False, blocked_by_limit=True)
    assert texts(look(tracked, snapshot(job, a40_free=True, seconds=5))) == []


def test_never_more_gpus_than_its_user_asked_for() -> None:
    options = tuple(GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=1) for gpus in (2, 4, 8))
    assert [one.gpus for one in updatable(make_job(4, count_options=options))] == [2, 4]


@pytest.mark.parametrize(
    ("fields", "cpus", "expected"),
    [
        ({"tres_per_node": "gres:gpu:4"}, (1, 1), "TresPerNode=gres:gpu:2"),
        ({"tres_per_node": "gres:gpu:a100:4"}, (1, 1), "TresPerNode=gres:gpu:a100:2"),
        ({"tres_per_job": "gres/gpu:4"}, (1, 1), "TresPerJob=gres/gpu:2"),
        ({"tres_per_job": "gres:gpu:4"}, (2, 4), None),
        ({"tres_per_job": "gres:gpu:4", "tres_per_node": "gres:gpu:4"}, (1, 1), None),
        ({"tres_per_task": "gres:gpu:1"}, (1, 1), None),
        ({"tres_per_node": "gres:gpu:4,gres:shard:1"}, (1, 1), None),
        ({"tres_per_node": "gres:gpu"}, (1, 1), None),
    ],
)
def test_only_the_digits_of_slurms_own_text_change(
    fields: dict[str, str], cpus: tuple[int, int], expected: str | None
) -> None:
    options = tuple(
        GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=needs) for gpus, needs in zip((2, 4), cpus, strict=True)
    )
    job = make_job(4, time_limit_minutes=60.0, count_options=options, options=EnergyOptions(gpu_counts=(2, 4)))
    found = count_field(job, 4, fields)
    assert (None if found is None else found.text(2)) == expected


def test_the_commands_that_scontrol_repeats_are_no_complaint() -> None:
    said = "scontrol: update JobId=7 Partition=a,b\nslurm_update error: Job is no longer pending\nscontrol: exit\n"
    assert complaints(said, ["JobId=7 Partition=a,b"]) == "slurm_update error: Job is no longer pending"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", False),
        ("slurm_update error: Job is no longer pending execution", False),
        ("slurm_update error: Access/permission denied", False),
        ("slurm_update error: User id is missing", True),
    ],
)
def test_a_missing_right_is_told_from_a_refused_job(said: str, expected: bool) -> None:
    assert is_right_missing(said) is expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("7 PENDING 1:00:00 N/A gres:gpu:4 a100", True),
        ("7 PENDING 1:00:00 gres/gpu:4 N/A a100", True),
        ("7 PENDING 1:00:00 N/A N/A a100", True),
        ("7 RUNNING 1:00:00 N/A gres:gpu:4 a100", False),
        ("7 PENDING 30:00 N/A gres:gpu:4 a100", False),
        ("7 PENDING UNLIMITED N/A gres:gpu:4 a100", False),
        ("7 PENDING 1:00:00 N/A gres:gpu:2 a100", False),
        ("7 PENDING 1:00:00 N/A gres:gpu:4 a100,a40", False),
        ("7 PENDING unreadable N/A gres:gpu:4 a100", False),
    ],
)
def test_squeue_tells_right_before_an_update_whether_the_job_is_as_it_was(row: str, expected: bool) -> None:
    tracked = TrackedJobs()
    look(tracked, snapshot(waiting(submitted(tracked)), seconds=5))
    assert is_unchanged(one(tracked), row.split()) is expected


def test_an_update_that_slurm_makes_after_scontrol_was_given_up_counts_as_ours() -> None:
    tracked = TrackedJobs()
    job = waiting(submitted(tracked))
    look(tracked, snapshot(job, seconds=5))
    look(tracked, snapshot(job, a40_free=True, seconds=10))
    one(tracked).attempt = replace(one(tracked).attempt, ended_at_seconds=NOW + 130, may_come_late=True)
    assert look(tracked, snapshot(job, seconds=100)).changes == [], "it may still be made"
    assert [change.outcome for change in look(tracked, snapshot(job, seconds=140)).changes] == ["refused"]
    moved = replace(job, partitions=(PartitionName("a40"), PartitionName("a100")))
    assert [change.outcome for change in look(tracked, snapshot(moved, seconds=150)).changes] == ["changed"]
    assert (one(tracked).closed, one(tracked).shape.partitions) == ("", ("a40", "a100"))


def test_a_job_is_put_back_to_what_it_was_at_first_in_one_update_after_refusals_too() -> None:
    options = tuple(GpuCountOption(gpus=gpus, nodes=1, cpus_per_node=1) for gpus in (1, 2, 4))
    asked = make_job(4, time_limit_minutes=60.0, count_options=options, options=EnergyOptions(gpu_counts=(1, 2, 4)))
    tracked = TrackedJobs()
    decided = submitted(tracked, asked)
    job = waiting(decided)
    look(tracked, snapshot(job, seconds=5))
    own = one(tracked)
    both = (PartitionName("a40"), PartitionName("a100"))
    own.shape = replace(own.shape, partitions=both, gpus=2, time_limit_minutes=120.0)  # after two changes
    own.entry, own.count_open, own.partitions_open, own.refusals = replace(own.entry, gpus=2), False, False, 2
    held = replace(job, partitions=both, gpu_count=2, time_limit_minutes=120.0)
    held = replace(held, waits_for_room=False, blocked_by_limit=True)
    result = look(tracked, snapshot(held, seconds=20))
    assert texts(result) == ["JobId=7 Partition=a100 TresPerNode=gres:gpu:4 TimeLimit=60"]
    own.attempt = replace(own.attempt, ended_at_seconds=NOW + 20)
    look(tracked, snapshot(job, seconds=30))
    newest = tracked.newer_entry(decided.decision.decision_id)
    assert newest is not None
    assert (newest.gpus, newest.clocks_mhz) == (4, decided.entry.clocks_mhz), "the clocks of then, for that number"


@pytest.mark.parametrize("nodes", [0, 2], ids=["left to Slurm", "several"])
def test_the_number_of_a_job_that_may_get_several_nodes_stays(nodes: int) -> None:
    options = tuple(GpuCountOption(gpus=gpus, nodes=nodes, cpus_per_node=1) for gpus in (2, 4))
    job = make_job(4, time_limit_minutes=60.0, count_options=options, options=EnergyOptions(gpu_counts=(2, 4)))
    assert count_field(job, 4, {"tres_per_job": "gres:gpu:4"}) is None
