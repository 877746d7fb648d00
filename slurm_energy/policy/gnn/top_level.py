"""The state at the top as few vertices, and the attention between these and a job.

Vertices are partitions, their queues, the fabric, clusters and the clusters' constraints.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import TopBlock
from slurm_energy.policy.gnn.configuration import Attention, NetworkConfig
from slurm_energy.policy.gnn.embeddings import (
    Fabric,
    PartitionSums,
    Published,
    TopKind,
    add_up,
    floats,
    indices,
    largest_by,
    mean_of,
)
from slurm_energy.policy.gnn.levels import AttentionSum, VertexEncoder
from slurm_energy.policy.gnn.propagation import TypedEdges, propagation_of, scaled_laplacian

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
_MIN_WEIGHT = 0.05
OBJECTIVES = ("time", "energy", "fairness")
"""Objective of each third of the heads, in order."""
_CLOSED_BIAS = 1e30
"""Taken from the score of what may not be looked at; finite, so that a row of such has no NaN in its gradient."""


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
        self.fabric = AttentionSum(hidden, hidden, config.heads)
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
        capacity = edge_x[:, _CAPACITY].clamp(min=_MIN_WEIGHT)
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


class Reasoning(NamedTuple):
    """What a layer of attention returns."""

    x: Tensor
    """[batch, vertices, channels]."""
    attention: Tensor
    """Weight with which a vertex (row) looks at another (column), [batch, heads, vertices, vertices]."""
    head_x: Tensor
    """What each head brought, before the heads are mixed, [batch, vertices, channels]."""


class ObjectiveAttention(nn.Module):
    r"""One layer of masked multi-head attention over a few vertices, section 3.3 of the hierarchical GNN paper.

    .. math::
        a^h_{ij} = \operatorname{softmax}_j \left( q^h_i \cdot k^h_j / \sqrt d + w^h \cdot s_j + b^h_{ij} \right),
        \qquad h_i = x_i + W \, \Vert_h \sum_j a^h_{ij} v^h_j, \qquad x'_i = h_i + \mathrm{FF}(h_i)

    The product of query and key is the importance by features, the second term the importance by structure. Inputs of
    both steps are normalised. A vertex that may look at nothing has zero attention and only its own feed-forward step.

    The paper lets "different attention heads" focus on performance, energy and fairness, without saying how. Here the
    first third of the heads is for time, the second for energy, the last for fairness: each objective is predicted from
    its own third alone (`objective_values`), and the loss of that prediction ties the heads to it.

    Args:
        channels: Width of the vertices, a multiple of `heads`.
        heads: Number of heads; a multiple of 3 when they are tied.
        structure_channels: Width of the structural importance: degree, share of the waiting work, critical path.
        mode: `objectives`: tied heads; `plain`: heads without a tie; `none`: plain mean of the vertices looked at.
        edge_channels: Width of edge features; 0 when `edge_bias` comes ready, one number for each head.

    Shapes:
        x [B, V, H], allowed [B, V, V], structure [B, V, S], edge_bias [B, V, V, E] or [B, V, V, heads].
    """

    def __init__(
        self, channels: int, heads: int, structure_channels: int, mode: Attention, *, edge_channels: int = 0
    ) -> None:
        super().__init__()
        if channels % heads or (mode == "objectives" and heads % len(OBJECTIVES)):
            raise ValueRangeError(
                f"attention with {heads} heads and {channels} channels: heads must divide channels, and be a multiple "
                f"of {len(OBJECTIVES)} when tied to objectives"
            )
        self.channels = channels
        self.heads = heads
        self.mode: Attention = mode
        self.attention_norm = nn.LayerNorm(channels)
        # No bias where the softmax takes it out again, and none after the heads: no attention must add nothing.
        self.project = nn.Linear(channels, channels if mode == "none" else 3 * channels, bias=False)
        self.mix = nn.Linear(channels, channels, bias=False)
        self.importance = None if mode == "none" else nn.Linear(structure_channels, heads, bias=False)
        has_edges = edge_channels > 0 and mode != "none"
        self.edge = nn.Linear(edge_channels, heads, bias=False) if has_edges else None
        self.forward_norm = nn.LayerNorm(channels)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels)
        )
        self.objective_weight: nn.Parameter | None = None
        self.objective_bias: nn.Parameter | None = None
        if mode == "objectives":
            self.objective_weight = nn.Parameter(torch.empty(len(OBJECTIVES), channels // len(OBJECTIVES)))
            self.objective_bias = nn.Parameter(torch.empty(len(OBJECTIVES)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for module in (self.attention_norm, self.project, self.mix, self.importance, self.edge, self.forward_norm):
            if module is not None:
                module.reset_parameters()
        for layer in self.feed_forward:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        if self.objective_weight is not None and self.objective_bias is not None:
            bound = self.objective_weight.shape[1] ** -0.5
            nn.init.uniform_(self.objective_weight, -bound, bound)
            nn.init.zeros_(self.objective_bias)

    def forward(self, x: Tensor, allowed: Tensor, structure: Tensor, edge_bias: Tensor | None = None) -> Reasoning:
        """Return the vertices after this layer, the attention, and what each head brought.

        Args:
            x: Vertices, [B, V, H].
            allowed: Whether the vertex of the row may look at that of the column, [B, V, V], bool.
            structure: Structural importance of each vertex, [B, V, S].
            edge_bias: Edge features or a ready bias, of the row's vertex towards the column's; not used by `none`.
        """
        normed: Tensor = self.attention_norm(x)
        if self.mode == "none":
            attention, head_x = self._mean(normed, allowed)
        else:
            attention, head_x = self._attend(normed, allowed, structure, edge_bias)
        x = x + self.mix(head_x)
        return Reasoning(x + self.feed_forward(self.forward_norm(x)), attention, head_x)

    def objective_values(self, head_x: Tensor) -> Tensor | None:
        """Return log time, log energy and fairness of the job's best option, each read from its own heads alone.

        Args:
            head_x: What each head brought to the job's vertex, [..., H].

        Returns:
            [..., 3], or None when the heads are not tied.
        """
        if self.objective_weight is None or self.objective_bias is None:
            return None
        thirds = head_x.reshape(*head_x.shape[:-1], *self.objective_weight.shape)  # [..., 3, H / 3]
        return (thirds * self.objective_weight).sum(-1) + self.objective_bias  # [..., 3]

    def _attend(self, x: Tensor, allowed: Tensor, structure: Tensor, edge_bias: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.importance is not None
        batch, vertices, channels = x.shape
        heads, width = self.heads, channels // self.heads
        rows = (batch * heads, vertices, vertices)
        projected = self.project(x).view(batch, vertices, 3, heads, width).permute(2, 0, 3, 1, 4)  # [3, B, heads, V, D]
        query, key, value = projected.reshape(3, batch * heads, vertices, width).unbind(0)  # [B * heads, V, D]
        # Contiguous while they are small: the sums keep the order of their first arguments in memory.
        bias = self.importance(structure).transpose(1, 2).contiguous().unsqueeze(2)  # [B, heads, 1, V]
        if edge_bias is not None:
            edge_bias = edge_bias if self.edge is None else self.edge(edge_bias)
            bias = bias + edge_bias.permute(0, 3, 1, 2).contiguous()  # [B, heads, V, V]
        is_open = allowed.unsqueeze(1).to(x.dtype)  # [B, 1, V, V]
        # Sums: torch.where is slow when its arguments differ in shape. In place: a copy costs more than the product.
        bias = bias + (is_open - 1.0) * _CLOSED_BIAS  # [B, heads, V, V]
        score = bias.view(rows).baddbmm_(query, key.transpose(1, 2), alpha=width**-0.5)
        # The product makes rows zero that may look at nothing; elsewhere what is closed has zero already.
        attention = score.softmax(-1).view(batch, heads, vertices, vertices) * is_open
        head_x = torch.bmm(attention.view(rows), value)  # [B * heads, V, D]
        return attention, head_x.view(batch, heads, vertices, width).transpose(1, 2).reshape(x.shape)

    def _mean(self, x: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        share = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)  # [B, V, V]
        return share.unsqueeze(1).expand(-1, self.heads, -1, -1), share @ self.project(x)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, heads={self.heads}, mode={self.mode!r})"
