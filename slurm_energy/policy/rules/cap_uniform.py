"""A power budget kept by one bound on everybody's clock."""

from collections.abc import Sequence
from math import inf

from slurm_energy.policy.rules.cap import CappedJob, CapRule


class CapUniformRule(CapRule):
    """All jobs run at the highest clock up to one relative clock, the highest at which the budget is kept.

    The published rule estimated savings with each job's own clock and so never saw any; this one looks them up.
    """

    name = "cap-uniform"

    def lower(self, jobs: list[CappedJob], over_watts: float) -> None:
        """Lower the common bound until enough is saved."""
        self._cap = _highest_cap(jobs, -over_watts, lift_only=False)
        for job in jobs:
            job.clock = _target(job, self._cap, lift_only=False)

    def raise_clocks(self, jobs: list[CappedJob], spare_watts: float) -> None:
        """Raise the common bound as far as there is room; no job is lowered for another."""
        if all(job.clock == job.ladder.highest for job in jobs):
            self._cap = inf
            return
        cap = _highest_cap(jobs, spare_watts, lift_only=True)
        self._cap = max(self._cap, cap)
        for job in jobs:
            job.clock = _target(job, cap, lift_only=True)


def _highest_cap(jobs: Sequence[CappedJob], spare_watts: float, *, lift_only: bool) -> float:
    """Return the highest relative clock that adds no more than so many watts, the lowest of all when none does."""
    caps = sorted({clock for job in jobs for clock in job.ladder.relative_clocks})
    low, high = 0, len(caps)
    while high - low > 1:
        middle = (low + high) // 2
        added = -sum(job.saved_watts(_target(job, caps[middle], lift_only=lift_only)) for job in jobs)
        if added <= spare_watts:
            low = middle
        else:
            high = middle
    return caps[low] if low < len(caps) - 1 else inf  # also for no jobs at all


def _target(job: CappedJob, cap: float, *, lift_only: bool) -> int:
    clock = job.ladder.highest_under(cap, job.lowest)
    return max(clock, job.clock) if lift_only else clock
