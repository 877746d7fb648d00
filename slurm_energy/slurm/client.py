"""What the daemon needs of Slurm, whoever reads it: the JSON commands or pyslurm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy.domain.cluster import ClusterState, JobState, NodeState, PartitionState, SwitchState
from slurm_energy.domain.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """One reading of the whole cluster; finished jobs that Slurm still remembers are in it."""

    partitions: tuple[PartitionState, ...]
    nodes: tuple[NodeState, ...]
    jobs: tuple[JobState, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows that could not be read, by reason."""
    switches: tuple[SwitchState, ...] = ()
    """Empty where the topology is not known."""
    clusters: tuple[ClusterState, ...] = ()
    """Empty where nothing states budgets and readings of the whole cluster."""


class SlurmReader(Protocol):
    """Reads the state of a cluster."""

    def read_cluster(self) -> ClusterReading:
        """Return partitions, nodes and jobs.

        Raises:
            SlurmError: Slurm gave no usable answer in time.
        """
        ...

    def read_ended_jobs(self, job_ids: Sequence[JobId]) -> tuple[JobState, ...]:
        """Return what accounting knows of jobs that left slurmctld's memory; all attempts, in no order.

        Raises:
            SlurmError: accounting gave no usable answer in time.
        """
        ...
