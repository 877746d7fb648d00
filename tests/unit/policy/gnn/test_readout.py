import pytest
import torch
from torch import Tensor

from slurm_energy.policy.gnn.pooling import Readout, Vertices, summarise

CHANNELS = 4


def three_devices() -> Vertices:
    torch.manual_seed(1)
    links = torch.tensor([[[0.0, 1.0, 0.3], [1.0, 0.0, 0.2], [0.3, 0.2, 0.0]]])
    return Vertices(torch.randn(1, 3, CHANNELS), torch.ones(1, 3), links)


def first_two_merged(devices: Vertices) -> Vertices:
    """Device 0 and 1 as one vertex, device 2 as the other."""
    x = torch.stack([devices.x[0, :2].mean(dim=0), devices.x[0, 2]])[None]
    return Vertices(x, torch.tensor([[2.0, 1.0]]), torch.tensor([[[2.0, 0.5], [0.5, 0.0]]]))


def padded(vertices: Vertices, rows: int) -> Vertices:
    x, mass, adjacency = vertices
    pad = torch.nn.functional.pad
    return Vertices(pad(x, (0, 0, 0, rows)), pad(mass, (0, rows)), pad(adjacency, (0, rows, 0, rows)))


def make_readout() -> Readout:
    torch.manual_seed(2)
    return Readout(CHANNELS)


def by_hand(readout: Readout, vertices: Vertices, devices: Vertices) -> Tensor:
    """One node, vertex by vertex."""
    x, mass, links = vertices.x[0], vertices.mass[0], vertices.adjacency[0]
    number = len(x)
    heard = []
    for v in range(number):
        others = [u for u in range(number) if u != v]
        strength = sum((links[v, u] for u in others), torch.tensor(0.0))
        sent = sum((links[v, u] * (readout.neighbour.weight @ x[u]) for u in others), torch.zeros(CHANNELS))
        heard.append(x[v] + sent / (1 + strength))
    weights = [mass[v] * torch.exp(3 * torch.tanh(readout.attention.weight[0] @ heard[v])) for v in range(number)]
    mean = sum((w * h for w, h in zip(weights, heard, strict=True)), torch.zeros(CHANNELS)) / sum(weights)
    largest = torch.stack(heard).amax(dim=0)
    own = devices.x[0]
    pairs = [devices.adjacency[0, i, j] for i in range(len(own)) for j in range(len(own)) if i != j]
    bandwidth = torch.stack(pairs).mean()
    crossing = sum(links[v, u] for v in range(number) for u in range(number) if u != v) / torch.stack(pairs).sum()
    capacity = own.sum(dim=0) / 8
    spread = (own.var(dim=0, correction=0) + 1e-6).sqrt() - 1e-3
    parts = torch.cat([mean, largest, spread, capacity, torch.stack([bandwidth, torch.as_tensor(crossing)])])
    return readout.out.weight @ parts + readout.out.bias


def test_the_embedding_is_that_of_the_formula() -> None:
    devices, readout = three_devices(), make_readout()
    for vertices in (devices, first_two_merged(devices)):
        expected = by_hand(readout, vertices, devices)
        torch.testing.assert_close(readout(vertices, summarise(devices))[0], expected)


def test_summary_has_mean_largest_and_spread_of_the_devices_alone() -> None:
    devices = padded(three_devices(), 2)
    summary = summarise(devices)
    own = devices.x[0, :3]
    torch.testing.assert_close(summary.mean[0], own.mean(dim=0))
    torch.testing.assert_close(summary.largest[0], own.amax(dim=0))
    torch.testing.assert_close(summary.spread[0], own.std(dim=0, correction=0), atol=1.1e-3, rtol=0)
    assert summary.number.tolist() == [[3.0]]
    assert summary.link_weight.item() == pytest.approx(3.0)


def test_devices_that_are_all_alike_have_no_spread() -> None:
    devices = Vertices(torch.full((1, 4, CHANNELS), 0.7), torch.ones(1, 4), torch.zeros(1, 4, 4))
    torch.testing.assert_close(summarise(devices).spread, torch.zeros(1, CHANNELS), atol=1e-6, rtol=0)


def test_spread_has_a_finite_slope_where_devices_are_alike() -> None:
    x = torch.full((1, 4, CHANNELS), 0.7, requires_grad=True)
    spread = summarise(Vertices(x, torch.ones(1, 4), torch.zeros(1, 4, 4))).spread
    (slope,) = torch.autograd.grad(spread.sum(), x)
    assert bool(torch.isfinite(slope).all())


def test_padding_changes_nothing() -> None:
    devices, readout = three_devices(), make_readout()
    devices = devices._replace(x=devices.x - 5.0)  # a padding of zeros would be the largest
    expected = readout(first_two_merged(devices), summarise(devices))
    found = readout(padded(first_two_merged(devices), 3), summarise(padded(devices, 2)))
    torch.testing.assert_close(found, expected)


def test_the_order_of_vertices_does_not_matter() -> None:
    devices, readout = three_devices(), make_readout()
    order = torch.tensor([2, 0, 1])
    shuffled = Vertices(devices.x[:, order], devices.mass[:, order], devices.adjacency[:, order][:, :, order])
    torch.testing.assert_close(readout(shuffled, summarise(shuffled)), readout(devices, summarise(devices)))


def test_alike_devices_count_the_same_as_one_vertex_or_as_several() -> None:
    x = torch.tensor([[[1.0, -2.0, 0.5, 3.0], [1.0, -2.0, 0.5, 3.0], [-1.0, 0.0, 2.0, 0.4]]])
    devices = Vertices(x, torch.ones(1, 3), torch.zeros(1, 3, 3))
    merged = Vertices(x[:, 1:], torch.tensor([[2.0, 1.0]]), torch.zeros(1, 2, 2))
    readout = make_readout()
    torch.testing.assert_close(readout(merged, summarise(devices)), readout(devices, summarise(devices)))
    unweighted = merged._replace(mass=torch.ones(1, 2))
    assert not torch.allclose(readout(unweighted, summarise(devices)), readout(devices, summarise(devices)))


def test_a_node_without_devices_gets_zeros_and_no_gradient_that_is_not_finite() -> None:
    devices, readout = three_devices(), make_readout()
    two = Vertices(*(torch.cat([part, torch.zeros_like(part)]) for part in devices))
    embedding = readout(two, summarise(two))
    assert embedding[1].tolist() == [0.0] * CHANNELS
    embedding.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in readout.parameters() if p.grad is not None)


def test_gradient_reaches_every_parameter() -> None:
    devices, readout = three_devices(), make_readout()
    readout(devices, summarise(devices)).square().sum().backward()
    for name, parameter in readout.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_weights_are_drawn_from_the_seed() -> None:
    first, second = make_readout(), make_readout()
    assert torch.equal(first.out.weight, second.out.weight)
    second.reset_parameters()
    assert not torch.equal(first.out.weight, second.out.weight)
