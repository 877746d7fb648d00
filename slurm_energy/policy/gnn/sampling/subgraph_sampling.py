"""Subgraph sampling: the part of the graph around jobs that await a decision (section 3.3 of the paper)."""

from typing import NamedTuple

import numpy as np

from slurm_energy.graph.blocks import Flags, Indices
from slurm_energy.policy.gnn.sampling.importance import NodeFacts, TaskFacts
from slurm_energy.policy.gnn.sampling.layer_sampling import sample_edges

MOST_NEIGHBOURS = 16
"""Dependencies that are followed from one job in one direction, at most: a job may have thousands."""


class Subgraph(NamedTuple):
    """Nodes by how near they are to the waiting decisions."""

    centre: Flags
    """In a candidate partition: in the centre even if it is in others as well, [nodes]."""
    context: Flags
    """In none, but under the same switch as a node in the centre, whose embedding hears of it, [nodes]."""
    complete: Flags
    """Partitions all of whose nodes are in the centre or the context, [partitions].

    A sample of the subgraph estimates the sums of these partitions without bias, and every candidate partition is one
    of them. Sums of the others lack the nodes outside and must not be used; no waiting decision does.
    """


def subgraph_around(nodes: NodeFacts, candidate: Flags) -> Subgraph:
    """Return the subgraph: candidate partitions, their nodes, the switches of those, and what else these hear of.

    It is connected as far as the cluster is: partition - node - switch - top.

    Args:
        nodes: All nodes.
        candidate: Whether a waiting decision could use the partition, [partitions].
    """
    count = len(nodes.degree)
    centre = np.zeros(count, dtype=np.bool_)
    centre[nodes.member_node[candidate[nodes.member_partition]]] = True
    near = np.zeros(int(nodes.group.max(initial=-1)) + 1, dtype=np.bool_)
    near[nodes.group[centre]] = True
    context = near[nodes.group] & ~centre
    outside = ~(centre | context)
    complete = np.ones(len(candidate), dtype=np.bool_)
    complete[nodes.member_partition[outside[nodes.member_node]]] = False
    return Subgraph(centre, context, complete)


def waiting_tasks(tasks: TaskFacts, candidate: Flags) -> Flags:
    """Return which jobs wait for a candidate partition, [tasks]."""
    waiting = np.zeros(len(tasks.critical_path_seconds), dtype=np.bool_)
    waiting[tasks.wait_task[candidate[tasks.wait_partition]]] = True
    return waiting


def tasks_around(
    depends_index: Indices, centre: Flags, hops: int, rate: float, generator: np.random.Generator
) -> Flags:
    """Return the jobs in the centre and those that are reached from them along dependencies, both ways, [tasks].

    From each job a part of its dependencies is followed, at least one each way and at most `MOST_NEIGHBOURS`.

    Args:
        depends_index: Job to the job that waits for it, [2, dependencies].
        centre: Jobs to begin from, [tasks].
        hops: Dependencies to follow one after the other.
        rate: Share of a job's dependencies that is followed.
        generator: Source of the draw.
    """
    reached, frontier = centre.copy(), centre
    both = (depends_index, depends_index[::-1])  # row 1 is where a step begins, row 0 where it ends
    for _ in range(hops):
        found = np.zeros_like(reached)
        for index in both:
            edges = index[:, frontier[index[1]]]
            found[edges[0, sample_edges(edges, rate, generator, MOST_NEIGHBOURS).kept]] = True
        frontier = found & ~reached
        if not frontier.any():
            break
        reached |= frontier
    return reached
