"""Prices learn from what others wait, and all ranks of a training tell costs in one scale."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_price_learning import CONFIG, EPISODE, episode, learner
from two_ranks import side_by_side

from slurm_energy.learning.experience import Averaging
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceLearnerSettings
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.prices import JOB_PRICES


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_price_that_makes_others_wait_is_moved_though_the_job_s_own_bill_is_the_same(sign: float) -> None:
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    found, is_tried = episode(network, 1), np.array(JOB_PRICES) == "opened_nodes"
    steps = [
        step._replace(
            job_raw=np.where(is_tried, step.job_raw, step.job_mean),
            device_raw=step.device_mean,
            cost=1.0,
            waiting=float(np.exp(2.0 * sign * (step.job_raw - step.job_mean)[is_tried].item())),
        )
        for step in found.steps
    ]
    learns = learner(network)
    for _ in range(5):
        said = learns.absorb([replace(found, steps=tuple(steps))])["raw_opened_nodes"]
    assert sign * said < -0.12


def test_all_ranks_tell_costs_in_one_scale() -> None:
    """Jobs of one rank's world cost five times as much over what they were promised as those of the other's."""
    torch.set_num_threads(1)
    network = create_network(CONFIG, seed=0)
    episodes = [episode(network, seed) for seed in (1, 2)]
    episodes[1] = replace(episodes[1], steps=tuple(step._replace(cost=5.0 * step.cost) for step in episodes[1].steps))
    settings = PriceLearnerSettings(learning_rate=1e-2, states_per_batch=16, head_steps=0)

    def made(averaging: Averaging) -> PriceLearner:
        return PriceLearner(create_network(CONFIG, seed=0), settings, noise=EPISODE.noise, seed=0, average=averaging)

    def learn(rank: int, learns: PriceLearner) -> dict[str, Any]:
        learns.absorb([episodes[rank]])
        return learns.state()

    first, second = side_by_side(made, learn)
    costs = np.log1p([[step.cost, step.waiting] for found in episodes for step in found.steps])
    for state in (first, second):
        assert state["centre"].tolist() == pytest.approx(costs.mean(0).tolist(), rel=1e-4)
        assert state["spread"].tolist() == pytest.approx(np.maximum(costs.std(0), 1e-3).tolist(), rel=1e-2)
    for name, tensor in first["critic"].items():
        assert torch.equal(tensor, second["critic"][name])
