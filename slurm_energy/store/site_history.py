"""A site's ended jobs as Slurm's accounting had them, and measured runs with the clock that they ran at."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, case, func, null, select
from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import ClusterName, GpuTypeName, JobId, PartitionName
from slurm_energy.store.past_runs import is_sound_reading
from slurm_energy.store.promotion.tables import PolicyAssignmentRow
from slurm_energy.store.tables import DecisionRow, GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockedRun:
    """A completed run on GPUs of one type, all at one clock, with a sound reading of each."""

    user_id: int
    name: str
    script_key: str | None
    gpu_type: GpuTypeName
    gpus: int
    sm_clock_mhz: int
    """That was applied; the default one where none was."""
    default_clock_mhz: int
    seconds: float
    joules: float
    """Of all its GPUs."""
    device_seconds: float
    """Of one GPU: in a laboratory that runs faster, more than `seconds`."""
    ended_at_seconds: float
    probability: float
    """That the policy that decided it did; 1 where no other was there."""
    decided_by: str = ""
    """Candidate that decided it; empty for the configured policy."""


def ended_jobs(
    session: Session, cluster: ClusterName, since_seconds: float, until_seconds: float, limit: int
) -> list[JobState]:
    """Return the newest jobs that ended in a time, at most `limit`, the oldest first."""
    gpu_type = (
        select(
            NodeEnergyRow.job_row_id.label("job_row_id"),
            NodeEnergyRow.restart_count.label("restart_count"),
            case(
                (func.min(GpuEnergyRow.gpu_type) == func.max(GpuEnergyRow.gpu_type), func.min(GpuEnergyRow.gpu_type)),
                else_=null(),
            ).label("gpu_type"),
        )
        .join(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .where(
            NodeEnergyRow.cluster == cluster,
            NodeEnergyRow.counted_at_seconds >= since_seconds,
        )
        .group_by(NodeEnergyRow.job_row_id, NodeEnergyRow.restart_count)
        .subquery("types")
    )
    query = (
        select(JobRow, gpu_type.c.gpu_type)
        .outerjoin(
            gpu_type,
            (gpu_type.c.job_row_id == JobRow.row_id) & (gpu_type.c.restart_count == JobRow.restart_count),
        )
        .where(
            JobRow.cluster == cluster,
            JobRow.ended_at_seconds >= since_seconds,
            JobRow.ended_at_seconds < until_seconds,
            JobRow.started_at_seconds.is_not(None),
            JobRow.gpu_count > 0,
        )
        .order_by(JobRow.ended_at_seconds.desc(), JobRow.row_id.desc())
        .limit(limit)
    )
    found = [_state(row, kind) for row, kind in session.execute(query).yield_per(2000)]
    found.reverse()
    return found


def _state(row: JobRow, gpu_type: str | None) -> JobState:
    return JobState(
        job_id=JobId(row.job_id),
        user_name=row.user_name or str(row.user_id or ""),
        user_id=row.user_id or 0,
        name=row.name or "",
        state=row.state or "",
        partitions=(PartitionName(row.partition),) if row.partition else (),
        submitted_at_seconds=row.submitted_at_seconds,
        started_at_seconds=row.started_at_seconds,
        ended_at_seconds=row.ended_at_seconds,
        account=row.account,
        qos=row.qos,
        restart_count=row.restart_count,
        time_limit_minutes=row.time_limit_minutes,
        suspended_seconds=row.suspended_seconds,
        nodes=row.nodes or "",
        node_count=row.node_count or 1,
        gpu_count=row.gpu_count,
        cpus=row.cpus,
        gpu_types=() if gpu_type is None else (gpu_type,),
    )


def clocked_runs(
    session: Session, cluster: ClusterName, since_seconds: float, until_seconds: float, limit: int
) -> Iterator[ClockedRun]:
    """Yield the newest completed runs whose energy and clock are known beyond doubt, at most `limit`."""
    reading, attempt = GpuEnergyRow, JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds
    # The nodes' own times: Slurm's are whole seconds.
    measured = func.max(NodeEnergyRow.ended_at_seconds - NodeEnergyRow.started_at_seconds)
    clock = func.coalesce(reading.applied_clock_mhz, reading.default_clock_mhz)
    columns: list[ColumnElement[Any]] = [
        JobRow.user_id.label("user_id"),
        JobRow.name.label("name"),
        DecisionRow.script_key.label("script_key"),
        func.max(reading.gpu_type).label("gpu_type"),
        JobRow.gpu_count.label("gpus"),
        func.max(clock).label("sm_clock_mhz"),
        func.max(reading.default_clock_mhz).label("default_clock_mhz"),
        measured.label("seconds"),
        func.sum(reading.joules).label("joules"),
        (measured * func.max(NodeEnergyRow.time_scale)).label("device_seconds"),
        attempt.ended_at_seconds.label("ended_at_seconds"),
        func.coalesce(func.max(PolicyAssignmentRow.probability), 1.0).label("probability"),
        func.coalesce(func.max(PolicyAssignmentRow.candidate_id), "").label("decided_by"),
    ]
    query = (
        select(*columns)
        .select_from(JobRow)
        .join(attempt, (attempt.job_row_id == JobRow.row_id) & (attempt.restart_count == JobRow.restart_count))
        .join(
            NodeEnergyRow,
            (NodeEnergyRow.job_row_id == JobRow.row_id) & (NodeEnergyRow.restart_count == JobRow.restart_count),
        )
        .join(reading, reading.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .outerjoin(PolicyAssignmentRow, PolicyAssignmentRow.decision_id == JobRow.decision_id)
        .where(
            JobRow.cluster == cluster,
            JobRow.ended_at_seconds >= since_seconds,
            JobRow.ended_at_seconds < until_seconds,
            JobRow.state == "COMPLETED",
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            JobRow.gpu_count > 0,
            attempt.suspended_seconds == 0.0,
            run > 0.0,
        )
        .group_by(JobRow.row_id, attempt.ended_at_seconds, attempt.started_at_seconds, DecisionRow.script_key)
        .having(
            func.count() == JobRow.gpu_count,
            measured > 0.0,
            func.min(reading.gpu_type) == func.max(reading.gpu_type),
            func.count(reading.gpu_type) == JobRow.gpu_count,
            func.min(clock) == func.max(clock),
            func.count(reading.default_clock_mhz) == JobRow.gpu_count,
            func.sum(case((is_sound_reading(run), 0), else_=1)) == 0,
        )
        .order_by(attempt.ended_at_seconds.desc(), JobRow.row_id.desc())
        .limit(limit)
    )
    for row in session.execute(query):
        values = dict(row._mapping)
        values["gpu_type"] = GpuTypeName(values["gpu_type"])
        found = ClockedRun(**values)
        if 0.0 < found.joules < inf and found.sm_clock_mhz > 0:
            yield found
