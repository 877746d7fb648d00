"""What rules work out of an option table: prepared once, the job's bounds in it, and clocks within them."""

from collections.abc import Callable
from math import inf
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import FloatArray, OptionTable

_MAX_TABLES = 512
"""Tables kept prepared at once: more than a world has kinds and counts, unless its conditions keep changing."""
T = TypeVar("T")
TIME_MARGIN = 0.05
"""Share of a time limit, or of the time left before a deadline, that stays free after the estimated end."""
_ROUNDING = 1.0 + 1e-9


class Prepared(Generic[T]):
    """A memory of what was made of each table object."""

    def __init__(self, make: Callable[[OptionTable], T]) -> None:
        self._make = make
        self._made: dict[OptionTable, T] = {}

    def of(self, table: OptionTable) -> T:
        """Return what `make` makes of the table."""
        found = self._made.get(table)
        if found is None:
            if len(self._made) >= _MAX_TABLES:
                self._made.clear()
            found = self._made[table] = self._make(table)
        return found

    def forget(self) -> None:
        """Keep nothing."""
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


class Bounds(NamedTuple):
    """Most that an option may take."""

    slowdown: float
    """Seconds per unit over those at the default clock of the same place and count."""
    limit_seconds_per_unit: float
    """Under the time limit."""
    deadline_seconds_per_unit: float
    """Under time limit and deadline."""


def bounds_of(
    job: WaitingJob, now_seconds: float, *, units: float | None = None, margin: float = TIME_MARGIN
) -> Bounds | None:
    """Return the bounds of a job that would start now, None when nothing binds it.

    Args:
        job: The job.
        now_seconds: Time of the start.
        units: Its amount of work; None takes the estimate.
        margin: Share of the time that stays free.
    """
    if job.max_slowdown == inf and job.time_limit_seconds == inf and job.deadline_seconds == inf:
        return None
    slowdown = (1.0 + job.max_slowdown) * _ROUNDING
    work = job.estimated_units if units is None else units
    if work <= 0.0:
        return Bounds(slowdown, inf, inf)
    share = (1.0 - margin) / work
    limit = job.time_limit_seconds * share
    return Bounds(slowdown, limit, min(limit, max(0.0, job.deadline_seconds - now_seconds) * share))


class PlaceClocks:
    """Clocks of one table by place and count, for jobs with and without bounds."""

    __slots__ = ("_best", "_last", "_seconds", "counts")

    def __init__(self, table: OptionTable, score: FloatArray | None = None) -> None:
        """Prepare a table.

        Args:
            table: The options.
            score: What `best` makes small, [places, counts, clocks]; None for joules per unit.
        """
        wanted = table.joules_per_unit if score is None else score
        self.counts = table.gpu_counts
        self._seconds: list[list[list[float]]] = table.seconds_per_unit.tolist()
        self._last: list[list[int]] = last_clocks(table).tolist()
        order = np.argsort(wanted, axis=2, kind="stable")
        self._best: list[list[list[int]]] = order.tolist()

    def runs(self, place: int, count: int) -> bool:
        """Return whether the job can run there with the count of that index."""
        return self._seconds[place][count][self._last[place][count]] < inf

    def default(self, place: int, count: int) -> int:
        """Return the place's default clock."""
        return self._last[place][count]

    def best(self, place: int, count: int, job: WaitingJob, now_seconds: float) -> int:
        """Return the clock of the least score within the job's bounds, the default clock when none is."""
        order = self._best[place][count]
        bounds = bounds_of(job, now_seconds)
        if bounds is None:
            return order[0]
        ceiling = self._ceiling(place, count, job, now_seconds)
        seconds = self._seconds[place][count]
        return next((clock for clock in order if seconds[clock] <= ceiling), self._last[place][count])

    def at_least(self, wanted: int, place: int, count: int, job: WaitingJob, now_seconds: float) -> int:
        """Return the wanted clock, or the lowest above it within the job's bounds."""
        last = self._last[place][count]
        ceiling = self._ceiling(place, count, job, now_seconds)
        seconds = self._seconds[place][count]
        return next((clock for clock in range(wanted, last) if seconds[clock] <= ceiling), last)

    def _ceiling(self, place: int, count: int, job: WaitingJob, now_seconds: float) -> float:
        """Return the most seconds per unit that the bounds allow; a deadline that cannot be met binds no more."""
        bounds = bounds_of(job, now_seconds)
        if bounds is None:
            return inf
        default = self._seconds[place][count][self._last[place][count]]
        in_time = bounds.deadline_seconds_per_unit
        if default > in_time:
            in_time = bounds.limit_seconds_per_unit
        return min(default * bounds.slowdown, in_time)
