"""Parts of the graph as plain arrays: what the network is given, whole or only for what changed.

Feature arrays are float32 with the columns of `graph/schema.py`; indices are int64 and local to the block. Blocks of
several clusters, or of one cluster at several moments, are put side by side by `graph/batch.py`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
