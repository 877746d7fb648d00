"""Parts of the graph as plain arrays: what the network is given, whole or only for what changed.

Feature arrays are float32 with the columns of `graph/schema.py`; indices are int64 and local to the block. Blocks of
several clusters, or of one cluster at several moments, are put side by side by the functions `batch_*`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceBlock:
    """Whole nodes with everything inside them."""

    node_x: Floats
    """[nodes, NODE]."""
    gpu_x: Floats
    """[gpus, GPU]; devices of one node lie together, in the order of the nodes."""
    gpu_node: Indices
    """Node of each device, ascending, [gpus]."""
    link_index: Indices
    """Device to device inside a node, both directions, [2, links]."""
    link_x: Floats
    """[links, LINK]."""
    task_x: Floats
    """Jobs that run on these devices, [tasks, TASK]."""
    run_index: Indices
    """Job to device, [2, runs]."""
    run_x: Floats
    """[runs, RUNS]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricBlock:
    """Whole groups: a leaf switch with its nodes, in the order of a `DeviceBlock` of the same nodes."""

    node_group: Indices
    """Group of each node, [nodes]; nodes of one group lie together."""
    uplink_x: Floats
    """Link of each node to its switch, [nodes, UPLINK]."""
    switch_x: Floats
    """The switch of each group, [groups, SWITCH]."""
    member_node: Indices
    """Node of each membership, ascending, [members]."""
    member_partition: Indices
    """Its partition, numbered as in `TopBlock`, [members]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueBlock:
    """Jobs with their dependencies: whole weakly connected parts of the task graph."""

    task_x: Floats
    """[tasks, TASK]."""
    depends_index: Indices
    """Job to the job that waits for it, [2, dependencies]."""
    depends_x: Floats
    """[dependencies, DEPENDS]."""
    wait_task: Indices
    """Pending job of each (job, partition), [waits]."""
    wait_partition: Indices
    """Its partition, numbered as in `TopBlock`, [waits]."""
    wait_x: Floats
    """[waits, OPTION]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopBlock:
    """Partitions, clusters, constraints and the trunk between groups: few, and looked at as a whole."""

    partition_x: Floats
    """[partitions, PARTITION]."""
    partition_cluster: Indices
    """[partitions]."""
    cluster_x: Floats
    """[clusters, CLUSTER]."""
    constraint_x: Floats
    """[constraints, CONSTRAINT]."""
    constraint_cluster: Indices
    """[constraints]."""
    group_cluster: Indices
    """Cluster of each group, [groups]."""
    spine_x: Floats
    """Switches above the leaves, [spines, SWITCH]."""
    spine_cluster: Indices
    """[spines]."""
    trunk_index: Indices
    """Links from a group (row 0) to a spine (row 1), [2, trunks]."""
    trunk_x: Floats
    """[trunks, UPLINK]."""
    cluster_moment: Indices | None = None
    """Moment of each cluster, ascending from 0, [clusters]; None where all are of one moment, as outside a batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionBlock:
    """Jobs that wait for an answer, with every way of running them."""

    job_x: Floats
    """[jobs, TASK], with `is_submitted`."""
    job_cluster: Indices
    """Cluster to whose top each job belongs; where several moments are batched, the first cluster of its moment."""
    option_job: Indices
    """Job of each option, ascending, [options]."""
    option_partition: Indices
    """Its partition, numbered as in `TopBlock`; options of one job and partition lie together, [options]."""
    option_x: Floats
    """[options, OPTION]."""
    option_open: Flags
    """Whether the option may be chosen, [options]."""
    clock_option: Indices
    """Option of each clock, ascending, [clocks]; several options of one device type each have their own rows."""
    clock_x: Floats
    """[clocks, CLOCK]."""
    clock_open: Flags
    """[clocks]."""


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
