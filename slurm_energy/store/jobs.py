"""Jobs and their attempts, as Slurm reports them; reports that came before their job move to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, exists, func, select
from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.energy import JobKey
from slurm_energy.domain.ids import ClusterName, JobId, PartitionName
from slurm_energy.store.energy import adopt_report, arrived_report, finish_reports
from slurm_energy.store.job_rows import (
    KnownJobs,
    assign_attempt,
    assign_job,
    job_of_report,
    new_job_row,
    will_change,
)
from slurm_energy.store.nodes import attempt_is_over, keep_host_shares
from slurm_energy.store.rollup_rows import take_out
from slurm_energy.store.sums import make_sums_of_jobs
from slurm_energy.store.tables import (
    NOT_ROLLED_UP,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
    insert_if_absent,
)

_CHUNK = 200


def upsert_jobs(session: Session, cluster: ClusterName, states: Sequence[JobState]) -> None:
    """Store what Slurm says now; what it no longer says (None, empty) stays as it was."""
    for begin in range(0, len(states), _CHUNK):
        _upsert_chunk(session, cluster, states[begin : begin + _CHUNK])


def job_owner(session: Session, cluster: ClusterName, job_id: JobId) -> tuple[int | None, str | None]:
    """Return user id and account of the youngest job of that number; None for each that is not known."""
    row = session.execute(
        select(JobRow.user_id, JobRow.account)
        .where(JobRow.cluster == cluster, JobRow.job_id == job_id)
        .order_by(JobRow.submitted_at_seconds.desc())
        .limit(1)
    ).first()
    return (None, None) if row is None else (row.user_id, row.account)


def get_job(
    session: Session, cluster: ClusterName, job_id: JobId, submitted_at_seconds: float | None = None
) -> JobState | None:
    """Return the job as last reported by Slurm, the youngest of that number unless the submit time is given."""
    query = select(JobRow).where(JobRow.cluster == cluster, JobRow.job_id == job_id)
    if submitted_at_seconds is not None:
        query = query.where(JobRow.submitted_at_seconds == submitted_at_seconds)
    row = session.scalar(query.order_by(JobRow.submitted_at_seconds.desc()).limit(1))
    return None if row is None else _state(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """Where and when one attempt of a job ran, as far as Slurm reported."""

    restart_count: int
    partition: str | None
    nodes: str | None
    started_at_seconds: float | None
    ended_at_seconds: float | None


def job_attempts(
    session: Session, cluster: ClusterName, job_id: JobId, submitted_at_seconds: float
) -> tuple[StoredAttempt, ...]:
    """Return every attempt of a job, the first one first."""
    rows = session.scalars(
        select(JobAttemptRow)
        .join(JobRow, JobRow.row_id == JobAttemptRow.job_row_id)
        .where(JobRow.cluster == cluster, JobRow.job_id == job_id, JobRow.submitted_at_seconds == submitted_at_seconds)
        .order_by(JobAttemptRow.restart_count)
    )
    return tuple(
        StoredAttempt(
            restart_count=row.restart_count,
            partition=row.partition,
            nodes=row.nodes,
            started_at_seconds=row.started_at_seconds,
            ended_at_seconds=row.ended_at_seconds,
        )
        for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreportedJob:
    """A job with GPUs that has ended, and of which a node owes its report."""

    job_id: JobId
    submitted_at_seconds: float
    ended_at_seconds: float


def jobs_lacking_reports(
    session: Session, cluster: ClusterName, since_seconds: float, until_seconds: float
) -> tuple[UnreportedJob, ...]:
    """Return every job with GPUs that ended in a period and has an attempt of which fewer nodes reported than ran it.

    However many there are, the first one first.
    """
    reported = (
        select(func.count())
        .where(
            NodeEnergyRow.job_row_id == JobAttemptRow.job_row_id,
            NodeEnergyRow.restart_count == JobAttemptRow.restart_count,
        )
        .scalar_subquery()
    )
    lacking = exists().where(
        JobAttemptRow.job_row_id == JobRow.row_id,
        JobAttemptRow.started_at_seconds.is_not(None),
        JobAttemptRow.ended_at_seconds.is_not(None),
        reported < func.coalesce(func.nullif(JobRow.node_count, 0), 1),
    )
    query = select(JobRow.job_id, JobRow.submitted_at_seconds, JobRow.ended_at_seconds).where(
        JobRow.cluster == cluster,
        JobRow.ended_at_seconds >= since_seconds,
        JobRow.ended_at_seconds < until_seconds,
        JobRow.gpu_count > 0,
        lacking,
    )
    return tuple(
        UnreportedJob(job_id=JobId(job_id), submitted_at_seconds=submitted, ended_at_seconds=ended)
        for job_id, submitted, ended in session.execute(query.order_by(JobRow.ended_at_seconds, JobRow.row_id))
        if ended is not None
    )


def _upsert_chunk(session: Session, cluster: ClusterName, states: Sequence[JobState]) -> None:
    known = KnownJobs.load(session, cluster, (state.job_id for state in states))
    absent = [state for state in states if known.find(state) is None]
    if absent:
        keys = [
            JobKey(cluster=cluster, job_id=state.job_id, submitted_at_seconds=state.submitted_at_seconds)
            for state in absent
        ]
        insert_if_absent(session, JobRow, [new_job_row(key, submit_time_known=True) for key in keys])
        known = KnownJobs.load(session, cluster, (state.job_id for state in states))
    requeued = [
        found[0].row_id
        for state in states
        if (found := known.find(state)) is not None and found[1] > found[0].restart_count
    ]
    if requeued:  # before the CPUs of the next attempt take the place of theirs
        keep_host_shares(session, NodeEnergyRow.job_row_id.in_(requeued))
    rolled_up: set[int] = set()
    for state in states:
        found = known.find(state)
        if found is not None:
            row, restart_count = found
            attempt = known.attempt(session, row, restart_count)
            row.submit_time_known = True
            assign_job(row, state, restart_count)
            assign_attempt(attempt, state)
            if row.rollup_hour != NOT_ROLLED_UP and will_change(session, row, attempt):
                rolled_up.add(row.row_id)
    if rolled_up:
        take_out(session, JobRow.row_id.in_(sorted(rolled_up)))
    session.flush()
    row_ids = [row.row_id for rows in known.jobs.values() for row in rows]
    make_sums_of_jobs(session, row_ids)
    keep_host_shares(session, NodeEnergyRow.job_row_id.in_(row_ids), attempt_is_over())
    for job_id in known.with_provisional_twin():
        adopt_provisional(session, cluster, JobId(job_id))


def _state(row: JobRow) -> JobState:
    return JobState(
        job_id=JobId(row.job_id),
        user_name=row.user_name or "",
        user_id=-1 if row.user_id is None else row.user_id,
        name=row.name or "",
        state=row.state or "UNKNOWN",
        partitions=tuple(PartitionName(name) for name in row.partitions or ()),
        submitted_at_seconds=row.submitted_at_seconds,
        started_at_seconds=row.started_at_seconds,
        ended_at_seconds=row.ended_at_seconds,
        account=row.account,
        qos=row.qos,
        array_job_id=None if row.array_job_id is None else JobId(row.array_job_id),
        array_task=row.array_task,
        het_job_id=None if row.het_job_id is None else JobId(row.het_job_id),
        restart_count=row.restart_count,
        time_limit_minutes=row.time_limit_minutes,
        suspended_seconds=row.suspended_seconds,
        nodes=row.nodes or "",
        node_count=row.node_count or 0,
        gpu_count=row.gpu_count,
        cpus=row.cpus,
        priority=row.priority,
        exit_code=row.exit_code,
        admin_comment="" if row.decision_id is None else f"energy:{row.decision_id}",
        energy_joules=row.slurm_energy_joules,
    )


def adopt_provisional(session: Session, cluster: ClusterName, job_id: JobId) -> int:
    """Move reports stored under a stand-in submit time to the job they belong to; return how many."""
    known = KnownJobs.load(session, cluster, [job_id], with_reports=True)
    adopted: list[NodeEnergyRow] = []
    removed: list[int] = []
    empty: list[int] = []
    for stand_in in [row for row in known.jobs.get(job_id, ()) if not row.submit_time_known]:
        rows = [row for row in known.reports.values() if row.job_row_id == stand_in.row_id]
        left = 0
        for row in sorted(rows, key=lambda row: (row.restart_count, row.node)):
            job = job_of_report(known, *arrived_report(stand_in, row), submit_time_known=True)
            if job is None:
                left += 1
                continue
            adopted.append(adopt_report(session, row, stand_in, job, known))
            if adopted[-1] is not row:
                removed.append(row.row_id)
        if not left:
            empty.append(stand_in.row_id)
    session.flush()
    for begin in range(0, len(removed), _CHUNK):
        chunk = removed[begin : begin + _CHUNK]
        session.execute(delete(GpuEnergyRow).where(GpuEnergyRow.node_energy_row_id.in_(chunk)))
        session.execute(delete(NodeEnergyRow).where(NodeEnergyRow.row_id.in_(chunk)))
    if adopted:
        finish_reports(session, cluster, [job_id])
    for row_id in empty:
        session.execute(delete(JobAttemptRow).where(JobAttemptRow.job_row_id == row_id))
        session.execute(delete(JobRow).where(JobRow.row_id == row_id))
    return len(adopted)
