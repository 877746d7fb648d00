"""The whole graph as arrays by vertex and edge type, and what a plain graph network costs on it at every decision.

The plain network is torch_geometric's `HeteroConv`. It is no policy and is never trained: it is measured beside the
hierarchical network, over the same vertices and edges.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from slurm_energy.domain.ids import JobId
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, Floats, Indices, QueueBlock, TopBlock
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.columns import Scaler
from slurm_energy.graph.schema import DEVICE_OPTION, EDGES, GPU, OPTION, VERTICES, column, width

EdgeType = tuple[str, str, str]
MAX_DEVICE_OPTIONS = 65_536
"""Edges between pending jobs and devices that are given out unless more are asked for: their number is a product."""
_ALLOCATED = column(GPU, "is_allocated")
_COST = [column(OPTION, name) for name in ("relative_seconds", "relative_joules", "cost_known")]
_DEVICE_OPTION_SCALER = Scaler(DEVICE_OPTION)
PEER_HIDDEN = 64
_BOTH_WAYS = ("gpu", "link", "gpu")
"""The schema has these edges in both directions already."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Edges of one type."""

    index: Indices
    """[2, edges]."""
    x: Floats
    """[edges, width of the type], width 0 for containment."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Whole:
    """All blocks of a graph, with the order of vertices that the export has."""

    devices: DeviceBlock
    fabric: FabricBlock
    queue: QueueBlock
    top: TopBlock
    running: Indices
    """Place among the tasks of each job of the device block."""


def vertex_arrays(graph: ClusterGraph) -> dict[str, Floats]:
    """Return the columns of every vertex, by vertex type of `schema.VERTICES`.

    Nodes lie in the order of `nodes_of_groups(group_slots)`, devices in that of their nodes, tasks in that of
    `task_slots`, groups before the switches above them, the rest as in `top_block`.
    """
    whole = _whole(graph)
    return {
        "task": whole.queue.task_x,
        "gpu": whole.devices.gpu_x,
        "node": whole.devices.node_x,
        "switch": np.concatenate([whole.fabric.switch_x, whole.top.spine_x]),
        "partition": whole.top.partition_x,
        "cluster": whole.top.cluster_x,
        "constraint": whole.top.constraint_x,
    }


def edge_arrays(graph: ClusterGraph, max_device_options: int = MAX_DEVICE_OPTIONS) -> dict[EdgeType, Edges]:
    """Return every edge, by edge type of `schema.EDGES`, and each containment also backwards as `rev_in` and so on.

    Args:
        graph: The graph.
        max_device_options: Bound on the edges between pending jobs and devices: first jobs of the queue come first.
    """
    whole = _whole(graph)
    devices, fabric, queue, top = whole.devices, whole.fabric, whole.queue, whole.top
    groups = len(fabric.switch_x)
    places = np.arange(len(fabric.node_group))
    switch_cluster = np.concatenate([top.group_cluster, top.spine_cluster])
    runs = np.stack([whole.running[devices.run_index[0]], devices.run_index[1]])
    edges = {
        ("gpu", "link", "gpu"): Edges(index=devices.link_index, x=devices.link_x),
        ("node", "uplink", "switch"): Edges(index=np.stack([places, fabric.node_group]), x=fabric.uplink_x),
        ("switch", "trunk", "switch"): Edges(index=top.trunk_index + np.array([[0], [groups]]), x=top.trunk_x),
        ("task", "depends", "task"): Edges(index=queue.depends_index, x=queue.depends_x),
        ("task", "runs", "gpu"): Edges(index=runs, x=devices.run_x),
        ("task", "option", "partition"): Edges(index=np.stack([queue.wait_task, queue.wait_partition]), x=queue.wait_x),
        ("task", "device_option", "gpu"): _device_options(graph, whole, max_device_options),
        ("gpu", "in", "node"): _within(devices.gpu_node),
        ("node", "in", "partition"): _plain(np.stack([fabric.member_node, fabric.member_partition])),
        ("switch", "in", "cluster"): _within(switch_cluster),
        ("partition", "in", "cluster"): _within(top.partition_cluster),
        ("constraint", "bounds", "cluster"): _within(top.constraint_cluster),
    }
    backwards = {
        (target, f"rev_{relation}", source): _plain(edges[source, relation, target].index[::-1])
        for (source, relation, target), features in EDGES.items()
        if not features
    }
    return edges | backwards


def _whole(graph: ClusterGraph) -> _Whole:
    groups, tasks = graph.group_slots, graph.task_slots
    nodes = graph.nodes_of_groups(groups)
    devices = graph.device_block(nodes)
    place = np.full(graph.jobs.store.capacity, -1, dtype=np.int64)
    place[tasks] = np.arange(len(tasks))
    return _Whole(
        devices=devices,
        fabric=graph.fabric_block(groups),
        queue=graph.queue_block(tasks),
        top=graph.top_block(),
        running=place[graph.running_slots(nodes)],
    )


def _device_options(graph: ClusterGraph, whole: _Whole, most: int) -> Edges:
    """Return edges from pending jobs to the devices of the partitions they wait for, the first of the queue first.

    A device's cost is that of the partition's option.
    """
    queue, fabric, devices = whole.queue, whole.fabric, whole.devices
    begins = np.searchsorted(devices.gpu_node, np.arange(len(fabric.node_group) + 1))
    free = 1.0 - devices.gpu_x[:, _ALLOCATED]
    place = {slot: at for at, slot in enumerate(graph.task_slots.tolist())}
    order = [place[graph.jobs.entries[JobId(job)].slot] for job in graph.jobs.queue]
    waits_from = np.searchsorted(queue.wait_task, np.arange(len(place) + 1))
    index: list[tuple[int, int]] = []
    rows: list[tuple[float, float, float, float]] = []
    for task in order:
        seen: set[int] = set()
        for wait in range(waits_from[task], waits_from[task + 1]):
            cost = queue.wait_x[wait, _COST]
            members = fabric.member_node[fabric.member_partition == queue.wait_partition[wait]]
            for node in members.tolist():
                if node in seen:
                    continue
                seen.add(node)
                for device in range(begins[node], begins[node + 1]):
                    if len(index) >= most:
                        return _edges_of(index, rows)
                    index.append((task, device))
                    rows.append((float(cost[0]), float(cost[1]), float(cost[2]), float(free[device])))
    return _edges_of(index, rows)


def _edges_of(index: list[tuple[int, int]], rows: list[tuple[float, float, float, float]]) -> Edges:
    return Edges(index=np.array(index, dtype=np.int64).reshape(-1, 2).T, x=_DEVICE_OPTION_SCALER.scaled(rows))


def _within(parents: Indices) -> Edges:
    return _plain(np.stack([np.arange(len(parents)), parents]))


def _plain(index: Indices) -> Edges:
    return Edges(index=index, x=np.zeros((index.shape[1], 0), dtype=np.float32))


class HeteroPeer(nn.Module):
    """Two layers of GraphSAGE's mean aggregation for each edge type, summed by target, and a score of each partition.

    The layers take no edge features, as `SAGEConv` does not; attention would cost more.

    Args:
        edge_types: Edge types of the graph.
        hidden: Width of both layers.
    """

    def __init__(self, edge_types: list[EdgeType], hidden: int = PEER_HIDDEN) -> None:
        super().__init__()
        widths = {name: width(features) for name, features in VERTICES.items()}
        self.first = HeteroConv(
            {one: SAGEConv((widths[one[0]], widths[one[2]]), hidden) for one in edge_types}, aggr="sum"
        )
        self.second = HeteroConv({one: SAGEConv((hidden, hidden), hidden) for one in edge_types}, aggr="sum")
        self.score = nn.Linear(hidden, 1)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> Tensor:
        """Return a score of each partition, [partitions].

        Args:
            x_dict: Features by vertex type, [vertices, width].
            edge_index_dict: By edge type, [2, edges].
        """
        x_dict = {name: x.relu() for name, x in self.first(x_dict, edge_index_dict).items()}
        x_dict = self.second(x_dict, edge_index_dict)
        scores: Tensor = self.score(x_dict["partition"]).squeeze(-1)  # [partitions]
        return scores


def hetero_data(graph: ClusterGraph) -> HeteroData:
    """Return the whole graph; every relation is there in both directions, so that messages reach every vertex."""
    data = HeteroData()
    for name, x in vertex_arrays(graph).items():
        data[name].x = torch.from_numpy(x)
    for edge_type, edges in edge_arrays(graph).items():
        source, relation, target = edge_type
        index = torch.from_numpy(edges.index.copy())
        data[edge_type].edge_index = index
        if EDGES.get(edge_type) and edge_type != _BOTH_WAYS:
            data[target, f"rev_{relation}", source].edge_index = index.flip(0)
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTimes:
    """What the plain network needed."""

    seconds: tuple[float, ...]
    """Of each forward pass."""
    vertices: int
    edges: int


def time_peer(graph: ClusterGraph, *, runs: int, limit_seconds: float, seed: int = 0) -> PeerTimes:
    """Return the times of forward passes over a graph, one for each decision.

    Making the tensors of a changed graph is not counted, in the plain network's favour.

    Args:
        graph: The graph.
        runs: Passes that are timed at most.
        limit_seconds: No pass is begun after it, but the first three.
        seed: Of the weights.
    """
    data = hetero_data(graph)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = HeteroPeer(data.edge_types).eval()
    x_dict, edge_index_dict = data.x_dict, data.edge_index_dict
    seconds: list[float] = []
    with torch.inference_mode():
        network(x_dict, edge_index_dict)
        begun = time.perf_counter()
        while len(seconds) < runs and (len(seconds) < 3 or time.perf_counter() - begun < limit_seconds):
            before = time.perf_counter()
            network(x_dict, edge_index_dict)
            seconds.append(time.perf_counter() - before)
    return PeerTimes(seconds=tuple(seconds), vertices=data.num_nodes or 0, edges=data.num_edges)
