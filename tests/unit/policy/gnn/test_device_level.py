"""The device level: a node is what lies inside it, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_parts import ABLATIONS, PROPAGATIONS, SMALL, ablation, pairs, some_nodes
from random_blocks import GPUS_OF_NODES, features, random_state

from slurm_energy.graph import schema
from slurm_energy.graph.blocks import DeviceBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Devices
from slurm_energy.policy.gnn.levels import DeviceLevel


def level(config: NetworkConfig = SMALL, seed: int = 1) -> DeviceLevel:
    torch.manual_seed(seed)
    return DeviceLevel(config)


def worked_out(module: DeviceLevel, block: DeviceBlock) -> Devices:
    with torch.no_grad():
        devices: Devices = module(block)
    return devices


def changed_rows(found: torch.Tensor, before: torch.Tensor) -> list[int]:
    """Return the rows that differ by more than what another order of sums makes."""
    return torch.nonzero((found - before).abs().amax(dim=1) > 1e-5).flatten().tolist()


def across_nodes(seed: int = 0) -> DeviceBlock:
    """Return a block in which one job runs on devices of three nodes."""
    block = random_state(seed).devices
    runs = [(0, 0), (1, 1), (1, 6), (1, 9), (1, 10), (2, 12)]
    return replace(block, run_index=pairs(runs))


@pytest.mark.parametrize("config", ABLATIONS, ids=ablation)
def test_a_node_is_the_same_alone_and_among_others(config: NetworkConfig) -> None:
    module, block = level(config), across_nodes()
    together = worked_out(module, block)
    for node in range(len(GPUS_OF_NODES)):
        alone = worked_out(module, some_nodes(block, [node]))
        assert torch.allclose(alone.node[0], together.node[node], atol=1e-5)
        assert torch.allclose(alone.gpu, together.gpu[block.gpu_node == node], atol=1e-5)


def test_the_order_of_nodes_in_a_block_does_not_matter() -> None:
    module, block, order = level(), across_nodes(), [4, 0, 2, 5, 1, 3]
    moved = worked_out(module, some_nodes(block, order))
    assert torch.allclose(moved.node, worked_out(module, block).node[order], atol=1e-5)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_a_running_job_changes_its_own_node_and_no_other(config: NetworkConfig) -> None:
    module, block = level(config), random_state().devices
    before = worked_out(module, block)
    task_x = block.task_x.copy()
    task_x[1] += 0.5  # runs on device 6, the first of node 3
    after = worked_out(module, replace(block, task_x=task_x))
    assert changed_rows(after.node, before.node) == [3]
    assert 6 in changed_rows(after.gpu, before.gpu)
    assert set(changed_rows(after.gpu, before.gpu)) <= {6, 7, 8}


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
@pytest.mark.parametrize("part", ["node_x", "gpu_x"])
def test_features_of_node_and_device_reach_the_node(config: NetworkConfig, part: str) -> None:
    module, block = level(config), random_state().devices
    before = worked_out(module, block)
    x = getattr(block, part).copy()
    x[0] += 0.5
    after = worked_out(module, replace(block, **{part: x}))
    assert changed_rows(after.node, before.node) == [0]
    assert 0 in changed_rows(after.gpu, before.gpu)


def test_what_a_link_and_a_run_are_like_matters() -> None:
    module, block = level(), random_state().devices
    before = worked_out(module, block)
    for part in ("link_x", "run_x"):
        x = getattr(block, part).copy()
        x[0] += 0.5
        assert changed_rows(worked_out(module, replace(block, **{part: x})).node, before.node) == [0]


def test_links_that_stand_for_one_each_are_no_sample() -> None:
    module, block = level(), random_state().devices
    with torch.no_grad():
        count = block.link_index.shape[1]
        weighted = module(block, torch.ones(count))
        doubled = module(block, torch.full((count,), 4.0))
    assert torch.allclose(weighted.node, worked_out(module, block).node, atol=1e-6)
    assert not torch.allclose(doubled.node, weighted.node, atol=1e-3)


def test_a_node_without_devices_is_told_by_its_own_features() -> None:
    block = some_nodes(random_state().devices, [2])
    module = level()
    found = worked_out(module, block).node
    with torch.no_grad():
        expected = module.norm(module.node(torch.from_numpy(block.node_x)))
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_no_nodes_and_no_jobs_are_no_fault(config: NetworkConfig) -> None:
    module = level(config)
    nothing = some_nodes(random_state().devices, [])
    assert worked_out(module, nothing).node.shape == (0, SMALL.hidden)
    idle = worked_out(module, some_nodes(random_state().devices, [1, 5]))
    assert idle.node.shape == (2, SMALL.hidden)
    assert torch.isfinite(idle.node).all()


def test_gradient_reaches_every_parameter() -> None:
    module = level()
    found = module(random_state().devices)
    (found.node.pow(2).sum() + found.link_loss + found.entropy_loss).backward()
    assert [name for name, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0] == []


def test_a_link_that_nobody_knows_still_counts() -> None:
    block = random_state().devices
    column = schema.column(schema.LINK, "bandwidth_gb_per_second")
    link_x = features(np.random.default_rng(3), len(block.link_x), schema.LINK)
    link_x[:, column] = 0.0
    module = level(replace(SMALL, propagation="spectral"))
    unknown, unlinked = (
        replace(block, link_x=link_x),
        replace(block, link_x=link_x[:0], link_index=block.link_index[:, :0]),
    )
    assert changed_rows(worked_out(module, unknown).node, worked_out(module, unlinked).node) == [0, 1, 3, 4]
