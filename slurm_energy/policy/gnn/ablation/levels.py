"""Networks without levels: one flat graph of all vertices, and the flat vector that the papers compare with."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.errors import PolicyError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import (
    Contributions,
    Devices,
    Fabric,
    PartitionSums,
    Published,
    Queue,
    floats,
    indices,
)
from slurm_energy.policy.gnn.levels import AttentionSum, VertexEncoder
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of, scaled_laplacian
from slurm_energy.policy.gnn.top_level import published_of

_LINK, _RUNS, _IN, _UPLINK, _DEPENDS = range(5)
_EDGE_COLUMNS = max(schema.width(one) for one in (schema.LINK, schema.RUNS, schema.UPLINK, schema.DEPENDS))
_CONGESTION = schema.column(schema.SWITCH, "congestion")
WIDTH = 256
"""Of the three layers, as in Eq. 8 of CHSAC-AF."""
_KINDS = 4
"""Flags that begin `schema.CONSTRAINT`: here the place in the vector tells the kind instead."""
_PARTITION = schema.width(schema.PARTITION) + 2
"""With the mean clock and the highest temperature of its devices."""
_CLUSTER = schema.width(schema.CLUSTER) + _KINDS * (schema.width(schema.CONSTRAINT) - _KINDS)
_SWITCH_CONGESTION = schema.column(schema.SWITCH, "congestion")
_HAS_READING = schema.column(schema.GPU, "has_reading")
_RELATIVE_CLOCK = schema.column(schema.GPU, "relative_clock")


class FlatLevel(nn.Module):
    """The flat structure that the paper compares with (section 4.3): every vertex in one graph, edges both ways.

    As many layers as the device level has, over all vertices at once. A change anywhere reaches everything, so nothing
    can be kept between decisions.

    Shapes: the blocks of a state -> the same results as the three lower levels together.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spectral = config.propagation != "spatial"
        self.gpu = VertexEncoder(schema.width(schema.GPU), hidden)
        self.node = VertexEncoder(schema.width(schema.NODE), hidden)
        self.switch = VertexEncoder(schema.width(schema.SWITCH), hidden)
        self.running = VertexEncoder(schema.width(schema.TASK), hidden)
        self.pending = VertexEncoder(schema.width(schema.TASK), hidden)
        self.layers = nn.ModuleList(propagation_of(config, _EDGE_COLUMNS, 5) for _ in range(config.device_layers))
        self.offered = AttentionSum(hidden, hidden, config.heads)
        self.asked = AttentionSum(hidden + schema.width(schema.OPTION), hidden, config.heads)

    def forward(
        self, devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock, node_weight: Tensor | None = None
    ) -> tuple[Devices, Fabric, Queue]:
        """Return what device, fabric and queue level return, from one graph."""
        parts = [
            self.gpu(floats(devices.gpu_x)),
            self.node(floats(devices.node_x)),
            self.switch(floats(fabric.switch_x)),
            self.running(floats(devices.task_x)),
            self.pending(floats(queue.task_x)),
        ]
        sizes = [len(part) for part in parts]
        first = [sum(sizes[:number]) for number in range(len(sizes))]
        edge_index, edge_x, edge_type = _edges(devices, fabric, queue, first)
        x = torch.cat(parts)
        weight = edge_x.new_ones(len(edge_type))
        edges = TypedEdges(
            edge_index=edge_index,
            edge_x=edge_x,
            edge_type=edge_type,
            laplacian=scaled_laplacian(edge_index, weight, x.shape[0]) if self.spectral else None,
        )
        for layer in self.layers:
            x = layer(x, edges)
        gpu, node, switch, _, task = torch.split(x, sizes)
        waits = torch.cat([task[indices(queue.wait_task)], floats(queue.wait_x)], dim=1)
        congestion = floats(fabric.switch_x)[:, _CONGESTION]
        return (
            Devices(gpu, node, x.new_zeros(()), x.new_zeros(())),
            Fabric(node, switch, congestion, self.offered(node, node_weight)),
            Queue(task, self.asked(waits)),
        )


def _edges(
    devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock, first: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all edges, each in both directions, with vertices numbered from `first` of their kind."""
    gpus, nodes, switches, running, pending = first
    gpu_node, group = indices(devices.gpu_node), indices(fabric.node_group)
    device = gpu_node.device
    link, run, depends = indices(devices.link_index), indices(devices.run_index), indices(queue.depends_index)
    inside = torch.stack([gpus + torch.arange(len(gpu_node), device=device), nodes + gpu_node])
    uplink = torch.stack([nodes + torch.arange(len(group), device=device), switches + group])
    empty = torch.zeros(len(gpu_node), _EDGE_COLUMNS, device=device)
    both_ways = (
        (torch.stack([running + run[0], gpus + run[1]]), floats(devices.run_x), _RUNS),
        (inside, empty, _IN),
        (uplink, floats(fabric.uplink_x), _UPLINK),
        (pending + depends, floats(queue.depends_x), _DEPENDS),
    )
    index, x = [gpus + link], [_padded(floats(devices.link_x))]
    kinds = [torch.full((link.shape[1],), _LINK, device=device)]
    for edge_index, edge_x, kind in both_ways:
        index += [edge_index, edge_index.flip(0)]
        x += [_padded(edge_x), _padded(edge_x)]
        kinds.append(torch.full((2 * edge_index.shape[1],), kind, device=device))
    return torch.cat(index, dim=1), torch.cat(x), torch.cat(kinds)


def _padded(edge_x: Tensor) -> Tensor:
    return functional.pad(edge_x, (0, _EDGE_COLUMNS - edge_x.shape[1]))


class _Slots(NamedTuple):
    """Where the rows of several moments lie in their vectors."""

    moment: Tensor
    """Moment of each row, [rows]."""
    place: Tensor
    """Place of each row among those of its moment, in their order, [rows]."""


class VectorLevel(nn.Module):
    r"""The vectorised state of CHSAC-AF, Eq. 8: no vertices, no edges, no pooling; the order of partitions matters.

    .. math::
        h = \sigma(W_3 \sigma(W_2 \sigma(W_1 s + b_1) + b_2) + b_3)

    The vector of a moment has, for each of a fixed number of partitions, its columns with the mean clock and the
    highest temperature of its devices, and for each of as many clusters, its columns with those of its constraints;
    what is not there is 0. Total and free devices and the queue's length, which the paper names, are among the columns
    of a partition. Departures: no time, which no column of the graph has; our columns beside those of the paper.

    A last linear layer gives one part to each partition and one to all the rest. A partition's vertex, its queue's and
    what its nodes offer are the same part; fabric, clusters and constraints are the common one. So the heads are those
    of the graph network, and what differs is how the state is read.

    Shapes: the blocks of a state -> Published with 2 p + 2 c + k vertices, as from the top level.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.hidden, self.heads = config.hidden, config.heads
        self.room = config.vector_partitions
        self.layers = nn.Sequential(
            nn.Linear(self.room * (_PARTITION + _CLUSTER), WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
        )
        self.parts = nn.Linear(WIDTH, (self.room + 1) * config.hidden)
        self.norm = nn.LayerNorm(config.hidden)

    def forward(
        self, devices: DeviceBlock, fabric: FabricBlock, top: TopBlock, sums: PartitionSums, switches: Fabric
    ) -> Published:
        """Return what decisions are made from.

        Args:
            devices: All devices.
            fabric: Which partition they belong to.
            top: Partitions, clusters and constraints.
            sums: Heat and critical paths by partition; the second is for explanations alone.
            switches: Congestion of all groups, for explanations alone.

        Raises:
            PolicyError: a moment has more partitions or clusters than there is room for.
        """
        clusters = len(top.cluster_x)
        owner = indices(top.partition_cluster)
        of_cluster = owner.new_zeros(clusters)
        if top.cluster_moment is not None:
            of_cluster = indices(top.cluster_moment)
        cluster = self._slots(of_cluster, "clusters")
        partition = self._slots(of_cluster[owner], "partitions")
        moments = int(of_cluster.max()) + 1 if clusters else 0
        clocks = mean_clocks(devices, fabric, len(top.partition_x))
        vector = self._vector(top, torch.stack([clocks, sums.heat], dim=1), moments, partition, cluster)
        parts = self.norm(self.parts(self.layers(vector)).view(moments, self.room + 1, self.hidden))
        own, common = parts[partition.moment, partition.place], parts[:, self.room]
        everyone = common[of_cluster]  # [clusters, hidden]
        constraint = everyone[indices(top.constraint_cluster)]
        return published_of(torch.cat([own, own, everyone, everyone, constraint]), own, top, sums, switches)

    def unread(self, devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock) -> tuple[Devices, Fabric, Queue]:
        """Return zeros in the place of what the lower levels return; congestion is the switches' feature."""
        nodes, switch_x = len(devices.node_x), floats(fabric.switch_x)
        zero, hidden, heads = switch_x.new_zeros, self.hidden, self.heads
        waits = len(queue.wait_task)
        return (
            Devices(zero(len(devices.gpu_x), hidden), zero(nodes, hidden), zero(()), zero(())),
            Fabric(
                node=zero(nodes, hidden),
                switch=zero(len(switch_x), hidden),
                congestion=switch_x[:, _SWITCH_CONGESTION],
                offered=Contributions(zero(nodes, heads), zero(nodes, hidden)),
            ),
            Queue(zero(len(queue.task_x), hidden), Contributions(zero(waits, heads), zero(waits, hidden))),
        )

    def _slots(self, moment: Tensor, things: str) -> _Slots:
        """Return where rows lie, given the moment of each, in any order."""
        order = torch.argsort(moment, stable=True)
        counts = torch.bincount(moment)
        most = int(counts.max()) if len(counts) else 0
        if most > self.room:
            raise PolicyError(
                f"the state has {most} {things}, the vector of this network has room for {self.room}: train one with "
                f"a larger network setting vector_partitions"
            )
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - (torch.cumsum(counts, 0) - counts)[moment[order]]
        return _Slots(moment, place)

    def _vector(self, top: TopBlock, added: Tensor, moments: int, partition: _Slots, cluster: _Slots) -> Tensor:
        """Return the vector of each moment, [moments, room * (PARTITION + 2 + CLUSTER + 4 CONSTRAINT)]."""
        partitions = added.new_zeros(moments, self.room, _PARTITION)
        partitions[partition.moment, partition.place] = torch.cat([floats(top.partition_x), added], dim=1)
        constraint_x, owner = floats(top.constraint_x), indices(top.constraint_cluster)
        limits = added.new_zeros(len(top.cluster_x), _KINDS, constraint_x.shape[1] - _KINDS)
        limits[owner, constraint_x[:, :_KINDS].argmax(dim=1)] = constraint_x[:, _KINDS:]
        clusters = added.new_zeros(moments, self.room, _CLUSTER)
        clusters[cluster.moment, cluster.place] = torch.cat([floats(top.cluster_x), limits.flatten(1)], dim=1)
        return torch.cat([partitions.flatten(1), clusters.flatten(1)], dim=1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.room}, {self.hidden})"


def mean_clocks(devices: DeviceBlock, fabric: FabricBlock, partitions: int) -> Tensor:
    """Return the mean of present over highest clock of each partition's devices that are read, 0 without any."""
    nodes, gpu_x = len(devices.node_x), floats(devices.gpu_x)
    read = gpu_x[:, _HAS_READING]
    each = torch.stack([read * gpu_x[:, _RELATIVE_CLOCK], read], dim=1)
    by_node = each.new_zeros(nodes, 2).index_add_(0, indices(devices.gpu_node), each)
    members = by_node[indices(fabric.member_node)]
    sums = members.new_zeros(partitions, 2).index_add_(0, indices(fabric.member_partition), members)
    return sums[:, 0] / sums[:, 1].clamp(min=1.0)
