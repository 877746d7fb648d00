"""The agent that the papers compare with: its state is one flat vector, read by a multilayer perceptron."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.errors import PolicyError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.levels import (
    Contributions,
    Devices,
    Fabric,
    PartitionSums,
    Published,
    Queue,
    floats,
    indices,
)
from slurm_energy.policy.gnn.top_level import published_of

WIDTH = 256
"""Of the three layers, as in Eq. 8 of CHSAC-AF."""
_KINDS = 4
"""Flags that begin `schema.CONSTRAINT`: here the place in the vector tells the kind instead."""
_PARTITION = schema.width(schema.PARTITION) + 2
"""With the mean clock and the highest temperature of its devices."""
_CLUSTER = schema.width(schema.CLUSTER) + _KINDS * (schema.width(schema.CONSTRAINT) - _KINDS)
_CONGESTION = schema.column(schema.SWITCH, "congestion")
_HAS_READING = schema.column(schema.GPU, "has_reading")
_RELATIVE_CLOCK = schema.column(schema.GPU, "relative_clock")


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
        self.hidden = config.hidden
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


def unread_levels(
    devices: DeviceBlock, fabric: FabricBlock, queue: QueueBlock, config: NetworkConfig
) -> tuple[Devices, Fabric, Queue]:
    """Return zeros in the place of what device, fabric and queue level return; congestion is the switches' feature."""
    nodes, switch_x = len(devices.node_x), floats(fabric.switch_x)
    zero, hidden, heads = switch_x.new_zeros, config.hidden, config.heads
    waits = len(queue.wait_task)
    return (
        Devices(zero(len(devices.gpu_x), hidden), zero(nodes, hidden), zero(()), zero(())),
        Fabric(
            node=zero(nodes, hidden),
            switch=zero(len(switch_x), hidden),
            congestion=switch_x[:, _CONGESTION],
            offered=Contributions(zero(nodes, heads), zero(nodes, hidden)),
        ),
        Queue(zero(len(queue.task_x), hidden), Contributions(zero(waits, heads), zero(waits, hidden))),
    )
