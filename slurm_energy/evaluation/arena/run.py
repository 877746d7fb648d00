"""One run of one policy with one seed: what a worker process does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.plan import (
    MAX_HISTORY_DAYS,
    STATIONARY_GENERATORS,
    ArenaPlan,
    generator_settings,
    has_history,
    jobs_with_history,
    run_horizon_seconds,
    workload_of_plan,
    world_of_plan,
)
from slurm_energy.evaluation.arena.run_bounds import FrontierLine, RunBounds, bounds_of_run, frontier_line
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.metrics import Metrics, metrics_of
from slurm_energy.policy.jobs import EndedJob
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.rules.slurm_order import SlurmDefaultRule
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.knowledge import KnownEnd
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.compat import SharedStreamSource
from slurm_energy.twin.workloads.registry import shared_stream_source, workload_settings
from slurm_energy.twin.world import World

BALANCE_TOLERANCE = 1e-9
_DAY_SECONDS = 86_400.0
MAX_SAMPLES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A run over time, thinned for plots."""

    seconds: tuple[float, ...]
    """Ends of stretches; the first begins at 0."""
    mean_watts: tuple[float, ...]
    """Over each stretch."""
    waiting_jobs: tuple[int, ...]
    """At the end of each stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A finished run."""

    policy: str
    """As it was named; with what a sweep found, see `rule`."""
    rule: str
    """The text that made the rule."""
    seed: int
    metrics: Metrics
    bounds: RunBounds | None
    samples: Samples
    workload_name: str
    workload_source: str
    bad_rows: int
    kinds: tuple[str, ...]
    """Of the jobs that came."""
    unknown_kinds: tuple[str, ...]
    """Those of which no device of the world has curves: their jobs are refused."""
    open_end: bool
    """Whether the run lasted until no job was left."""
    frontier: FrontierLine | None = None
    """Of the first seed's arrivals, with the first policy's run only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaRun:
    """A run with everything that it left."""

    record: RunRecord
    outcome: Outcome
    world: World
    jobs: Sequence[Job]
    """Those that came, in the outcome's order."""


class SimulatedRun(NamedTuple):
    """A run before anything is worked out from it."""

    world: World
    workload: Workload
    jobs: Sequence[Job]
    """Those that came, in the outcome's order."""
    outcome: Outcome


def run_one(plan: ArenaPlan, policy: str, rule_text: str, seed: int, *, with_frontier: bool = False) -> RunRecord:
    """Run a policy and return its figures, see `finished_run`."""
    return finished_run(plan, policy, rule_text, seed, with_frontier=with_frontier).record


def finished_run(
    plan: ArenaPlan,
    policy: str,
    rule_text: str,
    seed: int,
    *,
    with_frontier: bool = False,
    rule: PlacementRule | None = None,
) -> ArenaRun:
    """Run a policy and return its figures with the outcome, after checking energy balance and bound.

    Args:
        plan: World, jobs, horizon.
        policy: Name for the record.
        rule_text: What makes the rule.
        seed: Of arrivals, failures and the policy's own stream.
        with_frontier: Whether to add the frontier of the arrivals.
        rule: The one that the text makes, where the caller wants to watch it.

    Raises:
        EvaluationError: energy is missing from the account, or the run is below a bound.
        SlurmEnergyError: world, jobs or rule cannot be made, or cannot run together.
    """
    world, workload, jobs, outcome = simulated_run(plan, rule or create_contender(rule_text), seed)
    horizon = run_horizon_seconds(plan, world)
    _check_balance(outcome, policy, seed)
    metrics = metrics_of(outcome, world, jobs)
    stationary = is_stationary(plan, world)
    kinds = tuple(sorted({job.kind for job in jobs}))
    known = {kind for device in world.devices.values() for kind in device.loads}
    record = RunRecord(
        policy=policy,
        rule=rule_text,
        seed=seed,
        metrics=metrics,
        bounds=bounds_of_run(world, jobs, outcome, metrics, stationary=stationary, open_end=horizon is None),
        samples=_samples(outcome),
        workload_name=workload.name,
        workload_source=workload.source,
        bad_rows=workload.bad_rows,
        kinds=kinds,
        unknown_kinds=tuple(kind for kind in kinds if kind not in known),
        open_end=horizon is None,
        frontier=frontier_line(world, jobs, outcome.end_seconds) if with_frontier and stationary and jobs else None,
    )
    return ArenaRun(record=record, outcome=outcome, world=world, jobs=jobs)


def simulated_run(plan: ArenaPlan, rule: PlacementRule, seed: int) -> SimulatedRun:
    """Run a rule as the plan says, without looking at what came of it.

    Raises:
        SlurmEnergyError: world or jobs cannot be made, or cannot run together with the rule.
    """
    world = _world(plan)
    horizon = run_horizon_seconds(plan, world)
    if plan.compat:
        length = plan.horizon_seconds or world.horizon_seconds
        stream = _Recorded(shared_stream_source(generator_settings(world, length), seed))
        shared = stream.random if rule.shares_arrival_stream else None
        outcome = run(world, stream, rule, seed=seed, horizon_seconds=horizon, random=shared)
        workload = Workload(name=world.workload, jobs=(), source=f"shared stream, seed {seed}")
        return SimulatedRun(world, workload, stream.jobs, outcome)
    workload = _workload(_of_jobs(plan), seed)
    outcome = run(
        world,
        workload,
        rule,
        seed=seed,
        horizon_seconds=horizon,
        warm_up_seconds=plan.warm_up_seconds,
        history=_history(plan, seed) if plan.history_days > 0.0 else (),
    )
    return SimulatedRun(world, workload, workload.jobs[: len(outcome.job_id)], outcome)


def is_stationary(plan: ArenaPlan, world: World) -> bool:
    """Return whether the load is the same all the time: a Poisson stream that does not end before the run does."""
    horizon = run_horizon_seconds(plan, world)
    if horizon is None or not plan.is_generated or world.workload not in STATIONARY_GENERATORS:
        return False
    settings = {**workload_settings(world.workload), **generator_settings(world, plan.horizon_seconds)}
    return float(settings["hours"]) * 3600.0 >= horizon * (1.0 - 1e-9)


class _Recorded:
    """A source that remembers the jobs it gave."""

    def __init__(self, source: SharedStreamSource) -> None:
        self._source = source
        self.random = source.random
        self.jobs: list[Job] = []

    def next_time(self) -> float:
        return self._source.next_time()

    def take(self) -> Job:
        job = self._source.take()
        self.jobs.append(job)
        return job

    def after_route(self) -> float:
        return self._source.after_route()


class _Recorder(SlurmDefaultRule):
    """What Slurm does by itself, and what ended under it."""

    observes_ends = True

    def __init__(self) -> None:
        self.ends: list[KnownEnd] = []

    def ended(self, job: EndedJob) -> None:
        """Keep a run that ended."""
        if isinstance(job, KnownEnd):
            self.ends.append(job)


def _history(plan: ArenaPlan, seed: int) -> tuple[KnownEnd, ...]:
    """Return the runs that ended in the days before the start, at the start's clock."""
    ends = _all_history(_without_history(plan), seed)
    return tuple(end for end in ends if -plan.history_days * _DAY_SECONDS <= end.ended_seconds <= 0.0)


@lru_cache(maxsize=2)
def _all_history(plan: ArenaPlan, seed: int) -> tuple[KnownEnd, ...]:
    """Return every run before the start as Slurm by itself made it, in the order of the ends."""
    world = _world(plan)
    if not has_history(plan, world):
        return ()
    recorder = _Recorder()
    start = MAX_HISTORY_DAYS * _DAY_SECONDS
    run(world, jobs_with_history(plan, world, seed).before, recorder, seed=seed, horizon_seconds=start)
    return tuple(end.earlier(start) for end in recorder.ends)


def _without_history(plan: ArenaPlan) -> ArenaPlan:
    return replace(plan, history_days=0.0, policies=(), reference="")


def _of_jobs(plan: ArenaPlan) -> ArenaPlan:
    """Return the plan without what changes nothing of its jobs."""
    return replace(_without_history(plan), partition_order=())


@lru_cache(maxsize=4)
def _world(plan: ArenaPlan) -> World:
    return world_of_plan(plan)


@lru_cache(maxsize=2)
def _workload(plan: ArenaPlan, seed: int) -> Workload:
    """Return a seed's jobs, kept for the next policy: runs go seed by seed, or by two of them."""
    return workload_of_plan(plan, _world(plan), seed)


def _check_balance(outcome: Outcome, policy: str, seed: int) -> None:
    if not outcome.balance_error <= BALANCE_TOLERANCE:
        raise EvaluationError(
            f"policy {policy}, seed {seed}: the parts of the energy differ from its total by "
            f"{outcome.balance_error:.3g} of it, more than {BALANCE_TOLERANCE:g}: energy is lost or counted twice"
        )


def _samples(outcome: Outcome) -> Samples:
    """Return the run's samples, neighbours put together until few enough are left."""
    edges = outcome.sample_seconds
    joules = np.concatenate([[0.0], np.cumsum(outcome.sample_watts * np.diff(edges))])
    step = max(1, -(-(len(edges) - 1) // MAX_SAMPLES))
    kept = np.unique(np.append(np.arange(0, len(edges), step), len(edges) - 1))
    return Samples(
        seconds=tuple(edges[kept][1:].tolist()),
        mean_watts=tuple((np.diff(joules[kept]) / np.diff(edges[kept])).tolist()),
        waiting_jobs=tuple(outcome.sample_waiting[kept][1:].tolist()),
    )
