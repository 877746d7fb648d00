"""The arena, our learners and agents in the gymnasium environment step the engine through one driver, bit for bit."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_networks import SMALL, small_network
from small_worlds import same
from toy_cluster import TOY, toy_jobs

from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import decision_block
from slurm_energy.learning.episodes import EpisodeSettings, run_episode
from slurm_energy.learning.experience import DecisionStep
from slurm_energy.learning.imitation_training import TrainingPlan, demonstrated
from slurm_energy.learning.prices.collector import price_episode
from slurm_energy.learning.prices.settings import PriceEpisodeSettings
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.policy.gnn.start_options import StartReader, job_columns
from slurm_energy.policy.placement import Placement, Postponement
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin import episode as twin_episode
from slurm_energy.twin.engine import simulation
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.simulation import EngineDriver, policy_stream, run
from slurm_energy.twin.environment import ENVIRONMENT_ID, ClusterEnvironment
from slurm_energy.twin.episode import DecisionRun, RewardWeights
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
        options = reader.options(job, view, graph.partition_index, with_clocks=False)
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


@pytest.mark.parametrize("world", [TOY, FAILING], ids=["plain", "with failures"])
def test_a_run_that_stops_at_every_decision_is_the_run_of_the_rule_that_takes_them(world: World) -> None:
    def jobs() -> Workload:
        return toy_jobs(4, count=25, rate_per_second=0.1)

    asked_at_once = run(world, jobs(), create_rule("greedy"), seed=4)
    rule = create_rule("greedy")
    engine = Engine(world, WorkloadArrivals(jobs().jobs), seed=4)
    rule.begin(engine.view, policy_stream(4))
    stopped = DecisionRun(engine, lambda job, view: True)
    while stopped.job is not None:
        placement = rule.place(stopped.job, engine.view)
        assert not isinstance(placement, Postponement)
        stopped.answer(placement)
    assert stopped.is_over
    outcome = engine.outcome(rule.name)
    outcome.decisions = asked_at_once.decisions  # counted by `run` alone
    assert same(asked_at_once, outcome)


def test_arena_learners_and_environment_step_the_engine_through_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[Engine] = []

    class Counted(EngineDriver):
        def __init__(self, engine: Engine, **answers: Any) -> None:
            super().__init__(engine, **answers)
            driven.append(engine)

    for module in (simulation, twin_episode):
        monkeypatch.setattr(module, "EngineDriver", Counted)
    stepped_by: list[int] = []
    priced = create_network(replace(SMALL, policy="prices"), seed=1).eval()
    for start in (
        lambda: run(TOY, toy_jobs(1, count=3), create_rule("greedy")),
        lambda: price_episode(priced, PriceEpisodeSettings(world="lab", hours=0.05), 1),
        lambda: demonstrated(TrainingPlan(world="lab", teacher="greedy", hours=0.05)),
        lambda: run_episode(small_network(1), EpisodeSettings(world="lab", hours=0.05), 1, torch.Generator()),
        lambda: gymnasium.make(ENVIRONMENT_ID, world="lab", disable_env_checker=True).unwrapped.reset(seed=1),
    ):
        before = len(driven)
        start()
        stepped_by.append(len(driven) - before)
    assert stepped_by == [1] * 5


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
