"""Small clusters for the tests of the graph."""

from dataclasses import fields, replace
from typing import Any

from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    JobDependency,
    JobState,
    NodeGpus,
    NodeState,
    PartitionState,
)
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName

NOW = 1_000_020.0
_MOMENTS = tuple(
    item.name for item in fields(JobState) if item.name.endswith("_at_seconds") or item.name == "deadline_seconds"
)
"""What a job has of Unix times; nothing else in a snapshot has any but the snapshot itself."""


def make_node(
    name: str = "n1", count: int = 4, slurm_type: str | None = "a100", partition: str = "p", **changes: Any
) -> NodeState:
    settings: dict[str, Any] = {
        "name": NodeName(name),
        "partitions": (PartitionName(partition),),
        "states": ("IDLE",),
        "available": True,
        "cpus": 64,
        "cpus_allocated": 0,
        "gpus": (NodeGpus(slurm_type=slurm_type, count=count),) if count else (),
    }
    return NodeState(**{**settings, **changes})


def make_partition(name: str = "p", **changes: Any) -> PartitionState:
    return PartitionState(**{"name": PartitionName(name), "is_default": name == "p", "up": True, **changes})


def make_job(number: int, *, running_on: str | None = None, gpus: int | None = 1, **changes: Any) -> JobState:
    settings: dict[str, Any] = {
        "job_id": JobId(number),
        "user_name": "anna",
        "user_id": 1001,
        "name": "train",
        "state": "PENDING" if running_on is None else "RUNNING",
        "partitions": (PartitionName("p"),),
        "submitted_at_seconds": NOW - 600.0,
        "started_at_seconds": None if running_on is None else NOW - 300.0,
        "nodes": running_on or "",
        "node_count": 1,
        "gpu_count": gpus,
        "priority": 100,
        "time_limit_minutes": 60.0,
    }
    return JobState(**{**settings, **changes})


def after(*numbers: int) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(job_id=JobId(number), needs_success=True) for number in numbers)


def make_snapshot(
    nodes: tuple[NodeState, ...] = (),
    jobs: tuple[JobState, ...] = (),
    partitions: tuple[PartitionState, ...] | None = None,
    **changes: Any,
) -> ClusterSnapshot:
    settings: dict[str, Any] = {
        "cluster": ClusterName("c"),
        "taken_at_seconds": NOW,
        "partitions": (make_partition(),) if partitions is None else partitions,
        "nodes": nodes,
        "jobs": jobs,
    }
    return ClusterSnapshot(**{**settings, **changes})


def later(snapshot: ClusterSnapshot, seconds: float) -> ClusterSnapshot:
    """Return the same cluster so much later: every Unix time is shifted, every duration stays."""

    def shifted(job: JobState) -> JobState:
        known = {name: getattr(job, name) for name in _MOMENTS}
        return replace(job, **{name: moment + seconds for name, moment in known.items() if moment is not None})

    return replace(
        snapshot,
        taken_at_seconds=snapshot.taken_at_seconds + seconds,
        jobs=tuple(shifted(job) for job in snapshot.jobs),
    )
