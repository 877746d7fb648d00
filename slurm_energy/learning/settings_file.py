"""What settings of trainings share beside `slurm_energy.settings`: bounds by name, and names of earlier versions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.settings import read_toml

Bounds = Mapping[str, tuple[float, float]]
"""Least and greatest allowed value by the setting's name."""
HOURS = (0.01, 100_000.0)
"""Simulated hours of an episode or of a teacher's run; `train --hours` has the same."""
RUN_BOUNDS: Bounds = {
    "seed": (0, 1_000_000),
    "rounds": (1, 10_000_000),
    "collectors": (1, 1009),
    "save_every_rounds": (1, 1_000_000),
    "threads": (1, 1024),
}
"""Of [training], whatever the algorithm; `experience.episode_seed` tells no more collectors apart."""
FORMER_NAMES: Mapping[str, Mapping[str, str]] = {
    "episodes": {"most_jobs": "max_jobs"},
    "learner": {"most_advantage": "max_advantage", "most_moments": "max_moments"},
}
"""By table, what settings were called in earlier versions, and what they are called now: files may have either."""
ADDED: Mapping[str, Mapping[str, object]] = {"episodes": {"by_mode": False}}
"""By table, settings that earlier versions did not have, with the value that stands for what those did."""


def read_tables(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds, with settings under their present names.

    Raises:
        ConfigError: it cannot be read, as `read_toml` says, or has a setting under two names.
    """
    tables = read_toml(path, "settings")
    for name, names in FORMER_NAMES.items():
        if isinstance(tables.get(name), dict):
            tables[name] = with_names(tables[name], names, f"settings {path}: [{name}]")
    return tables


def with_names(table: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return a table in its order with other names for some of its settings.

    Raises:
        ConfigError: it has a setting under both names.
    """
    twice = [f"{old} and {new}" for old, new in names.items() if old in table and new in table]
    if twice:
        raise ConfigError(f"{where} has both {twice[0]}, two names of one setting: remove one of them")
    return {names.get(key, key): value for key, value in table.items()}


def check_bounds(settings: object, table: str, bounds: Bounds) -> None:
    """Refuse the first number outside its bounds, and every NaN; None is a number that was left out.

    Raises:
        ConfigError: its text names table, key, value and bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"setting {table}.{name} is {value}, it must be between {_shown(low)} and {_shown(high)}")


def _shown(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
