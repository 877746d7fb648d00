"""The file of an SQLite database that is in use: moved, removed, restored or written over, it is noticed."""

import os
import random
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from slurm_energy.errors import DatabaseReplaced, StoreError

MAX_STAMPS = 1_000_000
"""Commits without a checkpoint after which the header is no longer compared."""
_STAMP_OFFSET = 60
"""Of `user_version` in the header of an SQLite file."""
SETTLED_SECONDS = 2.0
"""Without a change, after which a file that took another's place is taken to be copied as a whole."""

_FileId = tuple[int, int]


class DatabaseFile:
    """The file that an engine has opened, by device and inode: at its path, another one may lie by now.

    Its content may be another one too: written by a program that is not SQLite (`cp`). SQLite does not see that, and
    brings what it still knows of the old content into the new one. So each commit of the recorder leaves a random
    number in the header (`PRAGMA user_version`), and the header on disk, which only a checkpoint of SQLite changes, has
    to hold one of these.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written_over = False
        """Whether its content was exchanged: then no connection may be closed, which would write into it."""
        self._descriptor: int | None = None
        """Stays open: the end of any descriptor of a file ends all the locks that SQLite has on it in this process."""
        self._stamps: dict[int, None] = {}
        """The numbers that the header on disk may hold, in the order of their commits."""
        self._lock = threading.Lock()
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
            self.written_over = False  # what is still written goes into a file that has no name any more
            raise DatabaseReplaced(
                f"database file {self._path} is another one than was opened: moved, restored or copied while the "
                "daemon uses it"
            )
        with self._lock:
            self._check_stamp()
        self._log = _file_id(self._log_path)

    def open_again(self) -> None:
        """Let the next connection open whatever the path names then."""
        self._before, self._opened = self._opened or self._before, None
        self._stamps.clear()

    def guard_content(self) -> None:
        """Compare the header from now on.

        Raises:
            StoreError: the file cannot be read.
        """
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise StoreError(f"database file {self._path} cannot be read: {error.strerror}") from error
        self.check()

    def note_stamp(self, stamp: int) -> None:
        """Remember a number that a commit leaves in the header."""
        with self._lock:
            self._stamps[stamp] = None

    def _check_stamp(self) -> None:
        if self._descriptor is None:
            return
        header = os.pread(self._descriptor, 4, _STAMP_OFFSET)
        stamp = int.from_bytes(header, "big") if len(header) == 4 else None
        if not self._stamps or len(self._stamps) > MAX_STAMPS:
            self._stamps = {} if stamp is None else {stamp: None}
        elif stamp in self._stamps:
            while next(iter(self._stamps)) != stamp:  # what was before that checkpoint does not come back
                del self._stamps[next(iter(self._stamps))]
        elif stamp is not None and stamp == _stamp_in_force(self._path):
            raise DatabaseReplaced(f"database file {self._path} was restored while the daemon uses it")
        else:
            self.written_over = True
            raise DatabaseReplaced(
                f"database file {self._path} was written over by a program that is not SQLite while the daemon uses "
                "it: nothing is recorded. Copy the backup to another name beside it and rename that to this name; "
                "what it lacks is then stored again from the journal"
            )

    def _open(self, found: "_FileId", unchanged_seconds: float) -> None:
        if self._before is not None and self._before != found:
            if unchanged_seconds < SETTLED_SECONDS:
                raise DatabaseReplaced(f"database file {self._path} has just appeared: it is used once it is whole")
            self._put_aside_log()
        if self._descriptor is not None:
            os.close(self._descriptor)  # of the file before, to which no connection is open any more
            self._descriptor = None
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


def stamp_database(session: Session) -> None:
    """Leave a number in an SQLite file's header with this commit, see `DatabaseFile`; nothing for other databases."""
    bind = session.get_bind()
    file = _FILES.get(bind) if isinstance(bind, Engine) else None
    if file is None:
        return
    # Another one than was left last is that of a backup which SQLite itself has restored.
    file.note_stamp(session.execute(text("PRAGMA user_version")).scalar_one())
    stamp = random.randrange(1, 2**31)  # noqa: S311  # tells states apart, guards nothing
    session.execute(text(f"PRAGMA user_version = {stamp}"))
    file.note_stamp(stamp)


def _stamp_in_force(path: Path) -> int | None:
    """Return the header's number as SQLite reads it, with its write-ahead log; None when it cannot."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.Error:
        return None


def guard_content(engine: Engine) -> None:
    """See from now on that no program but SQLite writes into the file; nothing for a database without one.

    Raises:
        StoreError: the file cannot be read.
    """
    file = _FILES.get(engine)
    if file is not None:
        file.guard_content()


def close_database(engine: Engine) -> None:
    """Close all connections, so that the next one opens the database that is there then.

    While the file is written over they stay open, and the next one is not made: SQLite writes when they are closed.
    """
    file = _FILES.get(engine)
    if file is not None and file.written_over:
        return
    if file is not None:
        with suppress(SQLAlchemyError, StoreError), engine.connect() as connection:
            # Into the file that is open: another connection to it would keep its log from being brought there.
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]  # SQLite's
        file.open_again()
    engine.dispose()


def watch_file(engine: Engine) -> None:
    """Let no connection open another file than the first: its write-ahead log would be taken for the other's."""
    path = sqlite_path(engine.url)
    if path is None:
        return
    file = _FILES[engine] = DatabaseFile(path)

    @event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> Any:
        file.check()
        # Not by its name alone, which would create a file that is gone.
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, **options)


def sqlite_path(url: URL) -> Path | None:
    """Return the file of a URL of SQLite, None for a database without a file of its own."""
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        return None
    return Path(url.database)
