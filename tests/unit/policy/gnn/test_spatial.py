from itertools import product

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATv2Conv

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.spatial import SpatialAttentionConv

CHANNELS, EDGE_CHANNELS, HEADS = 6, 4, 3
EDGES = ((0, 1), (1, 0), (2, 0), (3, 0), (4, 1), (4, 2), (1, 2), (5, 2), (3, 1))
"""Targets 0, 1 and 2 have edges into them, the others none."""
TYPES = (0, 0, 0, 1, 1, 2, 0, 2, 1)
VERTICES = 6


def make_conv(
    edge_types: int = 3, attention: bool = True, edge_channels: int = EDGE_CHANNELS, seed: int = 1
) -> SpatialAttentionConv:
    torch.manual_seed(seed)
    conv = SpatialAttentionConv(CHANNELS, edge_channels, HEADS, edge_types=edge_types, attention=attention)
    conv.double()
    torch.nn.init.normal_(conv.source.bias)  # it starts at 0, where a forgotten bias would not show
    return conv


class Graph:
    """Six vertices with random features."""

    def __init__(self, seed: int = 7) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(VERTICES, CHANNELS, dtype=torch.float64, generator=generator)
        self.edge_index = torch.tensor(EDGES).T.contiguous()
        self.edge_x = torch.randn(len(EDGES), EDGE_CHANNELS, dtype=torch.float64, generator=generator)
        self.edge_type = torch.tensor(TYPES)
        self.edge_weight = torch.rand(len(EDGES), dtype=torch.float64, generator=generator) + 0.5

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.x, self.edge_index, self.edge_x, self.edge_type


@torch.no_grad()
def by_hand(conv: SpatialAttentionConv, graph: Graph, edge_weight: Tensor) -> Tensor:
    """Return the operator's result by the formula, an edge and a head at a time."""
    matrices = conv.source.weight.view(-1, CHANNELS, CHANNELS)
    biases = conv.source.bias.view(-1, CHANNELS)
    edge_matrices = conv.edge.view(-1, EDGE_CHANNELS, CHANNELS)
    width = CHANNELS // HEADS
    out = torch.zeros(VERTICES, CHANNELS, dtype=torch.float64)
    for target, head in product(range(VERTICES), range(HEADS)):
        part = slice(head * width, (head + 1) * width)
        total, numerator = 0.0, torch.zeros(width, dtype=torch.float64)
        for edge, (source, end) in enumerate(EDGES):
            if end != target:
                continue
            kind = TYPES[edge]
            value = matrices[kind] @ graph.x[source] + biases[kind] + graph.edge_x[edge] @ edge_matrices[kind]
            score = 0.0
            if conv.target is not None and conv.score is not None:
                query = conv.target.weight @ graph.x[target] + value
                excited = torch.where(query > 0, query, 0.2 * query)[part]
                score = float(conv.score[kind, head] @ excited)
            part_weight = float(edge_weight[edge]) * float(torch.tensor(score).double().exp())
            total += part_weight
            numerator = numerator + part_weight * value[part]
        if total > 0:
            out[target, part] = numerator / total
    return out


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_each_target_gathers_by_the_formula(attention: bool, weighted: bool) -> None:
    conv, graph = make_conv(attention=attention), Graph()

    out = conv(*graph.arguments(), graph.edge_weight if weighted else None)

    expected = by_hand(conv, graph, graph.edge_weight if weighted else torch.ones(len(EDGES)))
    assert torch.allclose(out, expected, atol=1e-6)


def test_one_edge_type_without_edge_features_is_gatv2() -> None:
    conv, graph = make_conv(edge_types=1), Graph()
    other = GATv2Conv(
        CHANNELS, CHANNELS // HEADS, heads=HEADS, add_self_loops=False, edge_dim=EDGE_CHANNELS, bias=False
    ).double()
    assert conv.target is not None
    with torch.no_grad():
        conv.source.bias.zero_()
        other.lin_l.weight.copy_(conv.source.weight)
        other.lin_r.weight.copy_(conv.target.weight)
        other.lin_edge.weight.copy_(conv.edge.T)
        other.att.copy_(conv.score)
    edge_x = torch.zeros_like(graph.edge_x)
    expected, (_, alpha) = other(graph.x, graph.edge_index, edge_x, return_attention_weights=True)

    assert torch.allclose(conv(graph.x, graph.edge_index, edge_x), expected)
    assert torch.allclose(conv.attention(graph.x, graph.edge_index, edge_x), alpha)
    # The value of GATv2 leaves the edge out, its score does not.
    _, (_, alpha) = other(graph.x, graph.edge_index, graph.edge_x, return_attention_weights=True)
    assert torch.allclose(conv.attention(graph.x, graph.edge_index, graph.edge_x), alpha)


@pytest.mark.parametrize("attention", [True, False])
def test_a_weight_of_two_is_two_equal_edges(attention: bool) -> None:
    conv, graph = make_conv(attention=attention), Graph()
    x, index, edge_x, edge_type = graph.arguments()
    weight = torch.ones(len(EDGES), dtype=torch.float64)
    weight[2] = 2.0
    twice = torch.tensor([*range(len(EDGES)), 2])

    assert torch.allclose(
        conv(x, index, edge_x, edge_type, weight), conv(x, index[:, twice], edge_x[twice], edge_type[twice])
    )


def test_inverse_probabilities_make_numerator_and_denominator_unbiased() -> None:
    conv, graph = make_conv(), Graph()
    x, index, edge_x, edge_type = graph.arguments()
    into = (index[1] == 2).nonzero().flatten()  # three edges, kept with these probabilities
    kept_with = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    parts = conv.attention(x, index[:, into], edge_x[into], edge_type[into])  # exp(s) up to one factor
    numerator, denominator = torch.zeros(CHANNELS, dtype=torch.float64), torch.zeros(HEADS, dtype=torch.float64)
    for flags in product((False, True), repeat=3):
        kept = torch.tensor(flags)
        if not kept.any():
            continue
        chance = torch.where(kept, kept_with, 1 - kept_with).prod()
        edges = into[kept]
        out = conv(x, index[:, edges], edge_x[edges], edge_type[edges], 1 / kept_with[kept])[2]
        total = (parts[kept] / kept_with[kept, None]).sum(0)  # what the result was divided by, [heads]
        numerator += chance * out * total.repeat_interleave(CHANNELS // HEADS)
        denominator += chance * total

    assert torch.allclose(denominator, parts.sum(0))
    assert torch.allclose(numerator, conv(x, index, edge_x, edge_type)[2])


def test_attention_of_a_target_adds_up_to_one_over_edges_of_all_types() -> None:
    conv, graph = make_conv(), Graph()

    alpha = conv.attention(*graph.arguments(), graph.edge_weight)

    assert alpha.shape == (len(EDGES), HEADS)
    sums = torch.zeros(VERTICES, HEADS, dtype=torch.float64).index_add_(0, graph.edge_index[1], alpha)
    assert torch.allclose(sums, torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)[:, None].expand(-1, HEADS))


def test_without_attention_every_neighbour_weighs_the_same() -> None:
    conv, graph = make_conv(attention=False), Graph()

    assert torch.allclose(conv.attention(*graph.arguments()), torch.full((len(EDGES), 1), 1 / 3, dtype=torch.float64))
    assert {name for name, _ in conv.named_parameters()} == {"source.weight", "source.bias", "edge"}


def test_targets_without_edges_get_zeros() -> None:
    graph = Graph()

    out = make_conv()(*graph.arguments())

    assert torch.equal(out[3:], torch.zeros(3, CHANNELS, dtype=torch.float64))
    assert (out[:3].abs().sum(1) > 0).all()


@pytest.mark.parametrize("attention", [True, False])
def test_only_the_first_vertices_receive(attention: bool) -> None:
    conv, graph = make_conv(attention=attention), Graph()

    out = conv(*graph.arguments(), num_targets=3)

    assert torch.allclose(out, conv(*graph.arguments())[:3])


def test_scores_too_large_for_an_exponential_stay_finite() -> None:
    conv, graph = make_conv(), Graph()
    assert conv.score is not None
    with torch.no_grad():
        conv.score.mul_(1e5)

    assert torch.isfinite(conv(*graph.arguments())).all()


@pytest.mark.parametrize("changed", ["x", "edge_x", "edge_type"])
def test_every_input_counts(changed: str) -> None:
    conv, graph, other = make_conv(), Graph(), Graph()
    if changed == "edge_type":
        other.edge_type[0] = 2  # the only change, on the edge from 0 to 1
    else:
        getattr(other, changed)[0] += 1.0

    difference = (conv(*other.arguments()) - conv(*graph.arguments())).abs().sum(1)

    assert difference[1] > 1e-6
    assert difference[2] == 0  # neither vertex 0 nor the edge 0 leads there


def test_vertices_and_edges_in_another_order_give_the_same_in_that_order() -> None:
    conv, graph = make_conv(), Graph()
    x, index, edge_x, edge_type = graph.arguments()
    order = torch.tensor([3, 0, 5, 1, 2, 4])
    edges = torch.tensor([4, 8, 0, 2, 6, 1, 3, 7, 5])

    moved = conv(x[order], order.argsort()[index][:, edges], edge_x[edges], edge_type[edges], graph.edge_weight[edges])

    assert torch.allclose(moved, conv(x, index, edge_x, edge_type, graph.edge_weight)[order])


def test_a_graph_is_not_changed_by_another_beside_it() -> None:
    conv, graph, other = make_conv(), Graph(), Graph(seed=8)
    beside = torch.cat((graph.edge_index, other.edge_index + VERTICES), dim=1)

    both = conv(
        torch.cat((graph.x, 1e3 * other.x)),
        beside,
        torch.cat((graph.edge_x, other.edge_x)),
        torch.cat((graph.edge_type, other.edge_type)),
    )

    assert torch.allclose(both[:VERTICES], conv(*graph.arguments()))


def test_edges_without_features_are_allowed() -> None:
    conv, graph = make_conv(edge_channels=0), Graph()

    out = conv(graph.x, graph.edge_index, graph.edge_x[:, :0], graph.edge_type)

    assert (out[:3].abs().sum(1) > 0).all()


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("vertices", [0, VERTICES])
def test_a_graph_without_edges_gives_zeros(vertices: int, attention: bool) -> None:
    x, index, edge_x, edge_type = Graph().arguments()

    out = make_conv(attention=attention)(x[:vertices], index[:, :0], edge_x[:0], edge_type[:0])

    assert torch.equal(out, torch.zeros(vertices, CHANNELS, dtype=torch.float64))


@pytest.mark.parametrize("attention", [True, False])
def test_gradient_reaches_every_parameter(attention: bool) -> None:
    conv, graph = make_conv(attention=attention), Graph()

    conv(*graph.arguments(), graph.edge_weight).square().sum().backward()

    for name, parameter in conv.named_parameters():
        assert parameter.grad is not None, name
        # Of each edge type, too: each is a slice of the first dimension.
        for grad in parameter.grad.chunk(1 if name == "target.weight" else 3):
            assert grad.abs().sum() > 0, name


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("edge_types", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_are_those_of_finite_differences(attention: bool, edge_types: int) -> None:
    conv, graph = make_conv(edge_types=edge_types, attention=attention), Graph()
    inputs = (graph.x, graph.edge_x, graph.edge_weight, *conv.parameters())
    names = [name for name, _ in conv.named_parameters()]

    def result(x: Tensor, edge_x: Tensor, weight: Tensor, *parameters: Tensor) -> Tensor:
        given = (x, graph.edge_index, edge_x, graph.edge_type, weight)
        out: Tensor = torch.func.functional_call(conv, dict(zip(names, parameters, strict=True)), given)
        return out

    assert torch.autograd.gradcheck(result, tuple(tensor.detach().requires_grad_() for tensor in inputs))


def test_the_same_seed_gives_the_same_embeddings() -> None:
    graph = Graph()
    conv = make_conv(seed=3)

    assert torch.equal(conv(*graph.arguments()), conv(*graph.arguments()))
    assert torch.equal(conv(*graph.arguments()), make_conv(seed=3)(*graph.arguments()))
    assert not torch.equal(conv(*graph.arguments()), make_conv(seed=4)(*graph.arguments()))


def test_inputs_are_left_as_they_are() -> None:
    graph, untouched = Graph(), Graph()

    with torch.inference_mode():
        make_conv()(*graph.arguments(), graph.edge_weight)

    assert all(torch.equal(a, b) for a, b in zip(graph.arguments(), untouched.arguments(), strict=True))
    assert torch.equal(graph.edge_weight, untouched.edge_weight)


@pytest.mark.parametrize(
    ("channels", "heads", "edge_types", "message"),
    [(7, 3, 1, "3 attention heads do not divide 7"), (6, 0, 1, "0 attention heads"), (6, 3, 0, "edge types are 0")],
)
def test_sizes_that_do_not_fit_are_refused(channels: int, heads: int, edge_types: int, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        SpatialAttentionConv(channels, EDGE_CHANNELS, heads, edge_types=edge_types)


def test_missing_edge_types_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="type of each edge is missing, there are 3 types"):
        make_conv()(*Graph().arguments()[:3])
