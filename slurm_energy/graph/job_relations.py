"""Jobs among each other: which wait for which, and sums over all live jobs that hold up under change."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from slurm_energy.domain.cluster import JobDependency, JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.graph.job_features import JobFigures, priority_ceiling, rounded_share

Dependencies = Mapping[JobId, JobDependency]
_NONE: Dependencies = {}
Rank = tuple[float, float, JobId]
_FEW = 64
"""Up to so many changes are sorted in one by one."""


class DependencyGraph:
    """Live jobs and their dependencies; one on a job that is not live is remembered until that job appears."""

    def __init__(self) -> None:
        self._needs: dict[JobId, Dependencies] = {}
        """By live job that needs others, then by the job it needs."""
        self._live: set[JobId] = set()
        self._waiting: dict[JobId, set[JobId]] = {}
        """By the job that is needed, live or not."""

    def set_job(self, job_id: JobId, dependencies: Iterable[JobDependency]) -> set[JobId]:
        """Put a job in with what it needs; return the live jobs whose part of the graph this may have changed.

        A dependency of a job on itself is left out, and of several on one job the first counts.
        """
        needs: dict[JobId, JobDependency] = {}
        for dependency in dependencies:
            if dependency.job_id != job_id:
                needs.setdefault(dependency.job_id, dependency)
        before = self._needs.get(job_id, _NONE)
        if job_id in self._live and list(before.values()) == list(needs.values()):
            return set()
        touched = self.remove_job(job_id)
        self._live.add(job_id)
        if not needs and job_id not in self._waiting:
            return touched
        if needs:
            self._needs[job_id] = needs
        for needed in needs:
            self._waiting.setdefault(needed, set()).add(job_id)
        return touched | {job_id, *self.neighbours(job_id)}

    def remove_job(self, job_id: JobId) -> set[JobId]:
        """Take a job out; return the live jobs that were beside it."""
        if job_id not in self._live:
            return set()
        touched = set(self.neighbours(job_id))
        self._live.discard(job_id)
        for needed in self._needs.pop(job_id, _NONE):
            waiting = self._waiting[needed]
            waiting.discard(job_id)
            if not waiting:
                del self._waiting[needed]
        return touched

    def needs(self, job_id: JobId) -> Iterable[JobDependency]:
        """Yield what a live job needs of live jobs."""
        return (item for needed, item in self._needs.get(job_id, _NONE).items() if needed in self._live)

    def dependents(self, job_id: JobId) -> Collection[JobId]:
        """Return the live jobs that wait for a job."""
        return self._waiting.get(job_id, ())

    def neighbours(self, job_id: JobId) -> Iterable[JobId]:
        """Yield the live jobs that a job needs and those that wait for it."""
        yield from (needed for needed in self._needs.get(job_id, _NONE) if needed in self._live)
        yield from self._waiting.get(job_id, ())

    def component(self, seeds: Iterable[JobId]) -> set[JobId]:
        """Return every live job that hangs together with one of the seeds, those included that are live."""
        found = self._live.intersection(seeds)
        # Most jobs neither need another nor are needed.
        queue = deque(job for job in found if job in self._needs or job in self._waiting)
        while queue:
            for other in self.neighbours(queue.popleft()):
                if other not in found:
                    found.add(other)
                    queue.append(other)
        return found

    def critical_paths(self, jobs: Collection[JobId], seconds: Mapping[JobId, float]) -> dict[JobId, float]:
        """Return, for whole parts of the graph, the longest chain of run times from each job to the last needing it.

        Jobs in a circle can never start. Links between jobs of a circle, and those to it, add nothing to a chain.

        Args:
            jobs: Whole weakly connected parts.
            seconds: Expected run time of each of them.
        """
        longest = {job: seconds[job] for job in jobs}
        open_dependents = {job: len(self._waiting[job]) for job in jobs if job in self._waiting}
        ready = deque(job for job in jobs if job in self._needs and job not in open_dependents)
        while ready:
            job = ready.popleft()
            for dependency in self.needs(job):
                needed = dependency.job_id
                longest[needed] = max(longest[needed], seconds[needed] + longest[job])
                open_dependents[needed] -= 1
                if open_dependents[needed] == 0:
                    ready.append(needed)
        return longest


@dataclass(slots=True)
class Demand:
    """Jobs that name the same partitions, every task of an array counted; none that waits for something but room."""

    waiting_jobs: int = 0
    waiting_gpus: int = 0
    running_jobs: int = 0


class QueueTotals:
    """Whole numbers only: what was added and removed again leaves nothing behind."""

    def __init__(self) -> None:
        self.demands: dict[tuple[PartitionName, ...], Demand] = {}
        self._jobs_of_user: dict[int, set[JobId]] = {}
        self._gpus_of_user: dict[int, int] = {}
        self._all_gpus = 0
        self._ranks: list[Rank] = []
        self._coming: set[Rank] = set()
        self._going: set[Rank] = set()
        self._shares: dict[int, float] = {}

    def add(self, job: JobState, figures: JobFigures) -> None:
        """Count a job."""
        self._jobs_of_user.setdefault(job.user_id, set()).add(job.job_id)
        self._count(job, figures, 1)
        if not figures.is_running:
            self._coming.add(_rank(job, figures))

    def remove(self, job: JobState, figures: JobFigures) -> None:
        """Count a job no longer; figures must be those it was added with."""
        jobs = self._jobs_of_user[job.user_id]
        jobs.discard(job.job_id)
        self._count(job, figures, -1)
        if not jobs:
            del self._jobs_of_user[job.user_id], self._gpus_of_user[job.user_id]
        if not figures.is_running:
            rank = _rank(job, figures)
            self._coming.discard(rank) if rank in self._coming else self._going.add(rank)

    @property
    def num_pending(self) -> int:
        """Entries of the queue, an array counted once."""
        return len(self._sorted_ranks())

    @property
    def queue_changed(self) -> bool:
        """Whether the order may differ from that of the last call of `first`."""
        return bool(self._coming or self._going)

    def first(self, count: int) -> list[JobId]:
        """Return pending jobs in their order: highest priority, then oldest."""
        return [job_id for _, _, job_id in self._sorted_ranks()[:count]]

    def changed_shares(self) -> Iterator[tuple[float, set[JobId]]]:
        """Yield the new share and the jobs of each user whose rounded share is another than at the last call."""
        shares = {user: rounded_share(gpus, self._all_gpus) for user, gpus in self._gpus_of_user.items()}
        before, self._shares = self._shares, shares
        for user, share in shares.items():
            if before.get(user) != share:
                yield share, self._jobs_of_user[user]

    @property
    def shares(self) -> Mapping[int, float]:
        """Rounded shares by user, as of the last call of `changed_shares`."""
        return self._shares

    def highest_priority(self) -> float:
        """Return the ceiling that priorities are put in relation to."""
        ranks = self._sorted_ranks()
        return priority_ceiling(-ranks[0][0]) if ranks else 0.0

    def _count(self, job: JobState, figures: JobFigures, sign: int) -> None:
        gpus = sign * figures.gpus * figures.tasks
        self._all_gpus += gpus
        self._gpus_of_user[job.user_id] = self._gpus_of_user.get(job.user_id, 0) + gpus
        demand = self.demands.setdefault(job.partitions, Demand())
        if figures.is_running:
            demand.running_jobs += sign
        elif job.waits_for_room:
            demand.waiting_jobs += sign * figures.tasks
            demand.waiting_gpus += gpus
        if not demand.running_jobs and not demand.waiting_jobs:
            del self.demands[job.partitions]

    def _sorted_ranks(self) -> list[Rank]:
        if len(self._coming) + len(self._going) > _FEW:
            self._ranks = sorted(({*self._ranks} - self._going) | self._coming)
        else:
            for rank in self._going:
                del self._ranks[bisect_left(self._ranks, rank)]
            for rank in self._coming:
                insort(self._ranks, rank)
        self._coming.clear()
        self._going.clear()
        return self._ranks


def _rank(job: JobState, figures: JobFigures) -> Rank:
    submitted = figures.submitted_at_seconds
    return -figures.priority, submitted if isfinite(submitted) else 0.0, job.job_id
