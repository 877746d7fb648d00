"""A database file whose content is exchanged by a program that is not SQLite is noticed; what SQLite does is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from slurm_energy.config import StoreConfig
from slurm_energy.errors import DatabaseReplaced
from slurm_energy.store.database_file import check_database_file, close_database, guard_content, stamp_database
from slurm_energy.store.session import Engine, open_engine, store_session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "energy.sqlite"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = open_engine(StoreConfig(url=f"sqlite:///{path}"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE note (words TEXT)"))
    guard_content(engine)
    yield engine
    engine.dispose()


def write(engine: Engine, words: str) -> None:
    with store_session(engine) as session:
        session.execute(text("INSERT INTO note VALUES (:words)"), {"words": words})
        stamp_database(session)
    check_database_file(engine)


def words(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT words FROM note ORDER BY words")]


def checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA wal_checkpoint(FULL)")


def backup(path: Path, to: Path) -> bytes:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to.read_bytes()


def test_commits_and_checkpoints_of_this_and_other_processes_are_no_exchange(engine: Engine, path: Path) -> None:
    for number in range(5):
        write(engine, f"{number}")
        if number % 2:
            checkpoint(path)
            check_database_file(engine)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO note VALUES ('other')")
    checkpoint(path)
    write(engine, "last")
    assert words(path) == ["0", "1", "2", "3", "4", "last", "other"]


def test_a_copy_into_the_open_file_is_noticed_and_nothing_more_is_written_into_it(
    engine: Engine, path: Path, tmp_path: Path
) -> None:
    write(engine, "before")
    old = backup(path, tmp_path / "backup")
    write(engine, "after")
    checkpoint(path)
    check_database_file(engine)
    write(engine, "last")
    path.write_bytes(old)
    with pytest.raises(DatabaseReplaced, match="written over by a program that is not SQLite"):
        check_database_file(engine)
    close_database(engine)
    assert path.read_bytes() == old
    with pytest.raises(DatabaseReplaced), store_session(engine) as session:
        session.execute(text("SELECT 1"))
        check_database_file(engine)


def test_a_file_that_is_being_copied_into_is_noticed_when_it_is_empty(engine: Engine, path: Path) -> None:
    write(engine, "before")
    path.write_bytes(b"")
    with pytest.raises(DatabaseReplaced, match="written over"):
        check_database_file(engine)


def test_a_backup_that_sqlite_restores_is_used(engine: Engine, path: Path, tmp_path: Path) -> None:
    write(engine, "before")
    backup(path, tmp_path / "backup")
    write(engine, "after")
    checkpoint(path)
    check_database_file(engine)
    with closing(sqlite3.connect(tmp_path / "backup")) as old, closing(sqlite3.connect(path)) as now:
        old.backup(now)
    write(engine, "later")
    checkpoint(path)
    check_database_file(engine)
    assert words(path) == ["before", "later"]
