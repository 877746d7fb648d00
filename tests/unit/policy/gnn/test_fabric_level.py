"""The fabric level: nodes and their switch, each group by itself."""

from dataclasses import replace

import pytest
import torch
from block_parts import ABLATIONS, PROPAGATIONS, SMALL, ablation, some_groups
from random_blocks import random_state

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import FabricBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Fabric
from slurm_energy.policy.gnn.levels import FabricLevel

NODES = 6


def level(config: NetworkConfig = SMALL) -> FabricLevel:
    torch.manual_seed(1)
    return FabricLevel(config)


def embeddings(seed: int = 3) -> torch.Tensor:
    return torch.randn(NODES, SMALL.hidden, generator=torch.Generator().manual_seed(seed))


def worked_out(
    module: FabricLevel, block: FabricBlock, node: torch.Tensor, node_weight: torch.Tensor | None = None
) -> Fabric:
    with torch.no_grad():
        fabric: Fabric = module(block, node, node_weight)
    return fabric


def assert_alike(found: Fabric, expected: Fabric, nodes: list[int], groups: list[int]) -> None:
    assert torch.allclose(found.node, expected.node[nodes], atol=1e-5)
    assert torch.allclose(found.switch, expected.switch[groups], atol=1e-5)
    assert torch.equal(found.congestion, expected.congestion[groups])
    assert torch.allclose(found.offered.weight, expected.offered.weight[nodes], atol=1e-4)
    assert torch.allclose(found.offered.value, expected.offered.value[nodes], atol=1e-4)


@pytest.mark.parametrize("config", ABLATIONS, ids=ablation)
def test_a_group_is_the_same_alone_and_among_others(config: NetworkConfig) -> None:
    module, block, node = level(config), random_state().fabric, embeddings()
    together = worked_out(module, block, node)
    for groups in ([0], [1], [1, 0]):
        part, nodes = some_groups(block, groups)
        assert_alike(worked_out(module, part, node[nodes]), together, nodes, groups)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_news_of_a_node_reaches_its_switch_and_its_neighbours_and_no_other_group(config: NetworkConfig) -> None:
    block, node = random_state().fabric, embeddings()
    # Two layers: one to the switch and one back, where there is attention alone.
    module = level(replace(config, fabric_layers=2))
    before = worked_out(module, block, node)
    node[1] += 0.5
    after = worked_out(module, block, node)
    changed = (after.node - before.node).abs().amax(dim=1) > 1e-6
    assert changed.tolist() == [True, True, True, False, False, False]
    assert ((after.switch - before.switch).abs().amax(dim=1) > 1e-6).tolist() == [True, False]


def test_the_order_of_nodes_in_a_group_does_not_matter() -> None:
    module, block, node = level(), random_state().fabric, embeddings()
    order = [2, 0, 1, 5, 4, 3]
    moved = replace(block, uplink_x=block.uplink_x[order])
    assert_alike(worked_out(module, moved, node[order]), worked_out(module, block, node), order, [0, 1])


def test_nodes_that_stand_for_one_each_are_no_sample() -> None:
    module, block, node = level(), random_state().fabric, embeddings()
    plain = worked_out(module, block, node)
    weighted = worked_out(module, block, node, torch.ones(NODES))
    assert_alike(weighted, plain, list(range(NODES)), [0, 1])


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_a_switch_sees_a_node_that_stands_for_three_as_three_like_it(config: NetworkConfig) -> None:
    module, block = level(config), random_state().fabric
    one, nodes = some_groups(block, [0])
    one = replace(one, uplink_x=one.uplink_x[[0, 1]], node_group=one.node_group[[0, 1]])
    node = embeddings()[nodes[:2]]
    copies = [0, 0, 0, 1]
    all_of_them = replace(one, uplink_x=one.uplink_x[copies], node_group=one.node_group[[0, 0, 0, 0]])
    sampled = worked_out(module, one, node, torch.tensor([3.0, 1.0]))
    full = worked_out(module, all_of_them, node[copies])
    assert torch.allclose(sampled.switch, full.switch, atol=1e-5)
    assert torch.allclose(sampled.node, full.node[[0, 3]], atol=1e-5)
    assert torch.allclose(sampled.offered.weight[0], full.offered.weight[:3].sum(0), rtol=1e-4)
    assert torch.allclose(sampled.offered.value[0], full.offered.value[:3].sum(0), rtol=1e-4, atol=1e-4)


def test_congestion_is_the_switchs_own() -> None:
    block = random_state().fabric
    found = worked_out(level(), block, embeddings()).congestion.tolist()
    assert found == block.switch_x[:, schema.column(schema.SWITCH, "congestion")].tolist()


def test_the_uplink_matters_and_every_parameter_has_a_gradient() -> None:
    module, block = level(), random_state().fabric
    before = worked_out(module, block, embeddings())
    uplink_x = block.uplink_x.copy()
    uplink_x[4] += 0.5
    assert not torch.allclose(
        worked_out(module, replace(block, uplink_x=uplink_x), embeddings()).switch[1], before.switch[1], atol=1e-5
    )
    found = module(block, embeddings())
    (found.switch.pow(2).sum() + found.offered.value.pow(2).sum()).backward()
    assert [name for name, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_no_group_and_a_group_without_nodes_are_no_fault(config: NetworkConfig) -> None:
    module, block = level(config), random_state().fabric
    nothing, _ = some_groups(block, [])
    assert worked_out(module, nothing, embeddings()[:0]).switch.shape == (0, SMALL.hidden)
    lonely = replace(nothing, switch_x=block.switch_x[:1])
    found = worked_out(module, lonely, embeddings()[:0])
    assert found.switch.shape == (1, SMALL.hidden)
    assert torch.isfinite(found.switch).all()
