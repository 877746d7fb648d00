"""The network as a whole, on a small state."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from block_parts import SMALL, VECTOR, ablation
from random_blocks import random_decision, random_state

from slurm_energy.graph.blocks import DecisionBlock
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.decision_level import Decisions
from slurm_energy.policy.gnn.embeddings import batch_index
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, create_network

ABLATIONS = [
    *(replace(SMALL, propagation=mode) for mode in ("hybrid", "spatial", "spectral")),
    *(replace(SMALL, pooling=mode) for mode in ("coarsening", "differentiable", "edge")),
    *(replace(SMALL, attention=mode) for mode in ("plain", "none")),
    replace(SMALL, hierarchy="flat"),
    VECTOR,
]
UNREAD = {
    "flat": (),
    "hierarchical": (),
    "vector": ("assignment.node.weight",),  # nothing is known of single nodes
}


def answer(network: HierarchicalNetwork, blocks: Blocks, decision: DecisionBlock) -> Decisions:
    published = network.state(blocks).published
    return network.decide(published, batch_index(published), decision)


@pytest.mark.parametrize("config", ABLATIONS, ids=ablation)
def test_gradient_reaches_every_parameter_of_what_is_switched_on(config: NetworkConfig) -> None:
    network = create_network(config, seed=1)
    blocks, decision = random_state(), random_decision()
    state = network.state(blocks)
    decisions = network.decide(state.published, batch_index(state.published), decision)
    values, quantiles = decisions.values, decisions.quantiles
    assert values is not None and quantiles is not None
    open_options = torch.from_numpy(decision.option_open)
    open_clocks = torch.from_numpy(decision.clock_open)
    nodes = torch.arange(6)
    assigned = network.assignment(
        decisions.job, state.fabric.node, torch.zeros(6, dtype=torch.int64), nodes, torch.rand(6, 4), nodes < 4
    )
    loss = (
        decisions.options.log_prob[open_options].pow(2).sum()
        + decisions.clock_log_prob[open_clocks].pow(2).sum()
        + values.pow(2).sum()
        + decisions.objectives.pow(2).sum()
        + quantiles.pow(2).sum()
        + assigned[:4].pow(2).sum()
        + state.devices.link_loss
        + state.devices.entropy_loss
    )
    loss.backward()
    without = [name for name, one in network.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0.0]
    # Heat and power of this state are below where the strengths begin to count.
    assert [name for name in without if "_strength" not in name] == list(UNREAD[config.hierarchy])


def test_the_same_seed_makes_the_same_network_and_leaves_the_callers_stream_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = create_network(SMALL, seed=3), create_network(SMALL, seed=3)
    assert torch.equal(torch.rand(1), expected)
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_same_state_gives_the_same_answer_twice() -> None:
    network = create_network(SMALL, seed=1)
    first = answer(network, random_state(), random_decision())
    second = answer(network, random_state(), random_decision())
    assert torch.equal(first.options.log_prob, second.options.log_prob)
    assert first.quantiles is not None and second.quantiles is not None
    assert torch.equal(first.quantiles, second.quantiles)


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, hierarchy="flat"), VECTOR], ids=ablation)
def test_closed_options_and_clocks_have_no_probability_and_the_open_ones_all_of_it(config: NetworkConfig) -> None:
    decision = random_decision()
    decisions = answer(create_network(config, seed=1), random_state(), decision)
    probability = decisions.options.log_prob.exp().detach().numpy()
    assert (probability[~decision.option_open] == 0.0).all()
    for job in range(2):
        assert probability[decision.option_job == job].sum() == pytest.approx(1.0, abs=1e-5)
    clocks = decisions.clock_log_prob.exp().detach().numpy()
    assert (clocks[~decision.clock_open] == 0.0).all()


def permuted_devices(blocks: Blocks, order: np.ndarray) -> Blocks:
    """Return the same state with the devices of each node in another order."""
    devices = blocks.devices
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return blocks._replace(
        devices=replace(
            devices,
            gpu_x=devices.gpu_x[order],
            gpu_node=devices.gpu_node[order],
            link_index=place[devices.link_index],
            run_index=np.stack([devices.run_index[0], place[devices.run_index[1]]]),
        )
    )


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, hierarchy="flat"), VECTOR], ids=ablation)
def test_the_order_of_devices_in_a_node_does_not_matter(config: NetworkConfig) -> None:
    blocks, decision = random_state(), random_decision()
    random = np.random.default_rng(4)
    order = np.concatenate(
        [random.permutation(np.flatnonzero(blocks.devices.gpu_node == node)) for node in range(6)]
    ).astype(np.int64)
    network = create_network(config, seed=1)
    expected = answer(network, blocks, decision).options.log_prob
    found = answer(network, permuted_devices(blocks, order), decision).options.log_prob
    assert torch.allclose(found, expected, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, hierarchy="flat"), VECTOR], ids=ablation)
def test_the_order_of_nodes_in_a_group_does_not_matter(config: NetworkConfig) -> None:
    blocks, decision = random_state(), random_decision()
    order = np.array([2, 0, 1, 5, 4, 3])
    place = np.argsort(order)
    devices, fabric = blocks.devices, blocks.fabric
    gpus = np.concatenate([np.flatnonzero(devices.gpu_node == node) for node in order]).astype(np.int64)
    gpu_place = np.argsort(gpus)
    members = np.argsort(place[fabric.member_node], kind="stable")
    moved = blocks._replace(
        devices=replace(
            devices,
            node_x=devices.node_x[order],
            gpu_x=devices.gpu_x[gpus],
            gpu_node=place[devices.gpu_node[gpus]],
            link_index=gpu_place[devices.link_index],
            run_index=np.stack([devices.run_index[0], gpu_place[devices.run_index[1]]]),
        ),
        fabric=replace(
            fabric,
            node_group=fabric.node_group[order],
            uplink_x=fabric.uplink_x[order],
            member_node=place[fabric.member_node][members],
            member_partition=fabric.member_partition[members],
        ),
    )
    network = create_network(config, seed=1)
    expected = answer(network, blocks, decision)
    found = answer(network, moved, decision)
    assert torch.allclose(found.options.log_prob, expected.options.log_prob, atol=1e-5, equal_nan=True)
    assert found.quantiles is not None and expected.quantiles is not None
    assert torch.allclose(found.quantiles, expected.quantiles, atol=1e-5)


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, hierarchy="flat"), VECTOR], ids=ablation)
def test_a_job_is_answered_alike_alone_and_beside_others(config: NetworkConfig) -> None:
    network, blocks = create_network(config, seed=1), random_state()
    together = answer(network, blocks, random_decision(jobs=2)).options.log_prob
    both = random_decision(jobs=2)
    second = both.option_job == 1
    clocks = second[both.clock_option]
    alone = replace(
        both,
        job_x=both.job_x[1:],
        job_cluster=both.job_cluster[1:],
        option_job=both.option_job[second] - 1,
        option_partition=both.option_partition[second],
        option_x=both.option_x[second],
        option_open=both.option_open[second],
        clock_option=both.clock_option[clocks] - 6,
        clock_x=both.clock_x[clocks],
        clock_open=both.clock_open[clocks],
    )
    assert torch.allclose(answer(network, blocks, alone).options.log_prob, together[6:], atol=1e-5)


@pytest.mark.parametrize(("part", "config"), list(product(["devices", "queue", "top"], [SMALL])))
def test_what_happens_at_every_level_reaches_the_decision(part: str, config: NetworkConfig) -> None:
    network = create_network(config, seed=1)
    before, other = random_state(0), random_state(7)
    changed = before._replace(**{part: getattr(other, part)})
    assert not torch.allclose(
        answer(network, before, random_decision()).options.log_prob,
        answer(network, changed, random_decision()).options.log_prob,
    )


def test_a_state_without_jobs_and_without_devices_is_answered() -> None:
    blocks = random_state(tasks=0)
    devices = blocks.devices
    bare = blocks._replace(
        devices=replace(
            devices,
            gpu_x=devices.gpu_x[:0],
            gpu_node=devices.gpu_node[:0],
            link_index=devices.link_index[:, :0],
            link_x=devices.link_x[:0],
            task_x=devices.task_x[:0],
            run_index=devices.run_index[:, :0],
            run_x=devices.run_x[:0],
        )
    )
    for config in (SMALL, replace(SMALL, hierarchy="flat"), VECTOR):
        probability = answer(create_network(config, seed=1), bare, random_decision()).options.log_prob.exp()
        assert float(probability.detach().sum()) == pytest.approx(2.0, abs=1e-5)
