"""What a step says of latency, queue and power, and what is settled when a job ends: all by hand, on one device."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_networks import small_network
from small_worlds import make_device, make_job, make_load, make_pool, make_world

from slurm_energy.learning.bookkeeping import Bookkeeping
from slurm_energy.learning.episodes import EpisodeSettings, run_episode
from slurm_energy.learning.experience import DecisionStep, reward_per_start
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.episode import RewardWeights
from slurm_energy.twin.world import Outage, World

ONE_CLOCK = make_device(relative_clocks=(1.0,), loads={"training": make_load(watts=(200.0,), seconds_per_unit=(1.0,))})
"""Draws 200 W while it works and 10 W while it is free; a unit takes a second."""
PRICES = RewardWeights(energy=0.9, waiting_watts=40.0, running_watts=15.0, scale_joules=1000.0)


def one_device(**changes: Any) -> World:
    return make_world(make_pool(nodes=1, gpus_per_node=1), devices=(ONE_CLOCK,), **changes)


def episode(world: World, *jobs: Job, bookkeeping: Bookkeeping = "assigned", **changes: Any) -> list[DecisionStep]:
    workload = Workload(name="few", jobs=jobs)
    settings = EpisodeSettings(world=world, workload=workload, rewards=PRICES, bookkeeping=bookkeeping, **changes)
    return run_episode(small_network(1), settings, 7, torch.Generator().manual_seed(0))


def total(steps: list[DecisionStep]) -> float:
    return sum(step.reward for step in steps)


def test_latency_is_the_wait_and_the_run_and_power_is_what_the_cluster_draws() -> None:
    first, second = make_job(1, units=100.0), make_job(2, submitted=10.0, units=50.0)
    one, other = episode(one_device(), first, second)
    assert one.costs == pytest.approx((100.0, 0.9, 200.0))  # of 100 s, one job waits for 90 s
    assert other.costs == pytest.approx((90.0 + 50.0, 0.0, 200.0))


def test_where_no_time_passes_power_and_queue_are_those_of_the_moment() -> None:
    world = make_world(make_pool(nodes=1, gpus_per_node=3), devices=(ONE_CLOCK,))
    one, other = episode(world, make_job(1, units=100.0), make_job(2, units=100.0))
    assert one.elapsed_seconds == 0.0
    assert one.costs == pytest.approx((100.0, 1.0, 200.0 + 2 * 10.0))  # one works, the other one is asked about
    assert other.costs == pytest.approx((100.0, 0.0, 2 * 200.0 + 10.0))


@pytest.mark.parametrize("true_share", [0.5, 1.0, 3.0])
def test_what_a_job_really_drew_and_ran_is_settled_when_it_ends(true_share: float) -> None:
    world = one_device()
    jobs = [
        replace(make_job(number, submitted=1000.0 * number, units=100.0), estimated_units=100.0, true_units=units)
        for number, units in ((1, 100.0 * true_share), (2, 100.0))
    ]
    steps = episode(world, *jobs)
    seconds = 100.0 * true_share
    assert -steps[0].reward == pytest.approx((0.9 * 190.0 * seconds + 15.0 * seconds) / 1000.0)
    empty = 0.9 * 10.0 * (steps[-1].moment.seconds + steps[-1].elapsed_seconds) / 1000.0
    assert total(steps) - empty == pytest.approx(total(episode(world, *jobs, bookkeeping="passage")))


def test_a_job_that_runs_beyond_the_next_decision_is_settled_in_the_interval_in_which_it_ends() -> None:
    world = make_world(make_pool(nodes=1, gpus_per_node=2), devices=(ONE_CLOCK,))
    wrong = replace(make_job(1, units=100.0), estimated_units=100.0, true_units=300.0)
    steps = episode(world, wrong, make_job(2, submitted=50.0, units=10.0), make_job(3, submitted=400.0, units=10.0))
    own = [-(0.9 * 190.0 + 15.0) * seconds / 1000.0 for seconds in (100.0, 10.0, 10.0)]
    late = -(0.9 * 190.0 + 15.0) * 200.0 / 1000.0
    assert [step.reward for step in steps] == pytest.approx([own[0], own[1] + late, own[2]])


def test_a_job_that_failed_nodes_start_again_is_charged_for_each_start_and_settled_once() -> None:
    outage = Outage(pool="pool", nodes=1, at_seconds=60.0, until_seconds=160.0)
    world, jobs = one_device(outages=(outage,)), (make_job(1, units=100.0), make_job(2, submitted=500.0, units=10.0))
    steps = episode(world, *jobs)
    assert sum(step.granted >= 0 for step in steps) == 3
    empty = 0.9 * 10.0 * (steps[-1].moment.seconds + steps[-1].elapsed_seconds) / 1000.0
    assert total(steps) - empty == pytest.approx(total(episode(world, *jobs, bookkeeping="passage")))


def test_a_round_is_told_by_the_reward_for_each_start() -> None:
    one, other = episode(one_device(), make_job(1, units=100.0), make_job(2, submitted=10.0, units=50.0))
    assert reward_per_start([one, other]) == pytest.approx((one.reward + other.reward) / 2.0)
    refused = replace(one, granted=-1, reward=-1.0)
    assert reward_per_start([one, refused]) == pytest.approx(one.reward - 1.0)
    assert reward_per_start([refused]) != reward_per_start([refused])  # NaN: nothing was started
