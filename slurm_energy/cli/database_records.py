"""Reports straight from the database, when the daemon is away or another database is meant. Nothing is written."""

from collections.abc import Callable
from typing import TypeVar

from slurm_energy.cli.record_filter import Filter, sqlite_path
from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import DecisionRecord, EnergyReport, ExplainRecord
from slurm_energy.errors import StoreError
from slurm_energy.store.decisions import DEFAULT_DECISIONS, recent_decisions
from slurm_energy.store.explain import explain
from slurm_energy.store.reports import report_jobs, report_partitions, report_users
from slurm_energy.store.schema import check_version
from slurm_energy.store.session import Session, open_engine, store_session
from slurm_energy.store.summaries import JobFilter

_Result = TypeVar("_Result")
_REPORTS = {"report-job": report_jobs, "report-user": report_users, "report-partition": report_partitions}


def read(store: StoreConfig, work: Callable[..., _Result]) -> _Result:
    """Return `work(session)` on a database that has this code's schema; it may only read.

    Raises:
        StoreError: missing, not reachable, or of another version.
    """
    path = sqlite_path(store.url)
    if path is not None and not path.is_file():
        raise StoreError(f"database file {path} does not exist")
    engine = open_engine(store)
    try:
        check_version(engine)
        with store_session(engine, read_only=True) as session:
            return work(session)
    finally:
        engine.dispose()


def report_from_database(store: StoreConfig, cluster: ClusterName, subject: str, where: Filter) -> EnergyReport:
    """Return a report of `report-job`, `report-user` or `report-partition`."""
    chosen = JobFilter(
        cluster=cluster,
        job_id=None if where.job_id is None else JobId(where.job_id),
        user_name=where.user_name,
        partition=where.partition,
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
    )
    return read(store, lambda session: _REPORTS[subject](session, chosen))


def decisions_from_database(store: StoreConfig, cluster: ClusterName, where: Filter) -> tuple[DecisionRecord, ...]:
    """Return decisions, newest first."""

    def find(session: Session) -> tuple[DecisionRecord, ...]:
        return recent_decisions(
            session,
            cluster,
            user_name=where.user_name,
            job_id=where.job_id,
            partition=where.partition,
            since_seconds=where.since_seconds,
            until_seconds=where.until_seconds,
            limit=where.limit or DEFAULT_DECISIONS,
        )

    return read(store, find)


def explain_from_database(store: StoreConfig, cluster: ClusterName, job_id: JobId) -> ExplainRecord:
    """Return a job's whole story.

    Raises:
        StoreError: the job is not in the database.
    """
    record = read(store, lambda session: explain(session, cluster, job_id))
    if record is None:
        raise StoreError(f"job {job_id} of cluster {cluster} is not in the database")
    return record
