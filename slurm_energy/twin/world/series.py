"""Quantities over time in a world file: inline, repeated, or from a CSV file beside it."""

import csv
from pathlib import Path

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown
from slurm_energy.settings import SettingBound
from slurm_energy.twin.world import Series
from slurm_energy.twin.world.table import WorldTable

_MAX_POINTS = 1_000_000
_MAX_BYTES = 64 << 20


CARBON_BOUND = SettingBound(low=0.0, high=1e5)
PRICE_BOUND = SettingBound(low=-1e4, high=1e4)
"""Markets pay for taking energy at times."""
BUDGET_BOUND = SettingBound(low=0.0, above=True)
CONGESTION_BOUND = SettingBound(low=0.0, high=1.0, above=True)
AMBIENT_BOUND = SettingBound(low=-50.0, high=80.0)


def optional_series(parent: WorldTable, key: str, bound: SettingBound) -> Series | None:
    """Return the series under a key, None when it is absent."""
    return read_series(parent.table(key), bound) if parent.has(key) else None


def read_series(table: WorldTable, bound: SettingBound) -> Series:
    """Return the series of a table: `value`, `values` with `times_seconds` or `every_seconds`, or `file`.

    Raises:
        ConfigError: none or several of these are there, or a value is outside its bound.
    """
    forms = [key for key in ("value", "values", "file") if table.has(key)]
    if len(forms) != 1:
        raise table.error(f"exactly one of value, values, file is needed; {', '.join(forms) or 'none'} given")
    if forms == ["value"]:
        value = table.number("value", low=bound.low, high=bound.high, above=bound.above)
        return _finished(table, (0.0,), (value,))
    times, values = _inline(table, bound) if forms == ["values"] else _from_file(table, bound)
    return _finished(table, times, values)


def _finished(table: WorldTable, times: tuple[float, ...], values: tuple[float, ...]) -> Series:
    table.finish()
    return table.built(lambda: Series(times_seconds=times, values=values))


def inside_folder(table: WorldTable, key: str, name: str) -> Path:
    """Return the path of a file that a world refers to; it must lie in the world's folder or below.

    Raises:
        ConfigError: it does not, or it is no ordinary file, or too large.
    """
    folder = table.path.parent.resolve()
    try:
        path = (folder / name).resolve()
        inside, ordinary = path.is_relative_to(folder), path.is_file()
        size = path.stat().st_size if ordinary else 0
    except (OSError, ValueError, RuntimeError) as error:
        raise table.error(f"{key}={shown(name)} cannot be a file: {error}") from error
    if not inside:
        raise table.error(f"{key}={shown(name)} lies outside the world's folder {folder}")
    if not ordinary:
        raise table.error(f"{key}={shown(name)}: there is no such file in {folder}")
    if size > _MAX_BYTES:
        raise table.error(f"{key}={shown(name)} has {size} bytes: at most {_MAX_BYTES} are read")
    return path


def _inline(table: WorldTable, bound: SettingBound) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = table.numbers("values", low=bound.low, high=bound.high, above=bound.above)
    if table.has("times_seconds") == table.has("every_seconds"):
        raise table.error("values need either times_seconds or every_seconds")
    if table.has("times_seconds"):
        return table.numbers("times_seconds", count=len(values)), values
    step = table.number("every_seconds", above=True)
    repeats = table.integer("repeats", 1, low=1, high=_MAX_POINTS)
    if repeats * len(values) > _MAX_POINTS:
        raise table.error(f"{repeats} repeats of {len(values)} values: at most {_MAX_POINTS} points are kept")
    return tuple(step * index for index in range(len(values) * repeats)), values * repeats


def _from_file(table: WorldTable, bound: SettingBound) -> tuple[tuple[float, ...], tuple[float, ...]]:
    name = table.text("file")
    path = inside_folder(table, "file", name)
    columns = (table.text("time_column", "seconds"), table.text("value_column", "value"))
    times: list[float] = []
    values: list[float] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            for column in columns:
                if column not in (reader.fieldnames or ()):
                    raise table.error(f"file={shown(name)} has no column {shown(column)}")
            for row in reader:
                if len(times) >= _MAX_POINTS:
                    raise table.error(f"file={shown(name)} has more than {_MAX_POINTS} rows")
                where = f"{name} line {reader.line_num} "
                times.append(table.check_number(where + columns[0], _parsed(row[columns[0]])))
                values.append(
                    table.check_number(
                        where + columns[1], _parsed(row[columns[1]]), low=bound.low, high=bound.high, above=bound.above
                    )
                )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read as CSV: {error}") from error
    if not times:
        raise table.error(f"file={shown(name)} has no rows")
    return tuple(times), tuple(values)


def _parsed(text: str | None) -> object:
    """Return the number in a cell, the cell itself when it is none: the check that follows refuses it by name."""
    try:
        return float(text or "")
    except ValueError:
        return text
