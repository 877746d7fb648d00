from typing import Any

import pytest
from policy_factory import NOW, make_job, make_node, make_partition, make_snapshot, make_waiting_job

from slurm_energy.domain.cluster import NodeGpus, NodeState
from slurm_energy.domain.job import GpuDemand, JobRequest
from slurm_energy.policy.base import Case
from slurm_energy.policy.site.candidates import has_idle_room

PARTITION = make_partition("a100")


def room(job: JobRequest, *nodes: NodeState, **snapshot: Any) -> bool:
    found = make_snapshot(*nodes, partitions=(PARTITION,), **snapshot)
    return has_idle_room(Case(job=job, snapshot=found, now_seconds=NOW, user_groups=()), PARTITION)


def node(name: str = "n1", **changes: Any) -> NodeState:
    return make_node(name, "a100", "a100", **changes)


@pytest.mark.parametrize(("allocated", "expected"), [(0, True), (2, True), (3, False), (4, False)])
def test_room_needs_enough_idle_gpus_on_one_node(allocated: int, expected: bool) -> None:
    assert room(make_job(2), node(allocated=allocated)) is expected


def test_gpus_of_one_node_job_may_not_be_split_over_nodes() -> None:
    assert not room(make_job(4), node("n1", allocated=2), node("n2", allocated=2))
    assert room(make_job(4, nodes_min=2), node("n1", allocated=2), node("n2", allocated=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"available": False},
        {"cpus_allocated": 62},
        {"memory_allocated_mib": 255_000.0},
        {"features": ("ib",)},
        {"gpus": (NodeGpus(slurm_type="a40", count=8),)},
    ],
    ids=str,
)
def test_node_that_lacks_what_the_job_needs_gives_no_room(changes: dict[str, Any]) -> None:
    job = make_job(1, gpu_type="a100", tasks=2, cpus_per_task=2, memory_per_node_mib=4000.0, features="nvlink")
    fitting: dict[str, Any] = {"features": ("nvlink", "ib")}
    assert room(job, node(**fitting))
    assert not room(job, node(**{**fitting, **changes}))


def test_exclusive_job_needs_an_empty_node() -> None:
    assert room(make_job(exclusive=True), node())
    assert not room(make_job(exclusive=True), node(cpus_allocated=1))


def test_features_beyond_a_plain_list_count_as_no_room() -> None:
    assert room(make_job(features="a&b"), node(features=("a", "b")))
    assert not room(make_job(features="a|b"), node(features=("a", "b")))


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"gpu_count": 1}, True),
        ({"gpu_count": 3}, False),
        ({"gpu_count": None}, False),
        ({"gpu_count": 1, "array_task": "3-100%5"}, False),
        ({"gpu_count": 1, "array_task": "3"}, True),
        ({"gpu_count": 3, "partition": "a40"}, True),
        ({"gpu_count": 3, "state": "RUNNING"}, True),
    ],
    ids=str,
)
def test_gpus_that_waiting_jobs_ask_for_count_as_gone(waiting: dict[str, Any], expected: bool) -> None:
    job = make_waiting_job(7, waiting.pop("partition", "a100"), **waiting)
    assert room(make_job(2), node(), jobs=(job,)) is expected


@pytest.mark.parametrize("changes", [{"array": "0-9"}, {"reservation": "r"}], ids=str)
def test_array_and_reservation_count_as_no_room(changes: dict[str, Any]) -> None:
    assert not room(make_job(**changes), node())


def test_request_for_two_gpu_types_counts_as_no_room() -> None:
    two = (GpuDemand(count=1, slurm_type="a100"), GpuDemand(count=1, slurm_type="a40"))
    assert not room(JobRequest(user_id=1, gpus=two), node())


def test_partition_without_nodes_has_no_room() -> None:
    assert not room(make_job(), make_node("other", "elsewhere", "a100"))
