"""The decision: what an option, a partition and the state have to do with the answer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from block_parts import ATTENTIONS, SMALL
from random_blocks import random_decision, random_state

from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import BatchIndex, Published, TopKind, batch_index
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network


def network_of(config: NetworkConfig = SMALL) -> tuple[HierarchicalNetwork, Published, BatchIndex]:
    network = create_network(config, seed=1)
    with torch.no_grad():
        published = network.state(random_state()).published
    return network, published, batch_index(published)


def decide(network: HierarchicalNetwork, published: Published, moments: BatchIndex, block: DecisionBlock) -> Decisions:
    with torch.no_grad():
        return network.decide(published, moments, block)


def told(found: Decisions) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and quantiles, which a decision has unless it was asked for without."""
    assert found.values is not None and found.quantiles is not None
    return found.values, found.quantiles


def reordered(block: DecisionBlock, order: np.ndarray) -> DecisionBlock:
    """Return a block with its options in another order, their clocks with them."""
    clocks = np.concatenate([np.flatnonzero(block.clock_option == option) for option in order])
    place = np.argsort(order)
    names = ("option_job", "option_partition", "option_x", "option_open")
    changes: dict[str, Any] = {name: getattr(block, name)[order] for name in names}
    return replace(
        block,
        **changes,
        clock_option=place[block.clock_option[clocks]],
        clock_x=block.clock_x[clocks],
        clock_open=block.clock_open[clocks],
    )


@pytest.mark.parametrize("config", ATTENTIONS, ids=lambda one: one.attention)
def test_the_order_of_options_within_a_partition_only_reorders_the_answer(config: NetworkConfig) -> None:
    network, published, moments = network_of(config)
    block = random_decision()
    order = np.array([2, 0, 1, 4, 3, 5, 7, 8, 6, 10, 9, 11])
    before, after = (decide(network, published, moments, one) for one in (block, reordered(block, order)))
    assert torch.allclose(after.options.log_prob, before.options.log_prob[order], atol=1e-5)
    assert torch.allclose(told(after)[1], told(before)[1][order], atol=1e-5)
    clocks = (3 * order[:, None] + np.arange(3)).ravel()
    assert torch.allclose(after.clock_log_prob, before.clock_log_prob[clocks], atol=1e-5)
    assert torch.allclose(told(after)[0], told(before)[0], atol=1e-5)


def test_the_order_of_the_partitions_in_the_block_only_reorders_the_answer() -> None:
    network, published, moments = network_of()
    block = random_decision()
    order = np.array([5, 3, 4, 0, 1, 2, 9, 10, 11, 6, 7, 8])
    before, after = (decide(network, published, moments, one) for one in (block, reordered(block, order)))
    assert torch.allclose(after.options.log_prob, before.options.log_prob[order], atol=1e-5)
    assert torch.allclose(after.attention[0], before.attention[0], atol=1e-6)


@pytest.mark.parametrize("config", ATTENTIONS, ids=lambda one: one.attention)
def test_every_row_of_attention_adds_up_to_one(config: NetworkConfig) -> None:
    network, published, moments = network_of(config)
    attention = decide(network, published, moments, random_decision()).attention
    assert len(attention) == SMALL.top_layers
    for layer in attention:
        assert layer.shape == (2, SMALL.heads, 19, 19)
        assert torch.allclose(layer.sum(-1), torch.ones(2, SMALL.heads, 19), atol=1e-5)


def test_the_mean_over_the_options_of_a_partition_is_the_edge_between_job_and_partition() -> None:
    network, _, moments = network_of()
    level, block = network.decision, random_decision(jobs=1)
    assert level.assignment is not None
    with torch.no_grad():
        bias = level._assignment_bias(
            torch.from_numpy(block.option_x),
            torch.from_numpy(block.option_job),
            torch.from_numpy(block.option_partition),
            moments,
            torch.Size((1, 19)),
        )
        assert bias is not None
        expected = torch.zeros(1, 19, 19, SMALL.heads)
        for partition, rows in ((0, [0, 1, 2]), (1, [3, 4]), (2, [5])):
            edge = level.assignment(torch.from_numpy(block.option_x[rows].mean(0)))
            # Places: the job, three partitions, three queues.
            for place in (1 + partition, 4 + partition):
                expected[0, 0, place] = expected[0, place, 0] = edge
    assert torch.allclose(bias, expected, atol=1e-6)


def test_assignment_edges_reach_the_decision_also_that_of_other_partitions() -> None:
    network, published, moments = network_of()
    block = random_decision(jobs=1)
    option_x = block.option_x.copy()
    option_x[5] += 1.0  # the closed option of partition 2
    before, after = (decide(network, published, moments, one) for one in (block, replace(block, option_x=option_x)))
    assert not torch.allclose(after.attention[0][0, :, 0], before.attention[0][0, :, 0], atol=1e-5)
    assert not torch.allclose(after.options.log_prob[:5], before.options.log_prob[:5], atol=1e-6)
    assert not torch.allclose(told(after)[0], told(before)[0], atol=1e-6)


def test_without_attention_an_option_does_not_reach_the_answer_for_other_partitions() -> None:
    network, published, moments = network_of(replace(SMALL, attention="none"))
    block = random_decision(jobs=1)
    option_x = block.option_x.copy()
    option_x[5] += 1.0
    before, after = (decide(network, published, moments, one) for one in (block, replace(block, option_x=option_x)))
    assert torch.equal(after.options.log_prob[:5], before.options.log_prob[:5])


@pytest.mark.parametrize("config", ATTENTIONS, ids=lambda one: one.attention)
def test_each_part_of_the_state_reaches_the_decision(config: NetworkConfig) -> None:
    network, published, moments = network_of(config)
    before = decide(network, published, moments, random_decision()).options.log_prob
    for kind in (TopKind.PARTITION, TopKind.QUEUE, TopKind.FABRIC, TopKind.CLUSTER, TopKind.POWER, TopKind.QUALITY):
        x = published.x.clone()
        x[published.kind == kind] += torch.linspace(-1.0, 1.0, SMALL.hidden)
        after = decide(network, published._replace(x=x), moments, random_decision()).options.log_prob
        assert not torch.allclose(after[:5], before[:5], atol=1e-6), kind
    pooled = decide(network, published._replace(pooled=published.pooled + 0.5), moments, random_decision())
    assert not torch.allclose(pooled.options.log_prob[:5], before[:5], atol=1e-6)


def test_heat_and_a_tight_budget_favour_clocks_of_less_power_where_the_partition_is() -> None:
    network, published, moments = network_of()
    block = random_decision(jobs=1)
    cool = decide(network, published._replace(heat=torch.zeros(3), power=torch.zeros(3)), moments, block)
    hot = published._replace(heat=torch.tensor([0.9, 0.0, 0.0]), power=torch.zeros(3))
    after = decide(network, hot, moments, block)
    changed = (after.clock_log_prob - cool.clock_log_prob).abs().nan_to_num() > 1e-6
    assert changed.view(6, 3)[:, :2].any(1).tolist() == [True] * 3 + [False] * 3
    tight = published._replace(heat=torch.zeros(3), power=torch.tensor([0.0, 1.2, 0.0]))
    changed = (decide(network, tight, moments, block).clock_log_prob - cool.clock_log_prob).abs().nan_to_num() > 1e-6
    assert changed.view(6, 3)[:, :2].any(1).tolist() == [False] * 3 + [True] * 2 + [False]


def test_objectives_are_told_by_tied_heads_only() -> None:
    for config in ATTENTIONS:
        network, published, moments = network_of(config)
        objectives = decide(network, published, moments, random_decision()).objectives
        assert objectives.shape == (2, 3)
        assert bool(objectives.any()) == (config.attention == "objectives")


def test_a_job_with_no_open_option_has_no_probability_and_does_not_disturb_others() -> None:
    network, published, moments = network_of()
    block = random_decision()
    is_open = block.option_open.copy()
    is_open[:6] = False
    before, after = (decide(network, published, moments, one) for one in (block, replace(block, option_open=is_open)))
    assert (after.options.log_prob[:6] == -torch.inf).all()
    assert float(after.options.entropy[0]) == 0.0
    assert torch.allclose(after.options.log_prob[6:], before.options.log_prob[6:], atol=1e-6)
    assert torch.isfinite(told(after)[0]).all()


@pytest.mark.parametrize("config", ATTENTIONS, ids=lambda one: one.attention)
def test_a_job_without_options_is_valued_all_the_same(config: NetworkConfig) -> None:
    network, published, moments = network_of(config)
    block = random_decision(jobs=1)
    names = ("option_job", "option_partition", "option_x", "option_open", "clock_option", "clock_x", "clock_open")
    bare = replace(block, **{name: getattr(block, name)[:0] for name in names})
    found = decide(network, published, moments, bare)
    assert found.options.log_prob.shape == (0,)
    assert found.clock_log_prob.shape == (0,)
    values, quantiles = told(found)
    assert quantiles.shape == (0, SMALL.quantiles)
    assert torch.isfinite(values).all()
    assert values.shape == (1, 3)


def test_options_without_clocks_and_no_jobs_are_no_fault() -> None:
    network, published, moments = network_of()
    block = random_decision()
    no_clocks = {name: getattr(block, name)[:0] for name in ("clock_option", "clock_x", "clock_open")}
    found = decide(network, published, moments, replace(block, **no_clocks))
    assert torch.equal(found.options.log_prob, decide(network, published, moments, block).options.log_prob)
    nobody = {name: getattr(block, name)[:0] for name in block.__slots__}
    assert told(decide(network, published, moments, DecisionBlock(**nobody)))[0].shape == (0, 3)


def test_jobs_of_another_cluster_of_the_same_moment_see_the_same_top() -> None:
    network, published, moments = network_of()
    block = random_decision()
    moved = replace(block, job_cluster=np.ones(2, dtype=np.int64))
    found, expected = (decide(network, published, moments, one) for one in (moved, block))
    assert torch.equal(found.options.log_prob, expected.options.log_prob)


def test_who_only_decides_gets_the_same_answer_without_critics() -> None:
    network, published, moments = network_of()
    with torch.no_grad():
        found = network.decide(published, moments, random_decision(), critics=False)
    assert found.values is None
    assert found.quantiles is None
    assert torch.equal(found.options.log_prob, decide(network, published, moments, random_decision()).options.log_prob)
