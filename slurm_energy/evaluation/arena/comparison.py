"""The arena: every policy with every seed, in processes of their own, side by side."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, NamedTuple

from slurm_energy.errors import EvaluationError, SlurmEnergyError
from slurm_energy.evaluation.arena.clock_sweep import SweepResult, swept_rule
from slurm_energy.evaluation.arena.plan import SWEPT, ArenaPlan, checked_plan
from slurm_energy.evaluation.arena.run import RunRecord, run_one
from slurm_energy.processes import end_with_parent

Tell = Callable[[str, int, int], None]
"""Called with what is going on, how many steps are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A run that gave no outcome."""

    policy: str
    seed: int | None
    """None when no seed was begun, because no clocks were found for the policy."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaResult:
    """A comparison that is over."""

    plan: ArenaPlan
    world_name: str
    runs: tuple[RunRecord, ...]
    """In the order of policies, then seeds."""
    failed: tuple[FailedRun, ...]
    sweeps: tuple[SweepResult, ...]

    def of(self, policy: str) -> tuple[RunRecord, ...]:
        """Return a policy's runs by seed."""
        return tuple(record for record in self.runs if record.policy == policy)


class WorkerCall(NamedTuple):
    """One call in a worker."""

    policy: str
    seed: int | None
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = {}


def run_arena(plan: ArenaPlan, *, workers: int | None = None, tell: Tell | None = None) -> ArenaResult:
    """Return the outcome of every policy with every seed of a plan.

    The same plan gives the same figures with any number of workers, but for the time that decisions take. A run that
    fails is in `failed`, and takes nothing from the others.

    Args:
        plan: What to compare.
        workers: Processes; None for as many as the machine has CPUs for us, and no more than there are runs.
        tell: Called after every step.

    Raises:
        SlurmEnergyError: the plan cannot be, see `checked_plan`.
    """
    world = checked_plan(plan)
    if workers is not None and workers < 1:
        raise EvaluationError(f"{workers} workers: at least 1 is needed")
    say = tell or (lambda _doing, _done, _of: None)
    swept = [policy for policy in plan.policies if policy in SWEPT]
    number = min(workers or len(os.sched_getaffinity(0)), max(1, len(plan.policies) * len(plan.seeds)))
    with WorkerPool(number) as pool:
        sweeps, failed = pool.results(
            [WorkerCall(name, None, swept_rule, (plan, name)) for name in swept], say, "clocks"
        )
        rule_of = {sweep.policy: sweep.rule for sweep in sweeps.values()}
        lost = {failure.policy for failure in failed}
        policies = [policy for policy in plan.policies if policy not in lost]
        # Seed by seed, so that a worker meets the arrivals it has made already.
        steps = [
            WorkerCall(
                policy,
                seed,
                run_one,
                (plan, policy, rule_of.get(policy, policy), seed),
                {"with_frontier": policy == policies[0] and seed == plan.seeds[0]},
            )
            for seed in plan.seeds
            for policy in policies
        ]
        runs, failed_runs = pool.results(steps, say, "runs")
    order = {(policy, seed): index for index, (policy, seed) in enumerate(_pairs(plan))}
    records: list[RunRecord] = sorted(runs.values(), key=lambda record: order[record.policy, record.seed])
    return ArenaResult(
        plan=plan,
        world_name=world.name,
        runs=tuple(records),
        failed=(*failed, *failed_runs),
        sweeps=tuple(sweeps.values()),
    )


def _pairs(plan: ArenaPlan) -> Iterable[tuple[str, int]]:
    return ((policy, seed) for policy in plan.policies for seed in plan.seeds)


class WorkerPool:
    """Worker processes; what ends one of them costs the step that did it, and no other."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._executor: ProcessPoolExecutor | None = None
        self._others = multiprocessing.active_children()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if self._executor is not None:
            if kind is not None:
                self._stop(self._executor)
            self._executor.shutdown(wait=True, cancel_futures=True)

    def results(
        self, steps: Sequence[WorkerCall], tell: Tell, doing: str
    ) -> tuple[dict[int, Any], tuple[FailedRun, ...]]:
        """Return what each step came to by its number, and what failed."""
        found: dict[int, Any] = {}
        errors: dict[int, str] = {}
        for number, error in self._outcomes(steps, found):
            if error is not None:
                errors[number] = error
            tell(doing, len(found) + len(errors), len(steps))
        failed = tuple(FailedRun(policy=steps[n].policy, seed=steps[n].seed, error=errors[n]) for n in sorted(errors))
        return dict(sorted(found.items())), failed

    def _outcomes(self, steps: Sequence[WorkerCall], found: dict[int, Any]) -> Iterable[tuple[int, str | None]]:
        """Yield the number and the error of each step that is over; results go to `found`."""
        if not steps:
            return
        broken: list[int] = []
        futures = {self._submit(step): number for number, step in enumerate(steps)}
        for future in as_completed(futures):
            number = futures[future]
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                broken.append(number)
                continue
            if error is None:
                found[number] = future.result()
            yield number, None if error is None else _error_text(error)
        for number in sorted(broken):
            yield number, self._alone(steps[number], number, found)

    def _alone(self, step: WorkerCall, number: int, found: dict[int, Any]) -> str | None:
        """Run a step again after the pool broke, in a process of its own, so that only the guilty one fails."""
        self._executor = None
        with _executor(1) as executor:
            future = executor.submit(step.call, *step.arguments, **step.keywords)
            error = future.exception()
        if error is None:
            found[number] = future.result()
            return None
        if isinstance(error, BrokenProcessPool):
            return "its process ended before it was done: out of memory, or killed"
        return _error_text(error)

    def _submit(self, step: WorkerCall) -> "Future[Any]":
        if self._executor is None:
            self._executor = _executor(self._workers)
        return self._executor.submit(step.call, *step.arguments, **step.keywords)

    def _stop(self, executor: ProcessPoolExecutor) -> None:
        """End the workers at once: what they do is not needed."""
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            if process not in self._others:
                process.terminate()


def _executor(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker)


def _begin_worker() -> None:
    """End with the command, and silently on Ctrl-C: the command itself says that it was interrupted."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _error_text(error: BaseException) -> str:
    """Return an error for a table; foreign ones with their type."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, SlurmEnergyError) and text else f"{type(error).__name__}: {text}"
