"""Settings of every kind into frozen dataclasses, from TOML, the environment and KEY=VALUE texts; and back to TOML.

Every message names the thing, its value and what it must be; an unknown name is an error that names the nearest known
one. Hooks read their settings with this at every job, so its imports are few: see docs/adr/0011-own-readers.md.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

from slurm_energy.errors import ConfigError
from slurm_energy.forms import did_you_mean, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Settings = TypeVar("_Settings", bound="DataclassInstance")
MAX_BYTES = 1 << 20
_MAX_BITS = 63
"""Of a whole number, beside its sign, as TOML has them: larger ones fit into nothing that is set here."""
_MAX_DEPTH = 32
"""Tables and lists within each other."""
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingBound:
    """Smallest and largest allowed value of a number; infinite and undefined ones are never allowed."""

    low: float
    high: float = math.inf
    above: bool = False
    """Whether `low` itself is outside."""

    def holds(self, value: float) -> bool:
        """Return whether a number is inside."""
        try:
            number = float(value)
        except OverflowError:
            return False
        return math.isfinite(number) and self.low <= number <= self.high and not (self.above and number == self.low)

    def __str__(self) -> str:
        """Return it in words: `between 1 and 10`, `0 or more`, `above 0`, `above 0, at most 1`."""
        low, high = _number(self.low), _number(self.high)
        if self.above:
            return f"above {low}" + ("" if self.high == math.inf else f", at most {high}")
        return f"{low} or more" if self.high == math.inf else f"between {low} and {high}"


def _number(value: float) -> str:
    """Return a bound as people write it: 1000000, not 1e+06."""
    return str(int(value)) if abs(value) < 1e12 and float(value).is_integer() else f"{value:g}"


def setting(default: Any, help_text: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a field of a settings class, with the sentence that documents it and the bound of its numbers."""
    bound = None if low is None or high is None else SettingBound(low=low, high=high)
    metadata = {"help": help_text, "bound": bound}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(item: Any) -> Any:
    """Return the default value of a dataclass field."""
    return item.default if item.default is not MISSING else item.default_factory()


def read_toml(
    path: Path,
    thing: str,
    *,
    max_bytes: int = MAX_BYTES,
    missing_ok: bool = False,
    if_missing: str = "check its path",
    if_wrong: str = "",
) -> dict[str, Any]:
    """Return what a TOML file holds.

    Args:
        path: The file.
        thing: What the file is, for messages: `configuration file`.
        max_bytes: Of the file; a larger one is refused.
        missing_ok: Whether a file that does not exist is an empty one.
        if_missing: Next step for a file that does not exist.
        if_wrong: Next step for a file that is no TOML.

    Raises:
        ConfigError: it cannot be read, is too large, is no TOML, is nested too deeply, or has a whole number of more
            than 64 bits.
    """
    import tomllib  # noqa: PLC0415  # 5 ms that a hook, which reads plain files itself, does not pay

    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ConfigError(f"{thing} {path} has more than {max_bytes} bytes: this is no file of settings")
        tables = tomllib.loads(content.decode("utf-8"))
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise ConfigError(f"{thing} {path} does not exist: {if_missing}") from None
    except IsADirectoryError as error:
        raise ConfigError(f"{thing} {path} is a folder: name a file") from error
    except PermissionError as error:
        raise ConfigError(
            f"{thing} {path} cannot be read: {error.strerror}; run this as root, or chmod 644 it "
            "(755 for the folders above)"
        ) from error
    except OSError as error:
        raise ConfigError(f"{thing} {path} cannot be read: {error.strerror}; check its path") from error
    except (ValueError, RecursionError) as error:  # a whole number of 4,301 digits is a plain ValueError
        raise ConfigError(f"{thing} {path} is no TOML: {error}{f'; {if_wrong}' if if_wrong else ''}") from error
    _check_sizes(tables, f"{thing} {path}", "", 0)
    return tables


def _check_sizes(value: object, thing: str, name: str, depth: int) -> None:
    """Refuse what no message could show and no number hold, before anything is made of it."""
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{thing}: {name[:64]} is nested deeper than {_MAX_DEPTH} tables and lists")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_sizes(item, thing, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _check_sizes(item, thing, f"{name}[{at}]", depth + 1)
    elif isinstance(value, int):
        _check_bits(value, f"{thing}: {name[:64]}")


def _check_bits(value: int, thing: str) -> None:
    if value.bit_length() > _MAX_BITS:
        raise ConfigError(f"{thing} is a whole number of {value.bit_length()} bits, TOML has {_MAX_BITS} and a sign")


def check_names(given: Mapping[Any, object], known: list[str], where: str) -> None:
    """Raise ConfigError for the first name that is not known, with the nearest one that is."""
    for key in given:
        if key not in known:
            raise ConfigError(f"{where} has no {str(key)[:64]!r}; {did_you_mean(str(key), known)}")


def checked_table(value: object, where: str) -> Mapping[str, Any]:
    """Return a value as a table.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, Mapping):
        name = where.rpartition(" ")[2]
        raise ConfigError(f"{where} is {shown(value, 64)}, it must be a table: write {name} on a line of its own")
    return value


def table_of(tables: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """Return one table of a file, empty where it is left out.

    Raises:
        ConfigError: something else has its name.
    """
    return checked_table(tables.get(name, {}), f"[{name}]")


def filled(
    settings_class: type[_Settings],
    table: object,
    name: str,
    *,
    where: str = "",
    thing_of: Callable[[str], str] | None = None,
) -> _Settings:
    """Return settings with a table's values in the place of the defaults.

    Args:
        settings_class: Frozen dataclass of numbers, texts, flags, literals, tuples or tables of them, or its own kind.
        table: As TOML gives it.
        name: Of the table, for messages.
        where: Name of the table for messages; empty: `[NAME]`.
        thing_of: Name of a setting for messages; None: `setting NAME.KEY`.

    Raises:
        ConfigError: it is no table, lacks a setting without default, or has an unknown one, one of another type, or one
            outside its bound.
    """
    where = where or f"[{name}]"
    given = checked_table(table, where)
    items = {item.name: item for item in fields(settings_class)}
    types = {name: item.type for name, item in items.items()}
    if any(isinstance(kind, str) for kind in types.values()):
        from typing import get_type_hints  # noqa: PLC0415  # hooks' settings name their types outright

        types = get_type_hints(settings_class)
    check_names(given, list(items), where)
    for key, item in items.items():
        if key not in given and item.default is MISSING and item.default_factory is MISSING:
            raise ConfigError(f"{where} lacks {key}, which has no default")
    values = {
        key: converted(
            value,
            types[key],
            f"setting {name}.{key}" if thing_of is None else thing_of(key),
            items[key].metadata.get("bound"),
        )
        for key, value in given.items()
    }
    return settings_class(**values)


def from_text(text: str, kind: Any) -> Any:
    """Return what a text of the environment or of a command line says as a value for `converted` to check."""
    if kind is str or get_origin(kind) is Literal:
        return text
    if get_origin(kind) is tuple:
        return [part for part in text.split(",") if part]
    import tomllib  # noqa: PLC0415  # as in read_toml

    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    return int(value) if kind is int and isinstance(value, float) and value.is_integer() else value


def converted(value: object, kind: Any, thing: str, bound: SettingBound | None = None) -> Any:
    """Return a value of TOML as one of a type; `bound` holds for every number in it.

    Raises:
        ConfigError: it is of another type or outside the bound; the message begins with `thing`.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in parts:
            raise ConfigError(f"{thing} is {shown(value)}, allowed: {', '.join(map(str, parts))}")
        return value
    if origin in {Union, UnionType}:
        return _first_that_fits(value, parts, thing, bound)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{thing} is {shown(value)}, it must be a table")
        return {key: converted(item, parts[1], f"{thing}.{key}", bound) for key, item in value.items()}
    if origin is tuple:
        return _items(value, parts, thing, bound)
    if hasattr(kind, "__dataclass_fields__"):
        return filled(kind, value, thing.removeprefix("setting "))
    return _scalar(value, kind, thing, bound)


def _scalar(value: Any, kind: type, thing: str, bound: SettingBound | None) -> Any:
    if isinstance(value, int):
        _check_bits(value, thing)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{thing} is {shown(value)}, it must be {_WORDS.get(kind, kind.__name__)}")
    if bound is not None and isinstance(value, int | float) and not bound.holds(value):
        raise ConfigError(f"{thing} is {value}, it must be {bound}")
    return value


def _first_that_fits(value: object, kinds: tuple[Any, ...], thing: str, bound: SettingBound | None) -> Any:
    """Return the value as one of several kinds; None, functions and the like cannot be written in TOML."""
    tried = [kind for kind in kinds if _can_be_written(kind, value)]
    for kind in tried[:-1]:
        try:
            return converted(value, kind, thing, bound)
        except ConfigError:
            continue
    return converted(value, tried[-1], thing, bound)


def _can_be_written(kind: Any, value: object) -> bool:
    if hasattr(kind, "__dataclass_fields__"):
        return isinstance(value, Mapping)
    return kind in _WORDS or get_origin(kind) in {Literal, tuple}


def _items(value: object, parts: tuple[Any, ...], thing: str, bound: SettingBound | None) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{thing} is {shown(value)}, it must be a list: [...]")
    kinds = [parts[0]] * len(value) if len(parts) == 2 and parts[1] is Ellipsis else list(parts)
    if len(kinds) != len(value):
        raise ConfigError(f"{thing} has {len(value)} items, it must have {len(kinds)}")
    return tuple(
        converted(item, kind, f"{thing}[{at}]", bound) for at, (item, kind) in enumerate(zip(value, kinds, strict=True))
    )


def document(settings: "DataclassInstance") -> dict[str, Any]:
    """Return settings as a table; what is None is left out."""
    found = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return document(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def toml_text(tables: Mapping[str, Any], *, path: str = "") -> str:
    """Return tables as TOML, plain values before the tables below them; a list of tables as [[...]]."""
    below = {key: value for key, value in tables.items() if isinstance(value, Mapping) or _is_rows(value)}
    text = "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in tables.items() if key not in below)
    for key, value in below.items():
        name = f"{path}.{toml_key(key)}" if path else toml_key(key)
        for row in [value] if isinstance(value, Mapping) else value:
            header = f"[{name}]" if isinstance(value, Mapping) else f"[[{name}]]"
            text += f"{chr(10) if text else ''}{header}\n{toml_text(row, path=name)}"
    return text


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def toml_key(name: str) -> str:
    """Return a key as TOML, quoted where it must be."""
    return name if _BARE_KEY.match(name) else toml_value(name)


def toml_value(value: object) -> str:
    """Return a value as TOML on one line; libraries that write TOML put each item of a list on a line of its own."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        items = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    # TOML's basic strings take JSON's escapes; DEL is the one control character that JSON leaves as it is.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, path: str = "") -> list[str]:
    """Return a line for each value in which two tables differ: `learner.gamma: 0.9, was 0.99`."""
    found: list[str] = []
    for key in dict.fromkeys([*mine, *theirs]):
        name = f"{path}.{key}" if path else key
        one, other = mine.get(key), theirs.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, path=name)
        elif one != other:
            found.append(f"{name}: {_short(one)}, was {_short(other)}")
    return found


def _short(value: object) -> str:
    if value is None:
        return "not set"
    return "a table" if isinstance(value, Mapping) else toml_value(value)[:64]
