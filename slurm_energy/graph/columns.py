"""Feature columns of many rows: scaled at once, entry by entry as `Feature.scaled`, and kept in reusable slots."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Floats, Indices
from slurm_energy.graph.schema import LARGEST, Feature

_FIRST_CAPACITY = 16
UNKNOWN = float("nan")
"""What a raw row holds where nothing is known; becomes 0."""


def raw(value: float | None) -> float:
    """Return a value for a raw row; NaN for None."""
    return UNKNOWN if value is None else value


class Scaler:
    """The forms and scales of some columns, ready for whole arrays."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.names = tuple(feature.name for feature in features)
        self.width = len(self.names)
        self._scale = np.array([feature.scale for feature in features], dtype=np.float64)
        self._flags = np.flatnonzero([feature.form == "flag" for feature in features])
        self._logs = np.flatnonzero([feature.form == "log" for feature in features])

    def scaled(self, rows: Sequence[Sequence[float]] | NDArray[np.float64]) -> Floats:
        """Return the columns of raw rows; what is not finite becomes 0.

        Args:
            rows: Values in the units of the schema, [rows, width]; no rows are allowed.
        """
        values = np.asarray(rows, dtype=np.float64).reshape(-1, self.width)
        finite = np.isfinite(values)
        values = np.where(finite, values, 0.0)
        scaled = values / self._scale
        logs = self._logs
        scaled[:, logs] = np.log1p(np.maximum(scaled[:, logs], 0.0)) / 4.0
        scaled[:, self._flags] = values[:, self._flags] != 0.0
        return np.minimum(np.maximum(scaled, -LARGEST), LARGEST).astype(np.float32)


class ColumnStore:
    """Named arrays of equally many rows; a row keeps its slot until it is freed, and freed slots are used again.

    Args:
        columns: Of each array, its number type and the width of its rows; width 0 for one number per row.
    """

    def __init__(self, columns: Mapping[str, tuple[DTypeLike, int]]) -> None:
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros((_FIRST_CAPACITY, width) if width else _FIRST_CAPACITY, dtype=kind)
            for name, (kind, width) in columns.items()
        }
        self._live = np.zeros(_FIRST_CAPACITY, dtype=bool)
        self._free: list[int] = []
        self._used = 0

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array with all its slots, free ones included; it is not to be kept beyond the next `take`."""
        return self._arrays[name]

    def __len__(self) -> int:
        return self._used - len(self._free)

    @property
    def slots(self) -> Indices:
        """Slots in use, ascending."""
        return np.flatnonzero(self._live)

    @property
    def capacity(self) -> int:
        """One more than the highest slot that was ever given out."""
        return self._used

    def is_live(self, slot: int) -> bool:
        """Return whether a slot is in use."""
        return 0 <= slot < self._used and bool(self._live[slot])

    def take(self) -> int:
        """Return a slot whose row is all zeros."""
        if self._free:
            slot = self._free.pop()
            for array in self._arrays.values():
                array[slot] = 0
        else:
            slot = self._used
            self._used += 1
            if self._used > len(self._live):
                self._grow()
        self._live[slot] = True
        return slot

    def free(self, slot: int) -> None:
        """Take a slot back.

        Raises:
            ValueRangeError: it is not in use.
        """
        if not self.is_live(slot):
            raise ValueRangeError(f"slot {slot} is not in use, {len(self)} of {self._used} are")
        self._live[slot] = False
        self._free.append(slot)

    def checked(self, slots: Iterable[int] | Indices) -> Indices:
        """Return slots as an array.

        Raises:
            ValueRangeError: one of them is not in use.
        """
        wanted = slots if isinstance(slots, np.ndarray) else np.fromiter(slots, dtype=np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self._live) and self._live[wanted].all()):
            bad = next(int(slot) for slot in wanted if not self.is_live(int(slot)))
            raise ValueRangeError(f"slot {bad} is not in use, {len(self)} of {self._used} are")
        return wanted

    def _grow(self) -> None:
        more = len(self._live)
        self._live = np.concatenate([self._live, np.zeros(more, dtype=bool)])
        for name, array in self._arrays.items():
            self._arrays[name] = np.concatenate([array, np.zeros_like(array)])
