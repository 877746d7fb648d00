"""A network learns by policy gradient to do as well as can be on a cluster whose best choices are known."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import SMALL, small_network
from small_worlds import make_device, make_job, make_load, make_pool, make_world
from torch.nn import Parameter
from toy_cluster import TOY, active_joules, least_active_joules, toy_jobs

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import TASK, column
from slurm_energy.learning.algorithms import CollectorParts, LearnerParts, find_algorithm
from slurm_energy.learning.episodes import EpisodeCollector, EpisodeSettings, run_episode
from slurm_energy.learning.experience import DecisionStep, alone, episode_seed
from slurm_energy.learning.imitation import answers
from slurm_energy.learning.policy_gradient.learner import PolicyGradientLearner
from slurm_energy.learning.policy_gradient.losses import combined_value, divergence, surrogate_loss, value_loss
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings
from slurm_energy.learning.training_state import learner_bytes, learner_state
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.episode import RewardWeights
from slurm_energy.twin.world import Partition

CONFIG = NetworkConfig(hidden=24, quantiles=4)
FEW = EpisodeSettings(world=TOY, workload=partial(toy_jobs, count=12, rate_per_second=0.05))
QUICK = PolicyGradientSettings(epochs=2, minibatches=3, learning_rate=3e-3)
SAVER, FAST = (0.1, 0.9), (0.9, 0.1)

DEAR = make_device(
    "dear", relative_clocks=(1.0,), loads={"training": make_load(watts=(660.0,), seconds_per_unit=(0.4,))}
)
CHEAP = make_device(
    "cheap", relative_clocks=(1.0,), loads={"training": make_load(watts=(150.0,), seconds_per_unit=(1.0,))}
)
TRADE = make_world(
    make_pool("cheap", device="cheap", nodes=2),
    make_pool("dear", device="dear", nodes=2),
    devices=(CHEAP, DEAR),
    partitions=(Partition(name="cheap", pools=("cheap",), is_default=True), Partition(name="dear", pools=("dear",))),
)
"""A unit costs 140 J beyond being free and 1 s in one place, 260 J and 0.4 s in the other. At 200 W for a job's time
the first is worth it for a saver (292 against 484), the other for one to whom time is worth more (196 against 388)."""


def trade_jobs(seed: int, count: int) -> Workload:
    random, now, found = Random(seed), 0.0, []
    for number in range(count):
        now += random.expovariate(0.001)
        units = random.uniform(60.0, 120.0)
        found.append(make_job(number + 1, submitted=now, units=units, partitions=("cheap", "dear")))
    return Workload(name="trade", jobs=tuple(found))


def trained(
    network: HierarchicalNetwork, episodes: EpisodeSettings, settings: PolicyGradientSettings, rounds: int
) -> PolicyGradientLearner:
    torch.set_num_threads(1)
    learner = PolicyGradientLearner(network, settings, seed=0)
    collector = EpisodeCollector(config=network.config, settings=episodes)
    for number in range(rounds):
        learner.absorb(collector(learner.acting, seed=episode_seed(0, number, 0)))
    return learner


def greedy_active_joules(network: HierarchicalNetwork, jobs: Workload) -> float:
    rule = GnnPolicy(network, ClusterGraph(), version="1")
    return active_joules(run(TOY, jobs, rule))


def few_steps(network: HierarchicalNetwork, seed: int = 1, **changes: Any) -> list[DecisionStep]:
    return run_episode(network, replace(FEW, **changes), seed, torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_a_toy_cluster_with_a_known_optimum_is_learned() -> None:
    episodes = EpisodeSettings(
        world=TOY, workload=partial(toy_jobs, count=80), rewards=RewardWeights(waiting_watts=0.0)
    )
    settings = PolicyGradientSettings(
        learning_rate=1e-2, minibatches=4, decay_rounds=5, horizon_seconds=600.0, target_divergence=None
    )
    test = toy_jobs(seed=2, count=80)
    optimum = least_active_joules(test)
    network = create_network(CONFIG, seed=5)
    before = greedy_active_joules(network, test)
    trained(network, episodes, settings, rounds=5)
    assert optimum * (1.0 - 1e-9) <= greedy_active_joules(network, test) <= 1.03 * optimum
    assert before > 1.05 * optimum
    assert active_joules(run(TOY, test, create_rule("masked-random"))) > 1.15 * optimum


@pytest.mark.long
def test_one_network_serves_jobs_to_which_time_is_worth_more_and_those_to_which_energy_is() -> None:
    episodes = EpisodeSettings(
        world=TRADE,
        workload=partial(trade_jobs, count=60),
        rewards=RewardWeights(waiting_watts=0.0, running_watts=200.0),
        job_weights=(SAVER, FAST),
    )
    settings = PolicyGradientSettings(
        epochs=6,
        minibatches=1,
        learning_rate=2e-2,
        entropy_weight=0.003,
        horizon_seconds=10.0,
        target_divergence=None,
    )
    network = create_network(CONFIG, seed=0)
    trained(network, episodes, settings, rounds=8)
    chosen: dict[float, list[int]] = {0.1: [], 0.9: []}
    shown = replace(episodes, workload=partial(trade_jobs, count=80), actions="greedy")
    for step in run_episode(network, shown, 5, torch.Generator()):
        weight = float(step.moment.decision.job_x[0, column(TASK, "time_weight")])
        chosen[round(weight, 3)].append(step.asked)
    assert min(map(len, chosen.values())) > 30
    assert np.mean(chosen[0.1]) < 0.05  # of the options, 0 is in the cheap place and 1 in the dear one
    assert np.mean(chosen[0.9]) > 0.95


def test_masked_options_have_no_probability_and_leave_every_gradient_a_number() -> None:
    network = small_network(1)
    closed = []
    for step in few_steps(network):
        is_open = step.moment.decision.option_open.copy()
        others = [row for row in range(len(is_open)) if row != step.asked]
        is_open[others[::2]] = False
        decision = replace(step.moment.decision, option_open=is_open)
        closed.append(replace(step, moment=replace(step.moment, decision=decision)))
    learner = PolicyGradientLearner(network, QUICK, seed=0)
    assert all(np.isfinite(value) for value in learner.absorb(_chained(closed)).values())
    _, decisions = answers(network, [step.moment for step in closed])
    mask = torch.cat([torch.from_numpy(step.moment.decision.option_open) for step in closed])
    assert not bool(mask.all())
    assert bool((decisions.options.log_prob.exp()[~mask] == 0.0).all())
    assert all(bool(torch.isfinite(parameter).all()) for parameter in network.parameters())


def _chained(steps: Sequence[DecisionStep]) -> list[DecisionStep]:
    """Return steps whose moments were changed as an episode again."""
    following = [*(step.moment for step in steps[1:]), None]
    return [replace(step, following=after) for step, after in zip(steps, following, strict=True)]


@pytest.mark.slow
def test_one_seed_gives_one_training_and_another_seed_another() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        network = small_network(1)
        learner = PolicyGradientLearner(network, QUICK, seed=seed)
        for number in range(2):
            learner.absorb(few_steps(network, seed=number))
        return dict(learner.acting)

    torch.set_num_threads(1)
    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.slow
def test_a_restored_learner_goes_on_exactly_as_the_one_that_was_not_broken_off() -> None:
    torch.set_num_threads(1)
    network = small_network(1)
    learner = PolicyGradientLearner(network, QUICK, seed=0)
    learner.absorb(few_steps(network))
    kept = learner_bytes(learner.state())
    rounds = [few_steps(small_network(1), seed=seed) for seed in (2, 3)]
    told = [learner.absorb(steps) for steps in rounds]
    other = PolicyGradientLearner(small_network(9), QUICK, seed=0)
    other.restore(learner_state(kept))
    assert [other.absorb(steps) for steps in rounds] == told
    assert all(torch.equal(learner.acting[name], tensor) for name, tensor in other.acting.items())
    learner.restore(learner_state(kept))
    assert [learner.absorb(steps) for steps in rounds] == told


@pytest.mark.slow
def test_a_state_does_not_change_with_the_learner_and_is_read_without_running_code() -> None:
    network = small_network(1)
    learner = PolicyGradientLearner(network, QUICK, seed=0)
    learner.absorb(few_steps(network))
    state = learner.state()
    before = learner_bytes(state)
    learner.absorb(few_steps(network, seed=2))
    assert learner_bytes(state) == before
    torch.load(io.BytesIO(before), weights_only=True)


def test_only_what_is_meant_to_learn_gets_a_gradient() -> None:
    network = small_network(1)
    reached: set[str] = set()

    def averaging(parameters: Iterable[Parameter]) -> None:
        held = {id(parameter) for parameter in parameters if parameter.grad is not None}
        reached.update(name for name, parameter in network.named_parameters() if id(parameter) in held)

    steps = few_steps(network)
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}
    plain = replace(QUICK, objective_weight=0.0, pooling_weight=0.0)
    PolicyGradientLearner(network, plain, seed=0, averaging=averaging).absorb(steps)
    unmeant = ("decision.clocks.", "decision.quantile.", "assignment.")
    assert not [name for name in reached if name.startswith(unmeant)]
    for part in ("decision.policy.partition", "decision.policy.count", "decision.value", "device.", "queue.", "top."):
        assert [name for name in reached if name.startswith(part)], part
    for name, parameter in network.named_parameters():
        assert name in reached or torch.equal(parameter, before[name])


@pytest.mark.slow
def test_the_value_s_loss_moves_no_policy_head_and_the_surrogate_no_value_head() -> None:
    def moved(settings: PolicyGradientSettings, constant: bool) -> set[str]:
        network = small_network(1)
        steps = few_steps(network)
        if constant:
            steps = [replace(step, log_prob=step.log_prob + 50.0) for step in steps]  # every ratio is clipped away
        before = {name: tensor.clone() for name, tensor in network.named_parameters()}
        quick = replace(settings, objective_weight=0.0, pooling_weight=0.0, entropy_weight=0.0)
        quick = replace(quick, final_entropy_weight=0.0, target_divergence=None)
        PolicyGradientLearner(network, quick, seed=0).absorb(steps)
        return {name for name, tensor in network.named_parameters() if not torch.equal(tensor, before[name])}

    surrogate = moved(replace(QUICK, value_weight=0.0), constant=False)
    assert [name for name in surrogate if name.startswith("decision.policy.")]
    assert not [name for name in surrogate if name.startswith("decision.value.")]
    value = moved(QUICK, constant=True)
    assert [name for name in value if name.startswith("decision.value.")]


@pytest.mark.slow
def test_all_ranks_take_equally_many_updates_and_stop_together() -> None:
    def calls(count: int, settings: PolicyGradientSettings, divergence_of_others: float) -> int:
        number = 0

        def averaging(parameters: Iterable[Parameter]) -> None:
            nonlocal number
            number += 1
            carrier = list(parameters)[-1]
            if carrier.grad is not None and carrier.grad.shape == (1,):
                carrier.grad += divergence_of_others

        network = small_network(1)
        workload = partial(toy_jobs, count=count)
        PolicyGradientLearner(network, settings, seed=0, averaging=averaging).absorb(
            few_steps(network, workload=workload)
        )
        return number

    free = replace(QUICK, target_divergence=None)
    assert calls(2, free, 0.0) == calls(20, free, 0.0) == 6 + 3  # two of scales, one of shares
    assert calls(20, QUICK, 1.0) == 1 + 3


@pytest.mark.slow
def test_the_round_ends_when_the_policy_has_gone_too_far() -> None:
    def updates(target: float | None) -> float:
        network = small_network(1)
        settings = replace(QUICK, learning_rate=0.05, epochs=5, target_divergence=target)
        return PolicyGradientLearner(network, settings, seed=0).absorb(few_steps(network))["updates"]

    assert updates(None) == 15.0
    assert 1.0 <= updates(0.001) < 15.0


@pytest.mark.slow
def test_minibatches_that_are_worked_out_in_parts_give_the_same_gradients() -> None:
    def weights(most: int) -> dict[str, torch.Tensor]:
        network = small_network(1)
        settings = replace(QUICK, max_moments=most, pooling_weight=0.0, epochs=1, minibatches=1)
        PolicyGradientLearner(network, settings, seed=0).absorb(few_steps(small_network(1)))
        return network.state_dict()

    whole, parts = weights(1000), weights(5)
    # Adam divides the first gradient by its own size: where it is next to nothing, rounding alone gives the sign.
    close = [torch.isclose(whole[name], parts[name], atol=1e-4).float().mean() for name in whole]
    assert float(torch.stack(close).mean()) > 0.95


def test_the_surrogate_is_the_published_one() -> None:
    old = torch.zeros(6)
    ratio = torch.tensor([0.5, 0.9, 1.5, 0.5, 0.9, 1.5])
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    wanted = [-1.0, -1.8, -2.4, 1.6, 1.8, 3.0]
    assert surrogate_loss(ratio.log(), old, advantage, 0.2).tolist() == pytest.approx(wanted)


def test_a_value_clip_takes_the_worse_of_both_errors() -> None:
    value, old, returns = torch.tensor([1.0, 0.1]), torch.zeros(2), torch.tensor([1.0, 1.0])
    assert value_loss(value, old, returns, None).tolist() == pytest.approx([0.0, 0.81])
    assert value_loss(value, old, returns, 0.2).tolist() == pytest.approx([0.64, 0.81])


def test_divergence_is_estimated_from_samples_and_never_below_0() -> None:
    torch.manual_seed(0)
    old, new = torch.tensor([0.7, 0.3]), torch.tensor([0.4, 0.6])
    exact = float((old * (old / new).log()).sum())
    drawn = (torch.rand(200_000, generator=torch.Generator().manual_seed(0)) < 0.3).long()
    assert float(divergence(new.log()[drawn], old.log()[drawn])) == pytest.approx(exact, rel=0.02)
    assert float(divergence(old.log()[drawn], old.log()[drawn])) == 0.0


def test_values_of_time_and_energy_are_weighed_as_the_job_weighs_them() -> None:
    job_x = torch.zeros(3, len(TASK))
    for row, (time, energy) in enumerate(((0.5, 0.5), SAVER, FAST)):
        job_x[row, column(TASK, "time_weight")], job_x[row, column(TASK, "energy_weight")] = time, energy
    values = torch.tensor([[10.0, 1.0, 99.0]]).repeat(3, 1)
    assert combined_value(values, job_x).tolist() == pytest.approx([11.0, 0.2 * 10.0 + 1.8, 1.8 * 10.0 + 0.2])


def test_weights_gone_astray_are_told() -> None:
    network = small_network(1)
    steps = few_steps(network)
    broken = [replace(steps[0], reward=float("nan")), *steps[1:]]
    with pytest.raises(TrainingError, match="a loss is nan in round 0"):
        PolicyGradientLearner(network, QUICK, seed=0).absorb(broken)


def test_a_round_without_a_decision_is_refused() -> None:
    with pytest.raises(TrainingError, match="without a decision"):
        PolicyGradientLearner(small_network(1), QUICK, seed=0).absorb([])


def test_a_network_without_a_policy_over_options_is_refused() -> None:
    with pytest.raises(ConfigError, match="prices"):
        PolicyGradientLearner(create_network(replace(SMALL, policy="prices"), 0), QUICK, seed=0)


def test_learning_rate_and_entropy_bonus_fall_along_a_line_to_their_last_values() -> None:
    settings = PolicyGradientSettings(
        learning_rate=0.01, final_learning_rate_share=0.1, entropy_weight=0.2, final_entropy_weight=0.1, decay_rounds=4
    )
    assert [settings.learning_rate_after(n) for n in (0, 2, 4, 9)] == pytest.approx([0.01, 0.0055, 0.001, 0.001])
    assert [settings.entropy_weight_after(n) for n in (0, 2, 4, 9)] == pytest.approx([0.2, 0.15, 0.1, 0.1])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epochs": 0}, "learner.epochs is 0, it must be"),
        ({"minibatches": 0}, "learner.minibatches is 0, it must be"),
        ({"learning_rate": 1.0}, "learner.learning_rate is 1.0, it must be"),
        ({"clip": 0.0}, "learner.clip is 0.0, it must be"),
        ({"value_clip": -1.0}, "learner.value_clip is -1.0, it must be"),
        ({"horizon_seconds": float("inf")}, "learner.horizon_seconds is inf, it must be"),
        ({"trace_decay": 1.1}, "learner.trace_decay is 1.1, it must be"),
        ({"minibatches": 10**300}, "learner.minibatches is 1000"),
        ({"clip": 1e308}, "learner.clip is 1e+308, it must be between 0.001 and 10"),
        ({"value_weight": 1e308}, "learner.value_weight is 1e+308, it must be between 0 and 1000"),
        ({"decay_rounds": 2**40}, "learner.decay_rounds is 1099511627776, it must be between 1 and 10000000"),
        ({"entropy_weight": -0.1}, "learner.entropy_weight is -0.1, it must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        PolicyGradientSettings(**changes)
    assert told in str(error.value)


def test_the_algorithm_is_made_of_these_parts() -> None:
    algorithm = find_algorithm("policy-gradient")
    collector = algorithm.collector(CollectorParts(network=SMALL, episodes=FEW, learner=QUICK))
    network = small_network(1)
    learner = algorithm.learner(LearnerParts(network=network, settings=QUICK, episodes=FEW, seed=3, averaging=alone))
    figures = learner.absorb(collector(learner.acting, seed=episode_seed(0, 0, 0)))
    assert figures["updates"] == 6.0
    assert isinstance(algorithm.episode_settings(world="lab"), EpisodeSettings)
    assert isinstance(algorithm.learner_settings(), PolicyGradientSettings)
