"""Where the engine's jobs come from."""

from collections.abc import Sequence
from math import inf
from typing import Protocol

from slurm_energy.twin.job import Job


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
