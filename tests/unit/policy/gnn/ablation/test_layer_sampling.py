"""Rates of layers, and edges that are kept."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.ablation.sampling import MIN_RATE, layer_rates, sample_edges
from slurm_energy.policy.gnn.configuration import NetworkConfig

CONFIG = NetworkConfig(sampling="sampled", sampling_rate=0.16)


def star(*degrees: int) -> NDArray[np.int64]:
    """Return edges into targets 0, 1, ... with the degrees that are given, each from a source of its own."""
    target = np.repeat(np.arange(len(degrees)), degrees)
    return np.stack([np.arange(len(target)), target])


def test_without_load_the_share_of_nodes_is_the_sampling_rate() -> None:
    assert layer_rates(CONFIG, 0.0).nodes == pytest.approx(0.16)


def test_rates_are_the_documented_powers() -> None:
    rates = layer_rates(replace(CONFIG, device_layers=4, fabric_layers=1, task_layers=3), 1.0)
    expected = [0.16 ** (5 / 4), 0.16 ** (5 / 8), 0.16 ** (25 / 16), 0.16 ** (15 / 32)]
    assert [rates.nodes, rates.links, rates.tasks, rates.dependencies] == pytest.approx(expected)


def test_more_layers_below_lower_the_rate_of_links() -> None:
    shares = [layer_rates(replace(CONFIG, device_layers=layers), 0.0).links for layers in (1, 2, 4, 8)]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 4


def test_load_lowers_every_rate() -> None:
    idle, busy = layer_rates(CONFIG, 0.0), layer_rates(CONFIG, 1.0)
    assert all(low < high for low, high in zip(busy, idle, strict=True))


@pytest.mark.parametrize("rate", [0.01, 0.12, 0.5, 1.0])
@pytest.mark.parametrize("layers", [1, 8])
@pytest.mark.parametrize("load", [0.0, 1.0])
def test_rates_stay_in_their_bounds(rate: float, layers: int, load: float) -> None:
    config = replace(CONFIG, sampling_rate=rate, device_layers=layers, task_layers=layers)
    assert all(MIN_RATE <= one <= 1.0 for one in layer_rates(config, load))


def test_a_sampling_rate_of_one_keeps_everything() -> None:
    assert layer_rates(replace(CONFIG, sampling_rate=1.0), 0.7) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("load", [-0.1, 1.1, float("nan")])
def test_a_load_outside_its_bounds_is_refused(load: float) -> None:
    with pytest.raises(ValueRangeError, match="between 0 and 1"):
        layer_rates(CONFIG, load)


def test_every_target_keeps_its_share_and_at_least_one_edge() -> None:
    index = star(1, 0, 7, 30)
    edges = sample_edges(index, 0.1, np.random.default_rng(0))
    assert np.bincount(index[1][edges.kept], minlength=4).tolist() == [1, 0, 1, 3]


def test_an_edge_stands_for_the_edges_of_its_target_over_those_kept() -> None:
    index = star(1, 7, 30)
    edges = sample_edges(index, 0.1, np.random.default_rng(0))
    assert edges.weight.tolist() == [1.0, 7.0, 10.0, 10.0, 10.0]
    assert edges.weight.dtype == np.float32
    assert np.bincount(index[1][edges.kept], weights=edges.weight).tolist() == [1, 7, 30]


def test_sums_over_the_edges_of_a_target_are_unbiased() -> None:
    random, draws = np.random.default_rng(1), 2000
    index = star(1, 3, 7, 12)
    index, values = index[:, random.permutation(23)], random.lognormal(0.0, 1.0, 23)
    found = np.empty((draws, 4))
    for draw in range(draws):
        edges = sample_edges(index, 0.3, random)
        found[draw] = np.bincount(index[1][edges.kept], weights=values[edges.kept] * edges.weight, minlength=4)
    true = np.bincount(index[1], weights=values)
    assert (np.abs(found.mean(axis=0) - true) <= 4.0 * found.std(axis=0) / np.sqrt(draws) + 1e-6).all()


def test_a_rate_of_one_keeps_all_edges_with_weight_one() -> None:
    edges = sample_edges(star(3, 2), 1.0, np.random.default_rng(0))
    assert edges.kept.tolist() == [0, 1, 2, 3, 4]
    assert edges.weight.tolist() == [1.0] * 5


def test_no_target_keeps_more_edges_than_the_most() -> None:
    edges = sample_edges(star(1000, 2), 0.5, np.random.default_rng(0), most=4)
    assert len(edges.kept) == 5
    assert edges.weight.tolist() == [250.0] * 4 + [2.0]


def test_the_same_seed_keeps_the_same_edges() -> None:
    index = star(50)
    first, again, other = (sample_edges(index, 0.2, np.random.default_rng(seed)).kept for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_edges_stay_no_edges() -> None:
    edges = sample_edges(np.zeros((2, 0), dtype=np.int64), 0.5, np.random.default_rng(0))
    assert edges.kept.shape == edges.weight.shape == (0,)


@pytest.mark.parametrize("rate", [0.0, 1.5, float("nan")])
def test_a_rate_of_edges_outside_its_bounds_is_refused(rate: float) -> None:
    with pytest.raises(ValueRangeError, match="rate of edges"):
        sample_edges(star(2), rate, np.random.default_rng(0))
