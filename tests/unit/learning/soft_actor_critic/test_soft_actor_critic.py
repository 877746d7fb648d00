"""The learner: values go back along chains and time, everything goes on exactly, and a toy cluster is learned."""

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from seen_moments import CONFIG, make_step, network, scene_of, seen_moment, seen_steps
from toy_cluster import TOY, active_joules, least_active_joules, toy_jobs
from two_ranks import side_by_side

from slurm_energy.errors import ConfigError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.learning.algorithms import LearnerParts, find_algorithm
from slurm_energy.learning.episodes import EpisodeCollector, EpisodeSettings
from slurm_energy.learning.experience import Averaging, Costs, DecisionMoment, Learner, Weights, episode_seed
from slurm_energy.learning.soft_actor_critic.critics import answers
from slurm_energy.learning.soft_actor_critic.learner import SoftActorCritic
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings, TemperatureSettings
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.simulation import run

COLD = TemperatureSettings(first=1e-4, least=1e-4, most=1e-4)
WARM = TemperatureSettings(first=0.1, least=0.1, most=0.1)
"""So warm that the actor comes back from an option that it took too early for the best."""
QUICK = SoftActorCriticSettings(
    batch_size=8,
    warm_up_transitions=1,
    discount=0.5,
    reference_seconds=100.0,
    critic_learning_rate=5e-3,
    actor_learning_rate=5e-3,
    target_rate=0.2,
    temperature=COLD,
)


def value(of: HierarchicalNetwork, moment: DecisionMoment, option: int) -> float:
    """Return the mean of the first critic's quantiles."""
    with torch.no_grad():
        _, decisions = answers(of, scene_of(moment), critics=True)
    assert decisions.quantiles is not None
    return float(decisions.quantiles[option].mean())


def chance(of: HierarchicalNetwork, moment: DecisionMoment) -> list[float]:
    with torch.no_grad():
        _, decisions = answers(of, scene_of(moment), critics=False)
    found: list[float] = decisions.options.log_prob.exp().tolist()
    return found


def same_weights(one: Weights, other: Weights) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.long
def test_value_goes_back_along_a_chain_by_the_time_that_passes() -> None:
    soon, late, last = seen_moment(0, [2]), seen_moment(6, [1]), seen_moment(11, [0])
    steps = [
        make_step(soon, 2, reward=0.0, elapsed_seconds=100.0, following=last),
        make_step(late, 1, reward=-1.0, elapsed_seconds=300.0, following=last),
        make_step(last, 0, reward=-4.0, elapsed_seconds=50.0),
    ]
    own = network()
    SoftActorCritic(own, replace(QUICK, updates_per_transition=60.0)).absorb(steps)
    assert value(own, last, 0) == pytest.approx(-4.0, abs=0.3)
    assert value(own, soon, 2) == pytest.approx(0.5 * -4.0, abs=0.3)
    assert value(own, late, 1) == pytest.approx(-1.0 + 0.5**3 * -4.0, abs=0.3)


@pytest.mark.slow
def test_the_actor_turns_to_what_the_critics_found_better() -> None:
    moment = seen_moment(0, [0, 2])
    steps = [make_step(moment, option, reward=reward) for option, reward in ((0, -2.5), (2, -0.5))]
    own = network()
    learner = SoftActorCritic(own, replace(QUICK, updates_per_transition=30.0, temperature=WARM))
    learner.absorb(steps)
    found = chance(own, moment)
    assert found[2] > 0.9
    assert found[0] + found[2] == pytest.approx(1.0)


@pytest.mark.slow
def test_the_actor_does_not_turn_to_what_the_scheduler_refuses() -> None:
    """Option 0 is always refused, and the wait for the next start costs 5; option 2 starts the job and costs 1."""
    moment = seen_moment(0, [0, 2])
    refused = make_step(moment, -1, asked=0, reward=-5.0, elapsed_seconds=100.0, following=moment)
    for seed in range(3):
        own = network(seed)
        settings = replace(
            QUICK, updates_per_transition=6.0, critic_learning_rate=1e-2, actor_learning_rate=1e-2, temperature=WARM
        )
        told = SoftActorCritic(own, settings, seed=seed).absorb([refused, make_step(moment, 2, reward=-1.0)] * 3)
        assert told["replay"] == 6.0
        assert chance(own, moment)[2] > 0.9


def test_being_refused_never_raises_the_score() -> None:
    moment = seen_moment(0)
    start = make_step(moment, 0, reward=-3.0, elapsed_seconds=100.0)
    # The same outcome with the time until the start in pieces: each refusal is a step of its own at next to no cost.
    refused = make_step(moment, -1, asked=1, reward=-0.1, elapsed_seconds=10.0, following=moment)
    rest = replace(start, reward=-2.5, elapsed_seconds=50.0)
    scores = [SoftActorCritic(network(), QUICK).absorb(steps)["score"] for steps in ([start], [*[refused] * 5, rest])]
    assert scores == pytest.approx([-3.0, -3.0])


@pytest.mark.slow
def test_a_constraint_changes_what_is_learned_and_lets_go_when_it_is_kept() -> None:
    moment = seen_moment(0, [0, 2])
    slow, fast = Costs(400.0, 0.0, 0.0), Costs(0.0, 0.0, 0.0)
    steps = [make_step(moment, 0, reward=-0.5, costs=slow), make_step(moment, 2, reward=-2.0, costs=fast)]
    constraints = ConstraintSettings(latency_target_seconds=100.0, rate=1.0)
    settings = replace(QUICK, updates_per_transition=25.0, temperature=WARM, constraints=constraints)
    own = network()
    learner = SoftActorCritic(own, settings)
    told = learner.absorb(steps)
    assert told["lambda_latency"] == pytest.approx(1.0)
    assert told["score"] == pytest.approx(-1.25 - 10.0 * 1.0)
    assert chance(own, moment)[2] > 0.8
    history = [learner.absorb(steps[1:])["lambda_latency"] for _ in range(6)]
    assert history == [0.0] * 6
    assert chance(own, moment)[0] > 0.7


def test_nothing_is_learned_before_the_warm_up_nor_by_the_actor_before_the_critics() -> None:
    own = network()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    settings = replace(QUICK, warm_up_transitions=20, critic_first_updates=100, updates_per_transition=0.5)
    learner = SoftActorCritic(own, settings)
    told = learner.absorb(seen_steps()[:12])
    assert told["updates"] == 0.0 and "critic_loss" not in told
    assert told["reward_per_start"] < 0.0 and "score" not in told  # nothing has been learned that could be best
    assert same_weights(learner.acting, before)
    told = learner.absorb(seen_steps()[12:])
    assert told["updates"] == 6.0 and told["replay"] == float(len(seen_steps()))
    after = learner.acting
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("device.") for name in moved)
    assert any(name.startswith("decision.quantile.") for name in moved)
    assert not any(name.startswith(("decision.policy.", "decision.clocks.", "assignment.")) for name in moved)


@pytest.mark.slow
def test_the_same_seed_learns_the_same_and_another_seed_something_else() -> None:
    found = []
    for seed in (1, 1, 2):
        learner = SoftActorCritic(network(), replace(QUICK, updates_per_transition=0.25), seed=seed)
        learner.absorb(seen_steps())
        found.append(learner.acting)
    assert same_weights(found[0], found[1])
    assert not same_weights(found[0], found[2])


@pytest.mark.slow
def test_a_learner_that_was_broken_off_goes_on_as_if_it_had_not_been() -> None:
    settings = replace(
        QUICK,
        updates_per_transition=0.3,
        temperature=TemperatureSettings(learning_rate=0.01),
        constraints=ConstraintSettings(latency_target_seconds=20.0, power_target_watts=150.0),
    )
    first, other = SoftActorCritic(network(), settings, seed=1), SoftActorCritic(network(5), settings, seed=2)
    first.absorb(seen_steps()[:13])
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    went_on = first.absorb(seen_steps()[13:])
    for _ in range(2):  # also after it has learned something else in between
        buffer.seek(0)
        other.restore(torch.load(buffer, weights_only=True))
        assert other.absorb(seen_steps()[13:]) == went_on
        assert same_weights(first.acting, other.acting)


def test_a_state_does_not_change_with_the_learner() -> None:
    learner = SoftActorCritic(network(), replace(QUICK, updates_per_transition=0.3))
    learner.absorb(seen_steps()[:10])
    state, acting = learner.state(), learner.acting
    learner.absorb(seen_steps()[10:])
    learner.restore(state)
    assert same_weights(learner.acting, acting)


@pytest.mark.slow
def test_ranks_with_different_episodes_stay_alike() -> None:
    settings = replace(QUICK, constraints=ConstraintSettings(latency_target_seconds=20.0))
    steps = seen_steps()

    def made(averaging: Averaging) -> SoftActorCritic:
        return SoftActorCritic(network(), settings, averaging=averaging)

    def learn(rank: int, learner: SoftActorCritic) -> tuple[Mapping[str, float], Weights]:
        return learner.absorb(steps[:4] if rank == 0 else steps[10:18]), learner.acting

    (first, mine), (second, theirs) = side_by_side(made, learn)
    told = first, second
    assert told[0]["updates"] == told[1]["updates"] == 6.0
    for name in ("alpha", "lambda_latency"):
        assert told[0][name] == told[1][name] > 0.0
    assert told[0]["mean_latency_seconds"] != told[1]["mean_latency_seconds"]
    assert same_weights(mine, theirs)


@pytest.mark.parametrize("changes", [{"attention": "objectives", "pooling": "mixed"}, {"hierarchy": "flat"}])
def test_every_network_with_a_policy_over_options_can_learn(changes: dict[str, Any]) -> None:
    own = create_network(replace(CONFIG, **changes), 0)
    learner = SoftActorCritic(own, replace(QUICK, updates_per_transition=0.1))
    assert learner.absorb(seen_steps())["updates"] == 2.0


def test_what_cannot_learn_or_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match='policy="prices"'):
        SoftActorCritic(create_network(replace(CONFIG, policy="prices"), 0), QUICK)
    for name, wrong in (
        ("discount", 1.0),
        ("batch_size", 0),
        ("target_rate", 0.0),
        ("objective_weight", -1.0),
        ("capacity", 2**62),
        ("updates_per_transition", float("inf")),
    ):
        with pytest.raises(ConfigError, match=f"learner.{name} is {wrong}, it must be between"):
            replace(QUICK, **{name: wrong})  # type: ignore[arg-type]  # each of its own type
    with pytest.raises(ConfigError, match="never fit"):
        SoftActorCriticSettings(capacity=10, warm_up_transitions=11)


@pytest.mark.long
def test_it_learns_a_toy_cluster_with_a_known_optimum() -> None:
    algorithm = find_algorithm("chsac")
    settings = SoftActorCriticSettings(
        batch_size=32,
        warm_up_transitions=200,
        updates_per_transition=0.5,
        discount=0.5,
        reference_seconds=500.0,
        actor_learning_rate=2e-3,
        critic_learning_rate=2e-3,
        temperature=TemperatureSettings(first=0.1, learning_rate=3e-3),
    )
    own = network()
    learner: Learner = algorithm.learner(
        LearnerParts(network=own, settings=settings, episodes=None, seed=0, averaging=lambda parameters: None)
    )
    collector = EpisodeCollector(config=CONFIG, settings=EpisodeSettings(world=TOY, workload=toy_jobs, drains=True))
    test = toy_jobs(seed=2)
    optimum = least_active_joules(test)

    def found() -> float:
        return active_joules(run(TOY, test, GnnPolicy(own, ClusterGraph(), version="1")))

    untrained = found()
    for number in range(2):
        learner.absorb(collector(learner.acting, seed=episode_seed(0, number, 0)))
    assert optimum * (1.0 - 1e-9) <= found() <= 1.03 * optimum
    assert active_joules(run(TOY, test, create_rule("masked-random"))) > 1.15 * optimum
    assert untrained > 1.05 * optimum
