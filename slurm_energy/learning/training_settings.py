"""What a training in rounds is to do: read from TOML and options, written down, and compared when it is resumed.

The file has the tables [training], [network], [episodes] and [learner]; the last two are the algorithm's own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError, TrainingError, ValueRangeError
from slurm_energy.graph import schema
from slurm_energy.learning.algorithms import Algorithm, find_algorithm
from slurm_energy.learning.settings_file import ADDED, FORMER_NAMES, RUN_BOUNDS, check_bounds, read_tables, with_names
from slurm_energy.learning.torch_device import AUTO, check_device_name
from slurm_energy.learning.training_log import LogFormat
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.settings import check_names, differences, document, filled, table_of, toml_text
from slurm_energy.twin.world.file import find_world

SETTINGS_FILE = "settings.toml"
_MAX_EPISODES = RUN_BOUNDS["collectors"][1]
"""Of a round on all ranks."""
_TABLES = ["training", "network", "episodes", "learner"]
_FREE = ("rounds", "save_every_rounds", "version", "device", "learned_on")
"""Of [training]: what may change when a training is resumed, since no round depends on it but in its last digits."""
_WORLD = "world"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The table [training]."""

    algorithm: str
    world: str
    """Name or file."""
    seed: int = 0
    """Of weights, arrivals and actions."""
    rounds: int = 100
    collectors: int = 1
    """Episodes of a round on each rank, each in a process of its own."""
    save_every_rounds: int = 10
    """The state that a training resumes from; it is written at the end and at Ctrl-C, too."""
    threads: int = 1
    """Of the learner's CPU; with more than one, sums come in another order and weights differ in their last digits."""
    device: str = AUTO
    """Where the learner works: `auto`, a GPU if there is one; `cpu`; `cuda`; or `cuda:N`."""
    log_format: LogFormat = "csv"
    version: str = ""
    """What decisions are recorded under, with the round behind it; empty for algorithm and seed."""
    start_from: str = ""
    """Checkpoint whose weights are the first ones."""
    ranks: int = 1
    """Filled in by the training itself."""
    learned_on: str = ""
    """The device that was found and used last; filled in by the training itself."""
    world_sha256: str = ""
    """Of all worlds that episodes run in; filled in by the training itself."""
    schema_version: int = schema.SCHEMA_VERSION
    """Of the graph; filled in by the training itself."""

    def __post_init__(self) -> None:
        check_device_name(self.device)
        check_bounds(self, "training", RUN_BOUNDS)
        if self.ranks * self.collectors > _MAX_EPISODES:
            raise ConfigError(
                f"{self.ranks} ranks with {self.collectors} collectors run {self.ranks * self.collectors} episodes a "
                f"round, at most {_MAX_EPISODES} are distinct"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """All tables, checked."""

    run: RunSettings
    algorithm: Algorithm
    network: NetworkConfig
    episodes: Any
    """With `world` as in `run`."""
    learner: Any
    names_network: bool
    """Whether a file said how the network is made; otherwise a checkpoint to start from says it."""

    def document(self) -> dict[str, Any]:
        """Return the settings as tables."""
        episodes = document(self.episodes)
        episodes.pop(_WORLD)
        return {
            "training": document(self.run),
            "network": document(self.network),
            "episodes": episodes,
            "learner": document(self.learner),
        }

    def text(self) -> str:
        """Return the settings as TOML."""
        return toml_text(self.document())

    def sha256(self) -> str:
        """Return the hash of all that weights follow from; new names and settings do not change it by themselves."""
        tables = _fixed(self.document())
        for name, added in ADDED.items():
            tables[name] = {key: value for key, value in tables[name].items() if (key, value) not in added.items()}
        for name, names in FORMER_NAMES.items():
            tables[name] = with_names(tables[name], {new: old for old, new in names.items()}, name)
        return hashlib.sha256(toml_text(tables).encode("utf-8")).hexdigest()


def training_settings(
    path: Path | None, options: Mapping[str, Any], *, episode_options: Mapping[str, Any] | None = None, ranks: int = 1
) -> TrainingSettings:
    """Return the settings of a file with options over them.

    Args:
        path: TOML; None for the defaults.
        options: Of [training], by name; None where an option was not given.
        episode_options: Of [episodes], likewise.
        ranks: How many train together.

    Raises:
        ConfigError: a setting is unknown, of another type or out of its bound, or there is no such world or algorithm.
    """
    tables = {} if path is None else read_tables(path)
    where = "a file of training settings" if path is None else f"{path}:"
    check_names(tables, _TABLES, where)
    try:
        return _settings(tables, options, episode_options or {}, ranks)
    except ValueRangeError as error:
        raise ConfigError(str(error)) from error


def _settings(
    tables: Mapping[str, Any], options: Mapping[str, Any], episode_options: Mapping[str, Any], ranks: int
) -> TrainingSettings:
    run_table = {**table_of(tables, "training"), **_given(options)}
    for name in ("algorithm", _WORLD):
        if name not in run_table:
            raise ConfigError(f"a training needs its {name}: give --{name} or `{name}` in the table [training]")
    # A file that an earlier training wrote says of that one how many ranks it had, where, and what its world was.
    run_table |= {"ranks": ranks, "schema_version": schema.SCHEMA_VERSION, "world_sha256": "", "learned_on": ""}
    run = filled(RunSettings, run_table, "training")
    algorithm = find_algorithm(run.algorithm)
    episodes = _episodes(algorithm, table_of(tables, "episodes"), options, episode_options, run.world)
    return TrainingSettings(
        run=replace(run, world_sha256=worlds_sha256([run.world, *algorithm.worlds(episodes)])),
        algorithm=algorithm,
        network=algorithm.network(filled(NetworkConfig, table_of(tables, "network"), "network")),
        episodes=episodes,
        learner=filled(algorithm.learner_settings, table_of(tables, "learner"), "learner"),
        names_network="network" in tables,
    )


def _episodes(
    algorithm: Algorithm,
    table: Mapping[str, Any],
    options: Mapping[str, Any],
    episode_options: Mapping[str, Any],
    world: str,
) -> Any:
    """Return the algorithm's settings of episodes, with options before whatever the table says."""
    if _WORLD in table:
        raise ConfigError("the world of a training is said once: in [training] or with --world, not in [episodes]")
    given = _given(episode_options)
    episodes = filled(algorithm.episode_settings, {**table, **given, _WORLD: world}, "episodes")
    return algorithm.options_first(episodes, {*given, *({_WORLD} & _given(options).keys())})


def worlds_sha256(names: Sequence[str]) -> str:
    """Return the hash of some worlds, each once: of every value that their files give.

    Raises:
        ConfigError: there is no such world, or its file is wrong.
    """
    worlds = "".join(repr(find_world(name)) for name in dict.fromkeys(names))
    return hashlib.sha256(worlds.encode("utf-8")).hexdigest()


def resumed_settings(
    folder: Path,
    path: Path | None,
    options: Mapping[str, Any],
    *,
    episode_options: Mapping[str, Any] | None = None,
    ranks: int = 1,
) -> TrainingSettings:
    """Return the settings with which a folder's training resumes: its own, with options over them.

    Raises:
        ConfigError: as in `training_settings`.
        TrainingError: the folder holds no training, or the settings differ from its own in what weights follow from.
    """
    own = folder / SETTINGS_FILE
    if not own.is_file():
        raise TrainingError(f"{folder} holds no training: {own} does not exist")
    settings = training_settings(path or own, options, episode_options=episode_options, ranks=ranks)
    if settings.run.start_from and not settings.names_network:
        # The checkpoint that it began with said how the network is made; the folder has kept it.
        theirs = filled(NetworkConfig, read_tables(own).get("network", {}), "network")
        settings = replace(settings, network=settings.algorithm.network(theirs))
    check_same(settings, folder)
    return settings


def check_same(settings: TrainingSettings, folder: Path) -> None:
    """Refuse settings that differ from those a folder's training has had so far.

    Raises:
        ConfigError: the folder's settings cannot be read.
        TrainingError: they differ; with every value that does.
    """
    theirs = read_tables(folder / SETTINGS_FILE)
    found = differences(_fixed(settings.document()), _fixed(theirs))
    if found:
        raise TrainingError(
            f"the training in {folder} cannot resume with other settings than it has had:\n  "
            + "\n  ".join(found)
            + "\nLeave these options out, or begin a new training: --output with a new folder."
        )


def _fixed(tables: Mapping[str, Any]) -> dict[str, Any]:
    run = tables.get("training")
    kept = {key: value for key, value in run.items() if key not in _FREE} if isinstance(run, Mapping) else run
    return {**tables, "training": kept}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
