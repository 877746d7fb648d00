"""CSV and JSON files of measurements, read strictly: an error names file, line, column and value."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from slurm_energy.errors import DataFileError

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file, its values still text."""

    path: Path
    line: int
    values: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a value that must not be empty."""
        value = self.values[column].strip()
        if not value:
            raise self.error(column, "a value is needed")
        return value

    def number(self, column: str, low: float = -inf, high: float = inf) -> float:
        """Return a finite number between `low` and `high`, both included."""
        try:
            value = float(self.values[column])
        except ValueError:
            raise self.error(column, "not a number") from None
        if not isfinite(value) or not low <= value <= high:
            raise self.error(column, f"not a finite number from {low:g} to {high:g}")
        return value

    def optional(self, column: str, low: float = -inf, high: float = inf) -> float | None:
        """Return a number as `number` does, None where the value is empty."""
        return self.number(column, low, high) if self.values[column].strip() else None

    def count(self, column: str, low: int = 0) -> int:
        """Return a whole number from `low` up."""
        value = self.number(column, low)
        if value != int(value):
            raise self.error(column, "not a whole number")
        return int(value)

    def error(self, column: str, reason: str) -> DataFileError:
        """Return the error that says what is wrong with one value."""
        return DataFileError(
            f"{self.path}, line {self.line}, column {column}: {self.values[column][:_SHOWN]!r} is wrong: {reason}"
        )


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a CSV file that must have these columns, at least one row.

    Raises:
        DataFileError: the file is missing, is no CSV, lacks a column, or a row has too few or too many values.
    """
    rows: list[Row] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise DataFileError(f"{path}, line 1: column {', '.join(missing)} is missing")
            for values in reader:
                _check_width(path, reader.line_num, values)
                rows.append(Row(path, reader.line_num, values))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataFileError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise DataFileError(f"{path} has no rows below its header")
    return rows


def read_json(path: Path) -> Mapping[str, Any]:
    """Return a JSON file that holds one object.

    Raises:
        DataFileError: the file is missing or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise DataFileError(f"{path} holds {type(document).__name__}, an object is needed")
    return document


def _check_width(path: Path, line: int, values: Mapping[str, Any]) -> None:
    if "" in values:
        raise DataFileError(f"{path}, line {line}: value {str(values[''])[:_SHOWN]!r} is beyond the last column")
    short = [column for column, value in values.items() if value is None]
    if short:
        raise DataFileError(f"{path}, line {line}: column {short[0]} has no value, the row ends before it")
