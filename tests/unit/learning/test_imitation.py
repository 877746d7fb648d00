"""A network learns, from what a rule does, to do as well on jobs it has not seen: it can represent good decisions."""

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest
import torch
from small_worlds import make_device, make_job, make_load, make_pool, make_world

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.learning.demonstrations import DemonstratedRule, Demonstration
from slurm_energy.learning.imitation import ImitationSettings, Progress, train_by_imitation
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.rules.registry import create_rule
from slurm_energy.twin.job import Workload
from slurm_energy.twin.learned import LearnedRule
from slurm_energy.twin.outcome import Outcome
from slurm_energy.twin.places import option_table
from slurm_energy.twin.simulation import run
from slurm_energy.twin.world import Partition

OLD = make_device(
    "old",
    loads={
        "training": make_load(watts=(60.0, 90.0, 150.0)),
        "matrix": make_load(watts=(120.0, 200.0, 330.0), seconds_per_unit=(6.0, 3.0, 1.5)),
    },
)
NEW = make_device(
    "new",
    loads={
        "training": make_load(watts=(160.0, 240.0, 300.0), seconds_per_unit=(2.8, 1.6, 0.8)),
        "matrix": make_load(watts=(80.0, 120.0, 180.0), seconds_per_unit=(3.0, 1.4, 0.7)),
    },
)
WORLD = make_world(
    make_pool("old", device="old", nodes=2),
    make_pool("new", device="new", nodes=2),
    devices=(OLD, NEW),
    partitions=(Partition(name="old", pools=("old",), is_default=True), Partition(name="new", pools=("new",))),
)
CONFIG = NetworkConfig(hidden=24, quantiles=4)


def jobs(seed: int, count: int = 200) -> Workload:
    """So few at a time that there is always room everywhere: the optimum is each job's own."""
    random, now, found = Random(seed), 0.0, []
    for number in range(count):
        now += random.expovariate(0.002)
        kind = random.choice(["training", "matrix"])
        units = random.uniform(30.0, 150.0)
        found.append(
            make_job(number + 1, submitted=now, units=units, gpus=(1, 2, 4), kind=kind, partitions=("old", "new"))
        )
    return Workload(name="jobs", jobs=tuple(found))


def least_active_joules(workload: Workload) -> float:
    """Return the least energy beyond being free that any choice of place, count and clock can give these jobs."""
    total = 0.0
    for job in workload.jobs:
        table = option_table(WORLD, job.kind, job.gpu_counts)
        known = np.isfinite(table.seconds_per_unit)
        active = np.where(known, (table.watts - table.free_watts) * np.where(known, table.seconds_per_unit, 0.0), inf)
        total += job.true_units * float(active.min())
    return total


def active_joules(outcome: Outcome) -> float:
    """Return what the jobs drew beyond what the same devices draw while they are free."""
    free = {"old": OLD.free_watts, "new": NEW.free_watts}
    names = [partition.name for partition in WORLD.partitions]
    return float(
        sum(
            energy - gpus * free[names[place]] * seconds
            for energy, gpus, place, seconds in zip(
                outcome.energy_joules, outcome.gpus, outcome.place, outcome.run_seconds, strict=True
            )
        )
    )


def demonstrations(seed: int, teacher: str = "greedy") -> list[Demonstration]:
    rule = DemonstratedRule(create_rule(teacher))
    run(WORLD, jobs(seed), rule)
    return rule.demonstrations


def learned(network: HierarchicalNetwork, *, learned_clocks: bool) -> PlacementRule:
    return LearnedRule(lambda: NetworkChooser(network, ClusterGraph()), version="1", learned_clocks=learned_clocks)


@pytest.fixture(scope="module")
def trained() -> HierarchicalNetwork:
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    train_by_imitation(network, demonstrations(seed=1), ImitationSettings(epochs=12, batch_size=16))
    return network


@pytest.mark.parametrize("learned_clocks", [False, True], ids=["exact clocks", "learned clocks"])
def test_a_toy_cluster_with_a_known_optimum_is_learned(trained: HierarchicalNetwork, learned_clocks: bool) -> None:
    test = jobs(seed=2)
    optimum = least_active_joules(test)
    found = active_joules(run(WORLD, test, learned(trained, learned_clocks=learned_clocks)))
    by_chance = active_joules(run(WORLD, test, create_rule("masked-random")))
    untrained = active_joules(run(WORLD, test, learned(create_network(CONFIG, seed=5), learned_clocks=True)))
    assert optimum * (1.0 - 1e-9) <= found <= 1.01 * optimum
    assert by_chance > 1.15 * optimum
    assert untrained > 1.05 * optimum


@pytest.mark.parametrize(
    "config",
    [replace(CONFIG, hierarchy="flat"), replace(CONFIG, hierarchy="vector", attention="none")],
    ids=lambda config: config.hierarchy,
)
def test_the_networks_that_are_compared_with_learn_it_too(config: NetworkConfig) -> None:
    torch.set_num_threads(1)
    test, network = jobs(seed=2), create_network(config, seed=0)
    optimum = least_active_joules(test)
    assert active_joules(run(WORLD, test, learned(network, learned_clocks=True))) > 1.2 * optimum
    train_by_imitation(network, demonstrations(seed=1), ImitationSettings(epochs=12, batch_size=16))
    assert active_joules(run(WORLD, test, learned(network, learned_clocks=True))) <= 1.02 * optimum


def test_watching_changes_nothing_of_what_the_teacher_does() -> None:
    alone = run(WORLD, jobs(seed=3), create_rule("greedy"))
    watched = run(WORLD, jobs(seed=3), DemonstratedRule(create_rule("greedy")))
    assert alone.total_joules == watched.total_joules
    assert list(alone.place) == list(watched.place)


def test_the_same_seed_gives_the_same_weights() -> None:
    torch.set_num_threads(1)
    examples = demonstrations(seed=1)[:24]
    networks = [create_network(CONFIG, seed=0) for _ in range(2)]
    for network in networks:
        train_by_imitation(network, examples, ImitationSettings(epochs=1, batch_size=8))
    for mine, theirs in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_each_epoch_is_told_and_the_loss_falls() -> None:
    told: list[Progress] = []
    examples = demonstrations(seed=1)[:48]
    train_by_imitation(create_network(CONFIG, seed=0), examples, ImitationSettings(epochs=4, batch_size=8), told.append)
    assert [progress.epoch for progress in told] == [1, 2, 3, 4]
    assert told[-1].loss < told[0].loss


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="no demonstrations"):
        train_by_imitation(create_network(CONFIG, seed=0), [], ImitationSettings())
