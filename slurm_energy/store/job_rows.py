"""Rows of jobs and attempts: made once, locked, and filled with what Slurm says."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.energy import JobKey
from slurm_energy.domain.ids import decision_in_comment
from slurm_energy.store.tables import JobAttemptRow, JobRow
from slurm_energy.store.upsert import insert_if_absent

CLOCK_SKEW_SECONDS = 120.0
"""Largest difference between the clocks of a node and of slurmctld that is still taken for the same moment."""
ENDED_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REQUEUED", "REVOKED", "TIMEOUT"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitTime:
    """When a job was submitted; not `known` when the start on a node stands in for it."""

    seconds: float
    known: bool


def new_job_row(key: JobKey, *, submit_time_known: bool) -> dict[str, Any]:
    """Return the least that a job's row needs."""
    return {
        "cluster": key.cluster,
        "job_id": key.job_id,
        "submitted_at_seconds": key.submitted_at_seconds,
        "submit_time_known": submit_time_known,
        "restart_count": key.restart_count,
        "suspended_seconds": 0.0,
    }


def locked_job(session: Session, key: JobKey, *, submit_time_known: bool) -> JobRow:
    """Return the job's row, made if absent, and keep other writers of this job waiting until the commit."""
    insert_if_absent(session, JobRow, [new_job_row(key, submit_time_known=submit_time_known)])
    return session.scalars(
        select(JobRow)
        .where(
            JobRow.cluster == key.cluster,
            JobRow.job_id == key.job_id,
            JobRow.submitted_at_seconds == key.submitted_at_seconds,
        )
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def attempt_row(session: Session, job: JobRow, restart_count: int) -> JobAttemptRow:
    """Return the row of one attempt of a locked job, made if absent."""
    return session.get(JobAttemptRow, (job.row_id, restart_count)) or new_attempt(session, job, restart_count)


def new_attempt(session: Session, job: JobRow, restart_count: int) -> JobAttemptRow:
    """Return a new row for an attempt that has none."""
    row = JobAttemptRow(job_row_id=job.row_id, restart_count=restart_count, suspended_seconds=0.0)
    session.add(row)
    return row


def assign_job(row: JobRow, state: JobState, restart_count: int) -> None:
    """Fill a job's row; news of an older attempt, or of a job that has ended, do not turn it back."""
    requeued = restart_count > row.restart_count
    ended = state.state in ENDED_STATES
    if restart_count < row.restart_count or (row.state in ENDED_STATES and not ended and not requeued):
        return
    _assign_facts(row, state)
    row.state = state.state
    row.restart_count = restart_count
    # A requeued job waits again: its old times belong to the attempt before.
    row.started_at_seconds = state.started_at_seconds or (None if requeued else row.started_at_seconds)
    # Slurm also gives an end to running jobs: the latest one that the time limit allows.
    row.ended_at_seconds = (state.ended_at_seconds or row.ended_at_seconds) if ended else None
    row.suspended_seconds = state.suspended_seconds


def _assign_facts(row: JobRow, state: JobState) -> None:
    if state.user_id >= 0:
        row.user_id = state.user_id
    for name in ("user_name", "name", "account", "qos", "array_job_id", "array_task", "het_job_id", "nodes"):
        setattr(row, name, getattr(state, name) or getattr(row, name))
    for name in ("time_limit_minutes", "gpu_count", "cpus", "priority", "exit_code"):
        value = getattr(state, name)
        setattr(row, name, getattr(row, name) if value is None else value)
    row.node_count = state.node_count or row.node_count
    if state.partitions:
        row.partition, row.partitions = state.partitions[0], list(state.partitions)
    if state.energy_joules is not None:
        row.slurm_energy_joules = state.energy_joules
    row.decision_id = decision_in_comment(state.admin_comment) or row.decision_id


def assign_attempt(row: JobAttemptRow, state: JobState) -> None:
    """Fill an attempt's row; an end that is known stays."""
    ended = state.state in ENDED_STATES
    row.submitted_at_seconds = state.submitted_at_seconds
    if row.state in ENDED_STATES and not ended:
        return
    row.state = state.state
    row.suspended_seconds = state.suspended_seconds
    row.nodes = state.nodes or row.nodes
    row.started_at_seconds = state.started_at_seconds or row.started_at_seconds
    if row.started_at_seconds is not None and state.partitions:
        row.partition = state.partitions[0]
    if ended:
        row.ended_at_seconds = state.ended_at_seconds or row.ended_at_seconds
        row.exit_code = row.exit_code if state.exit_code is None else state.exit_code
