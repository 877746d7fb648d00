"""The best static clocks of a world, found on arrivals that no comparison sees.

Tuning on the arrivals that are judged afterwards would flatter a fixed clock, so a sweep has a seed of its own. Its
runs are a day long at most. Best is the least energy per unit of work among clocks that leave no more jobs waiting than
the highest clock does, but for one per cent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena_plan import ArenaPlan, workload_of_plan, world_of_plan
from slurm_energy.evaluation.metrics import metrics_of
from slurm_energy.policy.rules.registry import create_rule
from slurm_energy.twin.job import Workload
from slurm_energy.twin.outcome import DAY_SECONDS
from slurm_energy.twin.simulation import run
from slurm_energy.twin.world import World

SWEEP_SEED = 900_001
"""Moved on while it is among the seeds of the comparison."""
MOST_COMMON_CLOCKS = 12
_UNFINISHED_SLACK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """What a sweep found."""

    policy: str
    """As it was named."""
    rule: str
    """The text of the rule with its clocks."""
    seed: int
    seconds: float
    """Length of each run."""
    runs: int


def swept_rule(plan: ArenaPlan, policy: str) -> SweepResult:
    """Return a rule of fixed clocks with the best ones for the plan's world.

    First one relative clock for all device types over at most `MOST_COMMON_CLOCKS` values; for `fixed-clock` then each
    type's own, by going to the next clock of its grid as long as that helps, one type after the other.

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
    return trial.result(policy, _fixed_clock(trial.best_by_device(relative)))


def sweep_seed(seeds: tuple[int, ...]) -> int:
    """Return a seed that is not among those of the comparison."""
    seed = SWEEP_SEED
    while seed in seeds:
        seed += 1
    return seed


class _Trial:
    """Runs of rules on the sweep's own arrivals, each rule once."""

    def __init__(self, plan: ArenaPlan, world: World) -> None:
        self._world = world
        self._seed = sweep_seed(plan.seeds)
        self._seconds = min(
            length
            for length in (DAY_SECONDS, plan.horizon_seconds, world.horizon_seconds if plan.is_generated else None)
            if length is not None
        )
        own = replace(
            plan,
            workload=None,
            sacct=None,
            horizon_seconds=self._seconds,
            seeds=(self._seed,),
            drain=False,
            compat=False,
        )
        self._workload: Workload = workload_of_plan(own, world, self._seed)
        self._known: dict[str, tuple[int, float]] = {}
        self._allowed: float | None = None
        used = {pool.device for pool in world.pools}
        self._clocks = {
            name: device.relative_clocks
            for name, device in world.devices.items()
            if name in used and len(device.relative_clocks) > 1
        }

    def best_common(self) -> float:
        """Return the best relative clock for all device types."""
        values = sorted({clock for clocks in self._clocks.values() for clock in clocks} or {1.0})
        if len(values) > MOST_COMMON_CLOCKS:
            values = np.round(np.linspace(values[0], values[-1], MOST_COMMON_CLOCKS), 3).tolist()
        return min(reversed(values), key=lambda value: self._score(f"fixed-dvfs:f={value:.6g}"))

    def best_by_device(self, relative: float) -> dict[str, float]:
        """Return the best relative clock of each device type, from a common one on."""
        chosen = {
            name: min(range(len(clocks)), key=lambda index: (abs(clocks[index] - relative), -index))  # used at once
            for name, clocks in self._clocks.items()
        }

        def score(indices: Mapping[str, int]) -> float:
            return self._score(_fixed_clock({name: self._clocks[name][index] for name, index in indices.items()}))

        for name, clocks in self._clocks.items():
            for step in (1, -1):
                chosen[name] = _climbed(chosen[name], step, len(clocks), lambda at: score({**chosen, name: at}))  # noqa: B023  # used at once
        return {name: self._clocks[name][index] for name, index in chosen.items()}

    def result(self, policy: str, rule: str) -> SweepResult:
        """Return what was found."""
        return SweepResult(policy=policy, rule=rule, seed=self._seed, seconds=self._seconds, runs=len(self._known))

    def _score(self, rule: str) -> float:
        """Return energy per unit, infinite when too many jobs are left unfinished."""
        if self._allowed is None:
            slack = _UNFINISHED_SLACK * len(self._workload.jobs)
            self._allowed = self._run("fixed-dvfs:f=2")[0] + slack
        unfinished, joules_per_unit = self._run(rule)
        # Beyond the allowance, fewer unfinished jobs are still better, so that a climb finds its way back.
        return joules_per_unit if unfinished <= self._allowed else 1e18 + unfinished

    def _run(self, rule: str) -> tuple[int, float]:
        if rule not in self._known:
            outcome = run(
                self._world, self._workload, create_rule(rule), seed=self._seed, horizon_seconds=self._seconds
            )
            found = metrics_of(outcome, self._world)
            waiting = found.jobs_by_state.get("PENDING", 0)
            per_unit = np.inf if found.joules_per_unit is None else found.joules_per_unit
            self._known[rule] = (waiting, per_unit)
        return self._known[rule]


def _climbed(start: int, step: int, size: int, score: Callable[[int], float]) -> int:
    best = start
    while 0 <= best + step < size and score(best + step) < score(best):
        best += step
    return best


def _fixed_clock(clocks: Mapping[str, float]) -> str:
    settings = ",".join(f"{name}={clock:.6g}" for name, clock in clocks.items())
    return f"fixed-clock:{settings}" if settings else "fixed-clock"
