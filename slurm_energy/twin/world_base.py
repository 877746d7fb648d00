"""The tables of a world file, laid over those of the world of the package that it names as its base."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown

WORLDS_FOLDER = Path(__file__).with_name("worlds")
_MOST_BYTES = 64 << 20


def world_tables(path: Path) -> dict[str, Any]:
    """Return a file's tables with those of its base below them.

    A table of the file adds to the base's and replaces what both have, key by key; a workload replaces the base's.

    Raises:
        ConfigError: the file cannot be read, or its base cannot be one.
    """
    given = _parsed(path)
    if "base" not in given:
        return given
    base = given.pop("base")
    if not isinstance(base, str) or base not in world_names():
        raise ConfigError(f"{path}: base={shown(base)} is not a world of the package: {', '.join(world_names())}")
    below = _parsed(WORLDS_FOLDER / f"{base}.toml")
    if "base" in below:
        raise ConfigError(f"{path}: base={shown(base)} has a base itself: name a world without one")
    if path.parent.resolve() != WORLDS_FOLDER.resolve():
        _check_no_files(path, base, below)
    below.pop("name", None)
    if "workload" in given:
        below.pop("workload", None)
    return _laid_over(below, given)


def world_names() -> tuple[str, ...]:
    """Return the names of the worlds in the package, sorted."""
    return tuple(sorted(path.stem for path in WORLDS_FOLDER.glob("*.toml")))


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _check_no_files(path: Path, base: str, tables: Mapping[str, Any]) -> None:
    """Refuse a base that reads further files: their names speak of the package's folder, not of this file's."""
    for key, value in tables.items():
        if key in ("file", "kinds_file"):
            raise ConfigError(f"{path}: base={shown(base)} reads {shown(value)}, which is not beside this file")
        if isinstance(value, dict):
            _check_no_files(path, base, value)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: {'it is no regular file' if path.exists() else 'there is no such file'}")
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
