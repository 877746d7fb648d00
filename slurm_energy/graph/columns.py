"""Rows that stay where they are: arrays that grow, with slots that are given out and taken back."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.graph.blocks import Indices

_FIRST_CAPACITY = 16


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
