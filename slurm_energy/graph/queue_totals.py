"""Sums over all live jobs that hold up under change: order of the queue, shares of users, demand on partitions."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.graph.job_features import JobFigures, priority_ceiling, rounded_share

Rank = tuple[float, float, JobId]
_FEW = 64
"""Up to so many changes are sorted in one by one."""


@dataclass(slots=True)
class Demand:
    """Jobs that name the same partitions, every task of an array counted; none that waits for something but room."""

    waiting_jobs: int = 0
    waiting_gpus: int = 0
    running_jobs: int = 0


class QueueTotals:
    """Whole numbers only: what was added and taken away again leaves nothing behind."""

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
