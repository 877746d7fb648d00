"""What the levels hand to each other."""

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
