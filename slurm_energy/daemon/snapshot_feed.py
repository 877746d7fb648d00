"""Puts the snapshot child's parts together; a whole reading becomes the daemon's snapshot at once."""

import logging
from typing import Any

from slurm_energy.daemon.frames import SnapshotBegins, SnapshotComplete, SnapshotPart, UserGroups
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeState, PartitionState
from slurm_energy.domain.ids import ClusterName

logger = logging.getLogger(__name__)


class SnapshotFeed:
    """The working copy between two snapshots."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._jobs: dict[int, JobState] = {}
        self._nodes: dict[str, NodeState] = {}
        self._partitions: tuple[PartitionState, ...] = ()
        self._user_names: dict[int, str] = {}

    def receive(self, frame: Any) -> None:
        """Take one frame of the snapshot child."""
        if isinstance(frame, SnapshotBegins):
            self._jobs, self._nodes, self._partitions = {}, {}, ()
        elif isinstance(frame, SnapshotPart):
            self._take(frame)
        elif isinstance(frame, UserGroups):
            self._state.user_groups.update(frame.groups)
        elif isinstance(frame, SnapshotComplete):
            self._complete(frame)

    def _take(self, part: SnapshotPart) -> None:
        for job in part.jobs:
            self._jobs[job.job_id] = job
            self._user_names[job.user_id] = job.user_name
        for job_id in part.jobs_gone:
            self._jobs.pop(job_id, None)
        for node in part.nodes:
            self._nodes[node.name] = node
        for name in part.nodes_gone:
            self._nodes.pop(name, None)
        if part.partitions is not None:
            self._partitions = part.partitions

    def _complete(self, frame: SnapshotComplete) -> None:
        state = self._state
        first = state.snapshot is None
        state.snapshot = ClusterSnapshot(
            cluster=ClusterName(state.config.cluster.name),
            taken_at_seconds=frame.taken_at_seconds,
            partitions=self._partitions,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
        )
        state.decider.warm_up(state.snapshot)
        state.user_names = self._user_names
        state.counters["snapshots"] += 1
        state.counters["snapshot rows skipped"] += frame.skipped_rows
        log = logger.info if first else logger.debug
        log(
            "snapshot taken jobs=%d nodes=%d partitions=%d read_seconds=%.2f skipped=%d",
            len(self._jobs),
            len(self._nodes),
            len(self._partitions),
            frame.read_seconds,
            frame.skipped_rows,
        )
