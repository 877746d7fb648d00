"""Parts of a graph, one for each device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from slurm_energy.errors import ConfigError
from slurm_energy.hyperscale.graph import TrainingGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What computes a part."""

    name: str
    speed_edges_per_second: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphParts:
    """The part of every vertex."""

    part_of_vertex: Tensor
    num_parts: int


def partition(graph: TrainingGraph, devices: Sequence[Device], method: str = "banded", seed: int = 0) -> GraphParts:
    """Return a part for each device, with edges in proportion to its speed: random, or bands of a reordered matrix.

    Raises:
        ConfigError: the method is not known.
    """
    edges, count = graph.data.edge_index, int(graph.data.num_nodes or 0)
    if method == "random":
        order = np.random.default_rng(seed).permutation(count)
    elif method == "banded":
        matrix = coo_array((np.ones(edges.shape[1]), edges.numpy()), shape=(count, count)).tocsr()
        order = reverse_cuthill_mckee(matrix + matrix.T, symmetric_mode=True)
    else:
        raise ConfigError(f"method {method!r} is not one of random, banded")
    degree = np.bincount(edges[1].numpy(), minlength=count) + 1
    done = np.cumsum(degree[order]) / degree.sum()
    speeds = np.array([device.speed_edges_per_second for device in devices])
    part = np.empty(count, dtype=np.int64)
    part[order] = np.searchsorted(np.cumsum(speeds)[:-1] / speeds.sum(), done)
    return GraphParts(part_of_vertex=torch.from_numpy(part), num_parts=len(devices))
