"""Clusters at several moments side by side: which vertices belong together at the top, as dense batches."""

from typing import NamedTuple

import torch
from torch import Tensor

from slurm_energy.policy.gnn.levels import Published
from slurm_energy.policy.gnn.reasoning import TopKind


class Moments(NamedTuple):
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


def moments_of(published: Published, of_cluster: Tensor | None = None) -> Moments:
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
    return Moments(
        vertex=vertex,
        present=present,
        allowed=allowed,
        place=place + 1,
        of_cluster=moment_of_cluster,
        partition_vertex=torch.nonzero(kind == TopKind.PARTITION).flatten(),
        queue_vertex=torch.nonzero(kind == TopKind.QUEUE).flatten(),
        cluster_vertex=cluster_vertex,
    )
