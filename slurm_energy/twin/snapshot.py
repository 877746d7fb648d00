"""The twin as a `ClusterSnapshot`, which is what the daemon's policies see of a real Slurm."""

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.twin.snapshot_source import SnapshotSource
from slurm_energy.twin.view import TwinView


def snapshot_of(view: TwinView, taken_at_seconds: float) -> ClusterSnapshot:
    """Return all that the twin shows now; CPU pools are nodes without GPUs.

    Whoever asks again and again keeps a `SnapshotSource`.
    """
    return SnapshotSource().snapshot(view, taken_at_seconds)
