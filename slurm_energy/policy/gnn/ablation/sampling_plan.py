"""The sampling plan: node, layer and subgraph sampling under one budget (section 3.3 of the paper).

It rests on how much each node and job matters, and on the part of the graph around jobs that await a decision.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Flags, Floats, Indices
from slurm_energy.policy.gnn.ablation.sampling import (
    Doubles,
    LayerRates,
    SampledEdges,
    Strata,
    StratumMembers,
    layer_rates,
    sample_edges,
    stratify,
    systematic_sample,
)
from slurm_energy.policy.gnn.configuration import NetworkConfig

LARGEST_NODE_RATIO = 4.0
"""Importance of the most important node over that of the least, at most."""
LARGEST_TASK_RATIO = 3.0
"""The same for jobs."""
_PATH_SCALE_SECONDS = 60.0
MAX_NEIGHBOURS = 16
"""Dependencies that are followed from one job in one direction, at most: a job may have thousands."""
CONTEXT_SHARE = 0.5
"""Importance of a node in the context over that of the same node in the centre."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeFacts:
    """What is known of all nodes without running the network; a node's number is its row."""

    degree: Indices
    """Links between its devices, runs of jobs on them and uplinks, [nodes]."""
    devices: Indices
    """GPUs, or sockets where it has none: what the work of a node grows with, [nodes]."""
    critical_path_seconds: Floats
    """Longest over the jobs that run there, [nodes]."""
    gpus_free: Floats
    """Share, [nodes]."""
    group: Indices
    """As in `FabricBlock`, [nodes]."""
    member_node: Indices
    """Node of each membership, [members]."""
    member_partition: Indices
    """Its partition, [members]."""

    def __post_init__(self) -> None:
        count = len(self.degree)
        for name in ("devices", "critical_path_seconds", "gpus_free", "group"):
            _same_length(name, len(getattr(self, name)), count)
        _same_length("member_partition", len(self.member_partition), len(self.member_node))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskFacts:
    """What is known of all jobs of the queue without running the network; a job's number is its row."""

    critical_path_seconds: Floats
    """[tasks]."""
    depends_index: Indices
    """As in `QueueBlock`, [2, dependencies]."""
    wait_task: Indices
    """Pending job of each (job, partition), [waits]."""
    wait_partition: Indices
    """Its partition, [waits]."""

    def __post_init__(self) -> None:
        if self.depends_index.ndim != 2 or self.depends_index.shape[0] != 2:
            raise ValueRangeError(f"depends_index has shape {self.depends_index.shape}, [2, dependencies] is needed")
        _same_length("wait_partition", len(self.wait_partition), len(self.wait_task))


def node_importance(facts: NodeFacts) -> Doubles:
    """Return how much each node matters, from 1 to `LARGEST_NODE_RATIO`, [nodes].

    importance = 1 + degree / largest degree + path / largest path + share of GPUs in use,
    with path = ln(1 + critical path / 60 s).

    High degree and critical path are those of section 3.3 of the paper, heavy use that of section 4.3. Nodes that
    stand idle are alike, so that few of them tell of all. The bound keeps the weights of the sample bounded: no node
    weighs more than 4 times what it would in a uniform sample.
    """
    used = 1.0 - np.clip(np.nan_to_num(facts.gpus_free.astype(np.float64), nan=1.0), 0.0, 1.0)
    importance: Doubles = 1.0 + _share(facts.degree) + _share(_path(facts.critical_path_seconds)) + used
    return importance


def task_importance(facts: TaskFacts) -> Doubles:
    """Return how much each job matters, from 1 to `LARGEST_TASK_RATIO`, [tasks].

    importance = 1 + dependencies / largest number of them + path / largest path, as for nodes.
    """
    degree = np.bincount(facts.depends_index.ravel(), minlength=len(facts.critical_path_seconds))
    importance: Doubles = 1.0 + _share(degree) + _share(_path(facts.critical_path_seconds))
    return importance


def _path(seconds: Floats) -> Doubles:
    known = np.nan_to_num(seconds.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    logarithm: Doubles = np.log1p(np.maximum(known, 0.0) / _PATH_SCALE_SECONDS)
    return logarithm


def _share(values: Indices | Doubles) -> Doubles:
    """Return values over the largest, zeros where none is above 0."""
    largest = float(values.max(initial=0.0))
    shares: Doubles = values / largest if largest > 0.0 else np.zeros(len(values))
    return shares


def _same_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise ValueRangeError(f"{name} has {length} entries, {expected} are needed")


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

    From each job a part of its dependencies is followed, at least one each way and at most `MAX_NEIGHBOURS`.

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
            found[edges[0, sample_edges(edges, rate, generator, MAX_NEIGHBOURS).kept]] = True
        frontier = found & ~reached
        if not frontier.any():
            break
        reached |= frontier
    return reached


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingPlan:
    """What is worked out, and what each part of it stands for."""

    node: Indices
    """Nodes that are kept, ascending, [kept nodes]."""
    node_weight: Floats
    """1 / probability of each, at least 1, [kept nodes]."""
    link_rate: float
    """Share of the links into a device that is kept, inside these nodes."""
    task: Indices
    """Jobs that are kept, ascending, [kept tasks]."""
    task_weight: Floats
    """1 / probability of each; 0 for those kept only as neighbours of a drawn job, [kept tasks]."""
    complete: Flags
    """Partitions whose sums are without bias: all candidates, and others that lack no member, [partitions]."""
    seed: int
    """Of the draw of links."""

    def sample_links(self, link_index: Indices) -> SampledEdges:
        """Return the links that are kept of a block of the plan's nodes; the same each time.

        Args:
            link_index: As in `DeviceBlock`, [2, links].
        """
        return sample_edges(link_index, self.link_rate, np.random.default_rng(self.seed))


def make_plan(
    nodes: NodeFacts,
    tasks: TaskFacts,
    candidate: Flags,
    config: NetworkConfig,
    load: float,
    generator: np.random.Generator,
) -> SamplingPlan:
    """Return which nodes, links and jobs are worked out, and their weights.

    Subgraph sampling says who may be drawn, layer sampling how many, node sampling whom. Each candidate partition keeps
    at least two of its nodes and two of its jobs where it has them.

    Args:
        nodes: All nodes.
        tasks: All jobs of the queue.
        candidate: Whether a waiting decision could use the partition, [partitions].
        config: Settings of the network; with `full` everything is kept.
        load: How busy the cluster is, 0 to 1.
        generator: Source of all draws: the same state gives the same plan.
    """
    if config.sampling == "full":
        return _everything(nodes, tasks, candidate)
    rates = layer_rates(config, load)
    subgraph = subgraph_around(nodes, candidate)
    strata = _node_strata(nodes, candidate, subgraph, rates.nodes)
    node = systematic_sample(strata.probability, generator, strata.stratum, nodes.group)
    task, task_weight = _draw_tasks(tasks, candidate, config.task_layers, rates, generator)
    asked = waiting_tasks(tasks, candidate)[tasks.wait_task]
    complete = subgraph.complete.copy()
    complete[tasks.wait_partition[~asked]] = False
    return SamplingPlan(
        node=node,
        node_weight=(1.0 / strata.probability[node]).astype(np.float32),
        link_rate=rates.links,
        task=task,
        task_weight=task_weight,
        complete=complete,
        seed=int(generator.integers(2**63)),
    )


def _everything(nodes: NodeFacts, tasks: TaskFacts, candidate: Flags) -> SamplingPlan:
    num_nodes, num_tasks = len(nodes.degree), len(tasks.critical_path_seconds)
    return SamplingPlan(
        node=np.arange(num_nodes),
        node_weight=np.ones(num_nodes, dtype=np.float32),
        link_rate=1.0,
        task=np.arange(num_tasks),
        task_weight=np.ones(num_tasks, dtype=np.float32),
        complete=np.ones(len(candidate), dtype=np.bool_),
        seed=0,
    )


def _node_strata(nodes: NodeFacts, candidate: Flags, subgraph: Subgraph, rate: float) -> Strata:
    """Return how nodes are drawn; the budget is a share of the subgraph's devices, not of its nodes."""
    importance = node_importance(nodes) * np.where(subgraph.context, CONTEXT_SHARE, 1.0)
    cost = np.maximum(1, nodes.devices).astype(np.float64)
    budget = rate * float(cost[subgraph.centre | subgraph.context].sum())
    memberships = StratumMembers(nodes.member_node, nodes.member_partition, candidate)
    return stratify(importance, cost, memberships, budget, subgraph.context)


def _draw_tasks(
    tasks: TaskFacts, candidate: Flags, hops: int, rates: LayerRates, generator: np.random.Generator
) -> tuple[Indices, Floats]:
    """Return the jobs that are kept and their weights."""
    waiting = waiting_tasks(tasks, candidate)
    memberships = StratumMembers(tasks.wait_task, tasks.wait_partition, candidate)
    budget = rates.tasks * float(np.count_nonzero(waiting))
    strata = stratify(task_importance(tasks), np.ones(len(waiting)), memberships, budget)
    drawn = np.zeros(len(waiting), dtype=np.bool_)
    drawn[systematic_sample(strata.probability, generator, strata.stratum)] = True
    kept = np.flatnonzero(tasks_around(tasks.depends_index, drawn, hops, rates.dependencies, generator))
    weight = np.zeros(len(kept), dtype=np.float32)
    mine = drawn[kept]
    weight[mine] = 1.0 / strata.probability[kept[mine]]
    return kept, weight
