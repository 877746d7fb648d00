"""What an update is made of: from which weights a target comes, whom the actor believes, where the temperature goes."""

from dataclasses import replace
from math import exp, log

import pytest
import torch
from seen_moments import make_step, network, scene_of, seen_moment, seen_steps

from slurm_energy.learning.experience import Costs, DecisionMoment
from slurm_energy.learning.soft_actor_critic.critics import TwinCritics, answers, batch_of
from slurm_energy.learning.soft_actor_critic.learner import SoftActorCritic
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings, TemperatureSettings
from slurm_energy.learning.soft_actor_critic.replay import Replay
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.policy.gnn.network import HierarchicalNetwork

ALPHA = 0.3
LATENCY, WAITING, POWER = 0.5, 0.25, 0.75
SETTINGS = SoftActorCriticSettings(
    batch_size=8,
    warm_up_transitions=1,
    discount=0.5,
    reference_seconds=100.0,
    critic_learning_rate=1e-9,  # only what a test is about moves
    actor_learning_rate=1e-9,
    objective_weight=0.0,
    pooling_weight=0.0,
    temperature=TemperatureSettings(first=ALPHA, learning_rate=0.01),
    constraints=ConstraintSettings(latency_target_seconds=100.0, waiting_target_jobs=4.0, power_target_watts=2000.0),
)


def with_policy_times(factor: float, of: HierarchicalNetwork) -> HierarchicalNetwork:
    """Return a network whose preferences are larger by a factor."""
    with torch.no_grad():
        for head in (of.decision.policy.partition, of.decision.policy.count):
            for weight in head[-1].parameters():
                weight.mul_(factor)
    return of


def with_critics_times(factor: float, of: TwinCritics) -> TwinCritics:
    with torch.no_grad():
        for head in of.heads:
            head.last.weight *= factor
    return of


def soft_value_by_hand(policy: HierarchicalNetwork, targets: TwinCritics, moment: DecisionMoment) -> list[float]:
    """Return the value's quantiles, option by option: chance times the more careful critic, and the entropy."""
    with torch.no_grad():
        _, decisions = answers(policy, scene_of(moment), critics=False)
        judged = targets(scene_of(moment))
    value = [0.0] * judged.first.shape[1]
    for option, is_open in enumerate(moment.decision.option_open.tolist()):
        if not is_open:
            continue
        chance = exp(float(decisions.options.log_prob[option]))
        first, second = judged.first[option].tolist(), judged.second[option].tolist()
        lower = first if sum(first) < sum(second) else second
        value = [total + chance * (one - ALPHA * log(chance)) for total, one in zip(value, lower, strict=True)]
    return value


def test_a_target_is_the_lagrangian_and_what_the_soft_copies_say_of_what_the_present_policy_does_next() -> None:
    own = with_policy_times(20.0, network(0))
    learner = SoftActorCritic(own, SETTINGS, seed=0)
    learner._targets = with_critics_times(20.0, TwinCritics(network(3), seed=4).copied())  # far from the online ones
    learner._multipliers.restore({"values": torch.tensor([LATENCY, WAITING, POWER])})
    last, soon, late = seen_moment(11), seen_moment(0), seen_moment(6, [1, 2, 4])
    steps = [
        make_step(seen_moment(2), 1, reward=-2.0, elapsed_seconds=50.0, following=soon, costs=Costs(300.0, 6.0, 500.0)),
        make_step(last, 0, reward=-1.0, elapsed_seconds=20.0, costs=Costs(50.0, 0.0, 3000.0)),
        make_step(soon, -1, asked=2, elapsed_seconds=300.0, following=late, costs=Costs(0.0, 1.0, 2500.0)),
    ]
    with torch.no_grad():
        judged = learner._targets(scene_of(soon))
        learner._targets.second.last.bias.add_((judged.first.mean(1) - judged.second.mean(1)).median())
        judged = learner._targets(scene_of(soon))
    assert (
        0 < int((judged.first.mean(1) < judged.second.mean(1)).sum()) < len(judged.first)
    )  # each is the lower one once
    replay = Replay(10, 0)
    replay.add(steps)
    found = learner._target(batch_of(replay._kept))
    for row, step in enumerate(steps):
        latency, waiting, watts = step.costs
        duration = step.elapsed_seconds / 100.0
        cost = LATENCY * (latency / 100.0 - 1.0) if step.granted >= 0 else 0.0
        cost += duration * (WAITING * (waiting / 4.0 - 1.0) + POWER * (watts / 2000.0 - 1.0))
        reward = (step.reward - cost) / (1.0 + LATENCY + WAITING + POWER)
        after = [0.0] * 8 if step.following is None else soft_value_by_hand(own, learner._targets, step.following)
        assert found[row].tolist() == pytest.approx([reward + 0.5**duration * one for one in after], abs=2e-3)


@pytest.mark.slow
def test_the_actor_believes_the_more_careful_of_both_critics() -> None:
    own, moment = network(0), seen_moment(0)
    settings = replace(SETTINGS, actor_learning_rate=5e-3, temperature=TemperatureSettings(first=1e-3))
    learner = SoftActorCritic(own, settings)
    first, second = with_critics_times(300.0, learner._critics).heads
    with torch.no_grad():
        first.last.bias.zero_()
        second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
        second.last.weight.neg_()  # praises what the first one blames
        said = learner._critics(scene_of(moment)).first.mean(1)
    careful = int(said.abs().argmin())
    assert careful != int(said.argmax())
    learner.absorb([make_step(moment, 0)] * 60)
    _, decisions = answers(own, scene_of(moment), critics=False)
    assert int(decisions.options.log_prob.argmax()) == careful


@pytest.mark.parametrize(("decided", "share", "direction"), [(200.0, 0.9, 1.0), (1.0, 0.05, -1.0)])
def test_the_temperature_rises_where_the_policy_is_too_decided_and_falls_where_it_is_not(
    decided: float, share: float, direction: float
) -> None:
    temperature = TemperatureSettings(first=ALPHA, entropy_share=share, learning_rate=0.01)
    learner = SoftActorCritic(with_policy_times(decided, network(0)), replace(SETTINGS, temperature=temperature))
    told = learner.absorb(seen_steps()[:10])
    assert (told["entropy"] < told["entropy_target"]) == (direction > 0.0)
    assert direction * log(told["alpha"] / ALPHA) > 0.03


def test_critics_and_their_copies_begin_at_the_return_of_going_on_like_this() -> None:
    learner = SoftActorCritic(network(0), replace(SETTINGS, updates_per_transition=0.01))
    moment = seen_moment(0)
    steps = [make_step(moment, 0, reward=-2.0, elapsed_seconds=seconds) for seconds in (50.0, 150.0)]
    assert learner.absorb(steps)["updates"] == 0.0
    level = -4.0 / 200.0 * 100.0 / log(2.0)  # reward per second, times the integral of 0.5 ** (t / 100 s)
    for critics in (learner._critics, learner._targets):
        for head in critics.heads:
            assert head.last.bias.tolist() == pytest.approx([level] * 8)


def test_gradients_of_critics_and_actor_are_cut_to_their_length() -> None:
    learner = SoftActorCritic(network(0), replace(SETTINGS, gradient_norm=1e-4))
    learner.absorb(seen_steps()[:3])
    for parameters in (learner._encoder_and_critics, learner._actor):
        gradients = [one.grad.flatten() for one in parameters if one.grad is not None]
        assert float(torch.cat(gradients).norm()) == pytest.approx(1e-4, rel=1e-2)
