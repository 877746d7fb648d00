"""The best static clocks of a world, found on arrivals that no comparison sees.

Tuning on the arrivals that are judged afterwards would flatter a fixed clock, so a sweep has a seed of its own. Its
runs are otherwise those of the comparison, as long and with the same warm-up left out: in a cluster that is still
filling up the clocks of the types that are filled last would not matter. Best is the least energy per unit of work
among clocks that leave no more jobs waiting than the highest clock does, but for one per cent.

Whole grids are searched, coarse to fine: a score over the clock may have several valleys and level stretches, so that a
walk from one clock to the next would stop too early. Of equal scores the one of the higher clock is taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.plan import ArenaPlan, generator_settings, run_horizon_seconds, world_of_plan
from slurm_energy.evaluation.arena.run import simulated_run
from slurm_energy.evaluation.metrics import Metrics, metrics_of
from slurm_energy.policy.registry import create_rule
from slurm_energy.twin.engine.sampling import DAY_SECONDS
from slurm_energy.twin.workloads.registry import workload_settings
from slurm_energy.twin.world import World

SWEEP_SEED = 900_001
"""Moved on while it is among the seeds of the comparison."""
MAX_SECONDS = 8.0 * DAY_SECONDS
"""Longest run: a week of load behind a day of filling up. A sweep makes a hundred runs and more."""
_WAITING_SLACK = 0.01
_REFUSED = 1e15
"""Above any energy per unit, and a number of jobs still shows beside it."""


MAX_CLOCKS = 12
"""Values of a grid that are tried at once."""


MAX_ROUNDS = 3
"""Over all grids: what one type's clock does to another's is a second-order matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found."""

    policy: str
    """As it was named."""
    rule: str
    """The text of the rule with its clocks."""
    seed: int
    seconds: float
    """Length of each run with its warm-up; of its arrivals where it lasts until no job is left."""
    runs: int
    untried: tuple[str, ...] = ()
    """Device types whose own clock changes nothing, as no job ran on them: it is left at the highest."""


def swept_rule(plan: ArenaPlan, policy: str) -> SweepResult:
    """Return a rule of fixed clocks with the best ones for the plan's world.

    First one relative clock for all device types; for `fixed-clock` then, from there on, each type's own over its whole
    grid, in rounds. Both go from coarse to fine, see `clock_search`.

    Args:
        plan: The comparison; its seeds are not used.
        policy: `fixed-clock` or `fixed-dvfs`, without settings.

    Raises:
        EvaluationError: the world has no generator, so that there are no other arrivals to tune on.
    """
    world = world_of_plan(plan)
    if not world.workload:
        example = next(iter(world.devices))
        raise EvaluationError(
            f"policy {policy} needs clocks: world {world.name} makes no jobs of its own to find them on, and they "
            "must not be tuned on the jobs that are compared; name them, such as fixed-dvfs:f=0.8 or "
            f"fixed-clock:{example}=0.8"
        )
    trial = _Trial(plan, world)
    relative = trial.best_common()
    if policy == "fixed-dvfs":
        return trial.result(policy, f"fixed-dvfs:f={relative:.6g}")
    chosen = trial.best_by_device(relative)
    return trial.result(policy, trial.fixed_clock(chosen), untried=trial.without_effect(chosen))


def sweep_seed(seeds: tuple[int, ...]) -> int:
    """Return a seed that is not among those of the comparison."""
    seed = SWEEP_SEED
    while seed in seeds:
        seed += 1
    return seed


def sweep_plan(plan: ArenaPlan, world: World) -> ArenaPlan:
    """Return the plan of a sweep's runs: the comparison's with another seed, and at most `MAX_SECONDS` long.

    In the place of a file's jobs come those of the world's generator. Where the length may be another one than the
    comparison's, at most half of it is warm-up.
    """
    is_open = run_horizon_seconds(plan, world) is None
    own = replace(plan, workload=None, sacct=None, seeds=(sweep_seed(plan.seeds),), drain=is_open)
    seconds = _length_seconds(own, world)
    if plan.is_generated and seconds <= MAX_SECONDS:
        return own
    seconds = min(seconds, MAX_SECONDS)
    return replace(own, horizon_seconds=seconds, warm_up_seconds=min(plan.warm_up_seconds, 0.5 * seconds))


def _length_seconds(plan: ArenaPlan, world: World) -> float:
    """Return how long runs on generated jobs take; how long jobs come where they last until none is left."""
    horizon = run_horizon_seconds(plan, world)
    if horizon is not None:
        return horizon
    settings = {**workload_settings(world.workload), **generator_settings(world, plan.horizon_seconds)}
    return float(settings["hours"]) * 3600.0


class _Trial:
    """Runs of rules on the sweep's own arrivals, each rule once."""

    def __init__(self, plan: ArenaPlan, world: World) -> None:
        self._plan = sweep_plan(plan, world)
        self._seconds = _length_seconds(self._plan, world)
        self._known: dict[str, Metrics] = {}
        used = {pool.device for pool in world.pools}
        self._clocks = {
            name: device.relative_clocks
            for name, device in world.devices.items()
            if name in used and len(device.relative_clocks) > 1
        }

    def best_common(self) -> float:
        """Return the best relative clock for all device types, of all that any of them has."""
        values = sorted({clock for clocks in self._clocks.values() for clock in clocks} or {1.0})
        return values[best_on_grid(len(values), lambda index: self._score(f"fixed-dvfs:f={values[index]:.6g}"))]

    def best_by_device(self, relative: float) -> dict[str, int]:
        """Return the index of the best relative clock of each device type, from a common one on."""
        start = {
            name: min(range(len(clocks)), key=lambda index: (abs(clocks[index] - relative), -index))  # used at once
            for name, clocks in self._clocks.items()
        }
        sizes = {name: len(clocks) for name, clocks in self._clocks.items()}
        return best_on_grids(sizes, start, lambda chosen: self._score(self.fixed_clock(chosen)))

    def without_effect(self, chosen: Mapping[str, int]) -> tuple[str, ...]:
        """Return the device types, of those at their highest clock, for which the lowest is as good."""
        score = self._score(self.fixed_clock(chosen))
        return tuple(
            name
            for name, index in chosen.items()
            if index == len(self._clocks[name]) - 1 and self._score(self.fixed_clock({**chosen, name: 0})) == score
        )

    def fixed_clock(self, chosen: Mapping[str, int]) -> str:
        """Return the rule with a clock for each device type."""
        settings = ",".join(f"{name}={self._clocks[name][index]:.6g}" for name, index in chosen.items())
        return f"fixed-clock:{settings}" if settings else "fixed-clock"

    def result(self, policy: str, rule: str, *, untried: tuple[str, ...] = ()) -> SweepResult:
        """Return what was found."""
        (seed,) = self._plan.seeds
        return SweepResult(
            policy=policy, rule=rule, seed=seed, seconds=self._seconds, runs=len(self._known), untried=untried
        )

    def _score(self, rule: str) -> float:
        """Return energy per unit, and far more when too many jobs are left waiting."""
        highest, found = self._run("fixed-dvfs:f=2"), self._run(rule)
        waiting = _waiting(found)
        if waiting > _waiting(highest) + _WAITING_SLACK * highest.jobs:
            # Fewer are still better, so that a search finds its way back.
            return _REFUSED + waiting
        return inf if found.joules_per_unit is None else found.joules_per_unit

    def _run(self, rule: str) -> Metrics:
        if rule not in self._known:
            world, _, jobs, outcome = simulated_run(self._plan, create_rule(rule), *self._plan.seeds)
            self._known[rule] = metrics_of(outcome, world, jobs)
        return self._known[rule]


def _waiting(found: Metrics) -> int:
    return found.jobs_by_state.get("PENDING", 0)


def best_on_grid(size: int, score: Callable[[int], float], *, present: int | None = None) -> int:
    """Return the index with the least score.

    At most `MAX_CLOCKS` evenly spaced ones of the whole grid are tried, with both ends, and the present one; then as
    many between the neighbours of the best, until no untried one is left between them. A valley that is narrower than
    the first spacing may be missed.

    Args:
        size: Length of the grid, lowest clock first.
        score: Of an index, asked once for each.
        present: Index that must be among those tried.
    """
    tried: dict[int, float] = {}
    wanted = _evenly_spaced(0, size - 1) | (set() if present is None else {present})
    best = 0
    while wanted:
        tried |= {index: score(index) for index in sorted(wanted)}
        best = min(tried, key=lambda index: (tried[index], -index))
        low = max((index for index in tried if index < best), default=best)
        high = min((index for index in tried if index > best), default=best)
        wanted = _evenly_spaced(low, high) - tried.keys()
    return best


def best_on_grids(
    sizes: Mapping[str, int], start: Mapping[str, int], score: Callable[[Mapping[str, int]], float]
) -> dict[str, int]:
    """Return the best index on each of several grids: one after the other, in rounds until one changes nothing.

    Args:
        sizes: Length of each grid.
        start: Index on each grid to begin with; the score never becomes greater than there.
        score: Of an index on each grid; may be asked again.
    """
    chosen = dict(start)
    for _ in range(MAX_ROUNDS):
        before = dict(chosen)
        for name, size in sizes.items():
            chosen[name] = best_on_grid(size, lambda at: score({**chosen, name: at}), present=chosen[name])  # noqa: B023  # used at once
        if chosen == before:
            break
    return chosen


def _evenly_spaced(low: int, high: int) -> set[int]:
    """Return at most `MAX_CLOCKS` indices from low to high, with both."""
    return set(np.linspace(low, high, min(MAX_CLOCKS, high - low + 1)).round().astype(int).tolist())
