"""States without a cache: worked out as a whole, or as a sample of the graph by a sampling plan, at every change."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, Flags, Floats, Indices, QueueBlock, TopBlock
from slurm_energy.graph.cluster_graph import Changes, ClusterGraph
from slurm_energy.policy.gnn.ablation.sampling_plan import NodeFacts, SamplingPlan, TaskFacts, make_plan
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Published
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, SampleWeights, extremes_of

_GPUS_FREE = schema.column(schema.NODE, "gpus_free")
_TASK_PATH = schema.column(schema.TASK, "critical_path_seconds")
_IS_UP = schema.column(schema.PARTITION, "is_up")
_CLUSTER_FREE = schema.column(schema.CLUSTER, "gpus_free")
_PATH_SCALE = schema.TASK[_TASK_PATH].scale


class WholeState:
    """Works out everything at every change: networks without levels, and the reference for the cache."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph) -> None:
        self.published: Published | None = None
        self._network = network
        self._graph = graph
        self._stale = True

    @property
    def is_stale(self) -> bool:
        """Whether what changed has not been worked out and published yet."""
        return self._stale

    def note(self, changes: Changes) -> None:
        """Remember whether anything changed."""
        self._stale = self._stale or bool(changes)

    def steps(self) -> Iterator[None]:
        """Work out the state in one long step."""
        if self._stale:
            blocks, weights = self._part()
            with torch.inference_mode():
                self.published = self._network.state(blocks, weights).published
            self._stale = False
            yield

    def _part(self) -> tuple[Blocks, SampleWeights | None]:
        return whole_blocks(self._graph), None


class SampledState(WholeState):
    """Works out a fresh sample of the graph at every change (section 3.3 of the paper: sampling module)."""

    def __init__(self, network: HierarchicalNetwork, graph: ClusterGraph, seed: int = 0) -> None:
        super().__init__(network, graph)
        self._generator = np.random.default_rng(seed)

    def _part(self) -> tuple[Blocks, SampleWeights | None]:
        return sampled_blocks(self._graph, self._network.config, self._generator)


def sampled_blocks(
    graph: ClusterGraph, config: NetworkConfig, generator: np.random.Generator
) -> tuple[Blocks, SampleWeights]:
    """Return a sample of a graph's state with its weights; which one, the generator decides.

    Waiting decisions could use every partition that is up. The load, by which rates fall, is the share of GPUs in use.
    """
    groups = graph.group_slots
    nodes = graph.nodes_of_groups(groups)
    fabric, queue, top = graph.fabric_block(groups), graph.queue_block(graph.queue_slots), graph.top_block()
    plan = make_plan(
        node_facts(graph, nodes, fabric),
        TaskFacts(
            critical_path_seconds=_seconds(queue.task_x[:, _TASK_PATH]),
            depends_index=queue.depends_index,
            wait_task=queue.wait_task,
            wait_partition=queue.wait_partition,
        ),
        top.partition_x[:, _IS_UP] > 0.0,
        config,
        load_of(top),
        generator,
    )
    devices, link_weight = _sampled_links(graph.device_block(nodes[plan.node]), plan)
    blocks = Blocks(
        devices=devices,
        fabric=sampled_fabric(fabric, plan.node),
        queue=sampled_queue(queue, plan.task),
        top=top,
    )
    whole = Blocks(devices=devices, fabric=fabric, queue=queue, top=top)
    weights = SampleWeights(
        node=torch.from_numpy(plan.node_weight),
        link=link_weight,
        task=torch.from_numpy(plan.task_weight),
        extremes=extremes_of(whole._replace(devices=replace(devices, node_x=graph.nodes.store["x"][nodes]))),
    )
    return blocks, weights


def load_of(top: TopBlock) -> float:
    """Return the share of GPUs in use over all clusters, 0 to 1; 0 without any."""
    # Rounding of a mean of shares may leave the bounds by a digit.
    return float(np.clip(1.0 - top.cluster_x[:, _CLUSTER_FREE].mean(), 0.0, 1.0)) if len(top.cluster_x) else 0.0


def node_facts(graph: ClusterGraph, nodes: Indices, fabric: FabricBlock) -> NodeFacts:
    """Return what the plan needs to know of nodes, in the order of a fabric block of them."""
    parts = [graph.nodes.devices[slot] for slot in nodes.tolist()]
    links = np.array([len(part.link_x) for part in parts], dtype=np.int64)
    runs = np.array([len(part.run_task) for part in parts], dtype=np.int64)
    owner = np.repeat(np.arange(len(parts)), runs)
    task = np.concatenate([np.zeros(0, dtype=np.int64), *(part.run_task for part in parts)])
    path = np.zeros(len(parts), dtype=np.float32)
    np.maximum.at(path, owner, _seconds(graph.jobs.store["x"][task, _TASK_PATH]))
    return NodeFacts(
        degree=links + runs + 1,
        devices=np.array([len(part.gpu_x) for part in parts], dtype=np.int64),
        critical_path_seconds=path,
        gpus_free=graph.nodes.store["x"][nodes, _GPUS_FREE],
        group=fabric.node_group,
        member_node=fabric.member_node,
        member_partition=fabric.member_partition,
    )


def sampled_fabric(block: FabricBlock, node: Indices) -> FabricBlock:
    """Return a fabric block with some of its nodes; all groups stay, so that the top keeps its switches."""
    place = _places(len(block.node_group), node)
    kept = place[block.member_node] >= 0
    return replace(
        block,
        node_group=block.node_group[node],
        uplink_x=block.uplink_x[node],
        member_node=place[block.member_node[kept]],
        member_partition=block.member_partition[kept],
    )


def sampled_queue(block: QueueBlock, task: Indices) -> QueueBlock:
    """Return a queue block with some of its jobs, and what lies between them."""
    place = _places(len(block.task_x), task)
    edges: Flags = np.all(place[block.depends_index] >= 0, axis=0)
    waits = place[block.wait_task] >= 0
    return QueueBlock(
        task_x=block.task_x[task],
        depends_index=place[block.depends_index[:, edges]],
        depends_x=block.depends_x[edges],
        wait_task=place[block.wait_task[waits]],
        wait_partition=block.wait_partition[waits],
        wait_x=block.wait_x[waits],
    )


def _sampled_links(block: DeviceBlock, plan: SamplingPlan) -> tuple[DeviceBlock, torch.Tensor]:
    """Return devices with some of their links, and the weight of each link."""
    edges = plan.sample_links(block.link_index)
    links = replace(block, link_index=block.link_index[:, edges.kept], link_x=block.link_x[edges.kept])
    return links, torch.from_numpy(edges.weight)


def _places(count: int, kept: Indices) -> Indices:
    """Return the new place of each row, -1 for those left out."""
    place = np.full(count, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    return place


def _seconds(column: Floats) -> Floats:
    """Return seconds from the scaled column of a critical path."""
    return np.asarray(np.expm1(4.0 * column) * _PATH_SCALE, dtype=np.float32)
