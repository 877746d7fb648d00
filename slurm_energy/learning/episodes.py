"""Episodes: a network runs the twin from one decision to the next, and what it did is written down as steps.

The network chooses among the ways of starting a job now (partition and device count); the clock is the exact oracle's.
A job that only fits beside another, or nowhere, is let wait without being a decision.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import ConfigError, TrainingError
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import decision_block
from slurm_energy.learning.bookkeeping import (
    ActiveMeter,
    Bookkeeping,
    Charge,
    RewardAccounting,
    empty_watts,
    mean_weights,
)
from slurm_energy.learning.experience import Costs, DecisionMoment, DecisionStep, Weights
from slurm_energy.learning.settings_file import HOURS, Bounds, check_bounds
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.embeddings import Published
from slurm_energy.policy.gnn.heads import best, sample
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.start_options import PlacedOption, StartReader, job_columns
from slurm_energy.policy.placement import Placement
from slurm_energy.policy.prices import BALANCED_WEIGHTS, MODE_WEIGHTS, JobWeights
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.places import Place, places_of
from slurm_energy.twin.episode import DecisionRun, JobSource, Passed, RewardWeights, WorkloadSource, typical_job_joules
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world

Actions = Literal["sampled", "greedy"]
FAST_WEIGHTS: JobWeights = (0.8, 0.2)
"""Of a job to which time is worth more; no mode asks for it yet."""
SPREAD_WEIGHTS: tuple[JobWeights, ...] = (MODE_WEIGHTS[EnergyMode.SAVER], BALANCED_WEIGHTS, FAST_WEIGHTS)
"""What jobs draw from so that one network learns to serve every mode."""
_REWARD_BOUNDS: Bounds = {
    "energy": (0.0, 1e6),
    "waiting_watts": (0.0, 1e9),
    "running_watts": (0.0, 1e9),
    "scale_joules": (1e-3, 1e18),
}
_MAX_WEIGHT = 1000.0
_WEIGHTS_STREAM = 4
"""Of the episode's seed: behind arrivals, sizes, failures and the policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSettings:
    """What an episode consists of; pickled into every process that runs some."""

    world: World | str
    """A world, or the name or file of one."""
    workload: WorkloadSource = None
    """A workload, a function of the seed, or a generator's name; None for the world's own generator."""
    workload_settings: Mapping[str, float | int | str] = field(default_factory=dict)
    """Of the generator, over those of the world."""
    hours: float | None = None
    """Simulated time of arrivals. None for the world's own with a generator, else until no job is left."""
    drains: bool = False
    """Whether the run continues until no job is left; else it is cut off when the arrivals end."""
    rewards: RewardWeights = field(default_factory=RewardWeights)
    """Energy and time, put together for balanced weights."""
    bookkeeping: Bookkeeping = "assigned"
    job_weights: tuple[JobWeights, ...] = (BALANCED_WEIGHTS,)
    """w_time and w_energy, drawn for each job from these; for the whole episode at once where rewards are by passage,
    which cannot tell jobs apart."""
    actions: Actions = "sampled"
    """`greedy` takes the likeliest option."""

    def __post_init__(self) -> None:
        check_bounds(self, "episodes", {"hours": HOURS})
        check_bounds(self.rewards, "episodes.rewards", _REWARD_BOUNDS)
        for name, value, known in (
            ("bookkeeping", self.bookkeeping, get_args(Bookkeeping)),
            ("actions", self.actions, get_args(Actions)),
        ):
            if value not in known:
                raise ConfigError(f"setting episodes.{name} is {value!r:.64}, allowed: {', '.join(known)}")
        if not self.job_weights:
            raise ConfigError("setting episodes.job_weights has 0 pairs of w_time and w_energy, it must have 1 or more")
        for pair in self.job_weights:
            if len(pair) != 2 or not all(0.0 <= weight <= _MAX_WEIGHT for weight in pair):
                raise ConfigError(
                    f"setting episodes.job_weights has the pair {pair}, it must be w_time and w_energy, each between 0 "
                    f"and {_MAX_WEIGHT:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadEpisodeSettings(EpisodeSettings):
    """Episodes whose jobs weigh time and energy in different ways: from them one network learns to serve every mode."""

    job_weights: tuple[JobWeights, ...] = SPREAD_WEIGHTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCollector:
    """Runs episodes of a network that it builds from its settings."""

    config: NetworkConfig
    settings: EpisodeSettings

    def __call__(self, weights: Weights, *, seed: int) -> list[DecisionStep]:
        """Return the steps of one episode; the same weights and seed give the same steps."""
        network = create_network(self.config, 0)
        network.load_state_dict(dict(weights))
        return run_episode(network, self.settings, seed, torch.Generator().manual_seed(seed))


def run_episode(
    network: HierarchicalNetwork, settings: EpisodeSettings, seed: int, generator: torch.Generator
) -> list[DecisionStep]:
    """Return the steps of one episode.

    Args:
        network: Decides.
        settings: Of the episode.
        seed: Of arrivals, failures and the jobs' weights.
        generator: Draws the actions.

    Raises:
        TrainingError: the network's answer is not finite.
        SlurmEnergyError: the world or its workload cannot be made.
    """
    return _Episode(network, settings, seed, generator).run()


class _Seen(NamedTuple):
    """What the network sees of a job that is asked about."""

    moment: DecisionMoment
    options: list[PlacedOption]


class _Episode:
    """One run, and what has been written down of it."""

    def __init__(
        self, network: HierarchicalNetwork, settings: EpisodeSettings, seed: int, generator: torch.Generator
    ) -> None:
        world = find_world(settings.world) if isinstance(settings.world, str) else settings.world
        source = JobSource(
            world=world,
            workload=settings.workload,
            settings=settings.workload_settings,
            horizon_seconds=None if settings.hours is None else settings.hours * 3600.0,
        )
        jobs = source.make(seed).jobs
        horizon = None if settings.drains else source.run_seconds
        self._places = places_of(world)
        self._engine = Engine(world, WorkloadArrivals(jobs), seed=seed, horizon_seconds=horizon)
        self._is_cut = horizon is not None
        self._network = network
        self._greedy = settings.actions == "greedy"
        self._generator = generator
        self._weights = _drawn_weights(settings, jobs, seed)
        self._accounting = _accounting(settings, world, self._places, source, self._weights)
        self._chooser = NetworkChooser(network, ClusterGraph())
        self._reader = StartReader()
        self._active = ActiveMeter()
        self._last_state: tuple[Published, Blocks] | None = None

    def run(self) -> list[DecisionStep]:
        """Run to the end and return the steps."""
        steps = []
        run = DecisionRun(self._engine, self._seen)
        while run.job is not None and run.choices is not None:
            job, seen = run.job, run.choices
            row, log_prob = self._choice(seen.moment)
            option = seen.options[row]
            passed = run.answer(Placement(option.place, option.gpus, option.oracle_clock))
            following = None if run.choices is None else run.choices.moment
            steps.append(self._step(job, seen, (row, log_prob), passed, following))
        return steps

    def _seen(self, job: Job, view: TwinView) -> _Seen | None:
        """Return what the network sees of a job; None where it has no way of starting."""
        chooser = self._chooser
        chooser.follow_at_once(view.snapshot_without(job))
        options = self._reader.options(job, view, chooser.graph.partition_index, with_clocks=False)
        if not options:
            return None
        vector = job_columns(job, view, chooser.graph.facts, self._weights[job.job_id])
        decision = decision_block(vector, [option.option for option in options])
        return _Seen(DecisionMoment(state=self._state(), decision=decision, seconds=view.now_seconds), options)

    def _state(self) -> Blocks:
        """Return the cluster as the network sees it; the same object while nothing changed."""
        published, _ = self._chooser.state()
        if self._last_state is None or self._last_state[0] is not published:
            self._last_state = published, whole_blocks(self._chooser.graph)
        return self._last_state[1]

    def _choice(self, moment: DecisionMoment) -> tuple[int, float]:
        """Return the row of an option and its log-probability."""
        published, moments = self._chooser.state()
        with torch.inference_mode():
            answers = self._network.decide(published, moments, moment.decision, critics=False).options
            row = int((best(answers) if self._greedy else sample(answers, self._generator))[0])
            log_prob = float(answers.log_prob[row]) if row >= 0 else -inf
        if not isfinite(log_prob):
            raise TrainingError(
                f"the network's answer at {moment.seconds:.0f} s is not finite: lower the learning rate"
            )
        return row, log_prob

    def _step(
        self,
        job: Job,
        seen: _Seen,
        answer: tuple[int, float],
        passed: Passed,
        following: DecisionMoment | None,
    ) -> DecisionStep:
        """Return the record of a decision, now that the next one, or the end, has come."""
        engine, (row, log_prob), passage = self._engine, answer, passed.passage
        option = seen.options[row]
        charge = None
        if passed.is_started:
            charge = Charge(option.option.joules or 0.0, option.option.seconds or 0.0, self._weights[job.job_id])
            self._active.started(engine.runs[job.job_id], self._places[option.place].device.free_watts, charge)
        active_joules = self._active.read(engine.now)
        charges = [*([] if charge is None else [charge]), *self._active.settled()]
        elapsed = passed.elapsed_seconds
        wait = seen.moment.seconds - job.submitted_seconds
        return DecisionStep(
            moment=seen.moment,
            asked=row,
            granted=row if passed.is_started else -1,
            log_prob=log_prob,
            elapsed_seconds=elapsed,
            reward=self._accounting.reward(passage, active_joules, charges),
            costs=Costs(
                latency_seconds=wait + charge.seconds if charge is not None else 0.0,
                waiting_jobs=passage.waiting_job_seconds / elapsed if elapsed > 0.0 else engine.view.num_waiting,
                watts=passage.joules / passage.elapsed_seconds if elapsed > 0.0 else engine.view.power_watts,
            ),
            following=following,
            is_terminal=following is None and not self._is_cut,
        )


def _drawn_weights(settings: EpisodeSettings, jobs: Sequence[Job], seed: int) -> dict[int, JobWeights]:
    """Return the weights of each job by its id, whatever becomes of it in the run."""
    stream = np.random.default_rng(np.random.SeedSequence(seed).spawn(_WEIGHTS_STREAM + 1)[_WEIGHTS_STREAM])
    pairs = settings.job_weights
    if settings.bookkeeping == "passage":
        return dict.fromkeys((job.job_id for job in jobs), pairs[int(stream.integers(len(pairs)))])
    drawn = stream.integers(len(pairs), size=len(jobs)).tolist()
    return {job.job_id: pairs[index] for job, index in zip(jobs, drawn, strict=True)}


def _accounting(
    settings: EpisodeSettings,
    world: World,
    places: Sequence[Place],
    source: JobSource,
    weights: Mapping[int, JobWeights],
) -> RewardAccounting:
    """Return the reward accounting of an episode; the scale is that of the environment: the same in all episodes."""
    common = mean_weights(settings.job_weights)
    if settings.bookkeeping == "passage":
        common = next(iter(weights.values()), common)
    return RewardAccounting(
        bookkeeping=settings.bookkeeping,
        rewards=settings.rewards,
        scale_joules=settings.rewards.scale_joules or typical_job_joules(world, places, source.make(0).jobs),
        common_weights=common,
        empty_watts=empty_watts(world),
    )
