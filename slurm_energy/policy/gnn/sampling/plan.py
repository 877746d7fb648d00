"""The sampling plan: node, layer and subgraph sampling under one budget."""

from dataclasses import dataclass

import numpy as np

from slurm_energy.graph.blocks import Flags, Floats, Indices
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.sampling.importance import NodeFacts, TaskFacts, node_importance, task_importance
from slurm_energy.policy.gnn.sampling.layer_sampling import LayerRates, SampledEdges, layer_rates, sample_edges
from slurm_energy.policy.gnn.sampling.node_sampling import Memberships, Strata, stratify, systematic_sample
from slurm_energy.policy.gnn.sampling.subgraph_sampling import (
    Subgraph,
    subgraph_around,
    tasks_around,
    waiting_tasks,
)

CONTEXT_SHARE = 0.5
"""Importance of a node in the context over that of the same node in the centre."""


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
    """Partitions whose sums are without bias: all candidates, and others that lack nobody, [partitions]."""
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
    memberships = Memberships(nodes.member_node, nodes.member_partition, candidate)
    return stratify(importance, cost, memberships, budget, subgraph.context)


def _draw_tasks(
    tasks: TaskFacts, candidate: Flags, hops: int, rates: LayerRates, generator: np.random.Generator
) -> tuple[Indices, Floats]:
    """Return the jobs that are kept and their weights."""
    waiting = waiting_tasks(tasks, candidate)
    memberships = Memberships(tasks.wait_task, tasks.wait_partition, candidate)
    budget = rates.tasks * float(np.count_nonzero(waiting))
    strata = stratify(task_importance(tasks), np.ones(len(waiting)), memberships, budget)
    drawn = np.zeros(len(waiting), dtype=np.bool_)
    drawn[systematic_sample(strata.probability, generator, strata.stratum)] = True
    kept = np.flatnonzero(tasks_around(tasks.depends_index, drawn, hops, rates.dependencies, generator))
    weight = np.zeros(len(kept), dtype=np.float32)
    mine = drawn[kept]
    weight[mine] = 1.0 / strata.probability[kept[mine]]
    return kept, weight
