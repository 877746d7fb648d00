"""A network learns, from what a rule does, to do as well on jobs it has not seen: it can represent good decisions."""

from dataclasses import replace

import pytest
import torch
from toy_cluster import TOY, active_joules, least_active_joules, toy_jobs

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.learning.imitation import (
    DemonstratedRule,
    Demonstration,
    ImitationProgress,
    ImitationSettings,
    train_by_imitation,
)
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.simulation import run

CONFIG = NetworkConfig(hidden=24, quantiles=4)


def demonstrations(seed: int, teacher: str = "greedy", count: int = 100) -> list[Demonstration]:
    rule = DemonstratedRule(create_rule(teacher))
    run(TOY, toy_jobs(seed, count), rule)
    return rule.demonstrations


def learned(network: HierarchicalNetwork, *, learned_clocks: bool) -> PlacementRule:
    return GnnPolicy(network, ClusterGraph(), version="1", clocks="learned" if learned_clocks else "oracle")


@pytest.fixture(scope="module")
def trained() -> HierarchicalNetwork:
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    train_by_imitation(network, demonstrations(seed=1), ImitationSettings(epochs=6, batch_size=16))
    return network


@pytest.mark.slow
@pytest.mark.parametrize("learned_clocks", [False, True], ids=["exact clocks", "learned clocks"])
def test_a_toy_cluster_with_a_known_optimum_is_learned(trained: HierarchicalNetwork, learned_clocks: bool) -> None:
    test = toy_jobs(2, 100)
    optimum = least_active_joules(test)
    found = active_joules(run(TOY, test, learned(trained, learned_clocks=learned_clocks)))
    by_chance = active_joules(run(TOY, test, create_rule("masked-random")))
    untrained = active_joules(run(TOY, test, learned(create_network(CONFIG, seed=5), learned_clocks=True)))
    assert optimum * (1.0 - 1e-9) <= found <= 1.01 * optimum
    assert by_chance > 1.15 * optimum
    assert untrained > 1.05 * optimum


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "epochs"),
    [(replace(CONFIG, hierarchy="flat"), 8), (replace(CONFIG, hierarchy="vector", attention="none"), 20)],
    ids=["flat", "vector"],
)
def test_the_networks_that_are_compared_with_learn_it_too(config: NetworkConfig, epochs: int) -> None:
    torch.set_num_threads(1)
    test, network = toy_jobs(2, 60), create_network(config, seed=0)
    optimum = least_active_joules(test)
    assert active_joules(run(TOY, test, learned(network, learned_clocks=True))) > 1.2 * optimum
    train_by_imitation(network, demonstrations(seed=1), ImitationSettings(epochs=epochs, batch_size=16))
    assert active_joules(run(TOY, test, learned(network, learned_clocks=True))) <= 1.02 * optimum


def test_watching_changes_nothing_of_what_the_teacher_does() -> None:
    alone = run(TOY, toy_jobs(3, 60), create_rule("greedy"))
    watched = run(TOY, toy_jobs(3, 60), DemonstratedRule(create_rule("greedy")))
    assert alone.total_joules == watched.total_joules
    assert list(alone.place) == list(watched.place)


def test_the_same_seed_gives_the_same_weights() -> None:
    torch.set_num_threads(1)
    examples = demonstrations(seed=1, count=24)
    networks = [create_network(CONFIG, seed=0) for _ in range(2)]
    for network in networks:
        train_by_imitation(network, examples, ImitationSettings(epochs=1, batch_size=8))
    for mine, theirs in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
def test_each_epoch_is_told_and_the_loss_falls() -> None:
    told: list[ImitationProgress] = []
    examples = demonstrations(seed=1, count=24)
    train_by_imitation(create_network(CONFIG, seed=0), examples, ImitationSettings(epochs=4, batch_size=8), told.append)
    assert [progress.epoch for progress in told] == [1, 2, 3, 4]
    assert told[-1].loss < told[0].loss


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="no demonstrations"):
        train_by_imitation(create_network(CONFIG, seed=0), [], ImitationSettings())
