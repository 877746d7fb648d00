"""The flat structure: the same results as the levels that it takes the place of, from one graph."""

from dataclasses import replace

import pytest
import torch
from block_parts import PROPAGATIONS, SMALL
from random_blocks import random_state

from slurm_energy.policy.gnn.ablation.levels import FlatLevel
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Devices, Fabric, Queue
from slurm_energy.policy.gnn.levels import DeviceLevel, FabricLevel, QueueLevel
from slurm_energy.policy.gnn.network import Blocks

FLAT = [replace(one, hierarchy="flat") for one in PROPAGATIONS]


def level(config: NetworkConfig = FLAT[0]) -> FlatLevel:
    torch.manual_seed(1)
    return FlatLevel(config)


def worked_out(
    module: FlatLevel, blocks: Blocks, node_weight: torch.Tensor | None = None
) -> tuple[Devices, Fabric, Queue]:
    with torch.no_grad():
        found: tuple[Devices, Fabric, Queue] = module(blocks.devices, blocks.fabric, blocks.queue, node_weight)
    return found


@pytest.mark.parametrize("config", FLAT, ids=lambda one: one.propagation)
def test_results_have_the_shapes_of_the_three_levels_that_they_stand_for(config: NetworkConfig) -> None:
    blocks = random_state()
    torch.manual_seed(1)
    with torch.no_grad():
        devices = DeviceLevel(SMALL)(blocks.devices)
        expected = (devices, FabricLevel(SMALL)(blocks.fabric, devices.node), QueueLevel(SMALL)(blocks.queue))
    for mine, theirs in zip(worked_out(level(config), blocks), expected, strict=True):
        assert type(mine) is type(theirs)
        for one, other in zip(mine, theirs, strict=True):
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                assert one.shape == other.shape
            else:
                assert isinstance(one, tuple)
                assert isinstance(other, tuple)
                assert [part.shape for part in one] == [part.shape for part in other]


def test_news_goes_from_a_device_to_its_neighbours_node_and_switch_in_so_many_layers() -> None:
    blocks = random_state()
    module = level(replace(FLAT[1], device_layers=2))  # attention alone: one step a layer
    before = worked_out(module, blocks)
    gpu_x = blocks.devices.gpu_x.copy()
    gpu_x[0] += 0.5
    after = worked_out(module, blocks._replace(devices=replace(blocks.devices, gpu_x=gpu_x)))

    def rows(found: torch.Tensor, other: torch.Tensor) -> list[int]:
        return torch.nonzero((found - other).abs().amax(dim=1) > 1e-6).flatten().tolist()

    assert rows(after[0].gpu, before[0].gpu) == [0, 1]
    assert rows(after[1].node, before[1].node) == [0]
    assert rows(after[1].switch, before[1].switch) == [0]
    assert rows(after[2].task, before[2].task) == []


@pytest.mark.parametrize("config", FLAT, ids=lambda one: one.propagation)
def test_jobs_and_links_of_every_kind_matter(config: NetworkConfig) -> None:
    blocks = random_state()
    module = level(config)
    before = worked_out(module, blocks)
    features = {"devices": ["task_x", "node_x"], "fabric": ["switch_x"], "queue": ["task_x", "wait_x"]}
    if config.propagation != "spectral":
        features["devices"] += ["run_x", "link_x"]
        features["fabric"] += ["uplink_x"]
        features["queue"] += ["depends_x"]
    for part, names in features.items():
        for name in names:
            block = getattr(blocks, part)
            changed = replace(block, **{name: getattr(block, name) + 0.5})
            after = worked_out(module, blocks._replace(**{part: changed}))
            values = [(after[0].gpu, before[0].gpu), (after[2].asked.value, before[2].asked.value)]
            assert any(not torch.allclose(one, other, atol=1e-5) for one, other in values), (part, name)


def test_a_node_that_stands_for_two_offers_twice_as_much() -> None:
    module, blocks = level(), random_state()
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0, 1.0, 3.0])
    full, sampled = worked_out(module, blocks)[1].offered, worked_out(module, blocks, weight)[1].offered
    assert torch.allclose(sampled.weight, full.weight * weight[:, None])
    assert torch.allclose(sampled.value, full.value * weight[:, None])


def test_there_is_no_pooling_and_so_no_loss_of_it() -> None:
    devices = worked_out(level(), random_state())[0]
    assert (float(devices.link_loss), float(devices.entropy_loss)) == (0.0, 0.0)


def test_gradient_reaches_every_parameter() -> None:
    blocks, module = random_state(), level()
    devices, fabric, queue = module(blocks.devices, blocks.fabric, blocks.queue)
    (devices.gpu.pow(2).sum() + fabric.offered.value.pow(2).sum() + queue.asked.value.pow(2).sum()).backward()
    assert [name for name, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0] == []
