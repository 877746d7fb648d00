from typing import Any

import numpy as np
import pytest
from small_clusters import after, make_job, make_node, make_partition, make_snapshot

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import ClusterName, PartitionName
from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import (
    DeviceBlock,
    batch_decisions,
    batch_devices,
    batch_fabrics,
    batch_queues,
    batch_tops,
)
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import ClockOption, RunOption, decision_block
from slurm_energy.graph.schema import TASK


def small() -> ClusterGraph:
    graph = ClusterGraph()
    graph.update(make_snapshot((make_node(count=2),), (make_job(1), make_job(2, running_on="n1"))))
    return graph


def large() -> ClusterGraph:
    graph = ClusterGraph()
    nodes = (
        make_node("n1", switch="a", partitions=(PartitionName("p"), PartitionName("q"))),
        make_node("n2", switch="b", count=3, partition="q"),
        make_node("n3", count=0),
    )
    jobs = (
        make_job(1),
        make_job(2, dependencies=after(1), partitions=(PartitionName("q"),)),
        make_job(3, running_on="n[1-2]", gpus=3),
    )
    partitions = (make_partition("p"), make_partition("q", cluster=ClusterName("far")))
    switches = (SwitchState(name="a", parent="root"), SwitchState(name="b", parent="root"))
    graph.update(make_snapshot(nodes, jobs, partitions, switches=switches))
    return graph


def edges(index: Any, x: Any, source: Any, target: Any) -> list[tuple[bytes, ...]]:
    """Each edge with the columns of itself and both ends: what does not depend on numbers."""
    return sorted(
        (source[begin].tobytes(), target[end].tobytes(), row.tobytes())
        for begin, end, row in zip(*index, x, strict=True)
    )


def device_edges(block: DeviceBlock) -> list[tuple[bytes, ...]]:
    inside = np.stack([np.arange(len(block.gpu_node)), block.gpu_node])
    return [
        *edges(block.link_index, block.link_x, block.gpu_x, block.gpu_x),
        *edges(block.run_index, block.run_x, block.task_x, block.gpu_x),
        *edges(inside, block.gpu_x, block.gpu_x, block.node_x),
    ]


def test_devices_keep_their_edges() -> None:
    blocks = [graph.device_block(graph.node_slots) for graph in (large(), small(), large())]
    batch = batch_devices(blocks)
    assert sorted(device_edges(batch)) == sorted(edge for block in blocks for edge in device_edges(block))
    assert (np.diff(batch.gpu_node) >= 0).all()
    np.testing.assert_array_equal(batch.gpu_x, np.concatenate([block.gpu_x for block in blocks]))


def test_groups_keep_their_nodes_and_partitions() -> None:
    graphs = (small(), large())
    blocks = [graph.fabric_block(graph.group_slots) for graph in graphs]
    tops = [graph.top_block() for graph in graphs]
    batch, top = batch_fabrics(blocks, tops), batch_tops(tops)

    def members(block: Any, partition_x: Any) -> list[tuple[bytes, ...]]:
        index = np.stack([block.node_group[block.member_node], block.member_partition])
        return edges(index, block.uplink_x[block.member_node], block.switch_x, partition_x)

    expected = [edge for block, one in zip(blocks, tops, strict=True) for edge in members(block, one.partition_x)]
    assert members(batch, top.partition_x) == sorted(expected)
    assert batch.node_group.tolist() == [0, *(1 + blocks[1].node_group)]


def test_jobs_keep_their_dependencies_and_partitions() -> None:
    graphs = (small(), large(), small())
    blocks = [graph.queue_block(graph.queue_slots) for graph in graphs]
    tops = [graph.top_block() for graph in graphs]
    batch = batch_queues(blocks, tops)
    jobs, partitions = len(blocks[0].task_x), len(tops[0].partition_x)
    depends = jobs + blocks[1].depends_index
    assert batch.depends_index.tolist() == depends.tolist()
    assert batch.wait_partition.tolist() == [
        *blocks[0].wait_partition,
        *(partitions + blocks[1].wait_partition),
        *(partitions + len(tops[1].partition_x) + blocks[2].wait_partition),
    ]
    assert batch.wait_task[len(blocks[0].wait_task)] == jobs + blocks[1].wait_task[0]


def test_tops_keep_their_clusters_and_trunks() -> None:
    tops = [large().top_block(), large().top_block()]
    batch = batch_tops(tops)
    groups, clusters = len(tops[0].group_cluster), len(tops[0].cluster_x)
    assert clusters == 2
    assert (
        batch.trunk_index.tolist()
        == np.concatenate([tops[0].trunk_index, tops[1].trunk_index + np.array([[groups], [1]])], axis=1).tolist()
    )
    assert batch.partition_cluster.tolist() == [*tops[0].partition_cluster, *(clusters + tops[1].partition_cluster)]
    assert batch.spine_cluster.tolist() == [*tops[0].spine_cluster, *(clusters + tops[1].spine_cluster)]
    assert batch.constraint_cluster.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_each_cluster_knows_its_moment_also_where_batches_are_batched() -> None:
    one, two = small().top_block(), large().top_block()
    assert one.cluster_moment is None
    first, second = batch_tops([two, one]), batch_tops([one, two])
    assert first.cluster_moment is not None
    assert first.cluster_moment.tolist() == [0, 0, 1]
    together = batch_tops([one, first, second]).cluster_moment
    assert together is not None
    assert together.tolist() == [0, 1, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("moments", "partitions", "clusters"), [(None, [1, 0, 3], [1, 3]), ([1, 1], [3, 2, 3], [3, 3])]
)
def test_decisions_follow_their_moment(moments: list[int] | None, partitions: list[int], clusters: list[int]) -> None:
    clock = ClockOption(relative_clock=1.0)
    job_x = np.zeros(len(TASK), dtype=np.float32)
    first = decision_block(job_x, [RunOption(partition=1, gpus=1), RunOption(partition=0, gpus=1, clocks=(clock,))], 1)
    second = decision_block(job_x, [RunOption(partition=1, gpus=1, clocks=(clock, clock))], 1)
    tops = [large().top_block(), large().top_block()]
    batch = batch_decisions([first, second], tops, moments)
    assert batch.option_partition.tolist() == partitions
    assert batch.job_cluster.tolist() == clusters
    assert batch.option_job.tolist() == [0, 0, 1]
    assert batch.clock_option.tolist() == [1, 2, 2]


def test_a_batch_that_does_not_fit_is_refused() -> None:
    graph = small()
    top = graph.top_block()
    with pytest.raises(ValueRangeError, match="0 blocks"):
        batch_devices([])
    with pytest.raises(ValueRangeError, match="1 blocks has 2 tops"):
        batch_queues([graph.queue_block(graph.queue_slots)], [top, top])
    decision = decision_block(np.zeros(len(TASK), dtype=np.float32), [])
    with pytest.raises(ValueRangeError, match="below 1"):
        batch_decisions([decision], [top], [1])
