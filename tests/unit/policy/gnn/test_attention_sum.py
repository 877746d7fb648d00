"""What members offer: bounded weights, and sums that a sample estimates without bias."""

from itertools import product
from math import exp, tanh
from typing import Any

import pytest
import torch

from slurm_energy.policy.gnn.embeddings import WEIGHT_BOUND, add_up, mean_of
from slurm_energy.policy.gnn.levels import AttentionSum

CHANNELS, HIDDEN, HEADS = 4, 6, 3


def offering(seed: int = 1) -> AttentionSum:
    torch.manual_seed(seed)
    return AttentionSum(CHANNELS, HIDDEN, HEADS)


def vertices(count: int = 4) -> torch.Tensor:
    return torch.randn(count, CHANNELS, generator=torch.Generator().manual_seed(2))


def test_the_mean_over_members_is_that_of_the_formula_worked_out_by_hand() -> None:
    module, x = offering(), vertices()
    with torch.no_grad():
        owner = torch.zeros(4, dtype=torch.int64)
        found = mean_of(add_up(module(x), owner, 1))[0].tolist()
        scores, values = (x @ module.score.weight.T + module.score.bias).tolist(), module.value(x).tolist()
    for channel in range(HIDDEN):
        head = channel // (HIDDEN // HEADS)
        weights = [exp(WEIGHT_BOUND * tanh(row[head])) for row in scores]
        mean = sum(weight * row[channel] for weight, row in zip(weights, values, strict=True)) / sum(weights)
        assert found[channel] == pytest.approx(mean, rel=1e-4, abs=1e-6)


def test_weights_stay_in_their_bounds_whatever_the_input() -> None:
    weight = offering()(1e6 * vertices(64)).weight.detach()
    assert float(weight.min()) >= exp(-WEIGHT_BOUND) * 0.999
    assert float(weight.max()) <= exp(WEIGHT_BOUND) * 1.001
    assert float(weight.max()) > exp(WEIGHT_BOUND) * 0.9


def test_sums_over_all_samples_weighted_by_their_probability_are_the_full_sums() -> None:
    module, x = offering().double(), vertices().double()
    probability = torch.tensor([0.3, 1.0, 0.5, 0.8], dtype=torch.float64)
    owner = torch.tensor([0, 1, 0, 1])
    full = add_up(module(x), owner, 2)
    weight, value = torch.zeros_like(full.weight), torch.zeros_like(full.value)
    total = 0.0
    for chosen in product((False, True), repeat=4):
        kept = torch.tensor(chosen)
        chance = float(torch.where(kept, probability, 1.0 - probability).prod())
        sample = add_up(module(x[kept], 1.0 / probability[kept]), owner[kept], 2)
        weight, value, total = weight + chance * sample.weight, value + chance * sample.value, total + chance
    assert total == pytest.approx(1.0)
    assert torch.allclose(weight, full.weight)
    assert torch.allclose(value, full.value)


def test_a_member_that_stands_for_two_counts_like_two() -> None:
    module, x = offering(), vertices(2)
    twice = add_up(module(torch.cat([x, x[:1]])), torch.zeros(3, dtype=torch.int64), 1)
    weighted = add_up(module(x, torch.tensor([2.0, 1.0])), torch.zeros(2, dtype=torch.int64), 1)
    assert torch.allclose(twice.weight, weighted.weight)
    assert torch.allclose(twice.value, weighted.value, atol=1e-6)


def test_gradient_reaches_every_parameter_and_no_member_is_no_fault() -> None:
    module = offering()
    means: Any = mean_of(add_up(module(vertices()), torch.tensor([0, 0, 1, 1]), 2))
    means.pow(2).sum().backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in module.parameters())
    empty = module(torch.zeros(0, CHANNELS))
    assert (empty.weight.shape, empty.value.shape) == ((0, HEADS), (0, HIDDEN))


def test_drawing_the_weights_anew_follows_the_seed() -> None:
    module, other = offering(), offering(seed=9)
    torch.manual_seed(1)
    other.reset_parameters()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(module.parameters(), other.parameters(), strict=True))
    assert repr(module) == "AttentionSum(4, 6, heads=3)"
