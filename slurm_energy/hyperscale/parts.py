"""Devices, the parts of a graph they train, and what a partition costs."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device of a training: its measured speed in edges of the graph aggregated a second, and its memory."""

    name: str
    speed_edges_per_second: float
    memory_bytes: int

    def __post_init__(self) -> None:
        if not self.speed_edges_per_second > 0 or not np.isfinite(self.speed_edges_per_second):
            raise ConfigError(f"device {self.name}: speed {self.speed_edges_per_second} edges/s must be positive")
        if self.memory_bytes <= 0:
            raise ConfigError(f"device {self.name}: memory {self.memory_bytes} bytes must be positive")


@dataclass(frozen=True, kw_only=True)
class GraphParts:
    """The part of each vertex, and the costs of that choice.

    Attributes:
        part_of_vertex: Part of each vertex, int64 [num_vertices], 0 to num_parts - 1.
        num_parts: Number of parts; part i is for device i.
        cut_edges: Undirected edges with ends in two parts.
        communication_volume: Halo copies: for each vertex, the number of other parts with a neighbour of it.
        replication_factor: (num_vertices + communication_volume) / num_vertices.
        vertex_balance: Largest ratio of a part's vertices to its device's share of them; 1.0 is exact.
        edge_balance: The same of edges, counted at the vertex that aggregates them.
        method: What chose the parts.
    """

    part_of_vertex: torch.Tensor
    num_parts: int
    cut_edges: int
    communication_volume: int
    replication_factor: float
    vertex_balance: float
    edge_balance: float
    method: str = "given"


def measure_parts(
    edge_index: torch.Tensor, part_of_vertex: torch.Tensor, shares: NDArray[np.float64], method: str = "given"
) -> GraphParts:
    """Return the parts with their costs.

    Args:
        edge_index: Both directions of each edge, [2, num_edges].
        part_of_vertex: Part of each vertex, [num_vertices].
        shares: Share of the work each part should have, [num_parts], sum 1.
        method: What chose the parts.
    """
    part = part_of_vertex.numpy()
    vertices, num_parts = len(part), len(shares)
    source, target = edge_index.numpy()
    crossing = part[source] != part[target]
    pairs = source[crossing] * num_parts + part[target[crossing]]
    copies = len(np.unique(pairs))
    edges_of_part = np.bincount(part[target], minlength=num_parts)
    vertices_of_part = np.bincount(part, minlength=num_parts)
    edges = max(1, edge_index.size(1))
    return GraphParts(
        part_of_vertex=part_of_vertex,
        num_parts=num_parts,
        cut_edges=int(crossing.sum()) // 2,
        communication_volume=copies,
        replication_factor=(vertices + copies) / vertices,
        vertex_balance=float((vertices_of_part / vertices / shares).max()),
        edge_balance=float((edges_of_part / edges / shares).max()),
        method=method,
    )


def halo_vertices(edge_index: torch.Tensor, parts: GraphParts, part: int) -> torch.Tensor:
    """Return the vertices of other parts whose features `part` aggregates, sorted, [num_halo]."""
    source, target = edge_index
    inside = parts.part_of_vertex[target] == part
    outside = parts.part_of_vertex[source] != part
    halo: torch.Tensor = torch.unique(source[inside & outside])
    return halo
