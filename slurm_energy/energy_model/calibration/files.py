"""CSV and JSON files of measurements, read strictly: an error names file, line, column and value."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slurm_energy.energy_model.coefficients import FORMAT, FitError
from slurm_energy.errors import DataFileError

_SHOWN = 40


@dataclass(frozen=True, slots=True)
class DataRow:
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


def read_rows(path: Path, columns: Sequence[str]) -> list[DataRow]:
    """Return the rows of a CSV file that must have these columns, at least one row.

    Raises:
        DataFileError: the file is missing, is no CSV, lacks a column, or a row has too few or too many values.
    """
    rows: list[DataRow] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise DataFileError(f"{path}, line 1: column {', '.join(missing)} is missing")
            for values in reader:
                _check_width(path, reader.line_num, values)
                rows.append(DataRow(path, reader.line_num, values))
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


Document = dict[str, Any]
Vector = npt.NDArray[np.float64]
Tell = Callable[[str, int, int], None]
"""Called with what is being fitted, how many fits are done, and of how many."""

_SHORT_LIST = re.compile(r"\[\s+([^\[\]{}]+?)\s+\]")
_LINE_BREAK = re.compile(r"\s*\n\s*")


def silent(what: str, done: int, of: int) -> None:
    """Show no progress."""


def document(source: str, errors: Sequence[FitError], parts: Mapping[str, Any]) -> Document:
    """Return the document of one file of coefficients, numbers rounded to six digits."""
    stated = [{key: value for key, value in asdict(error).items() if value is not None} for error in errors]
    rounded: Document = six_digits({"source": source, "fit_errors": stated, **parts})
    return {"format": FORMAT, **rounded}


def six_digits(value: Any) -> Any:
    """Return a value of a document with every float in it rounded to six significant digits."""
    if isinstance(value, Mapping):
        return {str(key): six_digits(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [six_digits(item) for item in value]
    if isinstance(value, float):
        return float(f"{float(value):.6g}")
    return value


def text_of(content: Mapping[str, Any]) -> str:
    """Return a document as JSON; a list of plain values stands on one line."""
    text = json.dumps(content, indent=1, sort_keys=True)
    return _SHORT_LIST.sub(lambda found: f"[{_LINE_BREAK.sub(' ', found[1])}]", text) + "\n"


def mean_relative_error(fitted: Vector, measured: Vector) -> float:
    """Return the mean of |fitted / measured - 1|; nothing measured may be 0."""
    return float(np.mean(np.abs(fitted / measured - 1.0)))


def differences(packaged: Any, fresh: Any, tolerance: float, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield place, packaged and fresh value of every difference; numbers may differ by the relative tolerance."""
    if isinstance(packaged, Mapping) and isinstance(fresh, Mapping):
        for key in sorted({*packaged, *fresh}):
            yield from differences(packaged.get(key), fresh.get(key), tolerance, f"{where}/{key}")
    elif isinstance(packaged, list) and isinstance(fresh, list) and len(packaged) == len(fresh):
        for index, (old, new) in enumerate(zip(packaged, fresh, strict=True)):
            yield from differences(old, new, tolerance, f"{where}/{index}")
    elif _is_number(packaged) and _is_number(fresh):
        if abs(packaged - fresh) > tolerance * max(abs(packaged), abs(fresh)):
            yield where, packaged, fresh
    elif packaged != fresh:
        yield where, packaged, fresh


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
