"""Cells of a row to values, strictly, so that no typing error becomes a number; and what becomes of bad rows."""

import logging
import re
from math import inf, isfinite
from pathlib import PurePath

from slurm_energy.errors import WorkloadError

MAX_SECONDS = 1e12
MAX_UNITS = 1e18
MAX_COUNT = 1_000_000
"""Devices of one job."""
MAX_ID = 2**63 - 1
MAX_TEXT = 1024
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,19}\Z", re.ASCII)
_RANGE = re.compile(r"(\d{1,7})-(\d{1,7})\Z", re.ASCII)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MAX_COUNTS = 4096
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def number(column: str, cell: str, low: float = 0.0, high: float = inf, *, above: bool = False) -> float:
    """Return a finite number with low <= number <= high; with `above`, low < number."""
    word = cell.strip()
    found = float(word) if len(word) <= 400 and _NUMBER.match(word) else inf
    if not isfinite(found):
        raise BadValue(column, cell, "is not a finite number")
    if not low <= found <= high or (above and found == low):
        upper = "" if high == inf else f" to {high:g}"
        raise BadValue(column, cell, f"is out of its bound: {'above' if above else 'from'} {low:g}{upper}")
    return found


def whole(column: str, cell: str, low: int = 0, high: int = MAX_ID) -> int:
    """Return a whole number with low <= number <= high."""
    word = cell.strip()
    if not _WHOLE.match(word):
        raise BadValue(column, cell, "is not a whole number")
    if not low <= int(word) <= high:
        raise BadValue(column, cell, f"is out of its bound: {low} to {high}")
    return int(word)


def rounded(column: str, cell: str, low: int = 0, high: int = MAX_ID) -> int:
    """Return a whole number that may be written with a decimal point, such as 4.0."""
    found = number(column, cell, low, high)
    if found != int(found):
        raise BadValue(column, cell, "is not a whole number")
    return int(found)


def truth(column: str, cell: str) -> bool:
    """Return true or false."""
    found = _TRUTHS.get(cell.strip().lower())
    if found is None:
        raise BadValue(column, cell, "is not true or false")
    return found


def text(column: str, cell: str) -> str:
    """Return a text as it is, whatever it says."""
    if len(cell) > MAX_TEXT:
        raise BadValue(column, cell, f"has {len(cell)} characters, more than {MAX_TEXT}")
    if _SURROGATE.search(cell):
        raise BadValue(column, cell, "is not UTF-8")
    return cell


def names(column: str, cell: str, separator: str = ",") -> tuple[str, ...]:
    """Return the names of a list; none for an empty cell."""
    if not cell:
        return ()
    found = tuple(text(column, item.strip()) for item in cell.split(separator))
    if not all(found):
        raise BadValue(column, cell, "has an empty name")
    return found


def ids(column: str, cell: str) -> tuple[int, ...]:
    """Return the job ids of a comma list; none for an empty cell."""
    return tuple(whole(column, item) for item in cell.split(",")) if cell.strip() else ()


def counts(column: str, cell: str) -> tuple[int, ...]:
    """Return device counts, ascending: `4`, `2-8`, `1,2,4`."""
    found = _RANGE.match(cell.strip())
    if found is not None:
        low, high = int(found.group(1)), int(found.group(2))
        if low > high:
            raise BadValue(column, cell, "is a range from high to low")
        if high - low >= _MAX_COUNTS:
            raise BadValue(column, cell, f"is a range over more than {_MAX_COUNTS} counts")
        listed = list(range(low, high + 1))
    else:
        listed = [whole(column, item) for item in cell.split(",")]
    if listed != sorted(set(listed)) or len(listed) > _MAX_COUNTS:
        raise BadValue(column, cell, "is not ascending counts")
    if listed[0] < 1 or listed[-1] > MAX_COUNT:
        raise BadValue(column, cell, f"is out of its bound: 1 to {MAX_COUNT} devices")
    return tuple(listed)


_LOGGED_ROWS = 5
_logger = logging.getLogger(__name__)


class BadValue(Exception):  # control flow inside the readers, never seen outside
    """One value of a row cannot be used."""

    def __init__(self, column: str, value: str, reason: str) -> None:
        super().__init__(column, value, reason)
        shown = value if len(value) <= 64 else f"{value[:60]}..."
        self.message = f"column {column}: {shown!r} {reason}"


class BadRows:
    """What happens to the bad rows of one file."""

    def __init__(self, path: PurePath, *, skip: bool, unit: str = "line") -> None:
        self.count = 0
        self._unit = unit
        self._path = path
        self._skip = skip

    def add(self, line: int, error: BadValue) -> None:
        """Count a bad row, or refuse the file for it.

        Raises:
            WorkloadError: rows are not to be skipped.
        """
        message = f"{str(self._path)!r}, {self._unit} {line}, {error.message}"
        if not self._skip:
            raise WorkloadError(message)
        self.count += 1
        if self.count <= _LOGGED_ROWS:
            _logger.warning("workload row left out %s", message)

    def close(self) -> None:
        """Log how many there were, if not all were logged."""
        if self.count > _LOGGED_ROWS:
            _logger.warning("workload rows left out path=%r rows=%d", str(self._path), self.count)
