"""Measured energy: reports of nodes, each stored once, a better one in place of a worse."""

import logging
from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import (
    EnergyScope,
    EnergySource,
    GpuEnergy,
    HostEnergy,
    JobKey,
    NodeReport,
    QualityFlag,
)
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.clock_trials import trial_of, trial_rows
from slurm_energy.store.job_rows import Arrival, KnownJobs, submit_time_of, will_change
from slurm_energy.store.nodes import attempt_is_over, keep_host_shares
from slurm_energy.store.rollup_rows import take_out
from slurm_energy.store.sums import count_once, make_sums
from slurm_energy.store.tables import (
    NODE_LENGTH,
    NOT_ROLLED_UP,
    UUID_LENGTH,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
)
from slurm_energy.store.types import bounded, stored_text

logger = logging.getLogger(__name__)

HOST_NOT_MEASURED = "the node reported no processor energy"
JOBS_AT_ONCE = 500
"""Numbers of jobs in one statement."""
MAX_EVENTS = 1000
MAX_EVENT_TEXT = 1024
_UNKNOWN_ARRIVAL = Arrival()


class ReportOutcome(StrEnum):
    """What became of a report."""

    STORED = "stored"
    REPLACED = "replaced"
    """It was better than what was there: at least one row now has its figures."""
    UNCHANGED = "unchanged"


class Quality(IntEnum):
    """Rank of a reading; only a higher one takes the place of another, so that repeats change nothing."""

    UNKNOWN = 0
    TRUNCATED = 1
    """Joules without their tail. Between two of them, the one that covers more time stays."""
    WHOLE = 2


def record_report(
    session: Session,
    report: NodeReport,
    key: JobKey,
    *,
    submit_time_known: bool = True,
    arrival: Arrival = _UNKNOWN_ARRIVAL,
    known: KnownJobs | None = None,
) -> ReportOutcome:
    """Store what a node says of one attempt under `key`; a repeat changes nothing, also when sent at once.

    Args:
        session: Of the database.
        report: Of one node.
        key: Of the attempt.
        submit_time_known: False while the start stands in for it.
        arrival: What is known of the report beside its text.
        known: The jobs of its number, with what was reported of them; what is stored stays unfinished then, see
            `record_reports`.

    Raises:
        ValueRangeError: the report names a GPU twice, or another job than the key.
    """
    _check(report, key)
    finish, known = known is None, known or KnownJobs.load(session, key.cluster, [key.job_id], with_reports=True)
    job = known.locked(session, key, submit_time_known=submit_time_known)
    attempt = known.attempt(session, job, key.restart_count)
    _fill_job(job, attempt, report, key, arrival.clock_offset_seconds or 0.0)
    row = known.report_row(job, report)
    changed = row is not None and _improve(row, report, arrival)
    if job.rollup_hour != NOT_ROLLED_UP and (row is None or changed or will_change(session, job, attempt)):
        take_out(session, JobRow.row_id == job.row_id)
    if row is None:
        row = NodeEnergyRow(job_row_id=job.row_id, restart_count=key.restart_count, node=report.node)
        _write_node(row, report, arrival)
        row.gpus = [GpuEnergyRow(**_gpu_values(gpu)) for gpu in report.gpus]
        row.cluster = job.cluster
        row.trials = trial_rows(report.trials)
        session.add(row)
        known.reports[job.row_id, key.restart_count, stored_text(report.node, NODE_LENGTH)] = row
        if finish:
            session.flush()
            make_sums(session, NodeEnergyRow.row_id == row.row_id)
            keep_host_shares(session, NodeEnergyRow.row_id == row.row_id, attempt_is_over())
        return ReportOutcome.STORED
    if changed and finish:
        session.flush()
        make_sums(session, NodeEnergyRow.row_id == row.row_id)
    return ReportOutcome.REPLACED if changed else ReportOutcome.UNCHANGED


def record_reports(session: Session, arrived: Iterable[tuple[NodeReport, Arrival]]) -> None:
    """Store what nodes say, each report under the job that it belongs to, with few statements for all of them.

    A job that no snapshot has shown yet gets a stand-in until one does.

    Raises:
        ValueRangeError: a report names a GPU twice; nothing is to be kept then.
    """
    by_cluster: dict[ClusterName, list[tuple[NodeReport, Arrival]]] = {}
    for report, arrival in arrived:
        by_cluster.setdefault(report.cluster, []).append((report, arrival))
    for cluster, reports in by_cluster.items():
        numbers = [report.job_id for report, _ in reports]
        known = KnownJobs.load(session, cluster, numbers, with_reports=True)
        for report, arrival in reports:
            submitted = submit_time_of(session, report, arrival, known)
            key = JobKey(
                cluster=cluster,
                job_id=report.job_id,
                submitted_at_seconds=submitted.seconds,
                restart_count=report.restart_count,
            )
            outcome = record_report(
                session, report, key, submit_time_known=submitted.known, arrival=arrival, known=known
            )
            logger.debug("report stored job_id=%d node=%s outcome=%s", report.job_id, report.node, outcome)
        finish_reports(session, cluster, numbers)


def adopt_report(
    session: Session, row: NodeEnergyRow, stand_in: JobRow, job: JobRow, known: KnownJobs
) -> NodeEnergyRow:
    """Move a stored report from a stand-in to its job; where that has one of the node, the better of both stays there.

    Args:
        session: Of the database.
        row: Of the report. Unless it is what is returned, it is to be removed.
        stand_in: Under which it is stored.
        job: Whose it is.
        known: All jobs of the number, with what was reported of them; sums stay unfinished, see `record_reports`.
    """
    report, arrival = arrived_report(stand_in, row)
    key = JobKey(
        cluster=report.cluster,
        job_id=report.job_id,
        submitted_at_seconds=job.submitted_at_seconds,
        restart_count=report.restart_count,
    )
    there = known.report_row(job, report)
    del known.reports[row.job_row_id, row.restart_count, row.node]
    if there is not None:
        if record_report(session, report, key, arrival=arrival, known=known) is ReportOutcome.REPLACED:
            count_once(row, there)
        return there
    if job.rollup_hour != NOT_ROLLED_UP:
        take_out(session, JobRow.row_id == job.row_id)
    _fill_job(job, known.attempt(session, job, key.restart_count), report, key, arrival.clock_offset_seconds or 0.0)
    row.job_row_id = job.row_id
    known.reports[row.job_row_id, row.restart_count, row.node] = row
    return row


def finish_reports(session: Session, cluster: ClusterName, job_ids: Iterable[JobId]) -> None:
    """Make the sums and the hosts' shares of reports that were left unfinished, by the jobs' numbers."""
    numbers = sorted(set(job_ids))
    for begin in range(0, len(numbers), JOBS_AT_ONCE):
        jobs = (JobRow.cluster == cluster, JobRow.job_id.in_(numbers[begin : begin + JOBS_AT_ONCE]))
        session.flush()
        make_sums(session, *jobs)
        keep_host_shares(session, *jobs, attempt_is_over())


def stored_reports(
    session: Session, cluster: ClusterName, job_id: JobId, submitted_at_seconds: float | None = None
) -> tuple[NodeReport, ...]:
    """Return a job's reports by attempt and node, of the youngest job of that number unless the time is given."""
    query = select(JobRow).where(JobRow.cluster == cluster, JobRow.job_id == job_id)
    if submitted_at_seconds is not None:
        query = query.where(JobRow.submitted_at_seconds == submitted_at_seconds)
    job = session.scalar(query.order_by(JobRow.submitted_at_seconds.desc()).limit(1))
    return () if job is None else reports_of(session, job)


def reports_of(session: Session, job: JobRow) -> tuple[NodeReport, ...]:
    """Return all reports under a job's row."""
    rows = session.scalars(
        select(NodeEnergyRow)
        .where(NodeEnergyRow.job_row_id == job.row_id)
        .order_by(NodeEnergyRow.restart_count, NodeEnergyRow.node)
        .execution_options(populate_existing=True)
    )
    return tuple(_report(job, row) for row in rows)


def arrived_report(job: JobRow, row: NodeEnergyRow) -> tuple[NodeReport, Arrival]:
    """Return what is stored of a report under a job's row, and how it arrived."""
    return _report(job, row), _arrival(row)


def _arrival(row: NodeEnergyRow) -> Arrival:
    return Arrival(clock_offset_seconds=row.clock_offset_seconds, received_at_seconds=row.received_at_seconds)


def _check(report: NodeReport, key: JobKey) -> None:
    if (report.cluster, report.job_id, report.restart_count) != (key.cluster, key.job_id, key.restart_count):
        raise ValueRangeError(
            f"report of job {report.job_id} restart {report.restart_count} on {report.cluster[:64]!r} "
            f"came under the key of job {key.job_id} restart {key.restart_count} on {key.cluster[:64]!r}"
        )
    uuids = [gpu.gpu_uuid for gpu in report.gpus]
    if len(set(uuids)) < len(uuids):
        raise ValueRangeError(f"report of job {report.job_id} on {report.node[:64]!r} names a GPU twice")


def _fill_job(job: JobRow, attempt: JobAttemptRow, report: NodeReport, key: JobKey, offset_seconds: float) -> None:
    """Add what Slurm has not said of the job; what it says later wins."""
    started, ended = report.started_at_seconds + offset_seconds, report.ended_at_seconds + offset_seconds
    if job.user_id is None:
        job.user_id = report.user_id
    job.partition = job.partition or report.partition
    job.decision_id = job.decision_id or report.decision_id
    if not job.submit_time_known:
        job.restart_count = max(job.restart_count, key.restart_count)
        job.started_at_seconds = _smaller(job.started_at_seconds, started)
        job.ended_at_seconds = max(job.ended_at_seconds or 0.0, ended)
    attempt.partition = attempt.partition or report.partition
    if attempt.state is None:
        attempt.started_at_seconds = _smaller(attempt.started_at_seconds, started)
        attempt.ended_at_seconds = max(attempt.ended_at_seconds or 0.0, ended)
    else:
        attempt.started_at_seconds = attempt.started_at_seconds or started
        attempt.ended_at_seconds = attempt.ended_at_seconds or ended
    if attempt.exit_code is None:
        attempt.exit_code = report.exit_code


def _smaller(known: float | None, new: float) -> float:
    return new if known is None else min(known, new)


def _improve(row: NodeEnergyRow, report: NodeReport, arrival: Arrival) -> bool:
    stored = {gpu.gpu_uuid: gpu for gpu in row.gpus}
    changed = False
    for gpu in report.gpus:
        there = stored.get(stored_text(gpu.gpu_uuid, UUID_LENGTH))
        if there is None:
            row.gpus.append(GpuEnergyRow(**_gpu_values(gpu)))
            changed = True
        elif (_gpu_quality(gpu), _tail(gpu)) > (there.quality, _stored_tail(there)):
            for name, value in _gpu_values(gpu).items():
                setattr(there, name, value)
            changed = True
    if len(report.trials) > len(row.trials):
        row.trials.extend(trial_rows(report.trials)[len(row.trials) :])
        changed = True
    later = report.ended_at_seconds > row.ended_at_seconds
    # A row without GPUs was closed for a report that never came: now it has come.
    first_with_gpus = bool(report.gpus) and not stored
    quality = _node_quality(report)
    if quality > row.quality or (quality == row.quality and changed and (later or first_with_gpus)):
        _write_node(row, report, arrival)
        changed = True
    return changed


def _tail(gpu: GpuEnergy) -> float:
    return gpu.coverage_seconds if _gpu_quality(gpu) is Quality.TRUNCATED else 0.0


def _stored_tail(row: GpuEnergyRow) -> float:
    return row.coverage_seconds if row.quality == Quality.TRUNCATED else 0.0


def _gpu_quality(gpu: GpuEnergy) -> Quality:
    return _quality(gpu.joules, gpu.flags)


def _quality(joules: float | None, flags: tuple[QualityFlag, ...]) -> Quality:
    if joules is None:
        return Quality.UNKNOWN
    return Quality.TRUNCATED if QualityFlag.TRUNCATED in flags else Quality.WHOLE


def _node_quality(report: NodeReport) -> Quality:
    """Return the rank of a report's own row: that of its worst GPU, or of the host where there is none."""
    if report.gpus:
        return min(_gpu_quality(gpu) for gpu in report.gpus)
    return Quality.UNKNOWN if report.host is None else _quality(report.host.joules, report.host.flags)


def _write_node(row: NodeEnergyRow, report: NodeReport, arrival: Arrival) -> None:
    row.quality = int(_node_quality(report))
    row.user_id = report.user_id
    row.partition = report.partition
    row.decision_id = report.decision_id
    row.started_at_seconds = report.started_at_seconds
    row.ended_at_seconds = report.ended_at_seconds
    row.time_scale = report.time_scale
    row.exit_code = report.exit_code
    row.events = [bounded(event, MAX_EVENT_TEXT) for event in report.events[:MAX_EVENTS]]
    if len(report.events) > MAX_EVENTS:
        row.events.append(f"{len(report.events) - MAX_EVENTS} more events were left out")
    row.received_at_seconds = arrival.received_at_seconds
    row.clock_offset_seconds = arrival.clock_offset_seconds
    row.counted_at_seconds = report.ended_at_seconds + (arrival.clock_offset_seconds or 0.0)
    host = report.host
    row.host_measured = host is not None
    row.host_joules = None if host is None else host.joules
    row.host_reason = HOST_NOT_MEASURED if host is None else host.reason
    row.host_coverage_seconds = 0.0 if host is None else host.coverage_seconds
    row.host_node_joules = None if host is None else host.node_joules
    row.host_flags = encode_flags(() if host is None else host.flags)
    row.host_meter_id = None if host is None else host.meter_id
    row.host_meter_start_joules = None if host is None else host.meter_start_joules
    row.host_meter_end_joules = None if host is None else host.meter_end_joules


def _gpu_values(gpu: GpuEnergy) -> dict[str, Any]:
    return {
        "gpu_uuid": gpu.gpu_uuid,
        "quality": int(_gpu_quality(gpu)),
        "gpu_name": gpu.gpu_name,
        "gpu_type": gpu.gpu_type,
        "joules": gpu.joules,
        "reason": gpu.reason,
        "source": gpu.source.value,
        "scope": gpu.scope.value,
        "coverage_seconds": gpu.coverage_seconds,
        "flags": encode_flags(gpu.flags),
        "counter_joules": gpu.counter_joules,
        "polled_joules": gpu.polled_joules,
        "asked_clock_mhz": gpu.asked_clock_mhz,
        "applied_clock_mhz": gpu.applied_clock_mhz,
        "observed_clock_mhz": gpu.observed_clock_mhz,
        "default_clock_mhz": gpu.default_clock_mhz,
        "utilisation": gpu.utilisation,
    }


def encode_flags(flags: tuple[QualityFlag, ...]) -> str:
    """Return `,a,b,` so that SQL finds a flag with LIKE '%,a,%'; empty for none."""
    return f",{','.join(flags)}," if flags else ""


def decode_flags(text: str) -> tuple[QualityFlag, ...]:
    """Return the flags of `encode_flags`."""
    return tuple(QualityFlag(flag) for flag in text.split(",") if flag)


def _report(job: JobRow, row: NodeEnergyRow) -> NodeReport:
    host = None
    if row.host_measured:
        host = HostEnergy(
            joules=row.host_joules,
            reason=row.host_reason,
            coverage_seconds=row.host_coverage_seconds,
            node_joules=row.host_node_joules,
            flags=decode_flags(row.host_flags),
            meter_id=row.host_meter_id,
            meter_start_joules=row.host_meter_start_joules,
            meter_end_joules=row.host_meter_end_joules,
        )
    return NodeReport(
        cluster=ClusterName(job.cluster),
        job_id=JobId(job.job_id),
        restart_count=row.restart_count,
        node=NodeName(row.node),
        user_id=row.user_id,
        partition=row.partition,
        decision_id=None if row.decision_id is None else DecisionId(row.decision_id),
        started_at_seconds=row.started_at_seconds,
        ended_at_seconds=row.ended_at_seconds,
        time_scale=row.time_scale,
        gpus=tuple(_gpu(gpu) for gpu in row.gpus),
        host=host,
        exit_code=row.exit_code,
        events=tuple(row.events),
        trials=tuple(trial_of(trial) for trial in row.trials),
    )


def _gpu(row: GpuEnergyRow) -> GpuEnergy:
    return GpuEnergy(
        gpu_uuid=GpuUuid(row.gpu_uuid),
        gpu_name=row.gpu_name,
        gpu_type=None if row.gpu_type is None else GpuTypeName(row.gpu_type),
        joules=row.joules,
        reason=row.reason,
        source=EnergySource(row.source),
        scope=EnergyScope(row.scope),
        coverage_seconds=row.coverage_seconds,
        flags=decode_flags(row.flags),
        counter_joules=row.counter_joules,
        polled_joules=row.polled_joules,
        asked_clock_mhz=row.asked_clock_mhz,
        applied_clock_mhz=row.applied_clock_mhz,
        observed_clock_mhz=row.observed_clock_mhz,
        default_clock_mhz=row.default_clock_mhz,
        utilisation=row.utilisation,
    )
