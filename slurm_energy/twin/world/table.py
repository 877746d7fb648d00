"""Reading one table of a world file: every value is checked, every error names file, table, key, value and bound."""

from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown
from slurm_energy.settings import SettingBound, check_names

_NAME_LENGTH = 120
_LIST_LENGTH = 100_000
_Value = TypeVar("_Value")


class WorldTable:
    """A table of a world file; a key that was never asked for when `finish` is called is an error."""

    def __init__(self, path: Path, where: str, content: Mapping[str, Any]) -> None:
        self.path = path
        self.where = where
        self._content = content
        self._known: list[str] = []

    def error(self, problem: str) -> ConfigError:
        """Return an error that names file and table."""
        return ConfigError(f"{self.path}: {f'[{self.where}] ' if self.where else ''}{problem}")

    def has(self, key: str) -> bool:
        """Return whether the key is there; the key counts as known from now on."""
        self._know(key)
        return key in self._content

    def finish(self) -> None:
        """Refuse keys that mean nothing here.

        Raises:
            ConfigError: there is one, with the nearest known name.
        """
        check_names(self._content, sorted(self._known), f"{self.path}:{f' [{self.where}]' if self.where else ''}")

    def number(
        self, key: str, default: float | None = None, *, low: float = 0.0, high: float = inf, above: bool = False
    ) -> float:
        """Return a finite number in its bound.

        Args:
            key: Its name.
            default: Value when the key is absent; None makes the key mandatory.
            low: Least value.
            high: Largest value.
            above: Whether the number must be more than `low`, not equal to it.
        """
        self._know(key)
        if key not in self._content:
            return self._absent(key, default)
        return self.check_number(key, self._content[key], low=low, high=high, above=above)

    def optional_number(self, key: str, *, low: float = 0.0, high: float = inf, above: bool = False) -> float | None:
        """Return the number, None when the key is absent."""
        return self.number(key, low=low, high=high, above=above) if self.has(key) else None

    def check_number(
        self, key: str, value: object, *, low: float = 0.0, high: float = inf, above: bool = False
    ) -> float:
        """Return a value of this table as a float in its bound."""
        bound = SettingBound(low=low, high=high, above=above)
        if isinstance(value, bool) or not isinstance(value, int | float) or not bound.holds(value):
            raise self.error(f"{key}={shown(value)} is not a finite number {bound}")
        return float(value)

    def integer(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        """Return a whole number in its bound; None as default makes the key mandatory."""
        self._know(key)
        if key not in self._content:
            return self._absent(key, default)
        value = self._content[key]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{key}={shown(value)} is not a whole number from {low} to {high}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false."""
        self._know(key)
        value = self._content.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={shown(value)} is not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text, which may be empty; None as default makes the key mandatory."""
        self._know(key)
        if key not in self._content:
            return self._absent(key, default)
        value = self._content[key]
        if not isinstance(value, str):
            raise self.error(f"{key}={shown(value)} is not a text")
        return value

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        """Return one of the given words."""
        value = self.text(key, default)
        if value not in choices:
            raise self.error(f"{key}={shown(value)} is not one of {', '.join(choices)}")
        return value

    def one_name(self, key: str, default: str | None = None) -> str:
        """Return a name; see `check_name`."""
        value = self.text(key, default)
        return value if value == default else self.check_name(key, value)

    def check_name(self, key: str, value: object) -> str:
        """Return a value as a name: 1 to 120 printable characters, no blank at either end."""
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _NAME_LENGTH:
            raise self.error(f"{key}={shown(value)} is not a name of 1 to {_NAME_LENGTH} printable characters")
        if value.strip() != value:
            raise self.error(f"{key}={shown(value)} has a blank at an end")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of different names, at least one."""
        names = tuple(self.check_name(key, value) for value in self._list(key))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise self.error(f"{key} names {shown(repeated[0])} twice")
        if not names:
            raise self.error(f"{key} is empty: at least one name is needed")
        return names

    def two_names(self, key: str) -> tuple[str, str]:
        """Return a list of two names, which may be equal."""
        values = self._list(key)
        if len(values) != 2:
            raise self.error(f"{key} has {len(values)} values: 2 are needed")
        return self.check_name(key, values[0]), self.check_name(key, values[1])

    def holds_list(self, key: str) -> bool:
        """Return whether the value of a key is a list."""
        return isinstance(self._content.get(key), list)

    def numbers(
        self, key: str, *, low: float = 0.0, high: float = inf, above: bool = False, count: int | None = None
    ) -> tuple[float, ...]:
        """Return a list of finite numbers, each in its bound; `count` fixes how many."""
        values = self._list(key)
        if count is not None and len(values) != count:
            raise self.error(f"{key} has {len(values)} values: {count} are needed")
        if not values:
            raise self.error(f"{key} is empty: at least one number is needed")
        return tuple(
            self.check_number(f"{key}[{index}]", value, low=low, high=high, above=above)
            for index, value in enumerate(values)
        )

    def table(self, key: str) -> "WorldTable":
        """Return the table under a key, an empty one when it is absent."""
        self._know(key)
        value = self._content.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{key}={shown(value)} is not a table")
        return WorldTable(self.path, self._below(key), value)

    def tables(self, key: str, limit: int = 10_000) -> dict[str, "WorldTable"]:
        """Return the tables under a key by their names, in the order of the file."""
        group = self.table(key)
        if len(group._content) > limit:
            raise self.error(f"{key} has {len(group._content)} tables: at most {limit} are read")
        found = {}
        for name, value in group._content.items():
            self.check_name(f"{key} table name", name)
            if not isinstance(value, Mapping):
                raise group.error(f"{name}={shown(value)} is not a table")
            found[name] = WorldTable(self.path, group._below(name), value)
        return found

    def rows(self, key: str, limit: int = _LIST_LENGTH) -> list["WorldTable"]:
        """Return the tables of a list ([[key]]), none when it is absent."""
        values = self._list(key, limit) if self.has(key) else []
        for index, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise self.error(f"{key}[{index}]={shown(value)} is not a table")
        return [WorldTable(self.path, f"{self._below(key)}[{index}]", value) for index, value in enumerate(values)]

    def entries(self) -> dict[str, Any]:
        """Return all keys with their values as they are, and count them as known."""
        self._known.extend(self._content)
        return dict(self._content)

    def built(self, build: Callable[[], _Value]) -> _Value:
        """Return what `build` makes; a value that it refuses becomes an error of this table."""
        try:
            return build()
        except ConfigError:
            raise
        except ValueError as error:
            raise self.error(str(error)) from error

    def _list(self, key: str, limit: int = _LIST_LENGTH) -> list[Any]:
        self._know(key)
        if key not in self._content:
            raise self.error(f"{key} is missing")
        value = self._content[key]
        if not isinstance(value, list):
            raise self.error(f"{key}={shown(value)} is not a list")
        if len(value) > limit:
            raise self.error(f"{key} has {len(value)} values: at most {limit} are read")
        return value

    def _below(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def _know(self, key: str) -> None:
        if key not in self._known:
            self._known.append(key)

    def _absent(self, key: str, default: _Value | None) -> _Value:
        if default is None:
            raise self.error(f"{key} is missing")
        return default
