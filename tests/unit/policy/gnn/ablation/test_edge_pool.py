import pytest
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.nn import EdgePooling
from torch_geometric.utils import to_dense_adj

from slurm_energy.policy.gnn.ablation.pools import EdgePool
from slurm_energy.policy.gnn.pooling import Vertices

CHANNELS = 5


def make_nodes(devices: int, nodes: int = 20, share: float = 0.5) -> Vertices:
    """Nodes whose devices and links all differ."""
    torch.manual_seed(devices)
    weight = torch.rand(nodes, devices, devices) * (torch.rand(nodes, devices, devices) < share)
    weight = (weight + weight.transpose(1, 2)) * (1 - torch.eye(devices))
    return Vertices(torch.randn(nodes, devices, CHANNELS), torch.ones(nodes, devices), weight)


def alike(devices: int) -> Vertices:
    return Vertices(
        torch.full((1, devices, CHANNELS), 0.3), torch.ones(1, devices), 1 - torch.eye(devices)[None].clone()
    )


def make_pool() -> EdgePool:
    torch.manual_seed(3)
    return EdgePool(CHANNELS)


def shuffled(nodes: Vertices, order: Tensor) -> Vertices:
    return Vertices(nodes.x[:, order], nodes.mass[:, order], nodes.adjacency[:, order][:, :, order])


def sorted_rows(x: Tensor) -> Tensor:
    return x[torch.argsort(x[:, 0])]


def components(adjacency: Tensor, mass: Tensor) -> int:
    present = mass > 0
    return int(connected_components((adjacency[present][:, present] > 0).numpy())[0])


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_nodes_are_pooled_as_by_torch_geometric_where_it_has_the_same_score(devices: int) -> None:
    pool = make_pool()
    other = EdgePooling(CHANNELS, edge_score_method=EdgePooling.compute_edge_score_sigmoid)  # adds 0.5
    with torch.no_grad():
        pool.pair.zero_()
        pool.link.zero_()
        other.lin.weight.copy_(torch.cat([pool.end.weight, pool.end.weight], dim=1))
        other.lin.bias.copy_(2 * pool.end.bias)
    nodes = make_nodes(devices)
    pooled = pool(nodes)
    for node in range(len(nodes.x)):
        edges = nodes.adjacency[node].nonzero().T
        x, edge_index, _, _ = other(nodes.x[node], edges, torch.zeros(devices, dtype=torch.long))
        present = pooled.mass[node] > 0
        order, other_order = pooled.x[node, present][:, 0].argsort(), x[:, 0].argsort()
        torch.testing.assert_close(pooled.x[node, present][order], x[other_order])
        linked = pooled.adjacency[node][present][:, present][order][:, order] > 0
        other_linked = to_dense_adj(edge_index, max_num_nodes=len(x))[0][other_order][:, other_order] > 0
        assert torch.equal(linked, other_linked)


def test_three_devices_in_a_row_are_pooled_by_hand() -> None:
    pool = make_pool()
    x = torch.tensor([[1.0, 0.0, 0.2, -1.0, 0.4], [0.5, 1.0, -0.3, 0.1, 0.0], [-0.7, 0.2, 0.6, 0.9, -0.2]])
    links = torch.tensor([[0.0, 0.9, 0.0], [0.9, 0.0, 0.4], [0.0, 0.4, 0.0]])

    def score(i: int, j: int) -> Tensor:
        one = pool.end.weight[0] @ (x[i] + x[j]) + 2 * pool.end.bias[0]
        return 0.5 + torch.sigmoid(one + (x[i] * pool.pair * x[j]).sum() / CHANNELS**0.5 + pool.link * links[i, j])

    pooled = pool(Vertices(x[None], torch.ones(1, 3), links[None]))
    assert score(0, 1) > score(1, 2)
    torch.testing.assert_close(pooled.x[0], torch.stack([score(0, 1) * (x[0] + x[1]), torch.zeros(CHANNELS), x[2]]))
    torch.testing.assert_close(pooled.adjacency[0], torch.tensor([[1.8, 0.0, 0.4], [0.0, 0.0, 0.0], [0.4, 0.0, 0.0]]))


def test_the_link_that_scores_higher_is_contracted() -> None:
    pool = make_pool()
    nodes = alike(3)._replace(adjacency=torch.tensor([[[0.0, 0.2, 0.0], [0.2, 0.0, 0.9], [0.0, 0.9, 0.0]]]))
    assert pool(nodes).mass.tolist() == [[1.0, 2.0, 0.0]]
    with torch.no_grad():
        pool.link.neg_()
    assert pool(nodes).mass.tolist() == [[2.0, 0.0, 1.0]]


def test_scores_are_the_same_in_both_directions() -> None:
    score = make_pool().score(make_nodes(6))
    torch.testing.assert_close(score, score.transpose(1, 2))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6])
def test_contraction_keeps_the_number_of_connected_parts(share: float) -> None:
    nodes = make_nodes(8, nodes=60, share=share)
    pooled = make_pool()(nodes)
    parts = [components(nodes.adjacency[n], nodes.mass[n]) for n in range(60)]
    assert len(set(parts)) > 1 or share > 0.5
    assert [components(pooled.adjacency[n], pooled.mass[n]) for n in range(60)] == parts
    torch.testing.assert_close(pooled.adjacency.sum(dim=(1, 2)), nodes.adjacency.sum(dim=(1, 2)))


def test_the_matching_is_maximal() -> None:
    nodes = make_nodes(8, nodes=60, share=0.2)
    pooled = make_pool()(nodes)
    single = pooled.mass == 1
    assert bool(single.any())
    linked = (pooled.adjacency > 0) & ~torch.eye(8, dtype=torch.bool)
    assert not bool((linked & single[:, :, None] & single[:, None, :]).any())


def test_a_device_in_no_contracted_link_is_kept_as_it_is() -> None:
    nodes = make_nodes(3, nodes=1, share=0.0)
    pooled = make_pool()(nodes)
    torch.testing.assert_close(pooled.x, nodes.x)
    assert pooled.mass.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_devices_that_tie_become_what_their_pairs_would_be(devices: int) -> None:
    pool, nodes = make_pool(), alike(devices)
    pooled = pool(nodes)
    pair = pool.score(nodes)[0, 0, 1] * (nodes.x[0, 0] + nodes.x[0, 1])
    torch.testing.assert_close(pooled.x[0, 0], pair)
    assert pooled.mass[0].tolist() == [float(devices)] + [0.0] * (devices - 1)


def test_rounding_does_not_pair_devices_that_are_alike() -> None:
    pool, nodes = make_pool(), alike(8)
    nodes = nodes._replace(x=nodes.x * (1 + 3e-5 * torch.randn(8, CHANNELS)))
    assert pool(nodes).mass[0, 0].item() == 8.0


def test_a_ring_of_alike_devices_is_contracted_as_one() -> None:
    ring = torch.roll(torch.eye(5), 1, dims=0)
    nodes = alike(5)._replace(adjacency=(ring + ring.T)[None])
    assert make_pool()(nodes).mass.tolist() == [[5.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", ["differ", "tie"])
def test_the_order_of_devices_does_not_matter(kind: str) -> None:
    torch.manual_seed(8)
    nodes = make_nodes(8, nodes=1)
    if kind == "tie":
        kinds = torch.randn(2, CHANNELS)[torch.tensor([0, 0, 1, 0, 1, 0, 0, 0])]
        nodes = alike(8)._replace(x=kinds[None])
    pool = make_pool()
    expected = sorted_rows(pool(nodes).x[0])
    for _ in range(5):
        torch.testing.assert_close(sorted_rows(pool(shuffled(nodes, torch.randperm(8))).x[0]), expected)


def test_gradient_reaches_every_parameter() -> None:
    pool = make_pool()
    pool(make_nodes(4)).x.square().sum().backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_the_gradient_is_that_of_small_differences() -> None:
    pool = make_pool().double()
    nodes = Vertices(*(part.double() for part in make_nodes(4, nodes=2)))
    x = nodes.x.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda value: pool(nodes._replace(x=value)).x, (x,))


def test_weights_are_drawn_from_the_seed() -> None:
    first, second = make_pool(), make_pool()
    assert torch.equal(first.pair, second.pair)
    second.reset_parameters()
    assert not torch.equal(first.pair, second.pair)
