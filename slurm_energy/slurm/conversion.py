"""The result of converting many rows: what came out, and why the rest did not."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, TypeVar

from slurm_energy.errors import SlurmError

_Item = TypeVar("_Item")
_DIGEST_BYTES = 16


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
