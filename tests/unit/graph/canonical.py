"""A graph by names instead of slots: two graphs of one snapshot are equal in it, however they came about."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.ids import JobId
from slurm_energy.graph.cluster_graph import ClusterGraph


def canonical(graph: ClusterGraph) -> dict[str, NDArray[Any]]:
    """Return everything that a graph holds, nodes in the order of their names, jobs in that of their numbers."""
    return {**_nodes(graph), **_groups(graph), **_queue(graph), **_top(graph)}


def _nodes(graph: ClusterGraph) -> dict[str, NDArray[Any]]:
    names = sorted(graph.node_index)
    slots = np.array([graph.node_index[name] for name in names], dtype=np.int64)
    block = graph.device_block(slots)
    jobs = graph.jobs.store["job"][graph.running_slots(slots)]
    runs = np.lexsort((jobs[block.run_index[0]], block.run_index[1]))
    return {
        "node_names": np.array(names, dtype=str),
        "node_x": block.node_x,
        "uplink_x": graph.nodes.store["uplink_x"][slots],
        "gpu_x": block.gpu_x,
        "gpu_node": block.gpu_node,
        "link_index": block.link_index,
        "link_x": block.link_x,
        "run_job": jobs[block.run_index[0]][runs],
        "run_device": block.run_index[1][runs],
        "run_x": block.run_x[runs],
        "run_task_x": block.task_x[block.run_index[0]][runs],
    }


def _groups(graph: ClusterGraph) -> dict[str, NDArray[Any]]:
    by_slot = {slot: name for name, slot in graph.node_index.items()}
    members = {
        group: ",".join(sorted(by_slot[int(slot)] for slot in graph.nodes_of_groups([group])))
        for group in graph.group_slots.tolist()
    }
    order = sorted(members, key=members.__getitem__)
    block = graph.fabric_block(order)
    nodes = graph.nodes_of_groups(order)
    names = np.array([by_slot[int(slot)] for slot in nodes], dtype=str)
    belongs = np.lexsort((block.member_partition, names[block.member_node]))
    by_name = np.argsort(names)
    return {
        "group_members": np.array([members[group] for group in order], dtype=str),
        "switch_x": block.switch_x,
        "node_group": block.node_group[by_name],
        "fabric_uplink_x": block.uplink_x[by_name],
        "member_names": names[block.member_node][belongs],
        "member_partition": block.member_partition[belongs],
        "group_cluster": graph.groups.store["cluster"][order],
    }


def _queue(graph: ClusterGraph) -> dict[str, NDArray[Any]]:
    entries = graph.jobs.entries
    jobs = sorted(int(job) for job, entry in entries.items() if entry.slot >= 0)
    block = graph.queue_block([entries[JobId(job)].slot for job in jobs])
    numbers = np.array(jobs, dtype=np.int64)
    depends = np.lexsort((block.depends_index[0], block.depends_index[1]))
    waits = np.lexsort((block.wait_partition, block.wait_task))
    in_queue = graph.jobs.store["job"][graph.queue_slots]
    return {
        "jobs": numbers,
        "task_x": block.task_x,
        "depends": numbers[block.depends_index[:, depends]],
        "depends_x": block.depends_x[depends],
        "wait_job": numbers[block.wait_task[waits]],
        "wait_partition": block.wait_partition[waits],
        "wait_x": block.wait_x[waits],
        "in_queue": np.sort(in_queue),
    }


def _top(graph: ClusterGraph) -> dict[str, NDArray[Any]]:
    block = graph.top_block()
    by_slot = {slot: name for name, slot in graph.node_index.items()}
    first = [min(by_slot[int(slot)] for slot in graph.nodes_of_groups([group])) for group in graph.group_slots.tolist()]
    names = np.array(first, dtype=str)[block.trunk_index[0]]
    trunks = np.lexsort((block.trunk_index[1], names))
    return {
        "partition_x": block.partition_x,
        "partition_cluster": block.partition_cluster,
        "cluster_x": block.cluster_x,
        "constraint_x": block.constraint_x,
        "constraint_cluster": block.constraint_cluster,
        "spine_x": block.spine_x,
        "spine_cluster": block.spine_cluster,
        "trunk_groups": names[trunks],
        "trunk_spines": block.trunk_index[1][trunks],
        "trunk_x": block.trunk_x[trunks],
    }
