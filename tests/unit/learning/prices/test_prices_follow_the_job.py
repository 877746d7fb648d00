"""What no price that is the same for all can do: jobs of two kinds that need opposite ones."""

from random import Random

import pytest
import torch
from small_worlds import make_job
from test_price_learning import CONFIG, EPISODE, WORLD, episode, joules, learned

from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceLearnerSettings
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.rules.registry import create_rule
from slurm_energy.twin.job import Job, Workload
from slurm_energy.twin.simulation import run

LONE_UNITS, CROWD_UNITS = (300.0, 600.0), (4000.0, 6000.0)
CROWD = 8
WIDE, NARROW = 0, 1


def jobs(seed: int, cycles: int = 12) -> Workload:
    """Return small jobs that come alone, and large ones that come eight at a time and fill a wide node."""
    random, now = Random(seed), 0.0
    found: list[Job] = []
    for _ in range(cycles):
        for _ in range(6):
            now += random.uniform(1500.0, 2500.0)
            found.append(make_job(len(found) + 1, submitted=now, units=random.uniform(*LONE_UNITS)))
        now += 1500.0
        for _ in range(CROWD):
            now += random.uniform(1.0, 5.0)
            found.append(make_job(len(found) + 1, submitted=now, units=random.uniform(*CROWD_UNITS)))
        now += 7000.0
    return Workload(name="two kinds", jobs=tuple(found))


@pytest.fixture(scope="module")
def network() -> HierarchicalNetwork:
    torch.set_num_threads(1)
    found = create_network(CONFIG, seed=0)
    settings = PriceLearnerSettings(
        learning_rate=1e-2, encoder_rate_share=1.0, price_decay=0.03, decay_rounds=25, states_per_batch=16
    )
    learner = PriceLearner(found, settings, noise=EPISODE.noise, seed=0)
    for number in range(25):
        learner.absorb([episode(found, 1000 + number, jobs(1000 + number))])
    return found.eval()


@pytest.mark.timeout(180)
def test_each_kind_gets_the_place_that_suits_it_and_no_common_price_comes_near(network: HierarchicalNetwork) -> None:
    test = jobs(seed=5)
    outcome = run(WORLD, test, learned(network))
    alone = [job.true_units < CROWD_UNITS[0] for job in test.jobs]
    places = dict(zip(outcome.job_id.tolist(), outcome.place.tolist(), strict=True))
    narrow = [places[job.job_id] == NARROW for job in test.jobs]
    right = [is_narrow == is_alone for is_narrow, is_alone in zip(narrow, alone, strict=True)]
    assert sum(right) >= 0.9 * len(right)
    same_for_all = (f"total-cost:V=0,slowdown=0,opening={price}" for price in (0.03, 0.1, 0.2, 0.3, 1.0))
    assert joules(outcome) < 0.97 * min(joules(run(WORLD, test, create_rule(rule))) for rule in same_for_all)
