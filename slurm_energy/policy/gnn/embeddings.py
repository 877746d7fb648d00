"""What the levels hand to each other, and which vertices of several moments belong together at the top."""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WEIGHT_BOUND = 3.0
"""Attention scores of pooled members lie in [-3, 3], so that their exponentials can be added up in any order."""
PRESSURE = 1
"""Column of a top vertex's structure: for a partition, the share of its GPUs in use."""


class Contributions(NamedTuple):
    """What each member adds to the sums of those it belongs to: an attention mean, open to being summed in parts.

    The mean over members is sum(weight value) / sum(weight), with weight = exp(3 tanh(score)). Both sums are over
    members, so that a changed member is taken out and put back, and that a sample of them, divided by the probability
    of being in it, estimates both without bias.
    """

    weight: Tensor
    """[members, heads]."""
    value: Tensor
    """weight x value, [members, hidden]."""


class Devices(NamedTuple):
    """Embeddings of devices and of the nodes they make up."""

    gpu: Tensor
    """[gpus, hidden]."""
    node: Tensor
    """[nodes, hidden]."""
    link_loss: Tensor
    """Of differentiable pooling; 0 without it."""
    entropy_loss: Tensor


class Fabric(NamedTuple):
    """Nodes after they have heard of their neighbours, and their switches."""

    node: Tensor
    """[nodes, hidden]."""
    switch: Tensor
    """[groups, hidden]."""
    congestion: Tensor
    """As in the feature of the switch, [groups]."""
    offered: Contributions
    """Of each node, to the partitions that it belongs to, [nodes]."""


class Queue(NamedTuple):
    """Jobs after they have heard of those that they wait for and that wait for them."""

    task: Tensor
    """[tasks, hidden]."""
    asked: Contributions
    """Of each (pending job, partition), [waits]."""


class PartitionSums(NamedTuple):
    """Contributions added up by partition."""

    offered: Contributions
    """From nodes, [partitions]."""
    asked: Contributions
    """From pending jobs, [partitions]."""
    heat: Tensor
    """Highest temperature of the partition's nodes, as in the feature `hottest`, [partitions]."""
    critical: Tensor
    """Longest critical path among its pending jobs, as in the feature, [partitions]."""


class TopKind(IntEnum):
    """Kinds of the vertices at the top."""

    JOB = 0
    """The job that a decision is asked for."""
    PARTITION = 1
    """Capacity of a partition."""
    QUEUE = 2
    """Pending work of a partition."""
    FABRIC = 3
    """The network between nodes: a group of nodes and its switch, or all of them."""
    CLUSTER = 4
    POWER = 5
    COOLING = 6
    CARBON = 7
    QUALITY = 8
    """Deadlines and service."""


class Published(NamedTuple):
    """All that a decision needs to know of the cluster: its size does not depend on the number of nodes."""

    x: Tensor
    """Vertices at the top, [top, hidden]."""
    kind: Tensor
    """`TopKind` of each, [top]."""
    cluster: Tensor
    """Cluster of each, [top]."""
    structure: Tensor
    """Size, pressure and critical path of each, [top, 3]."""
    partition: Tensor
    """Partition of partition and queue vertices, -1 for others, [top]."""
    pooled: Tensor
    """What the nodes of each partition offer, before anything above them had a say, [partitions, hidden]."""
    heat: Tensor
    """[partitions]."""
    power: Tensor
    """Power over the budget of each partition's cluster, 0 where none is known, [partitions]."""


def floats(array: NDArray[np.float32] | Tensor) -> Tensor:
    """Return an array as a tensor of the same memory; a tensor, which `on_device` puts in its place, as it is."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def indices(array: NDArray[np.int64] | Tensor) -> Tensor:
    """Return an array of indices as a tensor, as `floats` does."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def flags(array: NDArray[np.bool_] | Tensor) -> Tensor:
    """Return a mask as a tensor, as `floats` does."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def add_up(members: Contributions, owner: Tensor, owners: int, member: Tensor | None = None) -> Contributions:
    """Return the sums by owner.

    Args:
        members: Their contributions.
        owner: Owner of each row, [rows].
        owners: How many there are.
        member: Member of each row; None where the rows are the members in their order.
    """
    weight = members.weight if member is None else members.weight[member]
    value = members.value if member is None else members.value[member]
    return Contributions(
        weight.new_zeros(owners, weight.shape[1]).index_add_(0, owner, weight),
        value.new_zeros(owners, value.shape[1]).index_add_(0, owner, value),
    )


def largest_by(values: Tensor, owner: Tensor, owners: int) -> Tensor:
    """Return the largest value by owner, 0 for owners without any and at least 0."""
    return values.new_zeros(owners).scatter_reduce_(0, owner, values, "amax")


def mean_of(sums: Contributions) -> Tensor:
    """Return the attention means, zeros for who has no member, [owners, hidden]."""
    owners, heads = sums.weight.shape
    by_head = sums.value.view(owners, heads, sums.value.shape[1] // heads)
    mean: Tensor = by_head / sums.weight.clamp(min=1e-12)[:, :, None]  # [owners, heads, hidden / heads]
    return mean.flatten(1)


class BatchIndex(NamedTuple):
    """The top vertices of each moment; place 0 of each row is left for the job."""

    vertex: Tensor
    """Vertex at each place, 0 where there is none, [moments, places]."""
    present: Tensor
    """Whether there is one, [moments, places]."""
    allowed: Tensor
    """Whether one place may attend to another, the job's own place included, [moments, 1 + places, 1 + places]."""
    place: Tensor
    """Place of each vertex, the job's counted, [top]."""
    of_cluster: Tensor
    """Moment of each cluster, [clusters]."""
    partition_vertex: Tensor
    """Vertex of each partition's capacity, [partitions]."""
    queue_vertex: Tensor
    """Vertex of each partition's queue, [partitions]."""
    cluster_vertex: Tensor
    """Vertex of each cluster, [clusters]."""


def batch_index(published: Published, of_cluster: Tensor | None = None) -> BatchIndex:
    """Return how the vertices lie together.

    Vertices of one cluster attend to each other, and the clusters of one moment to each other; a job attends to all of
    its moment and is attended by all.

    Args:
        published: The state.
        of_cluster: Moment of each cluster, ascending, [clusters]; None for one moment.
    """
    kind, cluster = published.kind, published.cluster
    cluster_vertex = torch.nonzero(kind == TopKind.CLUSTER).flatten()
    moment_of_cluster = cluster.new_zeros(len(cluster_vertex)) if of_cluster is None else of_cluster
    moment = moment_of_cluster[cluster]  # [top]
    order = torch.argsort(moment, stable=True)
    counts = torch.bincount(moment)
    starts = torch.cumsum(counts, 0) - counts
    place = torch.empty_like(order)
    rows = torch.arange(len(order), device=order.device)
    place[order] = rows - starts[moment[order]]
    moments, places = len(counts), int(counts.max())
    vertex = order.new_zeros(moments, places)
    vertex[moment, place] = rows
    present = torch.arange(places, device=order.device)[None, :] < counts[:, None]
    owner, is_cluster = cluster[vertex], kind[vertex] == TopKind.CLUSTER
    together = (owner[:, :, None] == owner[:, None, :]) | (is_cluster[:, :, None] & is_cluster[:, None, :])
    both = torch.cat([present.new_ones(moments, 1), present], dim=1)
    allowed = both[:, :, None] & both[:, None, :]
    allowed[:, 1:, 1:] &= together
    return BatchIndex(
        vertex=vertex,
        present=present,
        allowed=allowed,
        place=place + 1,
        of_cluster=moment_of_cluster,
        partition_vertex=torch.nonzero(kind == TopKind.PARTITION).flatten(),
        queue_vertex=torch.nonzero(kind == TopKind.QUEUE).flatten(),
        cluster_vertex=cluster_vertex,
    )
