"""Convert many rows of Slurm's, and read the values in them, from 21.08's plain numbers to 25.11's objects.

A row that cannot be used is counted with the reason. Every function for one value is total: what cannot be read is
None or empty, never an exception.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, TypeVar

from slurm_energy.domain.units import minutes_from_slurm_time, slurm_number
from slurm_energy.errors import SlurmError, ValueRangeError

_Item = TypeVar("_Item")
_DIGEST_BYTES = 16
MAX_TEXT_CHARACTERS = 1024
MAX_UNIX_SECONDS = 1e11
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[nc]?\Z", re.IGNORECASE)
_MEBIBYTES = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_NO_TEXT = frozenset({"", "(null)", "n/a", "none", "null"})


class BadRow(Exception):  # control flow inside the converters, never seen outside
    """One row cannot be used; the message is the reason it is counted under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted(Generic[_Item]):
    """Rows as domain values; `skipped` counts the others by reason."""

    items: tuple[_Item, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def skipped_rows(self) -> int:
        """How many rows were left out."""
        return sum(self.skipped.values())


class Conversion(Generic[_Item]):
    """Converts rows as they come; one bad row costs only itself.

    A row whose text was the same at an earlier conversion is what it was then: most of a queue does not change from one
    reading to the next, and converting a row takes twice as long as reading it.
    """

    def __init__(
        self, convert: Callable[[Mapping[str, object]], _Item], known: Mapping[bytes, _Item] | None = None
    ) -> None:
        """Begin.

        Args:
            convert: Pure: the same row is always the same item.
            known: `seen` of an earlier conversion.
        """
        self.rows = 0
        """How many have come, good or bad."""
        self.seen: dict[bytes, _Item] = {}
        """Items by the hash of their rows' texts."""
        self._convert = convert
        self._known = {} if known is None else known
        self._items: list[_Item] = []
        self._skipped: Counter[str] = Counter()

    def take(self, row: object, text: str = "") -> None:
        """Convert one row.

        Args:
            row: As it was parsed.
            text: What it was parsed from; empty where that is not known.
        """
        self.rows += 1
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest() if text else b""
        item = self._known.get(key)
        try:
            if item is None:
                if not isinstance(row, dict):
                    raise BadRow("not an object")
                item = self._convert(row)
        except BadRow as error:
            self._skipped[str(error)] += 1
            return
        self._items.append(item)
        if key:
            self.seen[key] = item

    def result(self) -> Converted[_Item]:
        """Return what has come of the rows so far."""
        return Converted(items=tuple(self._items), skipped=dict(self._skipped))


def rows_of(document: object, key: str) -> list[object]:
    """Return the list under `key` of Slurm's JSON answer.

    Raises:
        SlurmError: the answer is no object, lacks the list, or tells errors and has no rows.
    """
    if not isinstance(document, dict):
        raise SlurmError(f"Slurm's answer is a {type(document).__name__}, an object with {key!r} is needed")
    rows = document.get(key)
    if not isinstance(rows, list):
        raise SlurmError(f"Slurm's answer has no list {key!r}; it has {', '.join(map(str, document))[:200]}")
    errors = document.get("errors")
    if not rows and isinstance(errors, list) and errors:
        raise SlurmError(f"Slurm's answer tells an error: {str(errors[0])[:300]}")
    return rows


def convert_rows(rows: list[object], convert: Callable[[Mapping[str, object]], _Item]) -> Converted[_Item]:
    """Return the rows that can be converted; one bad row costs only itself."""
    conversion = Conversion(convert)
    for row in rows:
        conversion.take(row)
    return conversion.result()


def number(value: object) -> float | None:
    """Return a number from a plain one, its text, or `{set, infinite, number}`; None when unset or infinite."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return None
        value = value.get("number")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def whole(value: object) -> int | None:
    """Return a whole number, None for Slurm's marks of no value."""
    found = number(value)
    return None if found is None or abs(found) > 1e19 else slurm_number(int(found))


def positive(value: object) -> int | None:
    """Return a whole number above 0, else None: Slurm writes 0 for many things that are not there."""
    found = whole(value)
    return found if found is not None and found > 0 else None


def unix_seconds(value: object) -> float | None:
    """Return a Unix time, None for 0, N/A and other marks of no time."""
    found = whole(value)
    return float(found) if found is not None and 0 < found < MAX_UNIX_SECONDS else None


def text(value: object) -> str:
    """Return a text that any database takes; empty for null and Slurm's words for nothing."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or value.strip().lower() in _NO_TEXT:
        return ""
    return _UNSTORABLE.sub("\ufffd", value[:MAX_TEXT_CHARACTERS])


def long_text(value: object, limit: int = 65_536) -> str:
    """Return a text that may be long, such as a node list."""
    return _UNSTORABLE.sub("\ufffd", value[:limit]) if isinstance(value, str) else ""


def names(value: object) -> tuple[str, ...]:
    """Return the names of a comma list or a JSON list."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return ()
    return tuple(name for name in (text(item).strip() for item in value) if name)


def words(value: object) -> tuple[str, ...]:
    """Return states or flags in capitals, from one text (`mixed`, `CANCELLED by 1000`) or a list."""
    items = value if isinstance(value, list) else [value]
    found: list[str] = []
    for item in items:
        if isinstance(item, str):
            found += [word for word in re.split(r"[\s+|,]+", item.upper().rstrip("*~#!%$@^-")) if word]
    return tuple(dict.fromkeys(found))


def mebibytes(value: object) -> float | None:
    """Return MiB from a number of MiB or a text such as `62.50G` or `40000M`; None for 0 and unknown."""
    if isinstance(value, str):
        match = _MEMORY.match(value.strip())
        return float(match.group(1)) * _MEBIBYTES[match.group(2).upper()] if match else None
    found = positive(value)
    return None if found is None else float(found)


def minutes(value: object) -> float | None:
    """Return minutes from a number of minutes or Slurm's time text; None for no limit."""
    if isinstance(value, str) and not value.strip().isdigit():
        try:
            return minutes_from_slurm_time(value)
        except ValueRangeError:
            return None
    found = positive(value)
    return None if found is None else float(found)


def exit_status(value: object) -> int | None:
    """Return an exit code: of wait(2)'s status (22.05), of `{return_code, signal}`; 128 + signal for a signal."""
    if not isinstance(value, dict):
        status = whole(value)
        if status is None or status < 0:
            return None
        return status >> 8 if status & 0x7F == 0 else 128 + (status & 0x7F)
    signal = value.get("signal")
    signal_number = positive(signal.get("id", signal.get("signal_id"))) if isinstance(signal, dict) else None
    return whole(value.get("return_code")) if signal_number is None else 128 + signal_number
