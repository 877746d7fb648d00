"""Energy per job, user and partition."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from sqlalchemy import Row, case, func, null, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import EnergyError, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, JobId, PartitionName
from slurm_energy.domain.report import EnergyReport, EnergySum, GroupEnergyRecord, JobEnergyRecord
from slurm_energy.store.energy import decode_flags
from slurm_energy.store.summaries import SUM_NAMES, JobFilter, energy_is_missing, job_summaries
from slurm_energy.store.tables import GpuEnergyRow, JobRow, NodeEnergyRow

DEFAULT_ROW_LIMIT = 10_000
UNKNOWN_GROUP = "(unknown)"
TOTAL_GROUP = "total"
MAX_REASONS = 8
_CHUNK = 500


def report_jobs(session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT) -> EnergyReport:
    """Return one row per job, newest submission first, and the total of all, also of those over the limit."""
    total = _groups(session, where, "total")
    order = (JobRow.submitted_at_seconds.desc(), JobRow.job_id.desc())
    rows = session.execute(job_summaries(where, JobRow).order_by(*order).limit(limit)).all()
    notes = _notes(session, [row.JobRow.row_id for row in rows])
    jobs = tuple(_job(row, notes.get(row.JobRow.row_id, ())) for row in rows)
    whole = total[0] if total else _nothing(TOTAL_GROUP)
    return EnergyReport(
        kind="job",
        cluster=where.cluster,
        total=whole,
        jobs=jobs,
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
        rows_left_out=max(0, whole.jobs - len(jobs)),
    )


def report_users(session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT) -> EnergyReport:
    """Return one row per user, most GPU energy first."""
    return _group_report(session, where, "user", limit)


def report_partitions(session: Session, where: JobFilter, limit: int = DEFAULT_ROW_LIMIT) -> EnergyReport:
    """Return one row per partition, most GPU energy first."""
    return _group_report(session, where, "partition", limit)


def job_energy(session: Session, cluster: ClusterName, job_id: JobId) -> tuple[JobEnergyRecord, ...]:
    """Return the jobs of that number: several for an array, a heterogeneous job, or a number used again."""
    return report_jobs(session, JobFilter(cluster=cluster, job_id=job_id)).jobs


def _group_report(session: Session, where: JobFilter, kind: Literal["user", "partition"], limit: int) -> EnergyReport:
    groups = sorted(_groups(session, where, kind), key=lambda group: (-(group.gpu.joules or 0.0), group.group))
    total = _groups(session, where, "total")
    return EnergyReport(
        kind=kind,
        cluster=where.cluster,
        total=total[0] if total else _nothing(TOTAL_GROUP),
        groups=tuple(groups[:limit]),
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
        rows_left_out=max(0, len(groups) - limit),
    )


def _groups(session: Session, where: JobFilter, kind: str) -> list[GroupEnergyRecord]:
    name, number = _group_columns(kind)
    jobs = job_summaries(where, name.label("group_name"), number.label("group_number")).subquery("job_sums")
    columns = jobs.c
    sums = [
        func.sum(columns[f"{prefix}_{field}"]).label(f"{prefix}_{field}")
        for prefix in ("gpu", "host")
        for field in SUM_NAMES
    ]
    query = select(
        columns.group_name,
        columns.group_number,
        func.count().label("jobs"),
        func.sum(case((energy_is_missing(columns), 1), else_=0)).label("jobs_without_energy"),
        func.avg(columns.wait_seconds).label("wait_seconds"),
        func.avg(columns.run_seconds).label("run_seconds"),
        func.sum(columns.saving_joules).label("saving_joules"),
        *sums,
    ).group_by(columns.group_name, columns.group_number)
    return [_group(kind, row) for row in session.execute(query)]


def _group_columns(kind: str) -> tuple[Any, Any]:
    if kind == "user":
        return JobRow.user_name, case((JobRow.user_name.is_(None), JobRow.user_id), else_=null())
    if kind == "partition":
        return JobRow.partition, case((JobRow.row_id < 0, JobRow.row_id), else_=null())
    nothing = case((JobRow.row_id < 0, JobRow.row_id), else_=null())
    return nothing, nothing


def _group(kind: str, row: Row[Any]) -> GroupEnergyRecord:
    if kind == "total":
        label = TOTAL_GROUP
    elif row.group_name is not None:
        label = row.group_name
    else:
        label = UNKNOWN_GROUP if row.group_number is None else f"uid {row.group_number}"
    return GroupEnergyRecord(
        group=label,
        jobs=int(row.jobs),
        jobs_without_energy=int(row.jobs_without_energy or 0),
        gpu=_energy_sum(row, "gpu"),
        host=_energy_sum(row, "host"),
        mean_wait_seconds=_number(row.wait_seconds),
        mean_run_seconds=_number(row.run_seconds),
        saving_joules=_number(row.saving_joules),
    )


def _nothing(label: str) -> GroupEnergyRecord:
    empty = EnergySum(joules=None)
    return GroupEnergyRecord(group=label, jobs=0, jobs_without_energy=0, gpu=empty, host=empty)


def _energy_sum(row: Row[Any], prefix: str) -> EnergySum:
    values = {name: getattr(row, f"{prefix}_{name}") for name in SUM_NAMES}
    joules, window = _number(values["joules"]), _number(values["window_seconds"])
    error = None
    if joules and not values["unbounded"] and values["timing_squares"] is not None:
        error = EnergyError(timing=min(1.0, math.sqrt(float(values["timing_squares"])) / joules))
    return EnergySum(
        joules=joules,
        readings=int(values["readings"] or 0),
        unknown_readings=int(values["unknown_readings"] or 0),
        coverage_share=min(1.0, float(values["covered_seconds"] or 0.0) / window) if window else None,
        error_share=None if error is None else error.total,
        timing_error_share=None if error is None else error.timing,
        calibration_error_share=None if error is None else error.calibration,
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _notes(session: Session, row_ids: Sequence[int]) -> dict[int, list[tuple[str, str | None]]]:
    """Return (flags, reason) of every reading, by job row."""
    notes: dict[int, list[tuple[str, str | None]]] = {}
    for begin in range(0, len(row_ids), _CHUNK):
        chunk = row_ids[begin : begin + _CHUNK]
        node = NodeEnergyRow
        of_gpus = (
            select(node.job_row_id, GpuEnergyRow.flags, GpuEnergyRow.reason)
            .join(node, node.row_id == GpuEnergyRow.node_energy_row_id)
            .where(node.job_row_id.in_(chunk))
            .distinct()
        )
        # That a node has no reading of its processors at all is no news in a GPU report.
        host_reason = case((node.host_measured, node.host_reason), else_=null())
        of_hosts = select(node.job_row_id, node.host_flags, host_reason).where(node.job_row_id.in_(chunk)).distinct()
        for query in (of_gpus, of_hosts):
            for row_id, flags, reason in session.execute(query):
                notes.setdefault(row_id, []).append((flags, reason))
    return notes


def _job(row: Row[Any], notes: Iterable[tuple[str, str | None]]) -> JobEnergyRecord:
    job: JobRow = row.JobRow
    flags = {flag for text, _ in notes for flag in decode_flags(text)}
    if not job.submit_time_known:
        flags.add(QualityFlag.SUBMIT_TIME_UNKNOWN)
    return JobEnergyRecord(
        cluster=ClusterName(job.cluster),
        job_id=JobId(job.job_id),
        submitted_at_seconds=job.submitted_at_seconds,
        submit_time_known=job.submit_time_known,
        gpu=_energy_sum(row, "gpu"),
        host=_energy_sum(row, "host"),
        attempts=int(row.attempts),
        name=job.name,
        user_id=job.user_id,
        user_name=job.user_name,
        account=job.account,
        partition=None if job.partition is None else PartitionName(job.partition),
        array_job_id=None if job.array_job_id is None else JobId(job.array_job_id),
        array_task=job.array_task,
        state=job.state,
        started_at_seconds=_number(row.first_start),
        ended_at_seconds=job.ended_at_seconds,
        wait_seconds=_number(row.wait_seconds),
        run_seconds=_number(row.run_seconds),
        gpu_count=job.gpu_count,
        exit_code=job.exit_code,
        decision_id=None if job.decision_id is None else DecisionId(job.decision_id),
        saving_joules=_number(row.saving_joules),
        flags=tuple(sorted(flags)),
        unknown_reasons=tuple(sorted({reason for _, reason in notes if reason is not None})[:MAX_REASONS]),
    )
