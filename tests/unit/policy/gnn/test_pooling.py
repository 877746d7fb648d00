from typing import NamedTuple, get_args

import pytest
import torch
from torch import Tensor

from slurm_energy.policy.gnn.configuration import Pooling
from slurm_energy.policy.gnn.pooling import STRATEGIES, CoarseningPool, NodePooling, PooledDevices, side_by_side

CHANNELS, POOLED = 6, 2
MODES: tuple[Pooling, ...] = get_args(Pooling)


class Block(NamedTuple):
    """Arguments of the pooling."""

    x: Tensor
    gpu_node: Tensor
    num_nodes: int
    link_index: Tensor
    link_weight: Tensor


def make_node(devices: int, kinds: int | None = None) -> Block:
    """One node, all linked in two islands; with `kinds`, devices of one kind are alike in all."""
    x = torch.randn(devices, CHANNELS)
    if kinds is not None:
        x = x[torch.arange(devices) % kinds]
    pairs = [(i, j) for i in range(devices) for j in range(devices) if i != j]
    weight = [1.0 if (i < devices / 2) == (j < devices / 2) else 0.4 for i, j in pairs]
    index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    return Block(x, torch.zeros(devices, dtype=torch.long), 1, index, torch.tensor(weight))


def joined(nodes: list[Block]) -> Block:
    first = torch.tensor([0, *(len(node.x) for node in nodes)]).cumsum(0)
    return Block(
        torch.cat([node.x for node in nodes]),
        torch.cat([node.gpu_node + n for n, node in enumerate(nodes)]),
        len(nodes),
        torch.cat([node.link_index + first[n] for n, node in enumerate(nodes)], dim=1),
        torch.cat([node.link_weight for node in nodes]),
    )


def mixed_sizes() -> list[Block]:
    torch.manual_seed(1)
    return [
        make_node(0),
        make_node(8, kinds=1),
        make_node(1),
        make_node(8, kinds=2),
        make_node(0),
        make_node(3),
        make_node(8),
        make_node(2),
    ]


def reordered(block: Block, order: Tensor) -> Block:
    """The same single node with its devices in another order."""
    return block._replace(x=block.x[order], link_index=torch.argsort(order)[block.link_index])


def make_pooling(mode: Pooling) -> NodePooling:
    torch.manual_seed(2)
    return NodePooling(CHANNELS, mode, POOLED)


def test_devices_are_put_side_by_side() -> None:
    x = torch.arange(8.0).reshape(4, 2)
    index = torch.tensor([[1, 3, 2], [3, 1, 3]])
    devices = side_by_side(x, torch.tensor([0, 2, 2, 2]), 4, index, torch.tensor([0.5, 0.5, 0.7]))
    empty = [[0.0, 0.0]] * 3
    assert devices.x.tolist() == [
        [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]],
        empty,
        [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]],
        empty,
    ]
    assert devices.mass.tolist() == [[1.0, 0.0, 0.0], [0.0] * 3, [1.0] * 3, [0.0] * 3]
    expected = torch.zeros(4, 3, 3)
    expected[2, 0, 2] = expected[2, 2, 0] = 0.5
    expected[2, 1, 2] = expected[2, 2, 1] = 0.7  # given in one direction alone
    assert torch.equal(devices.adjacency, expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_node_depends_on_nothing_outside_it(mode: Pooling) -> None:
    nodes, pooling = mixed_sizes(), make_pooling(mode)
    together = pooling(*joined(nodes))
    with_a_larger = pooling(*joined([*nodes, make_node(16)]))
    for n, node in enumerate(nodes):
        alone = pooling(*node)
        torch.testing.assert_close(together.x[n], alone.x[0])
        torch.testing.assert_close(together.mixture[n], alone.mixture[0])
        torch.testing.assert_close(with_a_larger.x[n], alone.x[0])


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_a_node_stays_in_it(mode: Pooling) -> None:
    block = joined(mixed_sizes())
    x = block.x.clone().requires_grad_()
    pooled = make_pooling(mode)(*block._replace(x=x))
    pooled.x[6].sum().backward()
    assert x.grad is not None
    reached = (x.grad != 0).any(dim=1)
    assert torch.equal(reached, block.gpu_node == 6)


@pytest.mark.parametrize("mode", MODES)
def test_a_node_without_devices_gets_zeros(mode: Pooling) -> None:
    pooled = make_pooling(mode)(*joined(mixed_sizes()))
    for node in (0, 4):
        assert not bool(pooled.x[node].any())
        assert not bool(pooled.mixture[node].any())
    assert bool((pooled.x[[1, 2, 3, 5, 6, 7]] != 0).any(dim=1).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_nodes", [0, 3])
def test_no_devices_at_all_give_zeros(mode: Pooling, num_nodes: int) -> None:
    pooled = make_pooling(mode)(*make_node(0)._replace(num_nodes=num_nodes))
    assert pooled.x.shape == (num_nodes, CHANNELS)
    assert pooled.mixture.shape == (num_nodes, 3 if mode == "mixed" else 1)
    assert not bool(pooled.x.any())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kinds", [1, 2, 3, None])
def test_the_order_of_devices_does_not_matter(mode: Pooling, kinds: int | None) -> None:
    torch.manual_seed(3)
    node, pooling = make_node(8, kinds), make_pooling(mode)
    expected = pooling(*node)
    for _ in range(5):
        found = pooling(*reordered(node, torch.randperm(8)))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_nodes_in_another_order_give_their_results_in_that_order(mode: Pooling) -> None:
    nodes, pooling = mixed_sizes(), make_pooling(mode)
    order = torch.randperm(len(nodes))
    found = pooling(*joined([nodes[n] for n in order]))
    expected = pooling(*joined(nodes))
    torch.testing.assert_close(found.x, expected.x[order])
    torch.testing.assert_close(found.link_loss, expected.link_loss)
    torch.testing.assert_close(found.entropy_loss, expected.entropy_loss)


def test_mixed_is_the_sum_of_the_strategies_weighed_by_the_gate() -> None:
    mixed, block = make_pooling("mixed"), joined(mixed_sizes())
    assert mixed.gate is not None
    pooled = mixed(*block)
    total = torch.zeros(block.num_nodes, CHANNELS)
    for n, strategy in enumerate(MODES[1:]):
        single = make_pooling(strategy)
        single.pools[0].load_state_dict(mixed.pools[n].state_dict())
        single.readouts[0].load_state_dict(mixed.readouts[n].state_dict())
        total = total + pooled.mixture[:, n : n + 1] * single(*block).x
    torch.testing.assert_close(pooled.x, total)
    for node in (3, 6):
        x = block.x[block.gpu_node == node]
        scores = mixed.gate.weight @ torch.cat([x.mean(dim=0), x.amax(dim=0)]) + mixed.gate.bias
        torch.testing.assert_close(pooled.mixture[node], scores.exp() / scores.exp().sum())


def test_the_strategies_are_the_modes_that_are_not_mixed() -> None:
    assert ("mixed", *STRATEGIES) == MODES


def test_one_strategy_has_no_gate_and_no_parameters_of_others() -> None:
    sizes = {mode: sum(p.numel() for p in make_pooling(mode).parameters()) for mode in MODES}
    gate = 2 * CHANNELS * 3 + 3
    assert sizes["mixed"] == sum(sizes[mode] for mode in MODES[1:]) + gate
    coarsening = make_pooling("coarsening")
    assert [type(pool) for pool in coarsening.pools] == [CoarseningPool]
    assert all(name.startswith("readouts.0.") for name, _ in coarsening.named_parameters())
    assert make_pooling("edge")(*make_node(4)).mixture.tolist() == [[1.0]]


@pytest.mark.parametrize("mode", MODES)
def test_losses_are_those_of_differentiable_pooling_alone(mode: Pooling) -> None:
    pooled = make_pooling(mode)(*joined(mixed_sizes()))
    has_losses = mode in ("mixed", "differentiable")
    assert (pooled.link_loss.item() > 0) == has_losses
    assert (pooled.entropy_loss.item() > 0) == has_losses
    assert pooled.link_loss.shape == pooled.entropy_loss.shape == ()


@pytest.mark.parametrize("mode", MODES)
def test_gradient_reaches_every_parameter_and_every_device(mode: Pooling) -> None:
    pooling, block = make_pooling(mode), joined(mixed_sizes())
    x = block.x.clone().requires_grad_()
    pooling(*block._replace(x=x)).x.square().sum().backward()
    for name, parameter in pooling.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name
        assert bool(torch.isfinite(parameter.grad).all()), name
    assert x.grad is not None
    assert bool((x.grad != 0).any(dim=1).all())


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_result_to_the_bit(mode: Pooling) -> None:
    block = joined(mixed_sizes())
    first: PooledDevices = make_pooling(mode)(*block)
    second: PooledDevices = make_pooling(mode)(*block)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.mixture, second.mixture)
    other = make_pooling(mode)
    other.reset_parameters()
    assert not torch.allclose(other(*block).x, first.x)


@pytest.mark.parametrize("mode", MODES)
def test_serving_gives_what_training_gives(mode: Pooling) -> None:
    pooling, block = make_pooling(mode), joined(mixed_sizes())
    with torch.inference_mode():
        served = pooling(*block)
    assert not served.x.requires_grad
    torch.testing.assert_close(served.x, pooling(*block).x.detach())


def test_links_and_balance_count() -> None:
    torch.manual_seed(5)
    node, pooling = make_node(4), make_pooling("coarsening")
    slower = node._replace(link_weight=node.link_weight * 0.5)
    assert not torch.allclose(pooling(*node).x, pooling(*slower).x)
    balanced = node._replace(x=node.x.mean(dim=0).expand(4, -1).contiguous())
    assert not torch.allclose(pooling(*node).x, pooling(*balanced).x)
