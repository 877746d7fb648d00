"""Episodes: what is written down of a run is what the run was, and rewards add up to what it cost."""

import pickle
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import isclose
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import SMALL, small_network
from small_worlds import FirstFit, drive, make_engine, make_job, make_pool, make_world
from toy_cluster import TOY, toy_jobs

from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.schema import OPTION, TASK, column
from slurm_energy.learning.bookkeeping import ActiveMeter, empty_watts, weighted
from slurm_energy.learning.episodes import SPREAD_WEIGHTS, EpisodeCollector, EpisodeSettings, run_episode
from slurm_energy.learning.experience import DecisionStep
from slurm_energy.policy.gnn.embeddings import batch_index
from slurm_energy.policy.gnn.policy import GnnPolicy
from slurm_energy.twin.engine.job import COMPUTING, ENDED, STARTING, Workload
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.episode import RewardWeights
from slurm_energy.twin.world import Outage, World

PRICES = RewardWeights(energy=0.9, waiting_watts=40.0, running_watts=15.0, scale_joules=1000.0)
CROWDED = partial(toy_jobs, count=24, rate_per_second=0.4)
SEED = 7


def settings(**changes: Any) -> EpisodeSettings:
    values: dict[str, Any] = {"world": TOY, "workload": CROWDED, "rewards": PRICES, "actions": "greedy"}
    return EpisodeSettings(**{**values, **changes})


def episode(chosen: EpisodeSettings, *, seed: int = SEED, draws: int = 0) -> list[DecisionStep]:
    return run_episode(small_network(1), chosen, seed, torch.Generator().manual_seed(draws))


def outcome(world: World = TOY, **changes: Any) -> Outcome:
    """Return what the same network does as a rule."""
    network = small_network(1)
    rule = GnnPolicy(network, ClusterGraph(), version="1")
    return run(world, CROWDED(SEED), rule, seed=SEED, **changes)


@cache
def usual_episode() -> tuple[DecisionStep, ...]:
    """Return the episode of the settings as they are, which no test changes."""
    return tuple(episode(settings()))


@cache
def usual_outcome() -> Outcome:
    """Return the run of the settings as they are, which no test changes."""
    return outcome()


def total_cost(found: Outcome) -> float:
    waited = float(np.sum(found.started_seconds - found.submitted_seconds))
    held = float(np.sum(found.run_seconds))
    return (0.9 * found.total_joules + 40.0 * waited + 15.0 * held) / 1000.0


@pytest.mark.parametrize("order", ["fifo", "backfill"])
def test_rewards_by_passage_add_up_to_what_the_same_network_costs_as_a_rule(order: str) -> None:
    world = TOY if order == "backfill" else replace(TOY, discipline=replace(TOY.discipline, backfill="none"))
    found = outcome(world)
    steps = episode(settings(world=world, bookkeeping="passage"))
    assert max(step.costs.waiting_jobs for step in steps) > 5.0
    assert -sum(step.reward for step in steps) == pytest.approx(total_cost(found), rel=1e-9)


def test_rewards_by_assignment_add_up_to_the_same_less_the_empty_cluster() -> None:
    found = usual_outcome()
    steps = episode(settings(bookkeeping="assigned"))
    empty = 0.9 * empty_watts(TOY) * found.end_seconds / 1000.0
    assert empty_watts(TOY) == 160.0
    assert -sum(step.reward for step in steps) == pytest.approx(total_cost(found) - empty, rel=1e-9)


def test_by_assignment_a_choice_is_charged_at_once_with_what_it_is_expected_to_cost() -> None:
    one = Workload(name="one", jobs=(make_job(1, submitted=50.0, partitions=("old",)),))
    (step,) = episode(settings(workload=one))
    # 150 W at the highest clock, 10 W of which a free device draws too, for 100 s
    assert step.reward == pytest.approx(-(0.9 * 140.0 * 100.0 + 15.0 * 100.0) / 1000.0)
    (passed,) = episode(settings(workload=one, bookkeeping="passage"))
    assert passed.reward == pytest.approx(-(0.9 * (140.0 * 100.0 + 160.0 * 150.0) + 15.0 * 100.0) / 1000.0)
    assert (step.elapsed_seconds, step.granted, step.is_terminal) == (100.0, 0, True)
    assert step.costs.latency_seconds == 100.0


def test_weights_scale_time_and_energy_and_balanced_ones_change_nothing() -> None:
    one = Workload(name="one", jobs=(make_job(1, partitions=("old",)),))
    energy, time = 0.9 * 140.0 * 100.0 / 1000.0, 15.0 * 100.0 / 1000.0
    costs = {(0.5, 0.5): energy + time, (0.8, 0.2): 0.4 * energy + 1.6 * time, (0.0, 1.0): 2.0 * energy}
    for weights, cost in costs.items():
        (step,) = episode(settings(workload=one, job_weights=(weights,)))
        assert -step.reward == pytest.approx(cost)
    assert weighted(PRICES, (0.5, 0.5)) == PRICES


@pytest.mark.slow
def test_jobs_draw_their_weights_whatever_is_done_with_them() -> None:
    def drawn(chosen: EpisodeSettings, **options: int) -> list[tuple[float, float]]:
        steps = sorted(episode(chosen, **options), key=lambda step: _column(step, "estimated_seconds"))
        return [(_column(step, "time_weight"), _column(step, "energy_weight")) for step in steps]

    spread = settings(job_weights=SPREAD_WEIGHTS, actions="sampled", workload=partial(toy_jobs, count=20))
    first = drawn(spread)
    assert len(set(first)) == 3
    assert first == drawn(spread, draws=1)
    assert len(set(drawn(replace(spread, bookkeeping="passage")))) == 1
    one_job = replace(spread, bookkeeping="passage", workload=partial(toy_jobs, count=1))
    by_episode = {drawn(one_job, seed=seed)[0] for seed in range(12)}
    assert len(by_episode) == 3


def _column(step: DecisionStep, name: str) -> float:
    return round(float(step.moment.decision.job_x[0, column(TASK, name)]), 6)


def test_steps_follow_each_other_to_the_end_of_the_run() -> None:
    steps = usual_episode()
    for step, following in pairwise(steps):
        assert step.following is following.moment
        assert step.moment.seconds + step.elapsed_seconds == pytest.approx(following.moment.seconds)
        assert not step.is_terminal
    assert steps[-1].following is None
    assert steps[-1].is_terminal
    assert steps[-1].moment.seconds + steps[-1].elapsed_seconds == pytest.approx(usual_outcome().end_seconds)


def test_an_episode_that_is_cut_off_is_not_terminal() -> None:
    cut = episode(settings(hours=0.01))
    assert cut[-1].following is None
    assert not cut[-1].is_terminal
    assert cut[-1].moment.seconds + cut[-1].elapsed_seconds == pytest.approx(36.0)
    assert -sum(s.reward for s in episode(settings(hours=0.01, bookkeeping="passage"))) < total_cost(usual_outcome())
    drained = episode(settings(hours=0.01, drains=True))
    assert drained[-1].is_terminal
    assert len(drained) > len(cut)


def test_a_generator_s_arrivals_end_at_the_hours_and_its_jobs_run_to_their_ends_where_the_run_drains() -> None:
    lab = EpisodeSettings(world="lab", hours=0.5, drains=True)
    steps = episode(lab)
    assert steps[-1].is_terminal
    assert steps[-1].moment.seconds + steps[-1].elapsed_seconds > 1800.0
    assert not episode(replace(lab, drains=False))[-1].is_terminal


def test_the_log_probability_is_that_of_the_moment_that_is_written_down() -> None:
    network = small_network(1)
    steps = episode(settings(actions="sampled"))
    for step in steps[::5]:
        with torch.inference_mode():
            published = network.state(step.moment.state).published
            answers = network.decide(published, batch_index(published), step.moment.decision, critics=False).options
        assert isclose(float(answers.log_prob[step.asked]), step.log_prob, abs_tol=1e-4)
        assert step.moment.decision.option_open[step.asked]


def test_moments_share_a_state_in_which_nothing_changed() -> None:
    quiet = episode(settings(workload=partial(toy_jobs, count=30)))
    assert len({id(step.moment.state) for step in quiet}) < len(quiet)
    for step, following in pairwise(quiet):
        same = np.array_equal(step.moment.state.devices.gpu_x, following.moment.state.devices.gpu_x)
        assert same or step.moment.state is not following.moment.state


@pytest.mark.slow
def test_the_same_draws_give_the_same_episode_and_others_another() -> None:
    sampled = settings(actions="sampled")
    first, again, other = episode(sampled), episode(sampled), episode(sampled, draws=1)
    assert [(step.asked, step.log_prob, step.reward) for step in first] == [
        (step.asked, step.log_prob, step.reward) for step in again
    ]
    assert [step.asked for step in first[:10]] != [step.asked for step in other[:10]]


def test_greedy_actions_are_the_likeliest() -> None:
    network = small_network(1)
    for step in usual_episode()[:10]:
        with torch.inference_mode():
            published = network.state(step.moment.state).published
            answers = network.decide(published, batch_index(published), step.moment.decision, critics=False).options
        assert int(answers.log_prob.argmax()) == step.asked


def test_a_start_that_backfill_refuses_is_not_granted_and_costs_nothing_of_its_own() -> None:
    world = make_world(make_pool("pool", nodes=1), discipline=replace(TOY.discipline, backfill="easy"))
    jobs = (
        make_job(1, submitted=0.0, units=400.0, gpus=2),
        make_job(2, submitted=1.0, units=400.0, gpus=4),
        make_job(3, submitted=2.0, units=4000.0, gpus=2),
    )
    steps = episode(settings(world=world, workload=Workload(name="refused", jobs=jobs)))
    refused = [step for step in steps if step.granted < 0]
    assert refused
    assert {step.granted for step in steps if step.granted >= 0} == {0}
    assert all(step.costs.latency_seconds == 0.0 for step in refused)
    first = refused[0]
    waiting = 2.0 * first.elapsed_seconds * 40.0 / 1000.0
    assert -first.reward == pytest.approx(waiting)
    assert first.costs.waiting_jobs == 2.0


def test_active_energy_is_counted_over_restarts_and_agrees_with_the_record_of_the_run() -> None:
    world = replace(
        make_world(make_pool("left", nodes=2), make_pool("right", nodes=1)),
        outages=(Outage(pool="left", nodes=2, at_seconds=60.0, until_seconds=160.0),),
    )
    jobs = [make_job(n, submitted=20.0 * n, units=150.0, gpus=2, partitions=("left", "right")) for n in range(1, 7)]
    meter, known, read = ActiveMeter(), set[int](), list[float]()

    def look(engine: Engine) -> None:
        for job in engine.runs.values():
            if job.phase in {STARTING, COMPUTING} or (job.phase == ENDED and job.job_id not in known):
                meter.started(job, 10.0)
                known.add(job.job_id)
        read.append(meter.read(engine.now))

    rule = FirstFit()
    engine = make_engine(world, jobs, rule)
    drive(engine, rule, look)
    assert sum(job.restarts for job in engine.runs.values()) > 0
    whole = sum(job.energy_joules - 10.0 * job.gpu_seconds for job in engine.runs.values())
    assert sum(read) == pytest.approx(whole, rel=1e-9)


@pytest.mark.slow
def test_a_collector_travels_and_runs_the_weights_it_is_given() -> None:
    collector = pickle.loads(pickle.dumps(EpisodeCollector(config=SMALL, settings=settings(actions="sampled"))))
    network = small_network(5)
    mine = collector(network.state_dict(), seed=SEED)
    theirs = run_episode(network, settings(actions="sampled"), SEED, torch.Generator().manual_seed(SEED))
    assert [(step.asked, step.log_prob) for step in mine] == [(step.asked, step.log_prob) for step in theirs]
    assert mine != collector(small_network(6).state_dict(), seed=SEED)


def test_a_network_gone_astray_is_told() -> None:
    network = small_network(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(TrainingError, match="not finite"):
        run_episode(network, settings(), SEED, torch.Generator())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hours": 0.0}, "episodes.hours is 0.0, it must be between 0.01 and 100000"),
        ({"hours": float("inf")}, "episodes.hours is inf, it must be between 0.01 and 100000"),
        ({"bookkeeping": "other"}, "episodes.bookkeeping is 'other', allowed: "),
        ({"actions": "best"}, "episodes.actions is 'best', allowed: "),
        ({"job_weights": ()}, "episodes.job_weights has 0 pairs"),
        ({"job_weights": ((0.5, -0.1),)}, "episodes.job_weights has the pair (0.5, -0.1)"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings(**changes)
    assert told in str(error.value)


def test_options_are_those_of_the_twin() -> None:
    step = usual_episode()[0]
    gpus = step.moment.decision.option_x[:, column(OPTION, "gpus")]
    assert len(gpus) == 6
    assert list(gpus[:3]) == list(gpus[3:])
