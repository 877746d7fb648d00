from math import log

import numpy as np
import pytest
from small_clusters import make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import JobState, NodeState, PartitionState
from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.energy_model.catalog import CATALOGUE_LIMITS
from slurm_energy.energy_model.relative_speed import relative_cost
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import OPTION
from slurm_energy.graph.wait_table import relative_costs, rounded_wait

A100, V100, A40 = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("v100-sxm2-16gb"), GpuTypeName("a40")


def waits(
    nodes: tuple[NodeState, ...], jobs: tuple[JobState, ...], partitions: tuple[PartitionState, ...]
) -> dict[tuple[int, str], dict[str, float]]:
    graph = ClusterGraph()
    graph.update(make_snapshot(nodes, jobs, partitions))
    block = graph.queue_block(graph.queue_slots)
    numbers = graph.jobs.store["job"][graph.queue_slots]
    names = list(graph.partition_index)
    return {
        (int(numbers[task]), names[place]): dict(zip((feature.name for feature in OPTION), row.tolist(), strict=True))
        for task, place, row in zip(block.wait_task, block.wait_partition, block.wait_x, strict=True)
    }


def scaled(name: str, value: float) -> float:
    return next(feature for feature in OPTION if feature.name == name).scaled(value)


def test_a_job_waits_in_each_partition_that_exists() -> None:
    job = make_job(1, partitions=tuple(map(PartitionName, ("q", "gone", "p"))))
    found = waits((make_node(), make_node("n2", partition="q", slurm_type="v100-sxm2-16gb")), (job,), (
        make_partition("p"),
        make_partition("q"),
    ))  # fmt: skip
    cost = relative_cost(V100, A100)
    assert cost is not None
    assert found.keys() == {(1, "p"), (1, "q")}
    assert found[1, "p"]["relative_seconds"] == 0.0
    assert found[1, "q"]["relative_seconds"] == pytest.approx(log(cost.time_ratio))
    assert found[1, "q"]["relative_seconds_full"] == found[1, "q"]["relative_seconds"]
    assert found[1, "q"]["seconds"] == pytest.approx(scaled("seconds", 1800.0 * cost.time_ratio))
    assert found[1, "p"]["cost_known"] == found[1, "p"]["is_where_submitted"] == 1.0


def test_those_before_it_take_the_room_and_the_time() -> None:
    jobs = (
        make_job(1, gpus=3, priority=9, estimated_seconds=1000.0),
        make_job(2, gpus=1, priority=8, estimated_seconds=1000.0),
        make_job(3, gpus=1, priority=7, estimated_seconds=1000.0),
    )
    found = waits((make_node(),), jobs, (make_partition(),))
    assert [found[number, "p"]["has_room"] for number in (1, 2, 3)] == [1.0, 1.0, 0.0]
    for number, seconds in ((1, 0.0), (2, 3000.0 / 4), (3, 4000.0 / 4)):
        expected = scaled("wait_seconds", float(rounded_wait(np.array([seconds]))[0]))
        assert found[number, "p"]["wait_seconds"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("node", "partition"),
    [
        (make_node(), make_partition(up=False)),
        (make_node(available=False), make_partition()),
        (make_node("n2", partition="q"), make_partition()),
    ],
)
def test_there_is_no_room_where_nothing_starts(node: NodeState, partition: PartitionState) -> None:
    found = waits((node,), (make_job(1),), (partition, make_partition("q")))
    assert found[1, "p"]["has_room"] == 0.0


def test_a_job_without_gpus_waits_for_nodes_of_a_cpu_partition() -> None:
    jobs = (make_job(1, gpus=0, node_count=2, priority=900), make_job(2, gpus=0, node_count=1))
    found = waits((make_node(count=0), make_node("n2", count=0)), jobs, (make_partition(),))
    assert [found[number, "p"]["has_room"] for number in (1, 2)] == [1.0, 0.0]
    assert found[1, "p"]["is_cpu"] == 1.0
    assert found[1, "p"]["gpus"] == pytest.approx(scaled("gpus", 2.0))


@pytest.mark.usefixtures("h100_without_sheet")
def test_costs_that_cannot_be_compared_are_unknown() -> None:
    options = ((A100,), (None,), (A40, V100), (A100, GpuTypeName("h100-sxm5-80gb")), ())
    costs = relative_costs(options, CATALOGUE_LIMITS)
    worst = max(cost.time_ratio for name in (A40, V100) if (cost := relative_cost(name, A100)))
    assert costs[0] == (0.0, 0.0)
    assert costs[2][0] == pytest.approx(log(worst))
    assert np.isnan([costs[1], costs[3], costs[4]]).all()


def test_a_rounded_wait_is_near_and_seldom_moves() -> None:
    seconds = np.array([0.0, 10.0, 59.0, 3600.0, 1e6])
    rounded = rounded_wait(seconds)
    assert rounded[0] == 0.0
    assert (np.abs(np.log2((60.0 + rounded) / (60.0 + seconds))) <= 0.125 + 1e-9).all()
    assert (rounded_wait(seconds * 1.001) == rounded).sum() >= 4
