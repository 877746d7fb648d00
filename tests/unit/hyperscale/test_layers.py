"""Layers over a rank's parts: torch_geometric's function, value and gradient, on one rank."""

from pathlib import Path
from typing import Any

import pytest
import torch
from part_cases import parts_file, small_graph

from slurm_energy.hyperscale.halo import Channel, Flow, Routes, Stale, local_graph
from slurm_energy.hyperscale.layers import LAYERS, forward, layer_inputs
from slurm_energy.hyperscale.part_files import read_holding, read_sizes
from slurm_energy.hyperscale.training import TrainSettings, build_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("model_name", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("hidden", [2, 16])
def test_logits_and_gradients_are_those_of_torch_geometric(
    tmp_path: Path, model_name: Any, is_constant: bool, hidden: int
) -> None:
    graph = small_graph()
    path = parts_file(tmp_path, graph, 3)
    sizes = read_sizes(path)
    holding = read_holding(path, sizes, (0, 1, 2))
    local, order = local_graph(holding, sizes.vertex_offsets, (0, 0, 0))
    routes = Routes(local, 1, CPU)
    settings = TrainSettings(model=model_name, hidden_channels=hidden, heads=2, num_layers=3)
    mine, theirs = build_model(settings, 7, 3).eval(), build_model(settings, 7, 3).eval()
    features = holding.features[order]
    given = layer_inputs(mine, local, routes, features, stale=None, is_constant=is_constant)
    found = forward(mine, features, given, LAYERS)
    expected = theirs(holding.features, holding.edge_index)[order]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0.0)
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-4)


def test_interior_vertices_stand_first_and_halo_vertices_by_their_rank(tmp_path: Path) -> None:
    graph = small_graph()
    path = parts_file(tmp_path, graph, 4)
    sizes = read_sizes(path)
    rank_of_part = (1, 0, 1, 2)
    holding = read_holding(path, sizes, (0, 2))
    local, order = local_graph(holding, sizes.vertex_offsets, rank_of_part)
    assert torch.equal(holding.vertices[order], local.vertices)
    everything = torch.cat([local.vertices, local.halo])
    edges = torch.stack([everything[local.source], everything[local.target]])
    assert sorted(edges.T.tolist()) == sorted(holding.edge_index.T.tolist())
    outside = local.source >= local.num_own
    assert int(local.target[outside].min()) >= local.num_interior
    assert set(local.target[outside].tolist()) == set(range(local.num_interior, local.num_own))
    part = torch.searchsorted(torch.tensor(sizes.vertex_offsets), local.halo, right=True) - 1
    ranks = torch.tensor(rank_of_part)[part]
    assert torch.equal(ranks, torch.sort(ranks).values)
    assert local.halo_counts == tuple(int((ranks == rank).sum()) for rank in range(3))
    assert local.halo_counts[1] == 0


class Echo(Routes):
    """Every rank receives what it sends."""

    def __init__(self) -> None:
        self.send_counts = self.receive_counts = [1]
        self.is_alone = False
        self.rows = torch.tensor([0])

    def start(self, rows: torch.Tensor, *, reverse: bool = False) -> Any:
        class Ended:
            def result(self) -> torch.Tensor:
                return rows.clone()

        return Ended()


def test_stale_rows_are_those_of_the_epoch_before_smoothed() -> None:
    flow = Flow(Echo(), Stale(smoothing=0.25), reverse=False)
    seen = []
    for value in (4.0, 8.0, 16.0, 32.0):
        flow.start(torch.tensor([value]))
        seen.append(float(flow.finish()))
    assert seen == [4.0, 4.0, 0.25 * 4.0 + 0.75 * 8.0, 0.25 * 7.0 + 0.75 * 16.0]
    flow.drain()
    flow.start(torch.tensor([1.0]))
    assert float(flow.finish()) == 1.0, "after parts have moved the first epoch is exact"


def test_exact_rows_are_those_of_this_epoch() -> None:
    channel = Channel(Echo())
    for value in (4.0, 8.0):
        channel.values.start(torch.tensor([value]))
        assert float(channel.values.finish()) == value
