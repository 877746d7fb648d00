"""Settings of a training as TOML: tables that fill frozen dataclasses, and the text that is read back as the same."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from slurm_energy.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Settings = TypeVar("_Settings", bound="DataclassInstance")
_MAX_BYTES = 1 << 20
_MAX_BITS = 63
"""Of a whole number, beside its sign, as TOML has them: larger ones fit into nothing that is set here."""
_DEEPEST = 32
"""Tables and lists within each other."""
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
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


def read_tables(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds, with settings under their present names.

    Raises:
        ConfigError: it cannot be read, is larger than 1 MiB, is no TOML, is nested too deeply, or has a whole number
            of more than 64 bits.
    """
    try:
        with path.open("rb") as file:
            read = file.read(_MAX_BYTES + 1)
        if len(read) > _MAX_BYTES:
            raise ConfigError(f"settings {path} have more than {_MAX_BYTES} bytes: this is no file of settings")
        tables = tomllib.loads(read.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # a whole number of 4,301 digits is a plain ValueError
        raise ConfigError(f"settings {path} cannot be read: {error}") from error
    _check_sizes(tables, f"settings {path}", "", 0)
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


def _check_sizes(value: object, thing: str, name: str, depth: int) -> None:
    """Refuse what no message could show and no number hold, before anything is made of it."""
    if depth > _DEEPEST:
        raise ConfigError(f"{thing}: {name[:64]} is nested deeper than {_DEEPEST} tables and lists")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_sizes(item, thing, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _check_sizes(item, thing, f"{name}[{at}]", depth + 1)
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ConfigError(
            f"{thing}: {name[:64]} is a whole number of {value.bit_length()} bits, TOML has {_MAX_BITS} and a sign"
        )


def table_of(tables: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return one table of a file, empty where it is left out.

    Raises:
        ConfigError: something else has its name.
    """
    return _table(tables.get(name, {}), name)


def filled(settings_class: type[_Settings], table: object, name: str) -> _Settings:
    """Return settings with a table's values in the place of the defaults.

    Args:
        settings_class: Frozen dataclass of numbers, texts, flags, literals, tuples of them, or tables of its own kind.
        table: As TOML gives it.
        name: Of the table, for messages.

    Raises:
        ConfigError: it is no table, lacks a setting without default, or has an unknown one or one of another type.
    """
    given = _table(table, name)
    types = get_type_hints(settings_class)
    known = [item.name for item in fields(settings_class)]
    check_names(given, known, f"[{name}]")
    for item in fields(settings_class):
        if item.name not in given and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"[{name}] lacks {item.name}, which has no default")
    return settings_class(**{key: _value(value, types[key], f"{name}.{key}") for key, value in given.items()})


def check_names(given: Mapping[Any, object], known: list[str], where: str) -> None:
    """Raise ConfigError for the first name that is not known, with the nearest one that is."""
    for key in given:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{where} has no {str(key)[:64]!r}; {hint}")


def _value(value: object, kind: Any, name: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in parts:
            raise ConfigError(f"setting {name} is {value!r:.64}, allowed: {', '.join(map(str, parts))}")
        return value
    if origin in {Union, UnionType}:
        return _first_that_fits(value, parts, name)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: _value(item, parts[1], f"{name}.{key}") for key, item in _table(value, name).items()}
    if origin is tuple:
        return _items(value, parts, name)
    if hasattr(kind, "__dataclass_fields__"):
        return filled(kind, value, name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"setting {name} is {value!r:.64}, it must be {_WORDS.get(kind, kind.__name__)}")
    return value


def _first_that_fits(value: object, kinds: tuple[Any, ...], name: str) -> Any:
    """Return the value as one of several kinds; None, functions and the like cannot be written in TOML."""
    tried = [kind for kind in kinds if _can_be_written(kind, value)]
    for kind in tried[:-1]:
        try:
            return _value(value, kind, name)
        except ConfigError:
            continue
    return _value(value, tried[-1], name)


def _can_be_written(kind: Any, value: object) -> bool:
    if hasattr(kind, "__dataclass_fields__"):
        return isinstance(value, Mapping)
    return kind in _WORDS or get_origin(kind) in {Literal, tuple}


def _table(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"[{name}] is {value!r:.64}, it must be a table: write [{name}] on a line of its own")
    return value


def _items(value: object, parts: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"setting {name} is {value!r:.64}, it must be a list: [...]")
    kinds = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is Ellipsis else list(parts)
    if len(kinds) != len(value):
        raise ConfigError(f"setting {name} has {len(value)} items, it must have {len(kinds)}")
    return tuple(_value(item, kind, f"{name}[{at}]") for at, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def document(settings: "DataclassInstance") -> dict[str, Any]:
    """Return settings as a table; what is None is left out."""
    found: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if value is not None:
            found[item.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return document(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def toml_text(tables: Mapping[str, Any], *, path: str = "") -> str:
    """Return tables as TOML, plain values before the tables below them."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, Mapping)}
    text = "".join(f"{key} = {_toml_value(value)}\n" for key, value in plain.items())
    for key, value in tables.items():
        if isinstance(value, Mapping):
            below = f"{path}.{key}" if path else key
            text += f"{chr(10) if text else ''}[{below}]\n{toml_text(value, path=below)}"
    return text


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return repr(value)


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, path: str = "") -> list[str]:
    """Return a line for each value in which two tables differ: `learner.gamma: 0.9, was 0.99`."""
    found: list[str] = []
    for key in dict.fromkeys([*mine, *theirs]):
        name = f"{path}.{key}" if path else key
        one, other = mine.get(key), theirs.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, path=name)
        elif one != other:
            found.append(f"{name}: {_shown(one)}, was {_shown(other)}")
    return found


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return "a table" if isinstance(value, Mapping) else _toml_value(value)[:64]


def check_bounds(settings: object, table: str, bounds: Bounds) -> None:
    """Refuse the first number outside its bounds, and every NaN; None is a number that was left out.

    Raises:
        ConfigError: its text names table, key, value and bounds.
    """
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(
                f"setting {table}.{name} is {value}, it must be between {_bound_text(low)} and {_shown(high)}"
            )


def _bound_text(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
