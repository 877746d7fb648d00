from dataclasses import replace
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.propagation import HybridPropagation, TypedEdges, scaled_laplacian

Mode = Literal["hybrid", "spatial", "spectral"]
MODES: tuple[Mode, ...] = ("hybrid", "spatial", "spectral")
CHANNELS, EDGE_CHANNELS, DEVICES, VERTICES = 6, 3, 4, 7
LINKS = ((0, 1), (1, 0), (1, 2), (2, 1))
"""Between devices; device 3 has none."""
RUNS = ((4, 0), (4, 1), (5, 2))
"""From jobs 4 and 5 to devices."""
CONTAINS = ((6, 0), (6, 1), (6, 2), (6, 3))
"""From the node, vertex 6, to its devices."""
BANDWIDTH = torch.tensor([2.0, 2.0, 0.5, 0.5], dtype=torch.float64)
"""Of the links."""


def make_layer(mode: Mode, seed: int = 1, attention: bool = True) -> HybridPropagation:
    torch.manual_seed(seed)
    layer = HybridPropagation(CHANNELS, EDGE_CHANNELS, 3, 3, mode, edge_types=3, attention=attention)
    return layer.double()


def make_x(seed: int = 7) -> Tensor:
    return torch.randn(VERTICES, CHANNELS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_graph(**changes: Any) -> TypedEdges:
    edges = LINKS + RUNS + CONTAINS
    edge_index = torch.tensor(edges).T.contiguous()
    generator = torch.Generator().manual_seed(3)
    graph = TypedEdges(
        edge_index=edge_index,
        edge_x=torch.randn(len(edges), EDGE_CHANNELS, dtype=torch.float64, generator=generator),
        edge_type=torch.tensor([0] * len(LINKS) + [1] * len(RUNS) + [2] * len(CONTAINS)),
        num_targets=DEVICES,
        laplacian=scaled_laplacian(edge_index[:, : len(LINKS)], BANDWIDTH, DEVICES),
    )
    return replace(graph, **changes)


def parts(layer: HybridPropagation, x: Tensor, graph: TypedEdges) -> tuple[Tensor, Tensor]:
    """Return what the two convolutions of a hybrid layer gather."""
    assert layer.spatial is not None
    assert layer.spectral is not None
    spatial = layer.spatial(x, graph.edge_index, graph.edge_x, graph.edge_type)[:DEVICES]
    return spatial, layer.spectral(x[:DEVICES], torch.tensor(LINKS).T, BANDWIDTH)


def after_gathering(layer: HybridPropagation, x: Tensor, gathered: Tensor) -> Tensor:
    """Return the layer's result by the formula, for what was gathered."""
    h = layer_norm(x[:DEVICES] + gathered, (CHANNELS,))
    wide = (h @ layer.widen.weight.T + layer.widen.bias).clamp(min=0)
    return layer_norm(h + wide @ layer.narrow.weight.T + layer.narrow.bias, (CHANNELS,))


def gate_of(layer: HybridPropagation, x: Tensor, graph: TypedEdges) -> Tensor:
    """Return the gate as a report reads it, by a hook during a pass."""
    read: list[Tensor] = []
    assert layer.gate is not None
    hook = layer.gate.register_forward_hook(lambda _module, _given, result: read.append(result.detach()))
    layer(x, graph)
    hook.remove()
    return read[0]


def test_the_gate_starts_at_one_half() -> None:
    layer, x, graph = make_layer("hybrid"), make_x(), make_graph()

    spatial, spectral = parts(layer, x, graph)

    assert torch.equal(gate_of(layer, x, graph), torch.full((DEVICES, CHANNELS), 0.5, dtype=torch.float64))
    assert torch.allclose(layer(x, graph), after_gathering(layer, x, (spatial + spectral) / 2))


def test_a_learned_gate_mixes_by_the_formula() -> None:
    layer, x, graph = make_layer("hybrid"), make_x(), make_graph()
    assert layer.gate is not None
    weights, bias = (torch.nn.init.normal_(parameter) for parameter in layer.gate.parameters())

    spatial, spectral = parts(layer, x, graph)
    linear = spatial @ weights[:, :6].T + spectral @ weights[:, 6:12].T + x[:DEVICES] @ weights[:, 12:].T
    gate = 1 / (1 + (-linear - bias).exp())

    assert torch.allclose(gate_of(layer, x, graph), gate)
    assert torch.allclose(layer(x, graph), after_gathering(layer, x, gate * spatial + (1 - gate) * spectral))


@pytest.mark.parametrize("mode", ["spatial", "spectral"])
def test_one_convolution_alone_is_the_hybrid_with_its_gate_shut(mode: Mode) -> None:
    hybrid, alone, x, graph = make_layer("hybrid"), make_layer(mode, seed=2), make_x(), make_graph()
    assert hybrid.gate is not None
    _, bias = hybrid.gate.parameters()
    torch.nn.init.constant_(bias, 50.0 if mode == "spatial" else -50.0)
    alone.load_state_dict({name: hybrid.state_dict()[name] for name in alone.state_dict()})

    assert torch.allclose(alone(x, graph), hybrid(x, graph))


def test_a_convolution_that_is_not_chosen_has_no_parameters() -> None:
    names = {mode: {name.split(".")[0] for name, _ in make_layer(mode).named_parameters()} for mode in MODES}

    common = {"gathered_norm", "widen", "narrow", "norm"}
    assert names == {
        "hybrid": common | {"spatial", "spectral", "gate"},
        "spatial": common | {"spatial"},
        "spectral": common | {"spectral"},
    }
    assert make_layer("spatial").gate is None


@pytest.mark.parametrize(("mode", "reached"), [("hybrid", True), ("spatial", True), ("spectral", False)])
def test_sources_reach_targets_through_the_spatial_part(mode: Mode, reached: bool) -> None:
    layer, x, graph = make_layer(mode), make_x(), make_graph()
    other = x.clone()
    other[5] += 1.0  # a job on device 2

    difference = (layer(other, graph) - layer(x, graph)).abs().sum(1)

    assert torch.equal(difference > 1e-6, torch.tensor([False, False, reached, False]))


@pytest.mark.parametrize(("mode", "reached"), [("hybrid", True), ("spatial", False), ("spectral", True)])
def test_only_the_spectral_part_reaches_further_than_a_neighbour(mode: Mode, reached: bool) -> None:
    layer, x, graph = make_layer(mode), make_x(), make_graph()
    other = x.clone()
    other[0] += torch.arange(CHANNELS)

    difference = (layer(other, graph) - layer(x, graph)).abs().sum(1)

    assert torch.equal(difference > 1e-6, torch.tensor([True, True, reached, False]))


def test_all_vertices_receive_where_no_number_is_given() -> None:
    layer, x = make_layer("hybrid"), make_x()
    star = torch.tensor([(device, 6) for device in range(6)] + [(6, device) for device in range(6)]).T
    graph = TypedEdges(
        edge_index=star,
        edge_x=torch.zeros(12, EDGE_CHANNELS, dtype=torch.float64),
        edge_type=torch.zeros(12, dtype=torch.int64),
        laplacian=scaled_laplacian(star, torch.ones(12, dtype=torch.float64), VERTICES),
    )

    assert torch.equal(layer(x, graph), layer(x, replace(graph, num_targets=VERTICES)))
    assert layer(x, graph).shape == (VERTICES, CHANNELS)


def test_edge_weights_reach_the_attention() -> None:
    layer, x, graph = make_layer("spatial"), make_x(), make_graph()
    weight = torch.ones(11, dtype=torch.float64)
    assert torch.allclose(layer(x, make_graph(edge_weight=weight)), layer(x, graph))

    weight[6] = 5.0  # job 5 on device 2
    difference = (layer(x, make_graph(edge_weight=weight)) - layer(x, graph)).abs().sum(1)

    assert torch.equal(difference > 1e-6, torch.tensor([False, False, True, False]))


def test_the_mean_takes_the_place_of_attention() -> None:
    layer = make_layer("hybrid", attention=False)

    assert layer.spatial is not None
    assert layer.spatial.score is None
    assert layer(make_x(), make_graph()).shape == (DEVICES, CHANNELS)


@pytest.mark.parametrize("mode", MODES)
def test_devices_in_another_order_give_the_same_in_that_order(mode: Mode) -> None:
    layer, x, graph = make_layer(mode), make_x(), make_graph()
    order = torch.tensor([2, 0, 3, 1, 5, 4, 6])  # devices among devices, the rest among itself

    place = order.argsort()
    moved = layer(
        x[order],
        make_graph(
            edge_index=place[graph.edge_index],
            laplacian=scaled_laplacian(place[torch.tensor(LINKS).T], BANDWIDTH, DEVICES),
        ),
    )

    assert torch.allclose(moved, layer(x, graph)[order[:DEVICES]])


@pytest.mark.parametrize("mode", MODES)
def test_no_devices_give_no_embeddings(mode: Mode) -> None:
    no_edges = torch.empty(2, 0, dtype=torch.int64)
    graph = make_graph(
        edge_index=no_edges,
        edge_x=torch.empty(0, EDGE_CHANNELS, dtype=torch.float64),
        edge_type=torch.empty(0, dtype=torch.int64),
        num_targets=0,
        laplacian=scaled_laplacian(no_edges, BANDWIDTH[:0], 0),
    )

    assert make_layer(mode)(make_x(), graph).shape == (0, CHANNELS)
    assert make_layer(mode)(make_x()[:0], replace(graph, num_targets=None)).shape == (0, CHANNELS)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_reaches_every_parameter(mode: Mode) -> None:
    layer = make_layer(mode)

    layer(make_x(), make_graph()).square().mul(torch.arange(CHANNELS)).sum().backward()

    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_finite_differences(mode: Mode) -> None:
    layer, graph = make_layer(mode), make_graph()

    assert torch.autograd.gradcheck(lambda x: layer(x, graph), make_x().requires_grad_())


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_embeddings(mode: Mode) -> None:
    x, graph = make_x(), make_graph()
    layer = make_layer(mode, seed=3)

    assert torch.equal(layer(x, graph), layer(x, graph))
    assert torch.equal(layer(x, graph), make_layer(mode, seed=3)(x, graph))
    assert not torch.equal(layer(x, graph), make_layer(mode, seed=4)(x, graph))


@pytest.mark.parametrize("mode", MODES)
def test_serving_in_single_precision_agrees_with_training(mode: Mode) -> None:
    layer, x, graph = make_layer(mode), make_x(), make_graph()
    expected = layer(x, graph).detach()
    assert graph.laplacian is not None

    with torch.inference_mode():
        single = replace(graph, edge_x=graph.edge_x.float(), laplacian=graph.laplacian.float())
        out = layer.float()(x.float(), single)

    assert torch.allclose(out.double(), expected, atol=1e-4)


def test_weights_are_drawn_anew_and_the_gate_opened() -> None:
    layer, x, graph = make_layer("hybrid", seed=3), make_x(), make_graph()
    assert layer.gate is not None
    for parameter in layer.gate.parameters():
        torch.nn.init.ones_(parameter)
    before = {name: value.clone() for name, value in layer.named_parameters()}

    layer.reset_parameters()

    assert gate_of(layer, x, graph).mean() == 0.5
    for name in ("spatial.source", "spatial.target", "spectral", "widen", "narrow"):
        assert not torch.equal(before[f"{name}.weight"], layer.state_dict()[f"{name}.weight"]), name


@pytest.mark.parametrize("mode", ["hybrid", "spectral"])
def test_a_missing_laplacian_is_refused(mode: Mode) -> None:
    with pytest.raises(ValueRangeError, match=f"Laplacian is missing, {mode} propagation needs that of the targets"):
        make_layer(mode)(make_x(), make_graph(laplacian=None))


def test_a_purely_spatial_layer_needs_no_laplacian() -> None:
    layer, x = make_layer("spatial"), make_x()

    assert torch.equal(layer(x, make_graph(laplacian=None)), layer(x, make_graph()))


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="'mixed' does not exist; known: hybrid, spatial, spectral"):
        make_layer(cast("Mode", "mixed"))
