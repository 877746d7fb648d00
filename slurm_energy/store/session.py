"""Engines and sessions: SQLite for one machine, PostgreSQL or MariaDB for a site.

Also what callers of the store need of SQLAlchemy, so that they import none of it themselves.
"""

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event
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
from slurm_energy.errors import DatabaseReplaced, StoreError, ValueRangeError
from slurm_energy.forms import DATABASE_DRIVERS, database_driver
from slurm_energy.resources import install_command
from slurm_energy.store.tables import JournalPositionRow

__all__ = [
    "Engine",
    "Session",
    "check_database_file",
    "close_database",
    "open_engine",
    "reading",
    "refuses_values",
    "run_in_transaction",
    "store_session",
    "store_url",
]  # other packages take SQLAlchemy's Engine and Session from here: they hold them, and write no SQL

SQLITE_FILE_MODE = 0o640
SETTLED_SECONDS = 2.0
"""Without a change, after which a file that took another's place is taken to be copied as a whole."""
TRANSACTION_ATTEMPTS = 8
_READ_ONLY = "slurm_energy_read_only"
# PostgreSQL: serialization_failure, deadlock_detected. MariaDB: lock wait timeout, deadlock, row changed (1020).
_RETRIED_STATES = frozenset({"40001", "40P01"})
_RETRIED_CODES = frozenset({1205, 1213, 1020})

Result = TypeVar("Result")
_FileId = tuple[int, int]
_NEXT_STEPS = {
    "unable to open database file": "it or its folder is closed to this user: ask while slurm-energyd runs, or as root",
    "readonly database": "this user may not write to it or to its folder: run this as the daemon's user",
    "file is not a database": "it is no SQLite database: check store.url, or put back a backup",
    "malformed": "it is damaged: put back a backup",
    "database is locked": "another process writes to it: try again, or see who with fuser -v",
    "Connection refused": "start the database server, or check store.url",
    "no such table": "slurm-energy database upgrade makes its tables",
}
__all__ = ["Engine", "Session", "database_name", "is_about_the_values"]


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
            _watch_file(engine)
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


class DatabaseFile:
    """The file that an engine has opened, by device and inode: at its path, another one may lie by now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: _FileId | None = None
        self._before: _FileId | None = None
        """What was open before, when the next one to be opened may be another."""
        self._log: _FileId | None = None
        """Its write-ahead log."""

    def check(self) -> None:
        """Return if the path still names the file that was opened.

        Raises:
            DatabaseReplaced: it names another, or none.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            raise DatabaseReplaced(
                f"database file {self._path} is gone: moved or removed while the daemon uses it. Nothing is recorded "
                "until it is back; slurm-energy database upgrade makes an empty one"
            ) from None
        except OSError as error:
            raise DatabaseReplaced(f"database file {self._path} cannot be reached: {error.strerror}") from error
        found = status.st_dev, status.st_ino
        if self._opened is None:
            self._open(found, time.time() - status.st_ctime)
        elif self._opened != found:
            raise DatabaseReplaced(
                f"database file {self._path} is another one than was opened: moved, restored or copied while the "
                "daemon uses it"
            )
        self._log = _file_id(self._log_path)

    def open_again(self) -> None:
        """Let the next connection open whatever the path names then."""
        self._before, self._opened = self._opened or self._before, None

    def _open(self, found: "_FileId", unchanged_seconds: float) -> None:
        if self._before is not None and self._before != found:
            if unchanged_seconds < SETTLED_SECONDS:
                raise DatabaseReplaced(f"database file {self._path} has just appeared: it is used once it is whole")
            self._put_aside_log()
        self._opened = found

    def _put_aside_log(self) -> None:
        """Keep the new file from the log of the old: SQLite takes what lies beside a file for its own."""
        if self._log is None or self._log != _file_id(self._log_path):
            return
        for ending in ("-wal", "-shm"):
            beside = Path(f"{self._path}{ending}")
            with suppress(OSError):
                beside.replace(f"{beside}.of-the-file-before")

    @property
    def _log_path(self) -> Path:
        return Path(f"{self._path}-wal")


def _file_id(path: Path) -> _FileId | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_FILES: WeakKeyDictionary[Engine, DatabaseFile] = WeakKeyDictionary()


def check_database_file(engine: Engine) -> None:
    """Return if rows that were committed are in the file that the engine's path names; always so without a file.

    Raises:
        DatabaseReplaced: they are not.
    """
    file = _FILES.get(engine)
    if file is not None:
        file.check()


def close_database(engine: Engine) -> None:
    """Close all connections, so that the next one opens the database that is there then."""
    file = _FILES.get(engine)
    if file is not None:
        with suppress(SQLAlchemyError, StoreError), engine.connect() as connection:
            # Into the file that is open: somebody else's connection to it would keep its log from being brought there.
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]  # SQLite's
        file.open_again()
    engine.dispose()


def _watch_file(engine: Engine) -> None:
    """Let no connection open another file than the first: its write-ahead log would be taken for the other's."""
    path = _sqlite_path(engine.url)
    if path is None:
        return
    file = _FILES[engine] = DatabaseFile(path)

    @event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> Any:
        file.check()
        # Not by its name alone, which would create a file that is gone.
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, **options)


def _sqlite_path(url: URL) -> Path | None:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        return None
    return Path(url.database)


def _create_sqlite_file(url: URL) -> None:
    path = _sqlite_path(url)
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
    """Return the engine for transactions that only read: on SQLite they never wait for a writer."""
    return engine.execution_options(**{_READ_ONLY: True})


@contextmanager
def store_session(engine: Engine, *, read_only: bool = False) -> Iterator[Session]:
    """Yield a session that commits at the end, or rolls back on an error and when `read_only`.

    Raises:
        StoreError: the database failed; the message has no password.
    """
    session = Session(reading(engine) if read_only else engine, expire_on_commit=False)
    try:
        yield session
        if read_only:
            session.rollback()
        else:
            session.commit()
    except SQLAlchemyError as error:
        raise _translated(engine, error) from error
    finally:
        session.close()


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
