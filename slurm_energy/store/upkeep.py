"""Upkeep of the database: remove what is old, copy it while it is in use, inform its planner, give space back."""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnElement, Engine, and_, delete, exists, func, not_, or_, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import StoreError
from slurm_energy.store.database_file import sqlite_path
from slurm_energy.store.rollup_rows import take_out
from slurm_energy.store.session import database_name, run_in_transaction
from slurm_energy.store.tables import Base, DecisionRow, JobRow, NodeEnergyRow

JOBS_AT_ONCE = 500
"""Removed in one transaction, which the recording waits for."""
ANALYSED_ROWS = 2_000
"""Of each index, that SQLite looks at: enough for its planner, and quick however large the database is."""
_ALIVE = ("PENDING", "RUNNING", "SUSPENDED")
_DUMPS = {
    "postgresql": "pg_dump --format=custom --file=FILE DATABASE",
    "mariadb": "mariadb-dump --single-transaction DATABASE > FILE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OldRows:
    """How much there is to remove."""

    jobs: int
    decisions: int
    """That no job carries."""


def count_old(session: Session, cluster: ClusterName, before_seconds: float) -> OldRows:
    """Return what `prune` would remove of one cluster."""
    jobs = session.scalar(select(func.count()).select_from(JobRow).where(_is_old_job(cluster, before_seconds)))
    decisions = session.scalar(
        select(func.count()).select_from(DecisionRow).where(_is_old_decision(cluster, before_seconds, kept=True))
    )
    return OldRows(jobs=jobs or 0, decisions=decisions or 0)


def prune_some(session: Session, cluster: ClusterName, before_seconds: float, limit: int = JOBS_AT_ONCE) -> int:
    """Remove the oldest jobs that were over by then, with their energy, and decisions without a job; return how many.

    Reports no longer know that time, and estimates no longer learn from it. A job that still waits or runs stays, and
    so does one of which a node reported energy that reports count later, by the daemon's clock.
    """
    jobs = session.execute(
        select(JobRow.row_id, JobRow.decision_id).where(_is_old_job(cluster, before_seconds)).limit(limit)
    ).all()
    of_jobs = JobRow.row_id.in_([row_id for row_id, _ in jobs])
    take_out(session, of_jobs)
    session.execute(delete(JobRow).where(of_jobs))
    session.flush()
    decisions = session.scalars(
        select(DecisionRow.decision_id).where(_is_old_decision(cluster, before_seconds, kept=False)).limit(limit)
    ).all()
    session.execute(delete(DecisionRow).where(DecisionRow.decision_id.in_(decisions)))
    return len(jobs) + len(decisions)


def prune(engine: Engine, cluster: ClusterName, before_seconds: float) -> int:
    """Remove everything that `prune_some` removes, in transactions that each let the recording through."""
    removed = 0
    while True:
        part = run_in_transaction(engine, lambda session: prune_some(session, cluster, before_seconds))
        removed += part
        if not part:
            return removed


def _is_old_job(cluster: ClusterName, before_seconds: float) -> ColumnElement[bool]:
    never_ended = func.coalesce(JobRow.started_at_seconds, JobRow.submitted_at_seconds) < before_seconds
    counted_later = exists().where(
        NodeEnergyRow.job_row_id == JobRow.row_id, NodeEnergyRow.counted_at_seconds >= before_seconds
    )
    is_over = and_(or_(JobRow.state.is_(None), JobRow.state.not_in(_ALIVE)), not_(counted_later))
    return or_(
        and_(JobRow.cluster == cluster, JobRow.ended_at_seconds < before_seconds, is_over),
        and_(JobRow.cluster == cluster, JobRow.ended_at_seconds.is_(None), never_ended, is_over),
    )


def _is_old_decision(cluster: ClusterName, before_seconds: float, *, kept: bool) -> ColumnElement[bool]:
    """Return whether a decision is old and has no job; with `kept`, also none that is to be kept."""
    carried = exists().where(JobRow.decision_id == DecisionRow.decision_id)
    if kept:
        carried = exists().where(
            JobRow.decision_id == DecisionRow.decision_id, not_(_is_old_job(cluster, before_seconds))
        )
    return and_(DecisionRow.cluster == cluster, DecisionRow.decided_at_seconds < before_seconds, not_(carried))


def backup(engine: Engine, target: Path) -> int:
    """Copy an SQLite database into a new file as it is at this moment, while others write; return its bytes.

    Raises:
        StoreError: another kind of database, the file exists, or it cannot be written.
    """
    source = sqlite_path(engine.url) if engine.url.get_backend_name() == "sqlite" else None
    if source is None:
        tool = _DUMPS.get(engine.url.get_backend_name(), "its own tools")
        raise StoreError(f"{database_name(engine)} is no SQLite file: copy it with {tool}")
    if target.exists():
        raise StoreError(f"{target} exists: name a file that does not, an older backup is not written over")
    part = target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as here,
            closing(sqlite3.connect(part)) as there,
        ):
            here.backup(there)
            problem = there.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreError(f"the copy of {source} is damaged: {problem}; so may the database be, keep older backups")
        descriptor = os.open(part, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        part.rename(target)
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from error
    return target.stat().st_size


def optimize(engine: Engine, *, give_back_space: bool = False) -> None:
    """Let the database count its rows again for its planner; it may be in use.

    Args:
        engine: Of the database.
        give_back_space: Also return the space of removed rows to the file system: needs as much room again, and what is
            recorded waits that long (SQLite) or for each table (others).

    Raises:
        StoreError: the database failed.
    """
    backend = engine.url.get_backend_name()
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    if backend == "sqlite":
        statements = [f"PRAGMA analysis_limit = {ANALYSED_ROWS}", "ANALYZE"]
        statements += ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"] if give_back_space else []
    elif backend == "postgresql":
        statements = ["VACUUM (FULL, ANALYZE)" if give_back_space else "ANALYZE"]
    else:
        statements = [f"OPTIMIZE TABLE {tables}" if give_back_space else f"ANALYZE TABLE {tables}"]
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                if backend == "sqlite":
                    # SQLAlchemy begins a transaction by itself here, in which none of these is allowed.
                    connection.connection.driver_connection.execute(statement)  # type: ignore[union-attr]  # SQLite's
                else:
                    connection.execute(text(statement))
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise StoreError(f"database {database_name(engine)} failed: {' '.join(str(error).split())[:500]}") from error
