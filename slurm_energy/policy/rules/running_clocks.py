"""Clocks of running jobs under a power budget: which ones to lower for so many watts, and which ones to raise.

The rules of the simulated cluster and the daemon take the same steps. The standard library is enough here: the daemon's
process that answers nodes has no numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

_Step = tuple[float, int, int]
"""Order, index of the job, clock it would go to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """The clocks of one place and count, as a budget sees them."""

    watts: Sequence[float]
    """Of the whole allocation, by clock."""
    speed: Sequence[float]
    """Devices x speed relative to the default clock, by clock."""
    free_watts: float
    """Of the same devices when they are free."""
    relative_clocks: Sequence[float]

    highest: int
    """The highest clock that the job may have, by default the default clock."""
    efficient: int
    """The clock of the least active joules per unit: below it a watt does less work."""

    def added_watts(self, clock: int) -> float:
        """Return what a start at a clock adds to the cluster's power."""
        return self.watts[clock] - self.free_watts

    def highest_under(self, cap: float, lowest: int) -> int:
        """Return the highest clock up to a relative clock, `lowest` when there is none from there up."""
        clock = self.highest
        while clock > lowest and self.relative_clocks[clock] > cap:
            clock -= 1
        return clock


@dataclass(slots=True, kw_only=True)
class CappedJob:
    """A running job and where its clock may move."""

    job_id: int
    ladder: Ladder
    lowest: int
    """Least clock that the job may be given."""
    clock: int
    """The present one."""

    def saved_watts(self, clock: int) -> float:
        """Return what the job draws less at another clock; negative for more."""
        return self.ladder.watts[self.clock] - self.ladder.watts[clock]


def lower_clocks(jobs: Sequence[CappedJob], over_watts: float) -> float:
    """Take steps down, the most watts per unit of speed lost first, until enough is saved.

    Speed is that relative to the default clock, times devices, so that jobs of different kinds compare.

    Args:
        jobs: Their clocks are changed.
        over_watts: To be saved.

    Returns:
        The watts that are still too many; 0 or below where enough is saved.
    """
    steps = [step for index, job in enumerate(jobs) if (step := _down(index, job)) is not None]
    heapify(steps)
    while steps and over_watts > 0.0:
        _, index, clock = heappop(steps)
        job = jobs[index]
        over_watts -= job.saved_watts(clock)
        job.clock = clock
        following = _down(index, job)
        if following is not None:
            heappush(steps, following)
    return over_watts


def raise_clocks(jobs: Sequence[CappedJob], spare_watts: float) -> None:
    """Take steps up, the most speed per watt first, as long as each fits.

    Args:
        jobs: Their clocks are changed.
        spare_watts: What may be added.
    """
    steps = [step for index, job in enumerate(jobs) if (step := _up(index, job)) is not None]
    heapify(steps)
    while steps:
        _, index, clock = heappop(steps)
        job = jobs[index]
        added = -job.saved_watts(clock)
        if added > spare_watts:
            continue
        spare_watts -= added
        job.clock = clock
        following = _up(index, job)
        if following is not None:
            heappush(steps, following)


def _down(index: int, job: CappedJob) -> _Step | None:
    """Return the step to the next lower clock that draws less, None when there is none."""
    watts, speed = job.ladder.watts, job.ladder.speed
    for clock in range(job.clock - 1, job.lowest - 1, -1):
        saved = watts[job.clock] - watts[clock]
        if saved > 0.0:
            lost = speed[job.clock] - speed[clock]
            return (-saved / lost if lost > 0.0 else -inf, index, clock)
    return None


def _up(index: int, job: CappedJob) -> _Step | None:
    """Return the step to the next higher clock that is faster, None when there is none."""
    watts, speed = job.ladder.watts, job.ladder.speed
    for clock in range(job.clock + 1, job.ladder.highest + 1):
        gained = speed[clock] - speed[job.clock]
        if gained > 0.0:
            return ((watts[clock] - watts[job.clock]) / gained, index, clock)
    return None
