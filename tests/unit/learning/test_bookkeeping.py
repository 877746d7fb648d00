"""The scale of rewards: in worlds of the package a job costs about 1, whatever their energies in joules are."""

from functools import cache

import numpy as np
import pytest
import torch
from small_networks import small_network

from slurm_energy.learning.bookkeeping import Bookkeeping, RewardAccounting, empty_watts
from slurm_energy.learning.episodes import EpisodeSettings, run_episode
from slurm_energy.policy.prices import BALANCED_WEIGHTS
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.places import places_of
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.episode import JobSource, Passage, RewardWeights, typical_job_joules
from slurm_energy.twin.world.file import shipped_world

HOURS = 3.0
LEAST, MOST = 0.1, 10.0


def job_source(name: str) -> JobSource:
    return JobSource(world=shipped_world(name), horizon_seconds=HOURS * 3600.0)


@cache
def whole_run(name: str, rule: str) -> tuple[Passage, float, int]:
    """Return what a run under a rule took, what one of its jobs is worth in J, and their number."""
    source = job_source(name)
    workload = source.make(3)
    found = run(source.world, workload, create_rule(rule), seed=3)
    waited = float(np.sum(found.started_seconds - found.submitted_seconds))
    whole = Passage(found.end_seconds, found.total_joules, waited, float(np.sum(found.run_seconds)))
    return whole, typical_job_joules(source.world, places_of(source.world), source.make(0).jobs), len(workload.jobs)


@pytest.mark.parametrize("bookkeeping", ["passage", "assigned"])
@pytest.mark.parametrize("rule", ["slurm-default", "fixed-clock", "greedy", "total-cost"])
@pytest.mark.parametrize("name", ["lab", "lab-open", "chsac"])
def test_a_job_under_a_plain_rule_costs_about_1(name: str, rule: str, bookkeeping: Bookkeeping) -> None:
    whole, scale_joules, jobs = whole_run(name, rule)
    books = RewardAccounting(
        bookkeeping=bookkeeping,
        rewards=RewardWeights(),
        scale_joules=scale_joules,
        common_weights=BALANCED_WEIGHTS,
        empty_watts=empty_watts(shipped_world(name)),
    )
    assert books.scale_joules > 1e5
    assert LEAST < -books.reward(whole, 0.0, ()) / jobs < MOST


@pytest.mark.parametrize("bookkeeping", ["passage", "assigned"])
@pytest.mark.parametrize("name", ["lab", pytest.param("lab-open", marks=pytest.mark.slow)])
def test_rewards_of_an_untrained_network_are_of_the_order_of_1(name: str, bookkeeping: Bookkeeping) -> None:
    """Those by passage differ most: a long gap between two decisions is charged to one of them."""
    settings = EpisodeSettings(world=name, hours=HOURS, bookkeeping=bookkeeping)
    steps = run_episode(small_network(1), settings, 3, torch.Generator().manual_seed(0))
    costs = np.array([-step.reward for step in steps])
    assert LEAST < costs.mean() < MOST
    assert LEAST < np.median(np.abs(costs)) < MOST
    assert (np.abs(costs) < 10.0 * MOST).all()
