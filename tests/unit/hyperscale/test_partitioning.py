"""Parts follow speed and memory, cut little, and every vertex has one."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from slurm_energy.errors import ConfigError
from slurm_energy.hyperscale.graph import TrainingGraph
from slurm_energy.hyperscale.partitioning import (
    device_shares,
    graph_bytes,
    independent_set,
    partition,
    symmetric_adjacency,
)
from slurm_energy.hyperscale.parts import Device, halo_vertices


def mesh(side: int, isolated: int = 0) -> TrainingGraph:
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()])
    down = np.stack([place[:-1].ravel(), place[1:].ravel()])
    vertices = side * side + isolated
    edge_index = to_undirected(torch.from_numpy(np.concatenate([across, down], axis=1)), num_nodes=vertices)
    no = torch.zeros(vertices, dtype=torch.bool)
    data = Data(
        x=torch.zeros(vertices, 1), edge_index=edge_index, y=no.long(), train_mask=no, val_mask=no, test_mask=no
    )
    return TrainingGraph(data=data, num_classes=1, source="mesh")


def devices(*speeds: float, memory_bytes: int = 10**12) -> list[Device]:
    return [
        Device(name=f"gpu{number}", speed_edges_per_second=speed, memory_bytes=memory_bytes)
        for number, speed in enumerate(speeds)
    ]


@pytest.mark.parametrize("method", ["independent-sets", "spectral"])
def test_parts_follow_speed_and_cut_far_less_than_chance(method: str) -> None:
    graph = mesh(50)
    parts = partition(graph, devices(1e6, 2e6, 4e6), method)
    by_chance = partition(graph, devices(1e6, 2e6, 4e6), "random")
    assert parts.cut_edges * 10 < by_chance.cut_edges
    assert parts.edge_balance < 1.1
    assert parts.vertex_balance < 1.1
    assert torch.bincount(parts.part_of_vertex).numel() == 3


def test_replication_counts_exactly_the_halo_vertices() -> None:
    graph = mesh(20)
    parts = partition(graph, devices(1e6, 1e6, 2e6))
    halos = sum(len(halo_vertices(graph.data.edge_index, parts, part)) for part in range(3))
    assert parts.communication_volume == halos
    assert parts.replication_factor == pytest.approx(1 + halos / 400)


def test_a_device_with_little_memory_gets_no_more_than_it_holds() -> None:
    graph = mesh(20)
    small = graph_bytes(graph) // 10
    fast = Device(name="fast", speed_edges_per_second=9e6, memory_bytes=small)
    slow = Device(name="slow", speed_edges_per_second=1e6, memory_bytes=10**12)
    assert device_shares(graph, [fast, slow]) == pytest.approx([0.1, 0.9], abs=0.01)


def test_a_graph_too_large_for_all_memories_is_refused() -> None:
    with pytest.raises(ConfigError, match="add a device"):
        partition(mesh(20), devices(1e6, 1e6, memory_bytes=1_000))


def test_more_devices_than_vertices_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 devices for 4 vertices"):
        partition(mesh(2), devices(1, 1, 1, 1, 1))


def test_isolated_vertices_have_parts() -> None:
    parts = partition(mesh(20, isolated=200), devices(1e6, 1e6))
    assert parts.part_of_vertex.min() >= 0
    assert parts.vertex_balance < 1.6


def test_an_independent_set_is_independent_and_maximal() -> None:
    adjacency = symmetric_adjacency(mesh(15, isolated=3).data.edge_index, 228)
    chosen = independent_set(adjacency, np.random.default_rng(0))
    neighbours = adjacency @ chosen.astype(np.float64)
    assert not np.any(chosen & (neighbours > 0))
    assert np.all(chosen | (neighbours > 0))


def test_one_seed_gives_one_partition() -> None:
    graph = mesh(30)
    first, second = (partition(graph, devices(1e6, 3e6), seed=4).part_of_vertex for _ in range(2))
    assert torch.equal(first, second)
