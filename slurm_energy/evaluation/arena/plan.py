"""What is to be compared: a world, its jobs, policies and seeds, all by name, so that any process can make them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from slurm_energy.errors import ConfigError, EvaluationError
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.evaluation.replay import (
    reference_device,
    replay_kinds,
    replay_workload,
    world_of_accounting,
)
from slurm_energy.policy.rules.settings import split_text
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.deadlines import with_limits_for_asked_partitions, with_limits_for_every_device
from slurm_energy.twin.workloads.formats import load_workload, recognised_format
from slurm_energy.twin.workloads.registry import create_workload, workload_settings
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world

COMPAT_GENERATOR = "poisson"
STATIONARY_GENERATORS = frozenset({"poisson"})
SWEPT = ("fixed-clock", "fixed-dvfs")
"""Rules whose clocks are found by a sweep when they are given none."""
MAX_SEEDS = 10_000
MAX_HISTORY_DAYS = 31.0
"""Days of jobs that are made before a run in a world that hides what they do: what is compared is the same however many
of them policies know."""
FIRST_TRAINING_SEED = 1_000_000
"""Arrivals from this seed on are for training: no comparison may meet them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPlan:
    """A comparison."""

    policies: tuple[str, ...]
    """As people write them: `name[:key=value,...]`."""
    world: str | None = None
    """Name or file; None with `sacct` for a world made from what the accounting shows."""
    workload: Path | None = None
    """A file of jobs in the place of the world's generator."""
    sacct: Path | None = None
    """Slurm's accounting in the place of either."""
    seeds: tuple[int, ...] = (1,)
    horizon_seconds: float | None = None
    """None for the world's own; a file of jobs without it runs until no job is left."""
    drain: bool = False
    """Take arrivals until the horizon, and run until no job is left."""
    warm_up_seconds: float = 0.0
    """Simulated and not counted: energy, work and times are those from then on."""
    compat: bool = False
    """Draw arrivals and the policy's choices from one stream, as the published simulator does."""
    skip_bad: bool = False
    generator: str = ""
    """In the place of the world's own; empty for that."""
    settings: tuple[tuple[str, float | int | str], ...] = ()
    """Of the generator, in the place of the world's."""
    history_days: float = 0.0
    """In a world that hides what jobs do: days of ended runs that policies know at the start, at most
    `MAX_HISTORY_DAYS`."""
    partition_order: tuple[str, ...] = ()
    """In which Slurm tries the partitions of a job that names none; empty for the world's."""
    reference: str = ""
    """Policy that the others are held against; empty for the first."""

    @property
    def is_generated(self) -> bool:
        """Whether the jobs come from the world's generator, so that every seed has its own."""
        return self.workload is None and self.sacct is None

    @property
    def reference_policy(self) -> str:
        """The policy that the others are held against.

        Raises:
            EvaluationError: none, or more than one, is meant.
        """
        if not self.reference:
            return self.policies[0]
        if self.reference in self.policies:
            return self.reference
        named = [text for text in self.policies if split_text(text)[0] == self.reference]
        if len(named) != 1:
            count = f"is {len(named)} of" if named else "is not one of"
            raise EvaluationError(f"reference {self.reference[:64]!r} {count} the policies {', '.join(self.policies)}")
        return named[0]


def checked_plan(plan: ArenaPlan) -> World:
    """Return the plan's world after checking all that can be checked before a run.

    Raises:
        ConfigError, EvaluationError, PolicyError, ValueRangeError, WorkloadError: something of it cannot be; the
            message says what, and what to do.
    """
    if not plan.policies:
        raise EvaluationError("no policy is named: give at least one; `arena policies` lists them")
    twice = [text for index, text in enumerate(plan.policies) if text in plan.policies[:index]]
    if twice:
        raise EvaluationError(f"policy {twice[0][:64]!r} is named twice")
    if not plan.seeds or len(plan.seeds) > MAX_SEEDS or min(plan.seeds) < 0:
        raise EvaluationError(f"{len(plan.seeds)} seeds: 1 to {MAX_SEEDS} from 0 up are possible")
    if max(plan.seeds) >= FIRST_TRAINING_SEED:
        raise EvaluationError(
            f"seed {max(plan.seeds)} is kept for training: compare with seeds below {FIRST_TRAINING_SEED}"
        )
    if plan.horizon_seconds is not None and not 0.0 < plan.horizon_seconds < inf:
        raise EvaluationError(f"a run of {plan.horizon_seconds / 3600.0:g} hours is not a finite time above 0")
    if not 0.0 <= plan.warm_up_seconds < inf:
        raise EvaluationError(f"a warm-up of {plan.warm_up_seconds / 3600.0:g} hours is not a finite time from 0 up")
    if not 0.0 <= plan.history_days <= MAX_HISTORY_DAYS:
        raise EvaluationError(f"a history of {plan.history_days:g} days is not from 0 to {MAX_HISTORY_DAYS:g} days")
    if plan.workload is not None and plan.sacct is not None:
        raise EvaluationError("a workload file and an accounting are both given: name one of them")
    _ = plan.reference_policy
    for text in plan.policies:
        create_contender(text)
    world = world_of_plan(plan)
    if plan.is_generated and not world.workload:
        raise EvaluationError(f"world {world.name} has no workload of its own: give one with --workload FILE")
    if plan.compat:
        _check_compat(plan, world)
    length = plan.horizon_seconds or run_horizon_seconds(plan, world)
    if length is not None and plan.warm_up_seconds >= length:
        raise EvaluationError(
            f"a warm-up of {plan.warm_up_seconds / 3600.0:g} hours leaves nothing of a run of {length / 3600.0:g}"
        )
    return world


def world_of_plan(plan: ArenaPlan) -> World:
    """Return the plan's world.

    Raises:
        ConfigError: it does not exist or cannot be read.
        EvaluationError: no world is named and there is no accounting to make one from.
    """
    if plan.world is not None:
        world = _reordered(find_world(plan.world), plan.partition_order)
        if not plan.generator and not plan.settings:
            return world
        return replace(
            world,
            workload=plan.generator or world.workload,
            workload_settings={**world.workload_settings, **dict(plan.settings)},
        )
    if plan.sacct is None:
        raise EvaluationError("no world is named: give --world NAME or FILE; `arena worlds` lists those there are")
    return _reordered(world_of_accounting(plan.sacct, skip_bad=plan.skip_bad).world, plan.partition_order)


def _reordered(world: World, order: tuple[str, ...]) -> World:
    if not order:
        return world
    by_name = {partition.name: partition for partition in world.partitions}
    if sorted(order) != sorted(by_name):
        raise EvaluationError(
            f"partition order {', '.join(order)[:200]} is not of the partitions of world {world.name}: "
            f"{', '.join(by_name)}"
        )
    return replace(world, partitions=tuple(by_name[name] for name in order))


def run_horizon_seconds(plan: ArenaPlan, world: World) -> float | None:
    """Return when runs end; None until no job is left."""
    if plan.drain:
        return None
    if plan.horizon_seconds is not None:
        return plan.horizon_seconds
    return world.horizon_seconds if plan.is_generated else None


def generator_settings(world: World, horizon_seconds: float | None) -> Mapping[str, float | int | str]:
    """Return the settings of the world's generator, its length put to the horizon where one is given."""
    settings = dict(world.workload_settings)
    known = workload_settings(world.workload)
    if horizon_seconds is not None and "hours" in known:
        settings["hours"] = horizon_seconds / 3600.0
    return settings


def workload_of_plan(plan: ArenaPlan, world: World, seed: int) -> Workload:
    """Return the jobs of a seed; those of a file are the same for every seed.

    Raises:
        ConfigError, WorkloadError: they cannot be made or read.
    """
    if has_history(plan, world):
        return jobs_with_history(plan, world, seed).after
    if plan.is_generated:
        return create_workload(world.workload, generator_settings(world, plan.horizon_seconds), seed)
    if plan.sacct is not None:
        found = replay_workload(plan.sacct, world, skip_bad=plan.skip_bad)
    else:
        assert plan.workload is not None
        options = LoadOptions(skip_bad=plan.skip_bad, kinds=replay_kinds(world), seed=seed)
        found = load_workload(plan.workload, options=options)
        if recognised_format(plan.workload) == "philly":  # the only trace whose limits are drawn
            found = with_limits_for_every_device(found, world, reference_device(world))
    if plan.horizon_seconds is None:
        return found
    jobs = tuple(job for job in found.jobs if job.submitted_seconds <= plan.horizon_seconds)
    return Workload(name=found.name, jobs=jobs, source=found.source, bad_rows=found.bad_rows)


class JobsWithHistory(NamedTuple):
    """Generated jobs, parted at the start of the run that is compared."""

    before: Workload
    """On a clock of its own, from 0 to `MAX_HISTORY_DAYS`."""
    after: Workload


def has_history(plan: ArenaPlan, world: World) -> bool:
    """Return whether jobs came before the run: generated ones of a world that hides what they do."""
    return plan.is_generated and world.knowledge == "site" and "hours" in workload_settings(world.workload)


def jobs_with_history(plan: ArenaPlan, world: World, seed: int) -> JobsWithHistory:
    """Return the jobs before and after the start, the same ones however much of the history is used."""
    settings = {**workload_settings(world.workload), **generator_settings(world, plan.horizon_seconds)}
    settings["hours"] = float(settings["hours"]) + MAX_HISTORY_DAYS * 24.0
    made = create_workload(world.workload, settings, seed)
    if world.workload_settings.get("limits"):
        made = with_limits_for_asked_partitions(made, world, reference_device(world))
    start = MAX_HISTORY_DAYS * 86_400.0
    before = tuple(job for job in made.jobs if job.submitted_seconds < start)
    after = made.jobs[len(before) :]
    for job in before:
        if job.asked_gpus:  # nothing chose their number then
            job.gpu_counts, job.asked_gpus = (job.asked_gpus,), 0
    for job in after:
        job.submitted_seconds -= start
        if job.deadline_seconds < inf:
            job.deadline_seconds -= start
    return JobsWithHistory(
        Workload(name=made.name, jobs=before, source=made.source),
        Workload(name=made.name, jobs=after, source=f"{made.source}, after {MAX_HISTORY_DAYS:g} days"),
    )


def seeds_from(first: int, count: int) -> tuple[int, ...]:
    """Return so many seeds from the first on."""
    return tuple(range(first, first + count))


def _check_compat(plan: ArenaPlan, world: World) -> None:
    if not plan.is_generated or world.workload != COMPAT_GENERATOR:
        raise EvaluationError(
            f"--compat repeats a published stream of generator {COMPAT_GENERATOR}; the jobs here come from "
            f"{world.workload or 'a file' if plan.is_generated else 'a file'}"
        )
    if plan.warm_up_seconds > 0.0:
        raise EvaluationError("--compat and --warm-up-hours exclude each other: published runs count from the start")
    if plan.drain:
        raise EvaluationError("--compat and --drain exclude each other: the published runs end at their horizon")
    if plan.horizon_seconds is None and world.horizon_seconds is None:
        raise ConfigError(f"world {world.name} has no horizon: give --hours with --compat")
