"""Moments and steps of the toy cluster, to take apart and put together again."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from toy_cluster import TOY, toy_jobs

from slurm_energy.learning.episodes import EpisodeSettings, run_episode
from slurm_energy.learning.experience import Costs, DecisionMoment, DecisionStep
from slurm_energy.learning.soft_actor_critic.critics import Scene, scene
from slurm_energy.learning.soft_actor_critic.records import RecordPool, pack
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.heads import OptionDistribution, segment_entropy, segment_log_softmax
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network

CONFIG = NetworkConfig(
    hidden=24,
    quantiles=8,
    propagation="spatial",
    pooling="coarsening",
    attention="plain",
    device_layers=1,
    task_layers=0,
    top_layers=1,
)
NO_COSTS = Costs(0.0, 0.0, 0.0)


def network(seed: int = 0) -> HierarchicalNetwork:
    torch.set_num_threads(1)
    return create_network(CONFIG, seed)


@cache
def seen_steps(jobs: int = 24) -> tuple[DecisionStep, ...]:
    """Return an episode of an untrained network, which ends when no job is left."""
    settings = EpisodeSettings(world=TOY, workload=toy_jobs(seed=1, count=jobs), drains=True)
    return tuple(run_episode(network(), settings, 1, torch.Generator().manual_seed(1)))


def seen_moment(number: int, is_open: Sequence[int] | None = None) -> DecisionMoment:
    """Return a moment of that episode; with `is_open` only the options of these rows are open."""
    moment = seen_steps()[number].moment
    if is_open is None:
        return moment
    mask = np.isin(np.arange(len(moment.decision.option_open)), is_open)
    return replace(moment, decision=replace(moment.decision, option_open=mask))


def make_step(
    moment: DecisionMoment,
    granted: int,
    *,
    reward: float = -1.0,
    elapsed_seconds: float = 0.0,
    following: DecisionMoment | None = None,
    costs: Costs = NO_COSTS,
    asked: int | None = None,
) -> DecisionStep:
    """Return a step; it is terminal where nothing follows."""
    return DecisionStep(
        moment=moment,
        asked=granted if asked is None else asked,
        granted=granted,
        log_prob=-1.0,
        elapsed_seconds=elapsed_seconds,
        reward=reward,
        costs=costs,
        following=following,
        is_terminal=following is None,
    )


def scene_of(*moments: DecisionMoment) -> Scene:
    pool = RecordPool()
    return scene([pack(moment, pool) for moment in moments])


def distribution_of(logit: torch.Tensor, is_open: torch.Tensor, job: torch.Tensor) -> OptionDistribution:
    """Return the distribution of jobs whose options are all in one partition."""
    jobs = int(job.max()) + 1
    log_prob = segment_log_softmax(logit, is_open, job, jobs)
    return OptionDistribution(
        partition_log_prob=torch.zeros_like(log_prob),
        count_log_prob=log_prob,
        log_prob=log_prob,
        entropy=segment_entropy(log_prob, job, jobs),
        partition_entropy=torch.zeros(jobs),
        option_job=job,
    )
