"""How long jobs of one name ran before: what runtime estimates are made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Subquery, case, func, null, select
from sqlalchemy.orm import Session

from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.store.summaries import applied_choice
from slurm_energy.store.tables import DecisionClockRow, GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSample:
    """One completed run."""

    user_id: int
    name: str
    """The job's name as stored: over 512 characters it is cut and marked (`stored_text`)."""
    ended_at_seconds: float
    run_seconds: float
    """Measured, without suspension; of the last attempt."""
    default_clock_seconds: float
    """What it would have been at the default clock, by the slowdown that was predicted for the applied one."""
    gpu_count: int | None
    gpu_type: GpuTypeName | None
    """None where its GPUs were of several types, or nobody reported them."""


def all_recent_runtimes(
    session: Session, cluster: ClusterName, since_seconds: float, limit_per_name: int = 20
) -> Iterator[RuntimeSample]:
    """Yield the latest completed runs of every user and name that ended since then, newest of each first."""
    inner = _samples(JobRow.cluster == cluster, JobRow.ended_at_seconds >= since_seconds)
    rank = func.row_number().over(
        partition_by=(JobRow.user_id, JobRow.name), order_by=JobAttemptRow.ended_at_seconds.desc()
    )
    ranked = inner.add_columns(rank.label("age_rank")).subquery("ranked")
    columns = [column for column in ranked.c if column.name != "age_rank"]
    query = select(*columns).where(ranked.c.age_rank <= limit_per_name)
    for row in session.execute(query.order_by(ranked.c.user_id, ranked.c.name, ranked.c.age_rank)):
        yield RuntimeSample(**row._mapping)


def _samples(*jobs: ColumnElement[bool]) -> Select[Any]:
    attempt = JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds
    slowdown, types = _slowdowns(*jobs), _types(*jobs)
    columns: list[ColumnElement[Any]] = [
        JobRow.user_id.label("user_id"),
        JobRow.name.label("name"),
        attempt.ended_at_seconds.label("ended_at_seconds"),
        run.label("run_seconds"),
        (run / (1.0 + func.coalesce(slowdown.c.slowdown, 0.0))).label("default_clock_seconds"),
        JobRow.gpu_count.label("gpu_count"),
        types.c.gpu_type.label("gpu_type"),
    ]
    return (
        select(*columns)
        .join(attempt, (attempt.job_row_id == JobRow.row_id) & (attempt.restart_count == JobRow.restart_count))
        .outerjoin(slowdown, slowdown.c.job_row_id == JobRow.row_id)
        .outerjoin(types, types.c.job_row_id == JobRow.row_id)
        .where(
            *jobs,
            JobRow.state == "COMPLETED",
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            run > 0.0,
        )
    )


def _slowdowns(*jobs: ColumnElement[bool]) -> Subquery:
    """Return the predicted slowdown of each job's last attempt: its slowest GPU holds the others up."""
    query = (
        select(NodeEnergyRow.job_row_id, func.max(DecisionClockRow.predicted_slowdown).label("slowdown"))
        .select_from(GpuEnergyRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == GpuEnergyRow.node_energy_row_id)
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .join(DecisionClockRow, applied_choice())
        .where(*jobs, DecisionClockRow.predicted_slowdown > -1.0)
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("slowdowns")


def _types(*jobs: ColumnElement[bool]) -> Subquery:
    """Return the one GPU type of each job's last attempt; NULL where there were several, or one without a name."""
    gpu_type = GpuEnergyRow.gpu_type
    same = (func.min(gpu_type) == func.max(gpu_type)) & (func.count(gpu_type) == func.count())
    query = (
        select(NodeEnergyRow.job_row_id, case((same, func.min(gpu_type)), else_=null()).label("gpu_type"))
        .select_from(GpuEnergyRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == GpuEnergyRow.node_energy_row_id)
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .where(*jobs)
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("types")
