"""The driver of the engine, and a run of a rule on a world, of which Python's collector of cycles is kept away."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from threading import Lock
from time import perf_counter
from typing import NamedTuple

import numpy as np

from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, Postponement, Reroute
from slurm_energy.twin.engine.events import Arrivals, WorkloadArrivals
from slurm_energy.twin.engine.job import Job, JobRun, Workload
from slurm_energy.twin.engine.knowledge import JobKnowledge, KnownEnd, known_end
from slurm_energy.twin.engine.loop import Answer, Ask, Engine, Steps
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import World


def run(  # noqa: PLR0913  # one run's settings
    world: World,
    workload: Workload | Arrivals,
    rule: PlacementRule,
    *,
    seed: int = 0,
    horizon_seconds: float | None = None,
    random: Random | None = None,
    warm_up_seconds: float = 0.0,
    history: Sequence[KnownEnd] = (),
) -> Outcome:
    """Return what a rule makes of a workload on a world.

    Args:
        world: The cluster.
        workload: Jobs in the order of their submission, or a source of them.
        rule: Asked for every decision; must answer for all.
        seed: Of failures and of the rule's own stream; arrivals have theirs in the workload.
        horizon_seconds: When to stop, work in flight counted in part; None runs until no job is left.
        random: The rule's stream, where it must be another one than the seed's.
        warm_up_seconds: Time from 0 that is simulated and not counted, see `Outcome.counted_from_seconds`.
        history: Runs that had ended before time 0, in the order of their ends: what the site has learned by then.

    Raises:
        ValueRangeError: the workload or the horizon cannot be, or the run ends within its warm-up.
    """
    arrivals = WorkloadArrivals(workload.jobs) if isinstance(workload, Workload) else workload
    with seldom_collected():
        engine = Engine(
            world,
            arrivals,
            seed=seed,
            discipline=rule.discipline,
            routes=rule.routes,
            control_interval_seconds=rule.control_interval_seconds,
            horizon_seconds=horizon_seconds,
            warm_up_seconds=warm_up_seconds,
            knowledge=rule.knowledge,
        )
        rule.begin(engine.view, random or policy_stream(seed))
        for end in history:
            if engine.knowledge is not None:
                engine.knowledge.learn(end)
            if rule.observes_ends:
                rule.ended(end)
        taken = _drive(engine, rule, seed)
        outcome = engine.outcome(rule.name)
        engine.release()
    outcome.clamped += rule.clamped
    outcome.decision_seconds = taken.seconds
    outcome.decisions = taken.decisions
    return outcome


class _AskedOnCopies:
    """A rule that is asked about copies of jobs without what is hidden, and learns of ends what a site knows."""

    observes_ends = True

    def __init__(self, rule: PlacementRule, knowledge: JobKnowledge) -> None:
        self._rule = rule
        self._knowledge = knowledge

    def route(self, job: Job, view: ClusterView) -> int | tuple[int, ...] | Reroute | None:
        """Ask where the job must wait."""
        return self._rule.route(self._knowledge.shown(job), view)

    def place(self, job: Job, view: ClusterView) -> Placement | Postponement | None:
        """Ask how the job must start."""
        return self._rule.place(self._knowledge.shown(job), view)

    def ended(self, run: JobRun) -> None:
        """Take in a run that ended."""
        end = known_end(run)
        self._knowledge.learn(end)
        if self._rule.observes_ends:
            self._rule.ended(end)


def policy_stream(seed: int) -> Random:
    """Return the rule's own random stream of a seed: the fourth, after arrivals, sizes and failures."""
    stream = np.random.SeedSequence(seed).spawn(4)[3]
    return Random(int.from_bytes(stream.generate_state(4).tobytes(), "little"))  # noqa: S311  # a simulation


class EngineDriver:
    """Steps an engine and brings it answers: the one loop over it, for rules, learners and the environment."""

    def __init__(
        self,
        engine: Engine,
        *,
        route: Ask | None = None,
        place: Ask | None = None,
        control: Callable[[], Mapping[int, int]] | None = None,
        stops_at: Callable[[Job], bool] | None = None,
    ) -> None:
        """Take an engine that has not begun.

        Args:
            engine: The run.
            route: Says where a job must wait.
            place: Says how a job must start. None leaves that to the caller.
            control: Says new clocks of jobs that run.
            stops_at: Whether the caller has anything to say of a job's start; the job waits where not.
        """
        self._engine, self._place, self._control, self._stops_at = engine, place, control, stops_at
        self._steps: Steps | None = engine.steps(route, place)

    @property
    def is_over(self) -> bool:
        """Whether the run has come to its end."""
        return self._steps is None

    def proceed(self, answer: Answer = None) -> Job | None:
        """Run to the next job whose start is left to the caller and return it; None at the end.

        Args:
            answer: About the one before.
        """
        if self._steps is None:
            return None
        send, place, stops_at = self._steps.send, self._place, self._stops_at
        try:
            while True:
                job = send(answer)
                answer = None
                if job is None:
                    if self._control is not None:
                        self._engine.change_clocks(self._control())
                elif place is not None:
                    answer = place(job)
                elif stops_at is None or stops_at(job):
                    return job
        except StopIteration:
            self._steps = None
            return None


class _DecisionTime(NamedTuple):
    """Seconds that a rule has taken, and for how many decisions."""

    seconds: float
    decisions: int


def _drive(engine: Engine, rule: PlacementRule, seed: int) -> _DecisionTime:
    """Let a rule answer until the run is over."""
    seconds, decisions = 0.0, 0
    asked = rule if engine.knowledge is None or engine.knowledge.is_truth else _AskedOnCopies(rule, engine.knowledge)
    view, route, place, observes = engine.view, asked.route, asked.place, asked.observes_ends

    def tell_ends() -> None:
        for ended in engine.ended_jobs():
            asked.ended(ended)

    def ask_route(job: Job) -> Answer:
        nonlocal seconds, decisions
        if observes:
            tell_ends()
        before = perf_counter()
        answer = route(job, view)
        seconds += perf_counter() - before
        decisions += 1
        return answer

    def ask_place(job: Job) -> Answer:  # apart from the other: Python's calls are fast where the callee is always one
        nonlocal seconds, decisions
        if observes:
            tell_ends()
        before = perf_counter()
        answer = place(job, view)
        seconds += perf_counter() - before
        decisions += 1
        return answer

    def ask_control() -> Mapping[int, int]:
        if observes:
            tell_ends()
        engine.reroute(rule.rerouted(view))
        return rule.control(view)

    def ask_place_and_try(job: Job) -> Answer:
        answer = ask_place(job)
        placed(job, answer)
        return answer

    asks = ask_place
    if rule.trials is not None:
        placed, asks = engine.try_clocks(rule.trials, seed), ask_place_and_try
    EngineDriver(engine, route=ask_route, place=asks, control=ask_control).proceed()
    return _DecisionTime(seconds, decisions)


YOUNG_OBJECTS = 500_000
"""A week of the published world keeps about 300,000 objects: it is over before the collector comes."""

_lock = Lock()
_blocks = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)
"""Those of before the first of the blocks that are open."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector come only whenever the process holds another `YOUNG_OBJECTS` objects.

    For work that makes many objects which live to its end, and no cycles. Cycles of others, such as a rule's, are still
    collected. Thresholds belong to the process: blocks may lie within one another or overlap in several threads, and
    the last that is left puts back what the first one found. A collector that is off stays off.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _blocks, _thresholds  # noqa: PLW0603  # the collector is the process's, and so is what is kept of it
    with _lock:
        if _blocks == 0:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < YOUNG_OBJECTS:  # 0 stands for a collector that never comes
                gc.set_threshold(YOUNG_OBJECTS, *_thresholds[1:])
        _blocks += 1


def _leave() -> None:
    global _blocks  # noqa: PLW0603  # as above
    with _lock:
        _blocks -= 1
        if _blocks == 0:
            gc.set_threshold(*_thresholds)
