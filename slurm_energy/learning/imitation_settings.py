"""What a training by imitation is to do, from the same kind of file as a training in rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.learning.bounds import HOURS, RUN_BOUNDS, Bounds, check_bounds
from slurm_energy.learning.imitation import ImitationSettings
from slurm_energy.learning.torch_device import AUTO, check_device_name
from slurm_energy.learning.train import TrainingPlan
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.settings import check_names, filled, read_toml, table_of

ALGORITHM = "imitation"
_EPISODE_BOUNDS: Bounds = {
    "hours": HOURS,
    "runs": (1, 1000),
    "every": (1, 100_000),
    "most": (1, 10_000_000),
}
"""As the options of `train` have them."""


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
    tables = {} if path is None else read_toml(path, "settings")
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
