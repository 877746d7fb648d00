"""Reports straight from the database, when the daemon is away or another database is meant. Nothing is written."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from slurm_energy.cli.records import Filter, sqlite_path
from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId, PartitionName
from slurm_energy.domain.report import EnergyReport, ExplainRecord
from slurm_energy.errors import StoreError
from slurm_energy.store.explain import explain
from slurm_energy.store.reports import report_jobs, report_partitions, report_users
from slurm_energy.store.schema import check_version
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.summaries import JobFilter


@contextmanager
def reading(store: StoreConfig) -> Iterator[Session]:
    """Yield a session that only reads, on a database that has this code's schema.

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
            yield session
    finally:
        engine.dispose()


def report_from_database(store: StoreConfig, cluster: ClusterName, subject: str, where: Filter) -> EnergyReport:
    """Return a report of `report-job`, `report-user` or `report-partition`."""
    build = {"report-job": report_jobs, "report-user": report_users, "report-partition": report_partitions}[subject]
    with reading(store) as session:
        return build(session, job_filter(cluster, where))


def job_filter(cluster: ClusterName, where: Filter) -> JobFilter:
    """Return the store's filter."""
    return JobFilter(
        cluster=cluster,
        job_id=None if where.job_id is None else JobId(where.job_id),
        user_name=where.user_name,
        partition=None if where.partition is None else PartitionName(where.partition),
        since_seconds=where.since_seconds,
        until_seconds=where.until_seconds,
    )


def explain_from_database(store: StoreConfig, cluster: ClusterName, job_id: JobId) -> ExplainRecord:
    """Return a job's whole story.

    Raises:
        StoreError: the job is not in the database.
    """
    with reading(store) as session:
        record = explain(session, cluster, job_id)
    if record is None:
        raise StoreError(f"job {job_id} of cluster {cluster} is not in the database")
    return record
