"""An episode: where its jobs come from, its run from one decision to the next, and what each step costs.

`DecisionRun` stops at decisions, for the gymnasium environment and for our own learners alike.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.policy.placement import Placement
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.places import OptionTables, Place
from slurm_energy.twin.engine.simulation import EngineDriver
from slurm_energy.twin.workloads.registry import create_workload, workload_settings
from slurm_energy.twin.world import World

_MAX_JOBS = 2000
"""Jobs that the scale is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardWeights:
    """How energy and time are put together: reward = -(energy J + waiting_watts W + running_watts R) / scale.

    J is the cluster's energy, W the jobs that wait times their time, R the jobs that hold devices times theirs. The
    weights of time are in W: what a second of one job is worth.
    """

    energy: float = 1.0
    waiting_watts: float = 20.0
    running_watts: float = 0.0
    scale_joules: float | None = None
    """None takes the mean energy of a job of the workload, each at its cheapest option."""

    def __post_init__(self) -> None:
        for name in ("energy", "waiting_watts", "running_watts"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueRangeError(f"reward weight {name}={getattr(self, name)} is not a finite number from 0 up")
        if self.scale_joules is not None and not 0.0 < self.scale_joules < inf:
            raise ValueRangeError(f"reward scale_joules={self.scale_joules} is not a finite number above 0")


class Passage(NamedTuple):
    """What passed between two decisions."""

    elapsed_seconds: float
    joules: float
    waiting_job_seconds: float
    running_job_seconds: float

    def reward(self, weights: RewardWeights, scale_joules: float) -> float:
        """Return minus the cost."""
        cost = (
            weights.energy * self.joules
            + weights.waiting_watts * self.waiting_job_seconds
            + weights.running_watts * self.running_job_seconds
        )
        return -cost / scale_joules


class Meter:
    """Reads an engine's totals and gives what was added since the last reading; the first counts from time 0."""

    def __init__(self) -> None:
        self._last = Passage(0.0, 0.0, 0.0, 0.0)

    def read(self, engine: Engine) -> Passage:
        """Return what passed since the last reading."""
        last = self._last
        now = self._last = Passage(engine.now, engine.total_joules, engine.waiting_job_seconds, engine.held_job_seconds)
        return Passage(
            now.elapsed_seconds - last.elapsed_seconds,
            now.joules - last.joules,
            now.waiting_job_seconds - last.waiting_job_seconds,
            now.running_job_seconds - last.running_job_seconds,
        )


class Passed(NamedTuple):
    """What came of one answer."""

    passage: Passage
    """Until the next decision or the end; the first one counts from time 0."""
    elapsed_seconds: float
    """Since the answer."""
    is_started: bool
    """False when the job was let wait, or a backfilled start would have delayed the first job that waits."""


_Choices = TypeVar("_Choices")


class DecisionRun(Generic[_Choices]):
    """A run that stops at every decision: at each job that can start somewhere. All other jobs wait without one.

    Args:
        engine: Not yet begun, without routing and control.
        find_choices: Returns what may be answered about a job now; None lets it wait.
    """

    def __init__(self, engine: Engine, find_choices: Callable[[Job, TwinView], _Choices | None]) -> None:
        """Go to the first decision."""
        self.engine = engine
        self.job: Job | None = None
        """The job that is asked about, None when nothing more is asked."""
        self.choices: _Choices | None = None
        """What may be answered about it."""
        self._find_choices = find_choices
        self._meter = Meter()
        self._driver = EngineDriver(engine, stops_at=self._has_choices)
        self._proceed(None)

    @property
    def is_over(self) -> bool:
        """Whether the run has come to its end."""
        return self._driver.is_over

    def answer(self, placement: Placement | None) -> Passed:
        """Answer about the present job and run to the next decision, or to the end."""
        engine, decided = self.engine, self.engine.now
        run = None if self.job is None else engine.runs[self.job.job_id]
        version = 0 if run is None else run.version
        self._proceed(placement)
        return Passed(self._meter.read(engine), engine.now - decided, run is not None and run.version > version)

    def _proceed(self, answer: Placement | None) -> None:
        self.choices = None
        self.job = self._driver.proceed(answer)

    def _has_choices(self, job: Job) -> bool:
        self.choices = self._find_choices(job, self.engine.view)
        return self.choices is not None


def typical_job_joules(world: World, places: Sequence[Place], jobs: Sequence[Job]) -> float:
    """Return the mean energy in J of jobs that each run at their cheapest option; 1 when none can run.

    Args:
        world: The cluster.
        places: Its places.
        jobs: The workload; of a long one, jobs spread evenly over it.
    """
    tables = OptionTables(world, places)
    chosen = jobs[:: max(1, len(jobs) // _MAX_JOBS)]
    joules = [
        job.estimated_units * float(tables.table(job.kind, job.gpu_counts).joules_per_unit.min()) for job in chosen
    ]
    finite = [value for value in joules if 0.0 < value < inf]
    return float(np.mean(finite)) if finite else 1.0


WorkloadFactory = Callable[[int], Workload]
"""Makes a workload from a seed; must be picklable for environments in processes of their own."""
WorkloadSource = Workload | WorkloadFactory | str | None
"""A workload, a factory, a generator's name, or None for the world's own generator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A source together with what it needs."""

    world: World
    workload: WorkloadSource = None
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    """Of the generator, over those of the world."""
    horizon_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.workload is None and not self.world.workload:
            raise ConfigError(
                f"world {self.world.name} has no workload of its own: name a generator, or give a workload"
            )
        if self.settings and not self.is_generated:
            raise ConfigError("workload settings belong to a generator, and the workload here is not made by one")

    @property
    def is_generated(self) -> bool:
        """Whether a generator by name makes the jobs."""
        return self.workload is None or isinstance(self.workload, str)

    @property
    def run_seconds(self) -> float | None:
        """When runs end: the horizon, else that of the world for generated jobs; None runs until no job is left."""
        if self.horizon_seconds is not None:
            return self.horizon_seconds
        return self.world.horizon_seconds if self.is_generated else None

    def make(self, seed: int) -> Workload:
        """Return the workload of a seed.

        Raises:
            ConfigError: the generator or one of its settings is unknown or out of its bound.
        """
        if isinstance(self.workload, Workload):
            return self.workload
        if callable(self.workload):
            return self.workload(seed)
        name = self.workload or self.world.workload
        settings = dict(self.world.workload_settings) if name == self.world.workload else {}
        if self.run_seconds is not None and "hours" in workload_settings(name):
            settings["hours"] = self.run_seconds / 3600.0
        return create_workload(name, {**settings, **self.settings}, seed)
