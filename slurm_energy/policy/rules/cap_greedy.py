"""A power budget kept where it costs the least speed."""

from heapq import heapify, heappop, heappush
from math import inf

from slurm_energy.policy.rules.cap import CappedJob, CapRule

_Step = tuple[float, int, int]
"""Order, index of the job, clock it would go to."""


class CapGreedyRule(CapRule):
    """Step by step, lowers the clock that saves the most watts per unit of speed lost; raises in the reverse order.

    Speed is that relative to the default clock, times devices, so that jobs of different kinds compare. The published
    rule took the least watts per speed first, which is backwards.
    """

    name = "cap-greedy"

    def lower(self, jobs: list[CappedJob], over_watts: float) -> None:
        """Take steps down, the best first, until enough is saved."""
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

    def raise_clocks(self, jobs: list[CappedJob], spare_watts: float) -> None:
        """Take steps up, the most speed per watt first, as long as each fits."""
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
