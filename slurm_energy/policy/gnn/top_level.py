"""The state at the top: partitions, their queues, the fabric, clusters and their constraints as few vertices."""

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import TopBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.encoders import VertexEncoder
from slurm_energy.policy.gnn.levels import (
    Fabric,
    PartitionSums,
    Published,
    add_up,
    floats,
    indices,
    largest_by,
    mean_of,
)
from slurm_energy.policy.gnn.offering import Offering
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of
from slurm_energy.policy.gnn.reasoning import TopKind
from slurm_energy.policy.gnn.spectral import scaled_laplacian

_CONSTRAINT_KINDS = (TopKind.POWER, TopKind.COOLING, TopKind.CARBON, TopKind.QUALITY)
"""In the order of the flags that begin `schema.CONSTRAINT`."""
_CAPACITY = schema.column(schema.UPLINK, "capacity_gb_per_second")
_GPUS = schema.column(schema.PARTITION, "gpus")
_GPUS_FREE = schema.column(schema.PARTITION, "gpus_free")
_WAITING_GPUS = schema.column(schema.PARTITION, "waiting_gpus")
_WAITING_JOBS = schema.column(schema.PARTITION, "waiting_jobs")
_CLUSTER_NODES = schema.column(schema.CLUSTER, "nodes")
_CLUSTER_PENDING = schema.column(schema.CLUSTER, "pending_jobs")
_USAGE = schema.column(schema.CONSTRAINT, "usage")
_VALUE = schema.column(schema.CONSTRAINT, "value")
_LEAST_WEIGHT = 0.05


class TopLevel(nn.Module):
    """Pooling of nodes and jobs into partitions, of switches into the fabric; constraints enter as vertices.

    Global constraints (power budget, cooling, aggregate quality of service; section 3.3 of the paper) are vertices of
    their own, so that how much a decision looks at each can be read.

    Shapes: p partitions, s groups, c clusters, k constraints -> Published with 2 p + 2 c + k vertices.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.spectral = config.propagation != "spatial"
        self.partition = VertexEncoder(schema.width(schema.PARTITION), hidden)
        self.queue = VertexEncoder(schema.width(schema.PARTITION), hidden)
        self.cluster = VertexEncoder(schema.width(schema.CLUSTER), hidden)
        self.constraint = VertexEncoder(schema.width(schema.CONSTRAINT), hidden)
        self.spine = VertexEncoder(schema.width(schema.SWITCH), hidden)
        self.trunk = propagation_of(config, schema.width(schema.UPLINK), 2)
        self.fabric = Offering(hidden, hidden, config.heads)
        self.offered = nn.Linear(hidden, hidden)
        self.asked = nn.Linear(hidden, hidden)
        self.inside = nn.Linear(hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, block: TopBlock, sums: PartitionSums, fabric: Fabric) -> Published:
        """Return what decisions are made from.

        Args:
            block: The few vertices at the top.
            sums: What nodes offer and jobs ask, by partition.
            fabric: All groups.
        """
        partition_x, cluster_x = floats(block.partition_x), floats(block.cluster_x)
        constraint_x, owner = floats(block.constraint_x), indices(block.partition_cluster)
        clusters = cluster_x.shape[0]
        pooled = mean_of(sums.offered)  # [partitions, hidden]
        partition = self.partition(partition_x) + self.offered(pooled)
        queue = self.queue(partition_x) + self.asked(mean_of(sums.asked))
        network = self._fabric(block, fabric.switch, clusters)  # [clusters, hidden]
        inside = partition.new_zeros(clusters, partition.shape[1]).index_add_(0, owner, partition)
        count = torch.bincount(owner, minlength=clusters).clamp(min=1)
        cluster = self.cluster(cluster_x) + self.inside(inside / count[:, None])
        constraint = self.constraint(constraint_x)
        x = self.norm(torch.cat([partition, queue, network, cluster, constraint]))  # [top, hidden]
        return published_of(x, pooled, block, sums, fabric)

    def _fabric(self, block: TopBlock, switch: Tensor, clusters: int) -> Tensor:
        """Return what the switches of each cluster say, [clusters, hidden]."""
        groups = switch.shape[0]
        x = torch.cat([switch, self.spine(floats(block.spine_x))])  # [groups + spines, hidden]
        trunk, trunk_x = indices(block.trunk_index), floats(block.trunk_x)
        up = torch.stack([trunk[0], groups + trunk[1]])
        edge_index, edge_x = torch.cat([up, up.flip(0)], dim=1), torch.cat([trunk_x, trunk_x])
        capacity = edge_x[:, _CAPACITY].clamp(min=_LEAST_WEIGHT)
        edges = TypedEdges(
            edge_index=edge_index,
            edge_x=edge_x,
            edge_type=torch.repeat_interleave(torch.arange(2, device=trunk.device), trunk.shape[1]),
            laplacian=scaled_laplacian(edge_index, capacity, x.shape[0]) if self.spectral else None,
        )
        x = self.trunk(x, edges)
        owner = torch.cat([indices(block.group_cluster), indices(block.spine_cluster)])
        return mean_of(add_up(self.fabric(x), owner, clusters))


def published_of(x: Tensor, pooled: Tensor, block: TopBlock, sums: PartitionSums, fabric: Fabric) -> Published:
    """Return embeddings with all that is known of their vertices without a network.

    Args:
        x: Partitions, queues, fabrics, clusters, constraints, [top, hidden].
        pooled: What the nodes of each partition offer, [partitions, hidden].
        block: The few vertices at the top.
        sums: Heat and critical paths by partition.
        fabric: Congestion of all groups.
    """
    owner, clusters = indices(block.partition_cluster), block.cluster_x.shape[0]
    constraint_x, device = floats(block.constraint_x), owner.device
    partitions, everyone = torch.arange(len(owner), device=device), torch.arange(clusters, device=device)
    none = torch.full((2 * clusters + len(constraint_x),), -1, device=device)
    return Published(
        x=x,
        kind=_kinds(block, constraint_x),
        cluster=torch.cat([owner, owner, everyone, everyone, indices(block.constraint_cluster)]),
        structure=_structure(block, sums, fabric),
        partition=torch.cat([partitions, partitions, none]),
        pooled=pooled,
        heat=sums.heat,
        power=_power(block)[owner],
    )


def _kinds(block: TopBlock, constraint_x: Tensor) -> Tensor:
    """Return the kind of each vertex in their order."""
    partitions, clusters, device = block.partition_x.shape[0], block.cluster_x.shape[0], constraint_x.device
    counts = torch.tensor([partitions, partitions, clusters, clusters], device=device)
    fixed = torch.tensor([TopKind.PARTITION, TopKind.QUEUE, TopKind.FABRIC, TopKind.CLUSTER], device=device)
    own = torch.tensor(_CONSTRAINT_KINDS, device=device)[constraint_x[:, : len(_CONSTRAINT_KINDS)].argmax(dim=1)]
    return torch.cat([torch.repeat_interleave(fixed, counts), own])


def _structure(block: TopBlock, sums: PartitionSums, fabric: Fabric) -> Tensor:
    """Return size, pressure and critical path of each vertex, [top, 3]."""
    partition_x, cluster_x = floats(block.partition_x), floats(block.cluster_x)
    constraint_x = floats(block.constraint_x)
    clusters = cluster_x.shape[0]
    congestion = largest_by(fabric.congestion, indices(block.group_cluster), clusters)
    size = [partition_x[:, _GPUS], partition_x[:, _WAITING_GPUS], cluster_x[:, _CLUSTER_NODES]]
    pressure = [1.0 - partition_x[:, _GPUS_FREE], partition_x[:, _WAITING_JOBS], congestion]
    size += [cluster_x[:, _CLUSTER_NODES], constraint_x[:, _VALUE]]
    pressure += [cluster_x[:, _CLUSTER_PENDING], constraint_x[:, _USAGE]]
    critical = [torch.zeros_like(sums.critical), sums.critical, partition_x.new_zeros(2 * clusters + len(constraint_x))]
    return torch.stack([torch.cat(size), torch.cat(pressure), torch.cat(critical)], dim=1)


def _power(block: TopBlock) -> Tensor:
    """Return power over the budget of each cluster, 0 where none is known, [clusters]."""
    constraint_x = floats(block.constraint_x)
    usage = constraint_x[:, _USAGE] * constraint_x[:, 0]
    return largest_by(usage, indices(block.constraint_cluster), block.cluster_x.shape[0])
