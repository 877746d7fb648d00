"""The queue level: jobs hear of those that they wait for and of those that wait for them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from block_parts import PROPAGATIONS, SMALL, pairs
from random_blocks import random_state

from slurm_energy.graph.blocks import QueueBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Queue
from slurm_energy.policy.gnn.levels import QueueLevel


def level(config: NetworkConfig = SMALL) -> QueueLevel:
    torch.manual_seed(1)
    return QueueLevel(config)


def worked_out(module: QueueLevel, block: QueueBlock, task_weight: torch.Tensor | None = None) -> Queue:
    with torch.no_grad():
        queue: Queue = module(block, task_weight)
    return queue


def with_dependencies(found: list[tuple[int, int]]) -> QueueBlock:
    """Return five jobs with these dependencies."""
    block = random_state().queue
    return replace(block, depends_index=pairs(found), depends_x=block.depends_x[: len(found)])


def changed_by(module: QueueLevel, block: QueueBlock, task: int) -> list[int]:
    """Return the jobs that look different once one of them is."""
    task_x = block.task_x.copy()
    task_x[task] += 0.5
    difference = worked_out(module, replace(block, task_x=task_x)).task - worked_out(module, block).task
    return torch.nonzero(difference.abs().amax(dim=1) > 1e-6).flatten().tolist()


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_a_dependency_carries_news_both_ways_and_nothing_else_does(config: NetworkConfig) -> None:
    module, block = level(config), with_dependencies([(0, 1), (3, 4)])
    assert [changed_by(module, block, task) for task in range(5)] == [[0, 1], [0, 1], [2], [3, 4], [3, 4]]


def test_two_layers_of_attention_reach_two_dependencies_far() -> None:
    module, block = level(PROPAGATIONS[1]), with_dependencies([(0, 1), (1, 2), (2, 3), (3, 4)])
    assert changed_by(module, block, 0) == [0, 1, 2]
    assert changed_by(module, block, 4) == [2, 3, 4]


def test_without_layers_jobs_do_not_hear_of_each_other() -> None:
    module = level(replace(SMALL, task_layers=0))
    assert [changed_by(module, random_state().queue, task) for task in range(5)] == [[0], [1], [2], [3], [4]]


def test_the_direction_of_a_dependency_matters() -> None:
    module = level()
    one, other = (worked_out(module, with_dependencies([pair])).task for pair in ((0, 1), (1, 0)))
    assert not torch.allclose(one[:2], other[:2], atol=1e-4)
    assert torch.allclose(one[2:], other[2:], atol=1e-6)


def test_a_part_of_the_task_graph_is_the_same_alone_and_among_others() -> None:
    module, block = level(), with_dependencies([(0, 1), (3, 4)])
    kept = np.array([3, 4])
    waits = np.isin(block.wait_task, kept)
    alone = QueueBlock(
        task_x=block.task_x[kept],
        depends_index=pairs([(0, 1)]),
        depends_x=block.depends_x[1:2],
        wait_task=block.wait_task[waits] - 3,
        wait_partition=block.wait_partition[waits],
        wait_x=block.wait_x[waits],
    )
    found, together = worked_out(module, alone), worked_out(module, block)
    assert torch.allclose(found.task, together.task[3:], atol=1e-5)
    assert torch.allclose(found.asked.value, together.asked.value[torch.from_numpy(waits)], atol=1e-4)


def test_what_is_asked_depends_on_the_job_and_on_the_partition_it_waits_for() -> None:
    module, block = level(), random_state().queue
    before = worked_out(module, block).asked.value
    wait_x = block.wait_x.copy()
    wait_x[2] += 0.5
    asked = worked_out(module, replace(block, wait_x=wait_x)).asked.value
    assert torch.nonzero((asked - before).abs().amax(dim=1) > 1e-6).flatten().tolist() == [2]
    alone = replace(block, depends_index=block.depends_index[:, :0], depends_x=block.depends_x[:0])
    task_x = block.task_x.copy()
    task_x[2] += 0.5
    asked = worked_out(module, replace(alone, task_x=task_x)).asked.value - worked_out(module, alone).asked.value
    changed = (asked.abs().amax(dim=1) > 1e-6).numpy()
    assert np.array_equal(changed, block.wait_task == 2)


def test_a_job_kept_only_as_a_neighbour_asks_for_nothing() -> None:
    module, block = level(), random_state().queue
    full = worked_out(module, block).asked
    weight = torch.tensor([1.0, 0.0, 2.5, 1.0, 1.0])
    sampled = worked_out(module, block, weight).asked
    of_wait = weight[torch.from_numpy(block.wait_task)][:, None]
    assert torch.allclose(sampled.weight, full.weight * of_wait)
    assert torch.allclose(sampled.value, full.value * of_wait)
    assert torch.equal(worked_out(module, block, torch.ones(5)).asked.value, full.value)


@pytest.mark.parametrize("config", PROPAGATIONS, ids=lambda one: one.propagation)
def test_an_empty_queue_is_no_fault(config: NetworkConfig) -> None:
    found = worked_out(level(config), random_state(tasks=0).queue)
    assert found.task.shape == (0, SMALL.hidden)
    assert found.asked.weight.shape == (0, SMALL.heads)


def test_gradient_reaches_every_parameter() -> None:
    module = level()
    found = module(random_state().queue)
    (found.task.pow(2).sum() + found.asked.value.pow(2).sum()).backward()
    assert [name for name, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0] == []
