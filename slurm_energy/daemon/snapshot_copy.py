"""A working copy of the cluster, put together from the snapshot child's parts."""

from collections.abc import Iterator

from slurm_energy.daemon.frames import SnapshotBegins, SnapshotComplete, SnapshotPart
from slurm_energy.daemon.snapshot_changes import SnapshotDifference
from slurm_energy.domain.cluster import ClusterSnapshot, ClusterState, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import ClusterName
from slurm_energy.slurm.client import ClusterReading

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
        """Return the frames from which another copy becomes like this one is now, however this one goes on."""
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
