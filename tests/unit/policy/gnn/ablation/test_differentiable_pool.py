import pytest
import torch
from torch_geometric.nn import DenseGraphConv, dense_diff_pool

from slurm_energy.policy.gnn.ablation.pools import DifferentiablePool
from slurm_energy.policy.gnn.pooling import Vertices

CHANNELS, POOLED = 6, 3


def make_node(devices: int, seed: int = 1) -> Vertices:
    torch.manual_seed(seed)
    adjacency = torch.rand(1, devices, devices)
    adjacency = (adjacency + adjacency.transpose(1, 2)) * (1 - torch.eye(devices))
    return Vertices(torch.randn(1, devices, CHANNELS), torch.ones(1, devices), adjacency)


def padded(node: Vertices, devices: int) -> Vertices:
    more = devices - node.x.shape[1]
    pad = torch.nn.functional.pad
    return Vertices(pad(node.x, (0, 0, 0, more)), pad(node.mass, (0, more)), pad(node.adjacency, (0, more, 0, more)))


def make_pool() -> DifferentiablePool:
    torch.manual_seed(2)
    return DifferentiablePool(CHANNELS, POOLED)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_one_node_is_pooled_as_by_torch_geometric(devices: int) -> None:
    pool, node = make_pool(), make_node(devices)
    x, adjacency, link_loss, entropy_loss = dense_diff_pool(node.x, node.adjacency, pool.logits(node))
    found = pool(node)
    torch.testing.assert_close(found.vertices.x, x)
    torch.testing.assert_close(found.vertices.adjacency, adjacency)
    torch.testing.assert_close(found.link_loss, link_loss)
    torch.testing.assert_close(found.entropy_loss, entropy_loss)


def test_nodes_of_unlike_size_are_pooled_as_by_torch_geometric_with_a_mask() -> None:
    pool = make_pool()
    nodes = [padded(make_node(devices, seed=devices), 5) for devices in (2, 5, 3)]
    batch = Vertices(*(torch.cat(parts) for parts in zip(*nodes, strict=True)))
    x, adjacency, _, _ = dense_diff_pool(batch.x, batch.adjacency, pool.logits(batch), batch.mass.bool())
    found = pool(batch).vertices
    torch.testing.assert_close(found.x, x)
    torch.testing.assert_close(found.adjacency, adjacency)


def test_losses_are_means_over_nodes_and_over_devices_whatever_the_padding() -> None:
    pool = make_pool()
    sizes = (2, 5, 3)
    alone = [pool(make_node(size, seed=size)) for size in sizes]
    nodes = [padded(make_node(size, seed=size), 7) for size in sizes]
    empty = Vertices(torch.zeros(1, 7, CHANNELS), torch.zeros(1, 7), torch.zeros(1, 7, 7))
    found = pool(Vertices(*(torch.cat(parts) for parts in zip(*nodes, empty, strict=True))))
    torch.testing.assert_close(found.link_loss, torch.stack([one.link_loss for one in alone]).mean())
    entropy = sum(size * one.entropy_loss for size, one in zip(sizes, alone, strict=True)) / sum(sizes)
    torch.testing.assert_close(found.entropy_loss, entropy)


def test_assignment_scores_are_those_of_a_dense_graph_convolution() -> None:
    pool, node = make_pool(), make_node(4)
    layer = DenseGraphConv(CHANNELS, CHANNELS, aggr="add")
    with torch.no_grad():
        layer.lin_root.weight.copy_(pool.own.weight)
        layer.lin_rel.weight.copy_(pool.neighbour.weight)
        layer.lin_rel.bias.copy_(pool.own.bias)
    normalised = node.adjacency / (1 + node.adjacency.sum(dim=2, keepdim=True))
    expected = torch.relu(layer(node.x, normalised)) @ pool.assignment.weight.T + pool.assignment.bias
    torch.testing.assert_close(pool.logits(node), expected)


def test_mass_and_link_weight_are_kept() -> None:
    node = padded(make_node(4), 6)
    vertices = make_pool()(node).vertices
    assert vertices.mass.sum().item() == pytest.approx(4.0)
    assert vertices.adjacency.sum().item() == pytest.approx(node.adjacency.sum().item(), rel=1e-5)
    torch.testing.assert_close(vertices.x.sum(dim=1), node.x.sum(dim=1))


def test_the_order_of_devices_does_not_matter() -> None:
    pool, node = make_pool(), make_node(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = Vertices(node.x[:, order], node.mass, node.adjacency[:, order][:, :, order])
    for found, expected in zip(pool(shuffled).vertices, pool(node).vertices, strict=True):
        torch.testing.assert_close(found, expected)


def test_an_empty_node_is_all_padding() -> None:
    empty = Vertices(torch.zeros(1, 3, CHANNELS), torch.zeros(1, 3), torch.zeros(1, 3, 3))
    found = make_pool()(empty)
    assert all(not bool(part.any()) for part in found.vertices)
    assert (found.link_loss.item(), found.entropy_loss.item()) == (0.0, 0.0)


@pytest.mark.parametrize("of", ["x", "link_loss", "entropy_loss"])
def test_gradient_reaches_every_parameter(of: str) -> None:
    pool = make_pool()
    found = pool(padded(make_node(4), 6))
    (found.vertices.x.square().sum() if of == "x" else getattr(found, of)).backward()
    for name, parameter in pool.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name
        assert bool(torch.isfinite(parameter.grad).all()), name


def test_the_losses_teach_it_to_tell_two_islands_apart() -> None:
    torch.manual_seed(0)
    islands = torch.kron(torch.eye(2), torch.ones(2, 2)) - torch.eye(4)
    x = torch.cat([torch.ones(2, CHANNELS), -torch.ones(2, CHANNELS)])
    node = Vertices(x[None], torch.ones(1, 4), islands[None])
    pool = DifferentiablePool(CHANNELS, 2)
    optimiser = torch.optim.Adam(pool.parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        found = pool(node)
        (found.link_loss + 0.1 * found.entropy_loss).backward()
        optimiser.step()
    choice = pool.logits(node)[0].argmax(dim=1).tolist()
    assert choice[0] == choice[1] != choice[2] == choice[3]
    assert found.entropy_loss.item() < 0.1


def test_weights_are_drawn_from_the_seed() -> None:
    first, second = make_pool(), make_pool()
    assert torch.equal(first.own.weight, second.own.weight)
    second.reset_parameters()
    assert not torch.equal(first.own.weight, second.own.weight)
