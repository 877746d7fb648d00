"""What changed between two readings: for the answering process in small parts, for the database as job states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_energy.daemon.ipc.frames import MAX_ITEMS, SnapshotPart
from slurm_energy.domain.cluster import ClusterState, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.slurm.client import ClusterReading
from slurm_energy.slurm.convert_accounting import REQUEUED
from slurm_energy.slurm.convert_job import LIVE_STATES

_Item = TypeVar("_Item")

VANISHED = "VANISHED"
"""State of a job that left slurmctld's memory before its end was seen."""


class SnapshotDifference:
    """Remembers the last reading and yields the parts that lead to the next."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobState] = {}
        self._nodes: dict[str, NodeState] = {}
        self._partitions: tuple[PartitionState, ...] | None = None
        self._switches: tuple[SwitchState, ...] = ()
        self._clusters: tuple[ClusterState, ...] = ()

    def parts(self, reading: ClusterReading) -> Iterator[SnapshotPart]:
        """Yield parts of at most `MAX_ITEMS`; jobs that have ended are not part of a snapshot."""
        jobs: dict[int, JobState] = {job.job_id: job for job in reading.jobs if job.state in LIVE_STATES}
        nodes: dict[str, NodeState] = {node.name: node for node in reading.nodes}
        if reading.partitions != self._partitions:
            yield SnapshotPart(partitions=reading.partitions)
        if reading.switches != self._switches:
            yield SnapshotPart(switches=reading.switches[:MAX_ITEMS])
            for switches in _chunks(reading.switches[MAX_ITEMS:]):
                yield SnapshotPart(more_switches=switches)
        if reading.clusters != self._clusters:
            yield SnapshotPart(clusters=reading.clusters[:MAX_ITEMS])
        for changed_jobs in _job_chunks([job for key, job in jobs.items() if _differs(self._jobs.get(key), job)]):
            yield SnapshotPart(jobs=changed_jobs)
        for gone in _chunks([key for key in self._jobs if key not in jobs]):
            yield SnapshotPart(jobs_gone=gone)
        for changed_nodes in _chunks([node for key, node in nodes.items() if _differs(self._nodes.get(key), node)]):
            yield SnapshotPart(nodes=changed_nodes)
        for names in _chunks([key for key in self._nodes if key not in nodes]):
            yield SnapshotPart(nodes_gone=names)
        self._jobs, self._nodes, self._partitions = jobs, nodes, reading.partitions
        self._switches, self._clusters = reading.switches, reading.clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """Job states that the database does not have yet."""

    changed: tuple[JobState, ...] = ()
    vanished: tuple[JobState, ...] = ()
    """Last seen alive, now unknown to slurmctld."""


class JobDifference:
    """Finds the job states worth recording."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], tuple[JobState, tuple[object, ...]]] = {}

    def changes(self, jobs: Sequence[JobState]) -> JobChanges:
        """Return what is new since the last call."""
        seen: dict[tuple[int, float], tuple[JobState, tuple[object, ...]]] = {}
        changed: list[JobState] = []
        for job in jobs:
            key = (job.job_id, job.submitted_at_seconds)
            known = self._known.get(key)
            if known is not None and known[0] is job:
                seen[key] = known
                continue
            mark = _recorded_fields(job)
            if known is None or known[1] != mark:
                changed.append(_recorded(job))
            seen[key] = (job, mark)
        restarts = {job.job_id: job.restart_count for job in jobs}
        vanished = [
            replace(_recorded(job), state=REQUEUED if restarts.get(job.job_id, 0) > job.restart_count else VANISHED)
            for key, (job, _) in self._known.items()
            if key not in seen and job.state in LIVE_STATES
        ]
        self._known = seen
        return JobChanges(changed=tuple(changed), vanished=tuple(vanished))


def _differs(old: _Item | None, new: _Item) -> bool:
    """Return whether an item changed; most are the very same object, and need not be compared field by field."""
    return old is not new and old != new


def _recorded_fields(job: JobState) -> tuple[object, ...]:
    """Return what a change of is recorded; priorities change at every pass of the scheduler and are not."""
    return (
        job.state,
        job.started_at_seconds,
        job.ended_at_seconds,
        job.restart_count,
        job.nodes,
        job.partitions,
        job.array_task,
        job.time_limit_minutes,
        job.suspended_seconds,
        job.admin_comment,
        job.gpu_count,
        job.exit_code,
    )


def _recorded(job: JobState) -> JobState:
    """Return a job without its long lists, which the database does not keep."""
    return replace(job, dependencies=(), gpu_positions=()) if job.dependencies or job.gpu_positions else job


def _job_chunks(jobs: list[JobState]) -> Iterator[tuple[JobState, ...]]:
    """Yield jobs in parts of at most `MAX_ITEMS`, in which dependencies and held devices count too.

    A job with more of them than that has a part of its own.
    """
    part: list[JobState] = []
    weight = 0
    for job in jobs:
        own = 1 + len(job.dependencies) + len(job.gpu_positions)
        if part and weight + own > MAX_ITEMS:
            yield tuple(part)
            part, weight = [], 0
        part.append(job)
        weight += own
    if part:
        yield tuple(part)


def _chunks(items: Sequence[_Item]) -> Iterator[tuple[_Item, ...]]:
    for begin in range(0, len(items), MAX_ITEMS):
        yield tuple(items[begin : begin + MAX_ITEMS])
