"""Blocks side by side: several clusters, or one at several moments, as one block whose numbers do not meet.

The blocks of one moment have to be batched in the same order everywhere: partitions of the second moment are then
numbered behind those of the first in every block.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, Indices, QueueBlock, TopBlock


def batch_devices(blocks: Sequence[DeviceBlock]) -> DeviceBlock:
    """Return the nodes of all blocks, one block behind the other."""
    _some(blocks)
    nodes, gpus = _offsets(block.node_x for block in blocks), _offsets(block.gpu_x for block in blocks)
    tasks = _offsets(block.task_x for block in blocks)
    return DeviceBlock(
        node_x=_joined(block.node_x for block in blocks),
        gpu_x=_joined(block.gpu_x for block in blocks),
        gpu_node=_shifted((block.gpu_node for block in blocks), nodes),
        link_index=_pairs((block.link_index for block in blocks), gpus, gpus),
        link_x=_joined(block.link_x for block in blocks),
        task_x=_joined(block.task_x for block in blocks),
        run_index=_pairs((block.run_index for block in blocks), tasks, gpus),
        run_x=_joined(block.run_x for block in blocks),
    )


def batch_fabrics(blocks: Sequence[FabricBlock], tops: Sequence[TopBlock]) -> FabricBlock:
    """Return the groups of all blocks, one block behind the other; the tops number their partitions."""
    _alike(blocks, tops)
    groups, nodes = _offsets(block.switch_x for block in blocks), _offsets(block.uplink_x for block in blocks)
    partitions = _offsets(top.partition_x for top in tops)
    return FabricBlock(
        node_group=_shifted((block.node_group for block in blocks), groups),
        uplink_x=_joined(block.uplink_x for block in blocks),
        switch_x=_joined(block.switch_x for block in blocks),
        member_node=_shifted((block.member_node for block in blocks), nodes),
        member_partition=_shifted((block.member_partition for block in blocks), partitions),
    )


def batch_queues(blocks: Sequence[QueueBlock], tops: Sequence[TopBlock]) -> QueueBlock:
    """Return the jobs of all blocks, one block behind the other; the tops number their partitions."""
    _alike(blocks, tops)
    tasks, partitions = _offsets(block.task_x for block in blocks), _offsets(top.partition_x for top in tops)
    return QueueBlock(
        task_x=_joined(block.task_x for block in blocks),
        depends_index=_pairs((block.depends_index for block in blocks), tasks, tasks),
        depends_x=_joined(block.depends_x for block in blocks),
        wait_task=_shifted((block.wait_task for block in blocks), tasks),
        wait_partition=_shifted((block.wait_partition for block in blocks), partitions),
        wait_x=_joined(block.wait_x for block in blocks),
    )


def batch_tops(blocks: Sequence[TopBlock]) -> TopBlock:
    """Return the partitions, clusters, constraints and trunks of all blocks, one block behind the other."""
    _some(blocks)
    clusters = _offsets(block.cluster_x for block in blocks)
    groups, spines = _offsets(block.group_cluster for block in blocks), _offsets(block.spine_x for block in blocks)
    return TopBlock(
        partition_x=_joined(block.partition_x for block in blocks),
        partition_cluster=_shifted((block.partition_cluster for block in blocks), clusters),
        cluster_x=_joined(block.cluster_x for block in blocks),
        constraint_x=_joined(block.constraint_x for block in blocks),
        constraint_cluster=_shifted((block.constraint_cluster for block in blocks), clusters),
        group_cluster=_shifted((block.group_cluster for block in blocks), clusters),
        spine_x=_joined(block.spine_x for block in blocks),
        spine_cluster=_shifted((block.spine_cluster for block in blocks), clusters),
        trunk_index=_pairs((block.trunk_index for block in blocks), groups, spines),
        trunk_x=_joined(block.trunk_x for block in blocks),
        cluster_moment=_moments(blocks),
    )


def batch_decisions(
    blocks: Sequence[DecisionBlock], tops: Sequence[TopBlock], moments: Sequence[int] | None = None
) -> DecisionBlock:
    """Return the jobs of all blocks, one block behind the other.

    Args:
        blocks: One or more for each moment.
        tops: The moments, as they are given to `batch_tops`.
        moments: Index of the top that each block belongs to; block i belongs to top i where this is left out.
    """
    _some(blocks)
    if moments is None:
        _alike(blocks, tops)
        moments = range(len(tops))
    if len(moments) != len(blocks) or not all(0 <= moment < len(tops) for moment in moments):
        raise ValueRangeError(f"{len(blocks)} decisions need as many moments, each below {len(tops)}: {moments}")
    chosen = np.array(moments, dtype=np.int64)
    partitions = _offsets(top.partition_x for top in tops)[chosen]
    clusters = _offsets(top.cluster_x for top in tops)[chosen]
    jobs, options = _offsets(block.job_x for block in blocks), _offsets(block.option_x for block in blocks)
    return DecisionBlock(
        job_x=_joined(block.job_x for block in blocks),
        job_cluster=_shifted((block.job_cluster for block in blocks), clusters),
        option_job=_shifted((block.option_job for block in blocks), jobs),
        option_partition=_shifted((block.option_partition for block in blocks), partitions),
        option_x=_joined(block.option_x for block in blocks),
        option_open=_joined(block.option_open for block in blocks),
        clock_option=_shifted((block.clock_option for block in blocks), options),
        clock_x=_joined(block.clock_x for block in blocks),
        clock_open=_joined(block.clock_open for block in blocks),
    )


def _some(blocks: Sequence[object]) -> None:
    if not blocks:
        raise ValueRangeError("a batch of 0 blocks has no shape: at least 1 is needed")


def _alike(blocks: Sequence[object], tops: Sequence[TopBlock]) -> None:
    _some(blocks)
    if len(blocks) != len(tops):
        raise ValueRangeError(f"a batch of {len(blocks)} blocks has {len(tops)} tops: one each is needed")


def _moments(blocks: Sequence[TopBlock]) -> Indices:
    """Return the moment of each cluster; a block that is a batch itself brings several."""
    own = [
        np.zeros(len(block.cluster_x), dtype=np.int64) if block.cluster_moment is None else block.cluster_moment
        for block in blocks
    ]
    counts = np.array([1 + moments.max(initial=0) for moments in own], dtype=np.int64)
    return _shifted(own, np.cumsum(counts) - counts)


def _offsets(arrays: Iterable[NDArray[Any]]) -> Indices:
    """Return how many rows lie before each array's own."""
    counts = np.array([len(array) for array in arrays], dtype=np.int64)
    before: Indices = np.cumsum(counts) - counts
    return before


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(list(arrays))


def _shifted(arrays: Iterable[Indices], offsets: Indices) -> Indices:
    return np.concatenate([array + offset for array, offset in zip(arrays, offsets, strict=True)])


def _pairs(arrays: Iterable[Indices], from_offsets: Indices, to_offsets: Indices) -> Indices:
    shifts = np.stack([from_offsets, to_offsets], axis=1)
    return np.concatenate([array + shift[:, None] for array, shift in zip(arrays, shifts, strict=True)], axis=1)
