"""The simulated cluster as a gymnasium environment: one step is one decision about one job.

docs/reference/environment.md describes actions, observations, reward and `info`; docs/tutorials/train-an-agent.md is a
first use.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal, TypeVar, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError, ValueRangeError
from slurm_energy.policy.placement import Discipline, Placement
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.loop import Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import Place, places_of
from slurm_energy.twin.environment.choices import ActionSizes, ChoiceFinder, Choices, ClockForm
from slurm_energy.twin.environment.observation import GraphSpace, Observer, graph_of, require_torch_geometric
from slurm_energy.twin.episode import DecisionRun, JobSource, RewardWeights, WorkloadSource, typical_job_joules
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world

ENVIRONMENT_ID = "slurm-energy/Cluster-v0"
ObservationForm = Literal["arrays", "graph"]
IllegalAction = Literal["error", "wait"]
_MAX_SEED = 2**31
_MAX_PLACES = 16
"""Lines of places in a rendered cluster."""
_RESET_OPTIONS = ("horizon_seconds", "workload")


class ClusterEnvironment(gymnasium.Env[Any, np.int64]):
    """An agent places the jobs of a simulated cluster, one after the other.

    A pickled or copied environment is as it was made: the run in progress stays behind, and `reset` begins a new one.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # the form that gymnasium reads

    def __init__(  # noqa: PLR0913  # keywords of gymnasium.make
        self,
        world: World | str = "chsac",
        *,
        workload: WorkloadSource = None,
        workload_settings: Mapping[str, float | int | str] | None = None,
        horizon_seconds: float | None = None,
        weights: RewardWeights | None = None,
        clocks: ClockForm = "oracle",
        observation: ObservationForm = "arrays",
        illegal_action: IllegalAction = "error",
        may_wait: bool = True,
        max_counts: int | None = None,
        discipline: Discipline | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare what is the same in every run; the workload of seed 0 is made to take sizes and scale from.

        Args:
            world: A world, or the name or file of one.
            workload: A workload, a function of the seed, or a generator's name; None for the world's own generator.
            workload_settings: Of the generator.
            horizon_seconds: When a run is cut off; None for the world's own with a generator, else when no job is left.
            weights: Of the reward.
            clocks: `oracle` sets the energy-optimal clock inside the job's bounds, `free` makes clocks actions.
            observation: `arrays`, or `graph` for torch_geometric's HeteroData.
            illegal_action: `error` raises, `wait` takes it as waiting (or as the cheapest placement where waiting is
                not legal).
            may_wait: False leaves waiting out of the legal actions.
            max_counts: Device counts that actions can tell apart; None for the most that a job of seed 0 has.
            discipline: Order of the queue and backfill; None for the world's own.
            render_mode: None or `ansi`.

        Raises:
            ConfigError, ValueRangeError: an argument cannot be; the message names it.
        """
        arguments = {name: value for name, value in locals().items() if name not in {"self", "__class__"}}
        self._arguments = arguments
        _check_word("clocks", clocks, get_args(ClockForm))
        _check_word("observation", observation, get_args(ObservationForm))
        _check_word("illegal_action", illegal_action, get_args(IllegalAction))
        _check_word("render_mode", render_mode, (None, "ansi"))
        if observation == "graph":
            require_torch_geometric()
        self.render_mode = render_mode
        self.world = find_world(world) if isinstance(world, str) else world
        self.places = places_of(self.world)
        self.weights = weights or RewardWeights()
        self._source = JobSource(
            world=self.world,
            workload=workload,
            settings=workload_settings or {},
            horizon_seconds=_checked_horizon(horizon_seconds),
        )
        self._discipline, self._clocks, self._may_wait = discipline, clocks, may_wait
        self._takes_illegal = illegal_action == "wait"
        example = self._source.make(0).jobs
        self.scale_joules = self.weights.scale_joules or typical_job_joules(self.world, self.places, example)
        """What the reward is divided by, J."""
        self.sizes = self._sizes(max_counts, example)
        self._observer = Observer(self.world, self.places, self.sizes, self.scale_joules)
        self._has_graphs = observation == "graph"
        self.action_space = spaces.Discrete(self.sizes.actions)
        self.observation_space = GraphSpace() if self._has_graphs else self._observer.space()
        self._run: DecisionRun[Choices] | None = None
        self._has_horizon = False
        self._has_reported_end = False
        """Whether a step has reported the end; a run without a decision takes one step for that."""
        self.workload_seed = -1
        """Seed of the present run's jobs and failures."""

    @property
    def job(self) -> Job | None:
        """The job that is asked about, None when the run is over."""
        return self._present_run().job

    @property
    def choices(self) -> Choices | None:
        """What may be answered about that job: `placement(action)`, `action(placement)`, `mask()`."""
        return self._present_run().choices

    @property
    def view(self) -> TwinView:
        """The cluster as placement rules see it."""
        return self._present_run().engine.view

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a run and return what the first decision sees.

        Args:
            seed: Of the workload and of failures, the same as a seed of the arena, and of the seeds of later runs; None
                draws the next seed.
            options: `workload`: a Workload for this run; `horizon_seconds`: its end.
        """
        super().reset(seed=seed)
        chosen = options or {}
        unknown = sorted(set(chosen) - set(_RESET_OPTIONS))
        if unknown:
            raise ConfigError(f"reset has no option {unknown[0]!r:.64}; it has {', '.join(_RESET_OPTIONS)}")
        self.workload_seed = int(self.np_random.integers(_MAX_SEED)) if seed is None else int(seed)
        workload = chosen.get("workload")
        self._observer.begin()
        jobs = (self._source.make(self.workload_seed) if workload is None else workload).jobs
        horizon_seconds = _checked_horizon(chosen.get("horizon_seconds", self._source.run_seconds))
        self._has_horizon = horizon_seconds is not None
        engine = Engine(
            self.world,
            WorkloadArrivals(jobs),
            seed=self.workload_seed,
            discipline=self._discipline,
            horizon_seconds=horizon_seconds,
        )
        finder = ChoiceFinder(self.places, self.sizes, self._clocks, may_wait=self._may_wait)
        run = self._run = DecisionRun(engine, finder.choices)
        self._has_reported_end = False
        mask = self._mask()
        state = {"action_mask": mask, "time_seconds": run.engine.now, "workload_seed": self.workload_seed}
        return self._observation(mask), state

    def step(self, action: np.int64 | int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Carry out an action and run to the next decision, or to the end.

        Raises:
            ValueRangeError: the action is not legal, unless the environment was made to take it as waiting.
            ResetNeeded: there is no run, or it is over.
        """
        run = self._present_run()
        if self._has_reported_end:
            raise ResetNeeded("the run is over: call reset before step")
        taken = self._legal(run, int(action))
        job, choices = run.job, run.choices
        placement = None if choices is None else choices.placement(taken)
        passed = run.answer(placement)
        granted, joules = (-1, -1, -1), 0.0
        if passed.is_started and placement is not None and job is not None and choices is not None:
            granted, joules = placement[:3], choices.added_joules(job, placement, self.places)
        is_over = self._has_reported_end = run.is_over
        mask = self._mask()
        state = {
            "action_mask": mask,
            "time_seconds": run.engine.now,
            **passed.passage._asdict(),
            "elapsed_seconds": passed.elapsed_seconds,
            "granted": np.array(granted, dtype=np.int64),
            "expected_joules": joules,
            "is_illegal": taken != action,
            "ended_jobs": len(run.engine.ended_jobs()),
        }
        reward = passed.passage.reward(self.weights, self.scale_joules)
        is_cut = is_over and self._has_horizon
        return self._observation(mask), reward, is_over and not is_cut, is_cut, state

    def action_masks(self) -> NDArray[np.bool_]:
        """Return which actions are legal now, [actions], as sb3-contrib asks for it."""
        return self._mask().astype(np.bool_)

    def action_of(self, placement: Placement | None) -> int:
        """Return the action that stands for a rule's answer about the present job.

        Raises:
            ResetNeeded: no job is asked about.
            ValueRangeError: no action stands for it.
        """
        choices = self._present_run().choices
        if choices is None:
            raise ResetNeeded("no job is asked about: the run is over")
        return choices.action(placement)

    def outcome(self, name: str = "agent") -> Outcome:
        """Return the record of a run that is over.

        Raises:
            ResetNeeded: it is not over.
        """
        run = self._present_run()
        if not run.is_over:
            raise ResetNeeded("the run is not over: step until terminated or truncated")
        return run.engine.outcome(name)

    def render(self) -> str | None:
        """Return the cluster as a few lines of text, None without a render mode."""
        if self.render_mode != "ansi":
            return None
        return _cluster_text(self._present_run().engine, self.places, self.job)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self._arguments), {"spec": self.spec}

    def _legal(self, run: DecisionRun[Choices], action: int) -> int:
        """Return the action if it may be taken, else what stands in for it."""
        if not 0 <= action < self.sizes.actions:
            raise ValueRangeError(f"action {action} is not one of 0 to {self.sizes.wait}")
        if run.choices is None or run.job is None or run.choices.is_legal(action):
            return action
        if not self._takes_illegal:
            reason = run.choices.refusal(action, [place.info.name for place in self.places])
            raise ValueRangeError(f"action {action} is not legal for job {run.job.job_id}: {reason}")
        return self.sizes.wait if run.choices.may_wait else run.choices.cheapest()

    def _mask(self) -> NDArray[np.int8]:
        """Return the legal actions; at the end of a run waiting alone, which changes nothing."""
        choices = self._present_run().choices
        if choices is not None:
            return choices.mask()
        mask = np.zeros(self.sizes.actions, dtype=np.int8)
        mask[-1] = 1
        return mask

    def _observation(self, mask: NDArray[np.int8]) -> Any:
        run = self._present_run()
        arrays = self._observer.arrays(run.job, run.choices, run.engine.view)
        return graph_of(arrays, mask, self.sizes) if self._has_graphs else arrays

    def _sizes(self, max_counts: int | None, example: tuple[Job, ...]) -> ActionSizes:
        if max_counts is not None and not 1 <= max_counts <= 100_000:
            raise ConfigError(f"max_counts={max_counts} is not 1 to 100000")
        counts = max_counts or max((len(job.gpu_counts) for job in example), default=1)
        clocks = max(len(place.device.relative_clocks) for place in self.places) if self._clocks == "free" else 1
        return ActionSizes(len(self.places), counts, clocks)

    def _present_run(self) -> DecisionRun[Choices]:
        if self._run is None:
            raise ResetNeeded("no run has begun: call reset first")
        return self._run


def register_environment() -> None:
    """Make the environment known to `gymnasium.make` by its id; importing this module does it."""
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(id=ENVIRONMENT_ID, entry_point=f"{__name__}:ClusterEnvironment")


_Made = TypeVar("_Made", bound=ClusterEnvironment)


def _made_again(environment_class: type[_Made], arguments: dict[str, Any]) -> _Made:
    return environment_class(**arguments)


def _check_word(name: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r:.64} is not one of {', '.join(map(repr, known))}")


def _checked_horizon(seconds: float | None) -> float | None:
    if seconds is not None and not 0.0 < seconds < inf:
        raise ConfigError(f"horizon_seconds={seconds} is not a finite time above 0")
    return seconds


def _cluster_text(engine: Engine, places: Sequence[Place], job: Job | None) -> str:
    """Return time, power, queue, the job in question, and a bar of held devices for each place."""
    view = engine.view
    held = sum(len(pool.runs) for pool in view.pools)
    budget = "" if view.power_budget_watts == inf else f" of {view.power_budget_watts / 1000.0:.1f} kW"
    power = f"{view.power_watts / 1000.0:.1f} kW{budget}"
    lines = [
        f"t={engine.now:.0f} s  power={power}  running={held}  waiting={view.num_waiting}",
        "no job is asked about" if job is None else f"job {job.job_id}: {_job_text(job, engine.now)}",
    ]
    for place in places[:_MAX_PLACES]:
        info = place.info
        share = 1.0 - view.free_gpus[place.index] / info.total_gpus
        bar = "#" * round(10.0 * share)
        lines.append(f"{info.name:>16.16} [{bar:<10}] {view.free_gpus[place.index]:>5} of {info.total_gpus} free")
    if len(places) > _MAX_PLACES:
        lines.append(f"and {len(places) - _MAX_PLACES} places more")
    return "\n".join(lines)


def _job_text(job: Job, now: float) -> str:
    counts = f"{job.gpu_counts[0]}" if len(job.gpu_counts) == 1 else f"{job.gpu_counts[0]} to {job.gpu_counts[-1]}"
    left = "" if job.deadline_seconds == inf else f", deadline in {job.deadline_seconds - now:.0f} s"
    waits = f"waits {now - job.submitted_seconds:.0f} s"
    return f"{job.kind}, {job.estimated_units:.4g} units, {counts} devices, {waits}{left}"


register_environment()
