import json
from dataclasses import replace
from math import inf

import pytest

from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    GpuLink,
    GpuReading,
    JobDependency,
    JobState,
    NodeGpus,
    NodeState,
    PartitionState,
    waiting_gpus,
)
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.domain.plain import from_plain, to_plain


def make_node(*states: str, gpus: tuple[NodeGpus, ...] = ()) -> NodeState:
    return NodeState(
        name=NodeName("n1"),
        partitions=(PartitionName("a100"),),
        states=states,
        available=True,
        cpus=8,
        cpus_allocated=0,
        gpus=gpus,
        gpu_readings=(GpuReading(index=0, slurm_type="a100", utilisation=0.5, is_slowed=True),),
        gpu_link=GpuLink(kind="nvlink", bandwidth_gb_per_second=300.0, island_gpus=4),
        switch="s1",
    )


def test_gpus_of_all_types_are_counted() -> None:
    node = make_node(
        "MIXED", gpus=(NodeGpus(slurm_type="a100", count=4, allocated=3), NodeGpus(slurm_type=None, count=2))
    )
    assert (node.gpu_count, node.gpus_idle) == (6, 3)
    assert (make_node("IDLE").gpu_count, make_node("IDLE").gpus_idle) == (0, 0)


@pytest.mark.parametrize(
    ("states", "suspended", "waking"),
    [
        (("IDLE",), False, False),
        (("IDLE", "POWERED_DOWN"), True, False),
        (("IDLE", "POWERING_DOWN"), True, False),
        (("IDLE", "POWERED_DOWN", "POWER_UP"), False, True),
        (("IDLE", "POWERING_UP"), False, True),
        (("ALLOCATED", "POWER_DOWN"), False, False),
    ],
)
def test_a_node_is_suspended_or_waking_by_its_states(states: tuple[str, ...], suspended: bool, waking: bool) -> None:
    node = make_node(*states)
    assert (node.is_suspended, node.is_waking) == (suspended, waking)


PLACES = (PartitionName("a100"), PartitionName("v100"))


def make_snapshot(*nodes: NodeState, jobs: tuple[JobState, ...] = ()) -> ClusterSnapshot:
    partitions = tuple(PartitionState(name=name, is_default=name == "a100", up=True) for name in PLACES)
    return ClusterSnapshot(
        cluster=ClusterName("c"), taken_at_seconds=1.0, partitions=partitions, nodes=nodes, jobs=jobs
    )


def make_job(number: int, state: str = "PENDING", gpus: int | None = 1, **fields: object) -> JobState:
    plain = JobState(
        job_id=JobId(number),
        user_name="alice",
        user_id=1000,
        name="train",
        state=state,
        partitions=PLACES[:1],
        submitted_at_seconds=1.0,
        gpu_count=gpus,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]  # fields of a job


def test_nodes_with_idle_gpus_are_those_where_one_could_be_had() -> None:
    full, half = NodeGpus(slurm_type="a100", count=4, allocated=4), NodeGpus(slurm_type="a100", count=4, allocated=3)
    free, taken, both = (
        replace(make_node("IDLE", gpus=gpus), name=NodeName(name))
        for name, gpus in (("free", (half,)), ("taken", (full,)), ("both", (full, half)))
    )
    down = replace(free, name=NodeName("down"), available=False)
    shared = replace(free, name=NodeName("shared"), partitions=PLACES)
    snapshot = make_snapshot(taken, free, down, both, make_node("IDLE"), shared)
    found = snapshot.nodes_with_idle_gpus
    assert [node.name for node in found[PLACES[0]]] == ["free", "both", "shared"]
    assert [node.name for node in found[PLACES[1]]] == ["shared"]
    assert snapshot.idle_gpus_by_partition == {"a100": 3, "v100": 1}


def test_waiting_gpus_are_those_of_pending_jobs_and_endless_where_nobody_can_tell() -> None:
    jobs = (
        make_job(1, gpus=2),
        make_job(2, gpus=3, partitions=PLACES),
        make_job(3, "RUNNING", gpus=8),
        make_job(4, array_job_id=JobId(4), array_task="7"),
    )
    assert waiting_gpus(jobs) == {"a100": 6.0, "v100": 3.0}
    for endless in (make_job(5, gpus=None), make_job(5, array_task="0-9")):
        assert waiting_gpus((*jobs, endless)) == {"a100": inf, "v100": 3.0}


def test_jobs_that_would_not_start_if_there_were_room_take_it_from_nobody() -> None:
    held = [make_job(number, gpus=4, waits_for_room=False) for number in range(60)]
    assert waiting_gpus([*held, make_job(99, gpus=2)]) == {"a100": 2.0}
    assert waiting_gpus([make_job(5, array_task="0-9", waits_for_room=False)]) == {}


def test_what_is_worked_out_in_steps_is_what_would_have_been_found_later() -> None:
    node = make_node("IDLE", gpus=(NodeGpus(slurm_type="a100", count=4),))
    worked, asked = (make_snapshot(node, jobs=(make_job(1, gpus=2),)) for _ in range(2))
    names = {
        "partition_by_name",
        "nodes_by_partition",
        "nodes_with_idle_gpus",
        "idle_gpus_by_partition",
        "slurm_gpu_types_by_partition",
        "waiting_gpus_by_partition",
        "gpu_places",
        "num_waiting",
    }
    steps = sum(1 for _ in worked.work_out())
    assert steps == len(names)
    assert worked.__dict__.keys() >= names
    assert {name: getattr(worked, name) for name in names} == {name: getattr(asked, name) for name in names}
    assert worked.waiting_gpus_by_partition == {"a100": 2.0}
    told = make_snapshot(node, jobs=(make_job(1, gpus=2),))
    for _ in told.work_out({PLACES[0]: 5.0}):
        pass
    assert told.waiting_gpus_by_partition == {"a100": 5.0}, "somebody else has counted"
    assert told == asked


def test_nodes_and_jobs_come_back_equal_through_json() -> None:
    node = make_node("IDLE", gpus=(NodeGpus(slurm_type="a100", count=4),))
    job = JobState(
        job_id=JobId(7),
        user_name="alice",
        user_id=1000,
        name="train",
        state="RUNNING",
        partitions=(PartitionName("a100"),),
        submitted_at_seconds=1.0,
        dependencies=(JobDependency(job_id=JobId(6), needs_success=True, data_gib=1.5),),
        gpu_positions=((NodeName("n1"), (0, 2)), (NodeName("n2"), (1,))),
        gpu_types=("a100",),
    )
    assert from_plain(NodeState, json.loads(json.dumps(to_plain(node)))) == node
    assert from_plain(JobState, json.loads(json.dumps(to_plain(job)))) == job
