"""What comes: the jobs of a workload, and the queue of events (time, order of making, kind, subject, version)."""

from collections.abc import Callable, Sequence
from heapq import heappush
from math import inf
from typing import Protocol

from slurm_energy.twin.engine.job import Job, JobRun

FINISH, BEGIN, REACH, CALL, BACKGROUND = range(5)
"""FINISH and BEGIN concern a job and mean nothing when its version has moved on; REACH is a routed job's arrival at its
place; CALL calls its subject with the time; BACKGROUND is a CALL that alone keeps no run going."""

Call = Callable[[float], None]
Event = tuple[float, int, int, JobRun | Call, int]


def _never(now: float) -> None:
    """Stand for what the event at the end of time would do."""
    raise AssertionError(f"the end of time came at {now} s")


class Events:
    """A heap of events; events of the same time keep the order in which they were made.

    The last one never comes, so that there is always a next one to look at.
    """

    __slots__ = ("background", "heap", "made")

    def __init__(self) -> None:
        self.heap: list[Event] = [(inf, 0, BACKGROUND, _never, 0)]
        self.made = 0
        self.background = 1
        """Background events in the heap, with the one that never comes."""

    @property
    def only_background(self) -> bool:
        """Whether nothing is to come that keeps a run going."""
        return len(self.heap) == self.background

    def add_job(self, time: float, kind: int, run: JobRun) -> None:
        """Add an event of a job."""
        self.made += 1
        heappush(self.heap, (time, self.made, kind, run, run.version))

    def add_call(self, time: float, call: Call, *, background: bool = False) -> None:
        """Add a call."""
        self.made += 1
        self.background += background
        heappush(self.heap, (time, self.made, BACKGROUND if background else CALL, call, 0))


class Arrivals(Protocol):
    """Where jobs come from: a workload in order, or a source that draws each job when it is due."""

    def next_time(self) -> float:
        """Return when the next job comes, infinite when none does."""
        ...

    def take(self) -> Job:
        """Return the next job and move on."""
        ...

    def after_route(self) -> float:
        """Note that the job last taken has been routed; return when the next one comes, as `next_time` does."""
        ...


class WorkloadArrivals:
    """The jobs of a workload."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._times = [job.submitted_seconds for job in jobs] + [inf]
        self._next = 0

    def next_time(self) -> float:
        """Return when the next job comes."""
        return self._times[self._next]

    def take(self) -> Job:
        """Return the next job."""
        following = self._next
        self._next = following + 1
        return self._jobs[following]

    def after_route(self) -> float:
        """Return when the next job comes; routing changes nothing, as the jobs are fixed."""
        return self._times[self._next]
