"""Choosing a clock once place and count are settled."""

from collections.abc import Sequence
from math import inf

import numpy as np

from slurm_energy.policy.placement import FloatArray, OptionTable, WaitingJob
from slurm_energy.policy.rules.bounds import bounds_of
from slurm_energy.policy.rules.tables import last_clocks


def nearest_clock(relative_clocks: Sequence[float], wanted: float) -> int:
    """Return the index of the clock nearest to a relative clock, the higher of two that are equally near."""
    return min(range(len(relative_clocks)), key=lambda index: (abs(relative_clocks[index] - wanted), -index))


class ClockChoice:
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
