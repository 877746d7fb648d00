import pytest
import torch
from torch import Tensor
from torch_geometric.nn import ChebConv

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.propagation import ChebyshevConv, scaled_laplacian

PATH = ((0, 1, 2.0), (1, 2, 0.5), (2, 3, 1.0), (3, 4, 4.0))
"""Five vertices in a row."""


def make_conv(order: int = 4, seed: int = 1, channels: tuple[int, int] = (3, 2)) -> ChebyshevConv:
    torch.manual_seed(seed)
    conv = ChebyshevConv(*channels, order)
    conv.double()
    return conv


def make_edges(*edges: tuple[int, int, float]) -> tuple[Tensor, Tensor]:
    """Return edge index and weights, each edge in both directions."""
    pairs = [(a, b) for a, b, _ in edges] + [(b, a) for a, b, _ in edges]
    weights = [weight for *_, weight in edges] * 2
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous(), torch.tensor(weights, dtype=torch.float64)


def make_random_edges(vertices: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(vertices, vertices, generator=generator)
    return make_edges(
        *((a, b, float(drawn[a, b]) + 0.1) for a in range(vertices) for b in range(a) if drawn[a, b] < 0.6)
    )


def make_x(vertices: int, channels: int = 3) -> Tensor:
    return torch.randn(vertices, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


def test_the_filter_is_one_of_the_eigenvalues() -> None:
    conv, x = make_conv(), make_x(7)
    index, weight = make_random_edges(7)
    adjacency = torch.zeros(7, 7, dtype=torch.float64)
    adjacency[index[1], index[0]] = weight
    scale = torch.diag(adjacency.sum(1).rsqrt())
    values, vectors = torch.linalg.eigh(torch.eye(7, dtype=torch.float64) - scale @ adjacency @ scale)
    angle = torch.acos((values - 1.0).clamp(-1.0, 1.0))

    # T_k(cos a) = cos(k a): the polynomials without their recurrence.
    expected = sum(vectors @ torch.diag(torch.cos(k * angle)) @ vectors.T @ x @ conv.weight[k] for k in range(4))

    assert torch.allclose(conv(x, index, weight), expected)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_filter_is_that_of_torch_geometric(order: int, weighted: bool) -> None:
    conv, x = make_conv(order), make_x(9)
    index, weight = make_random_edges(9)
    other = ChebConv(3, 2, K=order, normalization="sym", bias=False).double()
    with torch.no_grad():
        for k in range(order):
            other.lins[k].weight.copy_(conv.weight[k].T)
    given = weight if weighted else None

    assert torch.allclose(conv(x, index, given), other(x, index, given, lambda_max=torch.tensor(2.0)))


def test_one_polynomial_looks_at_no_neighbour() -> None:
    conv, x = make_conv(order=1), make_x(5)

    assert torch.allclose(conv(x, *make_edges(*PATH)), x @ conv.weight[0])


def test_the_filter_reaches_one_edge_less_than_its_order() -> None:
    conv, x = make_conv(order=3), make_x(5)
    changed = x.clone()
    changed[0] += 1.0

    difference = (conv(changed, *make_edges(*PATH)) - conv(x, *make_edges(*PATH))).abs().sum(1)

    assert (difference[:3] > 1e-6).all()
    assert torch.equal(difference[3:], torch.zeros(2, dtype=torch.float64))


def test_a_vertex_without_edges_keeps_to_itself() -> None:
    conv, x = make_conv(order=3), make_x(3)

    out = conv(x, *make_edges((0, 1, 1.0)))

    # T_0 = 1, T_1(0) = 0, T_2(0) = -1.
    assert torch.allclose(out[2], x[2] @ (conv.weight[0] - conv.weight[2]))


def test_an_edge_that_weighs_nothing_is_no_edge() -> None:
    conv, x = make_conv(), make_x(4)

    with_it = conv(x, *make_edges((0, 1, 1.0), (2, 3, 0.0)))

    assert torch.isfinite(with_it).all()
    assert torch.allclose(with_it, conv(x, *make_edges((0, 1, 1.0))))
    single = scaled_laplacian(make_edges((0, 1, 0.0))[0], torch.zeros(2), 2)
    assert torch.equal(single.to_dense(), torch.zeros(2, 2))


def test_the_laplacian_is_the_same_for_weights_in_another_unit() -> None:
    index, weight = make_edges(*PATH)

    assert torch.allclose(
        scaled_laplacian(index, weight, 5).to_dense(), scaled_laplacian(index, weight * 1e6, 5).to_dense()
    )


def test_layers_share_one_laplacian() -> None:
    conv, x = make_conv(), make_x(5)
    index, weight = make_edges(*PATH)

    assert torch.equal(conv.filter(x, scaled_laplacian(index, weight, 5)), conv(x, index, weight))


def test_vertices_in_another_order_give_the_same_in_that_order() -> None:
    conv, x = make_conv(), make_x(8)
    index, weight = make_random_edges(8)
    order = torch.tensor([3, 0, 7, 5, 1, 2, 6, 4])
    edges = torch.randperm(index.shape[1], generator=torch.Generator().manual_seed(2))

    moved = conv(x[order], order.argsort()[index][:, edges], weight[edges])

    assert torch.allclose(moved, conv(x, index, weight)[order])


def test_a_graph_is_not_changed_by_another_beside_it() -> None:
    conv, x = make_conv(), make_x(10)
    index, weight = make_edges(*PATH)

    both = conv(x, torch.cat((index, index + 5), dim=1), torch.cat((weight, weight * 3)))

    assert torch.allclose(both, torch.cat((conv(x[:5], index, weight), conv(x[5:], index, weight))))


@pytest.mark.parametrize("vertices", [0, 3])
def test_a_graph_without_edges_is_allowed(vertices: int) -> None:
    conv, x = make_conv(order=2), make_x(vertices)

    assert torch.allclose(conv(x, *make_edges()), x @ conv.weight[0])


def test_an_edge_to_a_vertex_that_does_not_exist_is_refused() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        make_conv()(make_x(4), *make_edges(*PATH))


def test_gradient_reaches_every_parameter() -> None:
    conv = make_conv()

    conv(make_x(5), *make_edges(*PATH)).square().sum().backward()

    assert conv.weight.grad is not None
    assert (conv.weight.grad.abs().sum((1, 2)) > 0).all()


def test_gradients_are_those_of_finite_differences() -> None:
    conv, x = make_conv(), make_x(5).requires_grad_()
    index, weight = make_edges(*PATH)
    weight.requires_grad_()

    # The degree of a vertex makes its edges depend on each other: weights are varied as well.
    assert torch.autograd.gradcheck(lambda a, b: conv(a, index, b), (x, weight))


def test_the_same_seed_gives_the_same_embeddings() -> None:
    x, edges = make_x(5), make_edges(*PATH)
    conv = make_conv(seed=3)

    assert torch.equal(conv(x, *edges), conv(x, *edges))
    assert torch.equal(conv(x, *edges), make_conv(seed=3)(x, *edges))
    assert not torch.equal(conv(x, *edges), make_conv(seed=4)(x, *edges))


def test_an_order_below_one_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="order is 0, it must be at least 1"):
        ChebyshevConv(3, 3, 0)
