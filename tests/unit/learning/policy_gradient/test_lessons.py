"""What a round teaches the policy gradient: which steps, about which options, in which units, and from all ranks."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import exp

import numpy as np
import pytest
import torch
from small_networks import small_network
from torch.nn import Parameter
from toy_cluster import TOY, toy_jobs
from two_ranks import side_by_side

from slurm_energy.learning.algorithms import find_algorithm
from slurm_energy.learning.episodes import FAST_WEIGHTS, EpisodeSettings, run_episode
from slurm_energy.learning.experience import Averaging, DecisionStep, alone
from slurm_energy.learning.imitation import answers
from slurm_energy.learning.policy_gradient.learner import PolicyGradientLearner, Scale
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings
from slurm_energy.policy.gnn.network import HierarchicalNetwork

ONCE = PolicyGradientSettings(
    epochs=1, minibatches=1, objective_weight=0.0, pooling_weight=0.0, target_divergence=None, gradient_norm=1e6
)


def seen(seed: int = 1, jobs: int = 12, *, hours: float | None = None) -> list[DecisionStep]:
    """Return an episode of the same untrained network; with `hours` it is cut off."""
    workload = partial(toy_jobs, count=jobs, rate_per_second=0.05)
    settings = EpisodeSettings(world=TOY, workload=workload, hours=hours)
    return run_episode(small_network(1), settings, seed, torch.Generator().manual_seed(seed))


def learner(network: HierarchicalNetwork, settings: PolicyGradientSettings = ONCE) -> PolicyGradientLearner:
    torch.set_num_threads(1)
    return PolicyGradientLearner(network, settings, seed=0)


def chances(network: HierarchicalNetwork, steps: list[DecisionStep]) -> torch.Tensor:
    """Return the probability of what was asked for in each step."""
    with torch.no_grad():
        found = [answers(network, [step.moment])[1].options.log_prob[step.asked].exp() for step in steps]
    return torch.stack(found)


def mean_entropy(network: HierarchicalNetwork, steps: list[DecisionStep]) -> float:
    with torch.no_grad():
        _, decisions = answers(network, [step.moment for step in steps])
    return float(decisions.options.entropy.mean())


@pytest.mark.slow
def test_a_refused_start_is_learned_under_the_option_that_was_asked_for() -> None:
    steps = [replace(step, granted=-1) if index % 2 else step for index, step in enumerate(seen())]
    told = learner(small_network(1)).absorb(steps)
    assert told["divergence"] == pytest.approx(0.0, abs=1e-6)  # so the probability is that of the option that acted
    assert told["clipped"] == 0.0


@pytest.mark.slow
def test_an_option_that_leads_to_refusals_and_a_long_wait_becomes_less_likely() -> None:
    network, steps = small_network(1), seen(jobs=20)
    costly = [index for index, step in enumerate(steps) if step.asked == 0]
    assert 2 < len(costly) < len(steps)
    taught = [
        replace(step, reward=-5.0, granted=-1) if step.asked == 0 else replace(step, reward=-1.0) for step in steps
    ]
    before = chances(network, taught)[costly]
    quick = replace(ONCE, epochs=16, clip=1.0, learning_rate=3e-3, horizon_seconds=0.001)
    learner(network, quick).absorb(taught)
    assert float(chances(network, taught)[costly].mean()) < 0.9 * float(before.mean())


def test_the_last_step_of_an_episode_that_was_cut_off_teaches_nothing() -> None:
    cut, whole = seen(hours=0.05), seen(2)
    assert not cut[-1].is_terminal and whole[-1].is_terminal
    lesson = learner(small_network(1))._lesson([*cut, *whole], Scale(0.0, 1.0))
    known = [index for index in range(len(cut) + len(whole)) if index != len(cut) - 1]
    assert lesson.known.tolist() == known


def test_advantages_are_of_one_size_and_values_and_returns_are_told_in_the_scale() -> None:
    scale, network, steps = Scale(-5.0, 2.0), small_network(1), seen()
    own = learner(network)
    lesson = own._lesson(steps, scale)
    values = [-5.0 + 2.0 * value for value in lesson.old_value.tolist()]
    later, advantage = 0.0, np.zeros(len(steps))
    for index in reversed(range(len(steps))):
        discount = 0.0 if index + 1 == len(steps) else exp(-steps[index].elapsed_seconds / 3600.0)
        after = 0.0 if index + 1 == len(steps) else values[index + 1]
        later = steps[index].reward + discount * after - values[index] + 0.95 * discount * later
        advantage[index] = later
    wanted = (advantage - advantage.mean()) / advantage.std()
    assert lesson.advantage.tolist() == pytest.approx(wanted.tolist(), abs=1e-4)
    assert lesson.returns.tolist() == pytest.approx(((advantage + values + 5.0) / 2.0).tolist(), abs=1e-4)


def test_a_bonus_for_entropy_alone_makes_the_policy_less_decided() -> None:
    network = small_network(1)
    with torch.no_grad():
        for head in (network.decision.policy.partition, network.decision.policy.count):
            for weight in head[-1].parameters():
                weight.mul_(50.0)
    steps = [replace(step, log_prob=step.log_prob + 50.0) for step in seen()]  # every ratio is clipped away
    before = mean_entropy(network, steps)
    only = replace(ONCE, value_weight=0.0, entropy_weight=1.0, final_entropy_weight=1.0, epochs=5)
    learner(network, only).absorb(steps)
    assert mean_entropy(network, steps) > before + 0.05


def test_gradients_are_cut_to_their_length() -> None:
    network = small_network(1)
    learner(network, replace(ONCE, gradient_norm=1e-3)).absorb(seen())
    gradients = [one.grad.flatten() for one in network.parameters() if one.grad is not None]
    assert float(torch.cat(gradients).norm()) == pytest.approx(1e-3, rel=1e-2)


def test_being_refused_never_raises_the_score() -> None:
    steps = seen(jobs=6)
    start = steps[0]
    refused = replace(start, granted=-1, reward=0.1 * start.reward, elapsed_seconds=0.0, following=start.moment)
    rest = replace(start, reward=0.5 * start.reward)
    scores = [learner(small_network(1)).absorb(found)["score"] for found in (steps, [*[refused] * 5, rest, *steps[1:]])]
    assert scores[1] == pytest.approx(scores[0])
    assert "score" not in learner(small_network(1)).absorb([replace(step, granted=-1) for step in steps])


@pytest.mark.slow
def test_two_ranks_go_where_one_with_all_their_steps_goes() -> None:
    """Ranks that were cut to a few steps must not count as much as those with many."""
    few, many = seen(1, jobs=3), seen(2, jobs=30)
    assert 5 * len(few) < len(many)

    found: list[torch.Tensor] = []

    def made(averaging: Averaging) -> PolicyGradientLearner:
        def kept(parameters: Iterable[Parameter]) -> None:
            held = list(parameters)
            averaging(held)
            if len(held) > 5:
                found.append(torch.cat([_gradient(one) for one in held[:-1]]))

        return PolicyGradientLearner(small_network(1), ONCE, seed=0, averaging=kept)

    torch.set_num_threads(1)
    made(alone).absorb([*few, *many])
    side_by_side(made, lambda rank, learner: learner.absorb(many if rank else few))
    together, mine, theirs = found
    assert torch.equal(mine, theirs)
    assert float((mine - together).norm()) < 1e-4 * float(together.norm())


def _gradient(parameter: Parameter) -> torch.Tensor:
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()


def test_jobs_weigh_time_and_energy_in_every_way_unless_the_settings_say_otherwise() -> None:
    by_default = find_algorithm("policy-gradient").episode_settings(world="lab")
    assert set(by_default.job_weights) == {(0.2, 0.8), (0.5, 0.5), FAST_WEIGHTS}
    assert find_algorithm("chsac").episode_settings(world="lab").job_weights == ((0.5, 0.5),)
    assert all(one[0] < other[0] for one, other in pairwise(by_default.job_weights))
