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
        self._next = 0

    def next_time(self) -> float:
        """Return when the next job comes."""
        jobs, following = self._jobs, self._next
        return jobs[following].submitted_seconds if following < len(jobs) else inf

    def take(self) -> Job:
        """Return the next job."""
        self._next += 1
        return self._jobs[self._next - 1]

    def after_route(self) -> float:
        """Return when the next job comes; routing changes nothing, as the jobs are fixed."""
        jobs, following = self._jobs, self._next
        return jobs[following].submitted_seconds if following < len(jobs) else inf
