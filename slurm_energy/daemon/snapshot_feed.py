"""Puts the snapshot child's parts together; a whole reading becomes the daemon's snapshot at once."""

import logging
from collections.abc import Iterator
from typing import Any

from slurm_energy.daemon.frames import SnapshotBegins, SnapshotComplete, SnapshotPart, UserGroups
from slurm_energy.daemon.snapshot_copy import SnapshotCopy
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.ids import ClusterName, decision_in_comment

logger = logging.getLogger(__name__)


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
