import json

import pytest

from slurm_energy.domain.cluster import JobDependency, JobState, NodeGpus, NodeState
from slurm_energy.domain.ids import JobId, NodeName, PartitionName
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.domain.telemetry import GpuReading
from slurm_energy.domain.topology import GpuLink


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
