"""A training by imitation: its settings, and the way from a world's name to a checkpoint on disk."""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from slurm_energy.errors import CheckpointError, ConfigError, TrainingError
from slurm_energy.evaluation.arena.plan import FIRST_TRAINING_SEED
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.learning.imitation import (
    DemonstratedRule,
    Demonstration,
    ImitationProgress,
    ImitationSettings,
    train_by_imitation,
)
from slurm_energy.learning.settings_file import HOURS, RUN_BOUNDS, Bounds, check_bounds, read_tables
from slurm_energy.learning.torch_device import AUTO, CPU, check_device_name
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import create_network
from slurm_energy.settings import check_names, filled, table_of
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world

ALGORITHM = "imitation"

_EPISODE_BOUNDS: Bounds = {
    "hours": HOURS,
    "runs": (1, 1000),
    "every": (1, 100_000),
    "most": (1, 10_000_000),
}
"""As the options of `train` have them."""


def network_settings(path: Path | None) -> NetworkConfig:
    """Return the settings of a TOML file, the defaults without one; the file is read as a table [network] is.

    Raises:
        ConfigError: it cannot be read, or has a setting that the network lacks.
    """
    return NetworkConfig() if path is None else filled(NetworkConfig, read_tables(path), "network")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a network is to learn from whom."""

    world: str
    """Name or file."""
    teacher: str
    """A policy, as the arena writes it."""
    hours: float
    """Simulated time of each run of the teacher."""
    runs: int = 1
    every: int = 1
    """One in so many decisions is learned from."""
    most: int = 20_000
    """Decisions that are learned from at most."""
    name: str = "gnn"
    version: str = "1"
    network: NetworkConfig = field(default_factory=NetworkConfig)
    settings: ImitationSettings = field(default_factory=ImitationSettings)
    threads: int = 1
    """Of the CPU; with more than one, sums come in another order and weights differ in their last digits."""
    device: str = AUTO
    """Name of where the network is to learn; `torch_device` finds it."""

    def __post_init__(self) -> None:
        if self.network.policy != "options":
            raise ConfigError(f'network setting policy="{self.network.policy}": imitation of choices needs "options"')


def train(
    plan: TrainingPlan,
    folder: Path,
    *,
    device: torch.device = CPU,
    report_epoch: Callable[[ImitationProgress], None] | None = None,
    report_run: Callable[[int, int], None] | None = None,
) -> CheckpointMetadata:
    """Let the teacher run, train a network on what it did, and write it as a checkpoint.

    Args:
        plan: What to do; the same plan gives the same weights on one CPU thread.
        folder: Of the checkpoint; must not exist.
        device: Where the network learns; the teacher runs on the CPU.
        report_epoch: Called after each epoch.
        report_run: Called with a finished run of the teacher and the number of decisions so far.

    Raises:
        TrainingError: the teacher decided nothing.
        CheckpointError: the folder exists or cannot be written, or name or version cannot be those of a checkpoint;
            all but a failure to write is reported before the work begins.
        SlurmEnergyError: world or teacher cannot be made.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"checkpoint {folder} exists: name a new folder")
    if not folder.parent.is_dir():
        raise CheckpointError(f"folder {folder.parent} of checkpoint {folder.name} does not exist")
    metadata = CheckpointMetadata(
        name=plan.name,
        version=plan.version,
        architecture=plan.network,
        training_data_sha256="0" * 64,
        created_at_seconds=time.time(),
    )
    demonstrations = demonstrated(plan, report_run)
    if not demonstrations:
        raise TrainingError(f"{plan.teacher} started no job on {plan.world} in {plan.hours:g} hours: give it more time")
    torch.set_num_threads(plan.threads)
    network = create_network(plan.network, plan.settings.seed).to(device)
    progress = train_by_imitation(network, demonstrations, plan.settings, report_epoch)
    metrics = {
        "loss": progress.loss,
        "agreement": progress.agreement,
        "clock_agreement": progress.clock_agreement,
        "decisions": float(len(demonstrations)),
    }
    metadata = replace(
        metadata,
        training_data_sha256=hash_of(demonstrations),
        created_at_seconds=time.time(),
        metrics=metrics,
    )
    return save_checkpoint(folder, network.state_dict(), metadata)


def demonstrated(plan: TrainingPlan, report_run: Callable[[int, int], None] | None = None) -> list[Demonstration]:
    """Return what the teacher did in its runs."""
    world = find_world(plan.world)
    found: list[Demonstration] = []
    for number in range(plan.runs):
        rule = DemonstratedRule(create_contender(plan.teacher), every=plan.every, most=plan.most - len(found))
        seed = FIRST_TRAINING_SEED + plan.settings.seed * plan.runs + number
        workload = create_workload(world.workload, _generator_settings(world, plan.hours), seed)
        run(world, workload, rule, seed=seed, horizon_seconds=plan.hours * 3600.0)
        found += rule.demonstrations
        if report_run is not None:
            report_run(number + 1, len(found))
    return found


def hash_of(demonstrations: Sequence[Demonstration]) -> str:
    """Return the SHA-256 of what is learned from: every job, its options and the choice, in their order."""
    digest = hashlib.sha256()
    for one in demonstrations:
        digest.update(one.decision.job_x.tobytes())
        digest.update(one.decision.option_x.tobytes())
        digest.update(one.state.devices.gpu_x.tobytes())
        digest.update(f"{one.chosen},{one.clock};".encode("ascii"))
    return digest.hexdigest()


def _generator_settings(world: World, hours: float) -> dict[str, float | int | str]:
    if not world.workload:
        raise ConfigError(f"world {world.name} has no workload of its own: training needs a world with a generator")
    return {**world.workload_settings, "hours": hours}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationRun:
    """The table [training]."""

    world: str
    algorithm: str = ALGORITHM
    seed: int = 0
    version: str = "1"
    threads: int = 1
    device: str = AUTO
    """As in `RunSettings`."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        check_bounds(self, "training", {name: RUN_BOUNDS[name] for name in ("seed", "threads")})
        if not self.version:
            raise ConfigError(
                "setting training.version is empty, and what imitation makes is recorded under nothing else: name one, "
                'or leave it out for "1"'
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationSettings:
    """The table [episodes]."""

    teacher: str
    hours: float
    """Simulated time of each run of the teacher."""
    runs: int = 1
    every: int = 1
    """One in so many decisions is learned from."""
    most: int = 20_000
    """Decisions that are learned from at most."""

    def __post_init__(self) -> None:
        check_bounds(self, "episodes", _EPISODE_BOUNDS)


def imitation_plan(
    path: Path | None,
    options: Mapping[str, Any],
    episode_options: Mapping[str, Any],
    *,
    epochs: int | None = None,
    network: NetworkConfig | None = None,
) -> TrainingPlan:
    """Return the plan of a file with options over it.

    Args:
        path: TOML with the tables [training], [network], [episodes] and [learner]; None for the defaults.
        options: Of [training], by name; None where an option was not given.
        episode_options: Of [episodes], likewise.
        epochs: Of [learner], likewise.
        network: In the place of [network].

    Raises:
        ConfigError: a setting is unknown, missing, of another type or out of its bound.
    """
    tables = {} if path is None else read_tables(path)
    check_names(tables, ["training", "network", "episodes", "learner"], f"{path}:")
    run_table = {**table_of(tables, "training"), **_given(options)}
    episode_table = {**table_of(tables, "episodes"), **_given(episode_options)}
    for name, table, given in (
        ("world", "training", run_table),
        ("teacher", "episodes", episode_table),
        ("hours", "episodes", episode_table),
    ):
        if name not in given:
            raise ConfigError(f"imitation needs its {name}: give --{name} or `{name}` in the table [{table}]")
    run = filled(ImitationRun, run_table, "training")
    episodes = filled(DemonstrationSettings, episode_table, "episodes")
    learner_table = table_of(tables, "learner")
    if "seed" in learner_table:
        raise ConfigError("the seed of a training is said once: in [training] or with --seed, not in [learner]")
    learner = filled(ImitationSettings, {**learner_table, **_given({"epochs": epochs})}, "learner")
    return TrainingPlan(
        world=run.world,
        teacher=episodes.teacher,
        hours=episodes.hours,
        runs=episodes.runs,
        every=episodes.every,
        most=episodes.most,
        version=run.version,
        network=network or filled(NetworkConfig, table_of(tables, "network"), "network"),
        settings=replace(learner, seed=run.seed),
        threads=run.threads,
        device=run.device,
    )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
