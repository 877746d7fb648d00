"""Engines and sessions: SQLite for one machine, PostgreSQL or MariaDB for a site.

Also what callers of the store need of SQLAlchemy, so that they import none of it themselves.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.orm import Session

from slurm_energy.config import StoreConfig
from slurm_energy.errors import StoreError, ValueRangeError
from slurm_energy.forms import DATABASE_DRIVERS, database_driver
from slurm_energy.resources import install_command
from slurm_energy.store.database_file import sqlite_path, watch_file
from slurm_energy.store.tables import JournalPositionRow

# Other packages take SQLAlchemy's Engine and Session from here: they hold them, and write no SQL.
__all__ = [
    "Engine",
    "Session",
    "StoredPosition",
    "database_name",
    "is_about_the_values",
    "open_engine",
    "reading",
    "refuses_values",
    "run_in_transaction",
    "store_position",
    "store_session",
    "store_url",
    "stored_position",
]

SQLITE_FILE_MODE = 0o640
TRANSACTION_ATTEMPTS = 8
_STEPS_BETWEEN_LOOKS = 20_000
"""Of SQLite's machine, between two looks at the clock: about a millisecond."""
_READ_ONLY = "slurm_energy_read_only"
# PostgreSQL: serialization_failure, deadlock_detected. MariaDB: lock wait timeout, deadlock, row changed (1020).
_RETRIED_STATES = frozenset({"40001", "40P01"})
_RETRIED_CODES = frozenset({1205, 1213, 1020})

Result = TypeVar("Result")
_TOO_LONG = "it takes too long: ask for a shorter time, or for fewer rows"
_NEXT_STEPS = {
    "unable to open database file": "it or its folder is closed to this user: ask while slurm-energyd runs, or as root",
    "readonly database": "this user may not write to it or to its folder: run this as the daemon's user",
    "file is not a database": "it is no SQLite database: check store.url, or put back a backup",
    "malformed": "it is damaged: put back a backup",
    "database is locked": "another process writes to it: try again, or see who with fuser -v",
    "Connection refused": "start the database server, or check store.url",
    "interrupted": _TOO_LONG,
    "statement timeout": _TOO_LONG,
    "max_statement_time": _TOO_LONG,
    "no such table": "slurm-energy database upgrade makes its tables",
}


def store_url(text: str) -> URL:
    """Return the URL with the driver that this package uses.

    Raises:
        StoreError: not a URL, or a database that is not supported.
    """
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise StoreError("store.url is not a database URL such as sqlite:////var/lib/energy.sqlite") from error
    supported = database_driver(url.drivername)
    if supported is None:
        raise StoreError(f"database {url.drivername} is not supported: use {', '.join(DATABASE_DRIVERS.values())}")
    return url.set(drivername=supported)


def open_engine(config: StoreConfig) -> Engine:
    """Return an engine; a missing SQLite file is created with mode 0640, its folder must exist.

    Raises:
        StoreError: the URL cannot be used, its driver is not installed or the file cannot be created.
    """
    url = store_url(config.url)
    try:
        if url.get_backend_name() == "sqlite":
            _create_sqlite_file(url)
            engine = create_engine(url, connect_args={"timeout": config.busy_timeout_seconds})
            _use_sqlite_well(engine, config.busy_timeout_seconds)
            watch_file(engine)
            return engine
        options: dict[str, Any] = {"isolation_level": "READ COMMITTED", "pool_pre_ping": True, "pool_recycle": 1800}
        if url.get_backend_name() == "mariadb":
            # Strict: a value that does not fit is an error, never a shorter value.
            strict = "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'"
            options["connect_args"] = {"charset": "utf8mb4", "init_command": strict}
        return create_engine(url, **options)
    except ModuleNotFoundError as error:
        extra = url.get_backend_name()
        raise StoreError(f"driver {error.name} is missing: {install_command(extra)}") from error


def _create_sqlite_file(url: URL) -> None:
    path = sqlite_path(url)
    if path is None:
        return
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, SQLITE_FILE_MODE))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"database file {path} cannot be created: {error.strerror}") from error


def _use_sqlite_well(engine: Engine, busy_timeout_seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late to lock; see _on_begin
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {int(busy_timeout_seconds * 1000)}")
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")  # the journal is given up once rows are committed
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        # A writer that reads first must hold the write lock from the start: SQLite never waits for an upgrade.
        read_only = connection.get_execution_options().get(_READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def reading(engine: Engine) -> Engine:
    """Return the engine for transactions that only read: on SQLite they never wait for a writer.

    All statements of such a transaction see the database as of one moment, on every kind of database.
    """
    options: dict[str, Any] = {_READ_ONLY: True}
    if engine.url.get_backend_name() != "sqlite":
        options["isolation_level"] = "REPEATABLE READ"
    return engine.execution_options(**options)


@contextmanager
def store_session(engine: Engine, *, read_only: bool = False, limit_seconds: float | None = None) -> Iterator[Session]:
    """Yield a session that commits at the end, or rolls back on an error and when `read_only`.

    Args:
        engine: Of the database.
        read_only: Nothing is kept.
        limit_seconds: Stops a statement that takes longer, so that no one waits behind it; None: no limit.

    Raises:
        StoreError: the database failed, or a statement took too long; the message has no password.
    """
    session = Session(reading(engine) if read_only else engine, expire_on_commit=False)
    try:
        with _time_limit(session, limit_seconds):
            yield session
        if read_only:
            session.rollback()
        else:
            session.commit()
    except SQLAlchemyError as error:
        raise _translated(engine, error) from error
    finally:
        session.close()


@contextmanager
def _time_limit(session: Session, limit_seconds: float | None) -> Iterator[None]:
    """Limit the time of the session's statements: of each one on a server, of all together on SQLite."""
    if limit_seconds is None:
        yield
        return
    connection = session.connection()
    backend = connection.dialect.name
    if backend == "sqlite":
        driver: Any = connection.connection.driver_connection
        end = time.monotonic() + limit_seconds
        driver.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)
        try:
            yield
        finally:
            driver.set_progress_handler(None, 0)
        return
    if backend == "postgresql":
        session.execute(text(f"SET LOCAL statement_timeout = {int(limit_seconds * 1000)}"))
        yield
        return
    session.execute(text(f"SET SESSION max_statement_time = {limit_seconds:g}"))
    try:
        yield
    finally:
        with suppress(SQLAlchemyError):  # a connection that is lost has no limit any more
            session.execute(text("SET SESSION max_statement_time = DEFAULT"))


def run_in_transaction(engine: Engine, work: Callable[[Session], Result]) -> Result:
    """Return `work(session)` after its commit; repeats it when the database asks for that (deadlock, lock wait).

    `work` must do nothing but use the session, since it may run several times.
    """
    for attempt in range(1, TRANSACTION_ATTEMPTS + 1):
        try:
            with store_session(engine) as session:
                return work(session)
        except StoreError as error:
            if attempt == TRANSACTION_ATTEMPTS or not _worth_repeating(error.__cause__):
                raise
            time.sleep(random.uniform(0.0, 0.02) * 2**attempt)  # noqa: S311  # spreads the repeats, guards nothing
    raise AssertionError("unreachable")


def query_results(url: str, queries: Sequence[str]) -> list[tuple[list[str], list[Sequence[object]]]]:
    """Return the column names and rows of queries of any database, a user's own too; nothing is committed.

    Raises:
        StoreError: it cannot be opened, or refuses a query.
    """
    try:
        engine = create_engine(url)
    except (SQLAlchemyError, ImportError) as error:
        raise StoreError(f"the database cannot be opened by its address: {type(error).__name__}") from error
    try:
        with engine.connect() as connection:
            found = [connection.execute(text(query)) for query in queries]
            return [(list(one.keys()), list(one.fetchall())) for one in found]
    except SQLAlchemyError as error:
        raise _translated(engine, error) from error
    finally:
        engine.dispose()


def refuses_values(error: Exception) -> bool:
    """Return whether the values are at fault, not the database: storing them again cannot succeed."""
    cause = error.__cause__ if isinstance(error, StoreError) else error
    # A plain StatementError comes from before the database: a value that cannot be sent.
    return isinstance(cause, ValueRangeError | DataError | IntegrityError) or type(cause) is StatementError


def _worth_repeating(error: BaseException | None) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    original = error.orig
    if getattr(original, "sqlstate", None) in _RETRIED_STATES:
        return True
    code = original.args[0] if original is not None and original.args else None
    return code in _RETRIED_CODES or (isinstance(error, OperationalError) and "database is locked" in str(original))


def _translated(engine: Engine, error: SQLAlchemyError) -> StoreError:
    where = engine.url.render_as_string(hide_password=True)
    detail = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return StoreError(f"database {where} failed: {' '.join(detail.split())[:500]}{next_step(detail)}")


def next_step(detail: str) -> str:
    """Return what a person can do about a driver's complaint, with a semicolon in front; nothing where none is."""
    return next((f"; {step}" for words, step in _NEXT_STEPS.items() if words in detail), "")


def is_about_the_values(error: StoreError) -> bool:
    """Return whether the database refuses what it was given, so that trying again is of no use."""
    cause = error.__cause__
    return isinstance(cause, DataError | IntegrityError) or type(cause) is StatementError


def database_name(engine: Engine) -> str:
    """Return the database's URL without its password."""
    return engine.url.render_as_string(hide_password=True)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StoredPosition:
    """Everything before this place of a stream is stored."""

    segment: int
    byte_offset: int


def stored_position(session: Session, journal_id: str, stream: str) -> StoredPosition | None:
    """Return how far a stream of a journal is stored, None when this database has never seen it."""
    row = session.get(JournalPositionRow, (journal_id, stream), populate_existing=True)
    return None if row is None else StoredPosition(segment=row.segment, byte_offset=row.byte_offset)


def store_position(session: Session, journal_id: str, stream: str, position: StoredPosition) -> None:
    """Note how far a stream is stored; one daemon alone writes its rows."""
    row = session.get(JournalPositionRow, (journal_id, stream))
    if row is None:
        row = JournalPositionRow(journal_id=journal_id, stream=stream)
        session.add(row)
    row.segment, row.byte_offset = position.segment, position.byte_offset
