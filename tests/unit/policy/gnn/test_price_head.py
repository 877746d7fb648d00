"""Prices: an untrained head changes nothing, prices depend on state and job, and the fast form is the same function."""

import numpy as np
import pytest
import torch
from block_parts import ablation
from served_cluster import lab
from test_moments import batched, smaller_state

from slurm_energy.errors import PolicyError
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import batch_index
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.price_head import PRICED_JOB, PriceHead, Usual, factors
from slurm_energy.policy.gnn.serving import NetworkPrices
from slurm_energy.policy.prices import JOB_PRICES, LARGEST, price_factors

CONFIGS = [
    NetworkConfig(policy="prices", hidden=12),
    NetworkConfig(policy="prices", hidden=12, hierarchy="flat"),
    NetworkConfig(policy="prices", hidden=12, hierarchy="vector", attention="none"),
]


def stirred(config: NetworkConfig, seed: int = 0) -> HierarchicalNetwork:
    """Return a network whose last layers are not 0."""
    network = create_network(config, seed)
    assert network.prices is not None
    generator = torch.Generator().manual_seed(seed)
    for layer in (network.prices.last, network.prices.scarcity):
        with torch.no_grad():
            layer.weight.normal_(generator=generator)
            layer.bias.normal_(generator=generator)
    states = [smaller_state(seed=seed + 50), smaller_state(seed=seed + 51)]
    blocks, moment_of_cluster = batched(states)
    published = network.state(blocks).published
    seen = network.prices.seen(published, batch_index(published, moment_of_cluster), 2.0 + 3.0 * job_columns(seed, 50))
    network.prices.follow(seen, 0.9)
    return network.eval()


def job_columns(seed: int, count: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, PRICED_JOB)).astype(np.float32))


@pytest.mark.parametrize("config", CONFIGS, ids=ablation)
def test_an_untrained_head_pays_what_the_rule_pays(config: NetworkConfig) -> None:
    network = create_network(config, seed=1)
    assert network.prices is not None
    published = network.state(smaller_state(seed=1)).published
    context = network.prices.context(published, batch_index(published))
    raw = network.prices(context, job_columns(1), torch.zeros(3, dtype=torch.int64))
    assert torch.equal(factors(raw), torch.ones(3, len(JOB_PRICES)))
    assert torch.equal(factors(context.devices), torch.ones_like(context.devices))


@pytest.mark.parametrize("config", CONFIGS, ids=ablation)
def test_moments_side_by_side_are_priced_as_each_alone(config: NetworkConfig) -> None:
    network = stirred(config)
    head = network.prices
    assert head is not None
    states = [smaller_state(seed=2), smaller_state(seed=3)]
    jobs = job_columns(4, count=2)
    blocks, moment_of_cluster = batched(states)
    published = network.state(blocks).published
    context = head.context(published, batch_index(published, moment_of_cluster))
    together = head(context, jobs, torch.arange(2))
    devices = []
    for index, state in enumerate(states):
        alone = network.state(state).published
        own = head.context(alone, batch_index(alone))
        assert torch.allclose(
            head(own, jobs[index : index + 1], torch.zeros(1, dtype=torch.int64)), together[index], atol=1e-5
        )
        devices.append(own.devices)
    assert torch.allclose(torch.cat(devices), context.devices, atol=1e-5)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("config", CONFIGS, ids=ablation)
def test_a_gradient_reaches_every_parameter_that_prices_use(config: NetworkConfig) -> None:
    network = stirred(config).train()
    head = network.prices
    assert head is not None
    published = network.state(smaller_state(seed=5)).published
    context = head.context(published, batch_index(published))
    raw = head(context, job_columns(5), torch.zeros(3, dtype=torch.int64))
    (raw.square().sum() + context.devices.square().sum()).backward()
    without = [name for name, value in head.named_parameters() if value.grad is None or not value.grad.abs().sum() > 0]
    assert without == []
    touched = [
        name for name, value in network.named_parameters() if value.grad is not None and value.grad.abs().sum() > 0
    ]
    assert any(not name.startswith("prices.") for name in touched)


def test_what_is_usual_in_all_states_has_no_weight_and_what_differs_a_spread_of_one() -> None:
    usual = Usual(3)
    rows = torch.tensor([[0.80, 5.0, 1.0], [0.90, 5.0, 1.001], [1.00, 5.0, 0.999], [1.10, 5.0, 1.0]])
    usual.mean, usual.square = rows.mean(0), rows.square().mean(0)
    found = usual(rows)
    assert found.mean(0) == pytest.approx(torch.zeros(3), abs=1e-5)
    assert found[:, 0].std(correction=0) == pytest.approx(1.0, rel=1e-4)
    assert found[:, 1].abs().max() < 1e-4 and found[:, 2].abs().max() < 0.1  # noise is not blown up
    assert usual(torch.tensor([[1e6, -1e6, 1.0]])).abs().max() == 5.0


def test_a_part_of_what_is_seen_moves_what_is_usual_by_that_part() -> None:
    head = PriceHead(4, hidden=3)
    seen = [torch.stack([torch.full((width,), 3.0), torch.full((width,), 10.0)]) for width in (8, 12, PRICED_JOB)]
    head.follow(seen, 0.5)
    for usual in (head.usual, head.usual_partition, head.usual_job):
        assert set(usual.mean.tolist()) == {1.5}
        assert set(usual.square.tolist()) == {5.5}
        assert usual.spread.tolist() == pytest.approx([(5.5 - 1.5**2) ** 0.5] * len(usual.spread))


def test_a_unit_below_zero_in_all_states_still_learns_and_still_tells_states_apart() -> None:
    network = stirred(CONFIGS[0])
    head = network.prices
    assert head is not None
    with torch.no_grad():
        head.partition.bias.fill_(-1e3)
        head.between.bias.fill_(-1e3)
    published = network.state(smaller_state(seed=5)).published
    context = head.context(published, batch_index(published))
    raw = head(context, job_columns(5), torch.zeros(3, dtype=torch.int64))
    (raw.square().sum() + context.devices.square().sum()).backward()
    assert head.partition.weight.grad is not None and head.partition.weight.grad.abs().sum() > 0.0
    assert head.job.weight.grad is not None and head.job.weight.grad.abs().sum() > 0.0
    assert not torch.equal(raw[0], raw[1])


def test_factors_are_bounded_and_the_same_with_and_without_torch() -> None:
    raw = np.array([-1e9, -2.0, 0.0, 0.1, 5.0, 1e9], dtype=np.float32)
    found = price_factors(raw)
    assert found == pytest.approx(factors(torch.from_numpy(raw)).numpy(), rel=1e-6)
    assert found.min() >= np.exp(-LARGEST) * (1.0 - 1e-5)
    assert found.max() <= np.exp(LARGEST) * (1.0 + 1e-5)
    assert found[2] == 1.0


@pytest.mark.parametrize("config", CONFIGS, ids=ablation)
def test_published_prices_are_the_heads_without_torch(config: NetworkConfig) -> None:
    network, jobs = stirred(config), job_columns(7)
    head = network.prices
    assert head is not None
    prices = NetworkPrices(network)
    prices.follow(lab())
    published, moments = prices._chooser.state()
    with torch.inference_mode():
        context = head.context(published, moments)
        raw = head(context, jobs, torch.zeros(len(jobs), dtype=torch.int64)).numpy()
    found = np.stack([prices.published.job_raw(job) for job in jobs.numpy()])
    assert np.abs(raw).max() > 0.1
    assert found == pytest.approx(raw, abs=1e-5)
    assert prices.published.device_raw == pytest.approx(context.devices.numpy(), abs=1e-6)


def test_a_network_of_options_has_no_prices() -> None:
    with pytest.raises(PolicyError, match="prices"):
        NetworkPrices(create_network(NetworkConfig(hidden=12), seed=0))
