"""What rules work out of an option table once, and keep while the view hands out the same table."""

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policy.placement import FloatArray, OptionTable

_MOST_TABLES = 512
"""Tables kept prepared at once: more than a world has kinds and counts, unless its conditions keep changing."""

T = TypeVar("T")


class Prepared(Generic[T]):
    """A memory of what was made of each table object."""

    def __init__(self, make: Callable[[OptionTable], T]) -> None:
        self._make = make
        self._made: dict[OptionTable, T] = {}

    def of(self, table: OptionTable) -> T:
        """Return what `make` makes of the table."""
        found = self._made.get(table)
        if found is None:
            if len(self._made) >= _MOST_TABLES:
                self._made.clear()
            found = self._made[table] = self._make(table)
        return found

    def forget(self) -> None:
        """Start anew."""
        self._made.clear()

    def __getstate__(self) -> dict[str, object]:
        """Leave what was made behind: tables of another process are other objects."""
        return {"_make": self._make, "_made": {}}


def last_clocks(table: OptionTable) -> NDArray[np.intp]:
    """Return the index of the default clock, the last that the place has, [places, counts]."""
    finite = np.isfinite(table.seconds_per_unit)
    return np.asarray(finite.shape[2] - 1 - np.argmax(finite[:, :, ::-1], axis=2), dtype=np.intp)


def slowdowns(table: OptionTable) -> FloatArray:
    """Return seconds per unit over those at the default clock of the same place and count; infinite for no option."""
    seconds = table.seconds_per_unit
    default = np.take_along_axis(seconds, last_clocks(table)[:, :, None], axis=2)
    ratio = np.full_like(seconds, inf)
    np.divide(seconds, default, out=ratio, where=np.isfinite(seconds))
    return ratio


def active_joules(table: OptionTable) -> FloatArray:
    """Return joules per unit beyond what the same devices draw when free, n T (P - free); infinite for no option."""
    return cost(table, table.watts - table.free_watts)


def cost(table: OptionTable, rate: FloatArray | float) -> FloatArray:
    """Return `rate` times seconds per unit; infinite for no option, also where the rate is 0."""
    out = np.full_like(table.seconds_per_unit, inf)
    np.multiply(table.seconds_per_unit, rate, out=out, where=np.isfinite(table.seconds_per_unit))
    return out


def cheapest_by_speed(
    seconds: FloatArray, score: FloatArray
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the options that are the cheapest of all at least as fast, by place and count."""
    kept: list[tuple[int, int, int]] = []
    places, counts, clocks = seconds.shape
    for place in range(places):
        for count in range(counts):
            least = inf
            fastest_first = sorted(
                range(clocks), key=lambda clock: (seconds[place, count, clock], score[place, count, clock])
            )
            for clock in fastest_first:
                if seconds[place, count, clock] < inf and score[place, count, clock] < least:
                    least = score[place, count, clock]
                    kept.append((place, count, clock))
    found = np.asarray(kept, dtype=np.intp).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]
