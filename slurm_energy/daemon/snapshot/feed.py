"""A working copy of the cluster, put together from the snapshot child's parts; once whole, it is the snapshot."""

import logging
from collections.abc import Iterator
from typing import Any

from slurm_energy.daemon.ipc.frames import (
    JobsEnded,
    ReaderInUse,
    SnapshotBegins,
    SnapshotComplete,
    SnapshotPart,
    UserGroups,
)
from slurm_energy.daemon.snapshot.changes import SnapshotDifference
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName, decision_in_comment
from slurm_energy.slurm.json_client import ClusterReading

logger = logging.getLogger(__name__)

SnapshotFrame = SnapshotBegins | SnapshotPart | SnapshotComplete


class SnapshotCopy:
    """What the parts so far say; between two readings it is the last one."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobState] = {}
        self._nodes: dict[str, NodeState] = {}
        self._partitions: tuple[PartitionState, ...] = ()
        self._switches: tuple[SwitchState, ...] = ()
        self._clusters: tuple[ClusterState, ...] = ()
        self._end: SnapshotComplete | None = None
        """Of the last reading; None while one is under way."""

    def take(self, frame: SnapshotFrame) -> None:
        """Take one part or the end of a reading, or begin with nothing."""
        self._end = frame if isinstance(frame, SnapshotComplete) else None
        if isinstance(frame, SnapshotPart):
            self._take(frame)
        elif isinstance(frame, SnapshotBegins):
            self._jobs, self._nodes, self._partitions = {}, {}, ()
            self._switches, self._clusters = (), ()

    def snapshot(self, cluster: ClusterName, taken_at_seconds: float) -> ClusterSnapshot:
        """Return what the parts say, as the snapshot of a moment."""
        return ClusterSnapshot(
            cluster=cluster,
            taken_at_seconds=taken_at_seconds,
            partitions=self._partitions,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
            switches=self._switches,
            clusters=self._clusters,
        )

    def frames(self) -> Iterator[SnapshotFrame]:
        """Return the frames from which another copy becomes like this one is now, whatever this one becomes."""
        reading = ClusterReading(
            partitions=self._partitions,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
            switches=self._switches,
            clusters=self._clusters,
        )
        return _frames(reading, self._end)

    def _take(self, part: SnapshotPart) -> None:
        for job in part.jobs:
            self._jobs[job.job_id] = job
        for job_id in part.jobs_gone:
            self._jobs.pop(job_id, None)
        for node in part.nodes:
            self._nodes[node.name] = node
        for name in part.nodes_gone:
            self._nodes.pop(name, None)
        if part.partitions is not None:
            self._partitions = part.partitions
        if part.switches is not None:
            self._switches = part.switches
        self._switches += part.more_switches
        if part.clusters is not None:
            self._clusters = part.clusters


def _frames(reading: ClusterReading, end: SnapshotComplete | None) -> Iterator[SnapshotFrame]:
    yield SnapshotBegins()
    yield from SnapshotDifference().parts(reading)
    if end is not None:
        yield end


class SnapshotFeed:
    """Keeps the working copy between two snapshots."""

    def __init__(self, state: DaemonState) -> None:
        self.copy = SnapshotCopy()
        self._state = state
        self._user_names: dict[int, str] = {}

    def receive(self, frame: Any) -> Iterator[None]:
        """Take one frame of the snapshot child in short steps, between which answers may be given."""
        if isinstance(frame, UserGroups):
            self._state.user_groups.update(frame.groups)
        elif isinstance(frame, JobsEnded):
            ends = self._state.job_ends.ended(frame.jobs, *self._state.policies)
            self._state.counters["job ends passed on"] += ends
        elif isinstance(frame, ReaderInUse):
            self._state.reader, self._state.reader_note = frame.name, frame.note
        elif isinstance(frame, SnapshotBegins | SnapshotPart | SnapshotComplete):
            self.copy.take(frame)
            if isinstance(frame, SnapshotPart):
                self._user_names.update((job.user_id, job.user_name) for job in frame.jobs)
                for job in frame.jobs:
                    decision_id = decision_in_comment(job.admin_comment)
                    if decision_id is not None:
                        self._state.claims.appeared(decision_id)
            elif isinstance(frame, SnapshotComplete):
                yield from self._complete(frame)

    def _complete(self, frame: SnapshotComplete) -> Iterator[None]:
        state = self._state
        first = state.snapshot is None
        snapshot = self.copy.snapshot(ClusterName(state.config.cluster.name), frame.taken_at_seconds)
        yield from snapshot.work_out(frame.waiting_gpus)
        yield from state.decider.rehearse(snapshot)
        state.snapshot = snapshot
        state.user_names = self._user_names
        state.counters["snapshots"] += 1
        state.skipped_rows = frame.skipped
        log = logger.info if first else logger.debug
        log(
            "snapshot taken jobs=%d nodes=%d partitions=%d read_seconds=%.2f skipped=%d",
            len(snapshot.jobs),
            len(snapshot.nodes),
            len(snapshot.partitions),
            frame.read_seconds,
            sum(frame.skipped.values()),
        )
