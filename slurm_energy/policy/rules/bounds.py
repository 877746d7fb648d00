"""What a job's own bounds leave to a rule: its slowdown bound, its time limit and its deadline."""

from math import inf
from typing import NamedTuple

from slurm_energy.policy.placement import WaitingJob

TIME_MARGIN = 0.05
"""Share of a time limit, or of the time left before a deadline, that stays free after the estimated end."""
_ROUNDING = 1.0 + 1e-9


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
