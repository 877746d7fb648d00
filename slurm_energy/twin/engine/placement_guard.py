"""The last word on every placement: what a rule answers is brought inside what job and cluster allow."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import Placement

_WITHIN = 1.0 + 1e-9


class GuardedPlacement(NamedTuple):
    """A placement that may be carried out, and whether the guard had to change it."""

    placement: Placement | None
    clamped: bool


def guarded_placement(  # noqa: PLR0913, PLR0917  # each is one fact the engine has at hand; this runs at every start
    answer: Placement,
    job: WaitingJob,
    room: int,
    seconds_per_unit: list[list[float]],
    column: Mapping[int, int],
    now_seconds: float,
    place_limit_seconds: float = inf,
) -> GuardedPlacement:
    """Return the answer if it is possible, else the nearest that is; None when nothing is in that place.

    - a place without room for the job: it waits;
    - more devices than fit, or a count the job may not have: the largest allowed count up to it, else the least;
    - a clock beyond the place's grid: the nearest on it;
    - a clock that breaks the job's slowdown bound, or its deadline where the default clock would not, or with which it
      is expected to pass its time limit: the lowest clock above it that keeps them, the default clock if none does.

    Args:
        answer: What the rule said.
        job: The job.
        room: Largest device count that fits in that place now; 0 for none.
        seconds_per_unit: Of that place, [count][clock]; infinite beyond the grid.
        column: Row of each device count.
        now_seconds: Time of the start.
        place_limit_seconds: The partition's own time limit, which holds for jobs without one.
    """
    gpus, clock = answer.gpus, answer.clock
    free_of_bounds = job.time_limit_seconds == job.deadline_seconds == job.max_slowdown == place_limit_seconds == inf
    if free_of_bounds and gpus <= room and gpus in column:
        times = seconds_per_unit[column[gpus]]
        if 0 <= clock < len(times) and times[clock] < inf:
            return GuardedPlacement(answer, False)
    if room <= 0:
        return GuardedPlacement(None, True)
    if gpus > room or gpus not in column:
        allowed = [count for count in column if count <= min(gpus, room)]
        gpus = max(allowed) if allowed else min(column)
        if gpus > room:
            return GuardedPlacement(None, True)
    times = seconds_per_unit[column[gpus]]
    last = len(times) - 1
    while last >= 0 and times[last] == inf:
        last -= 1
    if last < 0:
        return GuardedPlacement(None, True)
    asked = last if clock == -1 else clock
    clock = min(max(asked, 0), last)
    if clock < last:
        longest = times[last] * (1.0 + job.max_slowdown) * _WITHIN
        units = job.estimated_units
        limit = min(job.time_limit_seconds, place_limit_seconds)
        if limit < inf and units > 0.0:
            # Expected to pass the limit at any clock: the estimate may be wrong, so it runs as fast as it can.
            longest = min(longest, max(limit / units, times[last]) * _WITHIN)
        left = job.deadline_seconds - now_seconds
        if left < inf and units * times[last] <= left and units > 0.0:
            longest = min(longest, left / units * _WITHIN)
        while clock < last and times[clock] > longest:
            clock += 1
    if gpus == answer.gpus and clock == asked:
        return GuardedPlacement(answer if answer.clock == clock else answer._replace(clock=clock), False)
    return GuardedPlacement(answer._replace(gpus=gpus, clock=clock), True)
