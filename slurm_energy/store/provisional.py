"""Reports that came before Slurm's word on their job: they move to it once it is known."""

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import JobKey
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.store.energy import record_report, reports_of
from slurm_energy.store.job_rows import CLOCK_SKEW_SECONDS
from slurm_energy.store.tables import GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow


def adopt_provisional(session: Session, job: JobRow) -> int:
    """Move reports stored under a stand-in submit time to the job they belong to; return how many."""
    moved = 0
    for stand_in in session.scalars(_stand_ins(job)).all():
        reports = reports_of(session, stand_in)
        _remove(session, stand_in)
        for report in reports:
            key = JobKey(
                cluster=ClusterName(job.cluster),
                job_id=JobId(job.job_id),
                submitted_at_seconds=job.submitted_at_seconds,
                restart_count=report.restart_count,
            )
            record_report(session, report, key)
            moved += 1
    return moved


def _stand_ins(job: JobRow) -> Select[JobRow]:
    query = select(JobRow).where(
        JobRow.cluster == job.cluster,
        JobRow.job_id == job.job_id,
        JobRow.submit_time_known.is_(False),
        JobRow.submitted_at_seconds >= job.submitted_at_seconds - CLOCK_SKEW_SECONDS,
    )
    if job.ended_at_seconds is not None:
        query = query.where(JobRow.submitted_at_seconds <= job.ended_at_seconds + CLOCK_SKEW_SECONDS)
    return query


def _remove(session: Session, stand_in: JobRow) -> None:
    nodes = select(NodeEnergyRow.row_id).where(NodeEnergyRow.job_row_id == stand_in.row_id)
    session.execute(delete(GpuEnergyRow).where(GpuEnergyRow.node_energy_row_id.in_(nodes)))
    session.execute(delete(NodeEnergyRow).where(NodeEnergyRow.job_row_id == stand_in.row_id))
    session.execute(delete(JobAttemptRow).where(JobAttemptRow.job_row_id == stand_in.row_id))
    session.execute(delete(JobRow).where(JobRow.row_id == stand_in.row_id))
