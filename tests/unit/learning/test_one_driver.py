"""Our learners and agents in the gymnasium environment live through the same episode, bit for bit."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_networks import small_network
from toy_cluster import TOY, toy_jobs

from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import decision_block
from slurm_energy.learning.episodes import EpisodeSettings, run_episode
from slurm_energy.learning.experience import DecisionStep
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.start_options import StartReader, job_columns
from slurm_energy.policy.placement import Placement
from slurm_energy.twin.environment import ENVIRONMENT_ID, ClusterEnvironment
from slurm_energy.twin.episode import RewardWeights
from slurm_energy.twin.world import FailureRates, World

WEIGHTS = RewardWeights(energy=0.9, waiting_watts=40.0, running_watts=15.0)
CROWDED = partial(toy_jobs, count=12, rate_per_second=0.2)
FAILING = replace(TOY, failures=FailureRates(node_mtbf_seconds=400.0, mean_repair_seconds=60.0))


def bits(block: Any) -> list[bytes]:
    """Return every array of a block, or of a tuple of blocks, as bytes."""
    if isinstance(block, tuple):
        return [found for one in block for found in bits(one)]
    arrays = [getattr(block, field.name) for field in fields(block)]
    return [b"" if array is None else np.ascontiguousarray(array).tobytes() for array in arrays]


def stepped(environment: ClusterEnvironment, steps: list[DecisionStep], seed: int) -> None:
    """Take the learner's decisions in the environment, and compare everything on the way."""
    environment.reset(seed=seed)
    reader, graph, is_over, is_cut = StartReader(), ClusterGraph(), False, False
    for step in steps:
        job, view = environment.job, environment.view
        assert job is not None
        graph.update(view.snapshot_without(job))
        options = reader.options(job, view, graph, with_clocks=False)
        vector = job_columns(job, view, graph.facts)
        assert view.now_seconds == step.moment.seconds
        assert bits(whole_blocks(graph)) == bits(step.moment.state)
        assert bits(decision_block(vector, [one.option for one in options])) == bits(step.moment.decision)
        chosen = options[step.asked]
        action = environment.action_of(Placement(chosen.place, chosen.gpus, chosen.oracle_clock))
        _, reward, is_over, is_cut, state = environment.step(action)
        assert reward == step.reward
        assert state["elapsed_seconds"] == step.elapsed_seconds
        assert (state["granted"][0] >= 0) == (step.granted >= 0)
    assert (is_over, is_cut) == (steps[-1].is_terminal, not steps[-1].is_terminal)


@pytest.mark.parametrize(
    ("world", "options"),
    [(FAILING, {"workload": CROWDED}), (TOY, {"workload": CROWDED, "hours": 0.02}), ("lab", {"hours": 0.5})],
    ids=["until no job is left", "cut off", "a generator's jobs"],
)
def test_the_environment_stepped_with_a_learners_decisions_gives_its_rewards_and_states(
    world: World | str, options: dict[str, Any]
) -> None:
    seed = 3
    settings = EpisodeSettings(world=world, rewards=WEIGHTS, bookkeeping="passage", **options)
    steps = run_episode(small_network(1), settings, seed, torch.Generator().manual_seed(seed))
    assert len(steps) > 5
    hours = options.get("hours")
    environment = gymnasium.make(
        ENVIRONMENT_ID,
        world=world,
        workload=options.get("workload"),
        horizon_seconds=None if hours is None else hours * 3600.0,
        weights=WEIGHTS,
        clocks="free",
        disable_env_checker=True,
    ).unwrapped
    assert isinstance(environment, ClusterEnvironment)
    stepped(environment, steps, seed)
