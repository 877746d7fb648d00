"""Reports that came before Slurm's word on their job: they move to it once it is known."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import JobKey
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.store.energy import arrived_reports, record_report
from slurm_energy.store.report_match import job_of_report
from slurm_energy.store.tables import GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow


def adopt_provisional(session: Session, cluster: ClusterName, job_id: JobId) -> int:
    """Move reports stored under a stand-in submit time to the job they belong to; return how many."""
    stand_ins = select(JobRow).where(
        JobRow.cluster == cluster, JobRow.job_id == job_id, JobRow.submit_time_known.is_(False)
    )
    moved = 0
    for stand_in in session.scalars(stand_ins).all():
        left = 0
        for row_id, report, arrival in arrived_reports(session, stand_in):
            job = job_of_report(session, report, arrival, submit_time_known=True)
            if job is None:
                left += 1
                continue
            _remove_node(session, row_id)
            key = JobKey(
                cluster=cluster,
                job_id=job_id,
                submitted_at_seconds=job.submitted_at_seconds,
                restart_count=report.restart_count,
            )
            record_report(session, report, key, arrival=arrival)
            moved += 1
        if not left:
            session.execute(delete(JobAttemptRow).where(JobAttemptRow.job_row_id == stand_in.row_id))
            session.execute(delete(JobRow).where(JobRow.row_id == stand_in.row_id))
    return moved


def _remove_node(session: Session, row_id: int) -> None:
    session.execute(delete(GpuEnergyRow).where(GpuEnergyRow.node_energy_row_id == row_id))
    session.execute(delete(NodeEnergyRow).where(NodeEnergyRow.row_id == row_id))
