"""A database that is moved, removed, restored or upgraded while the daemon uses it."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from daemon_support import RunningDaemon, running_daemon, start_daemon, wait_until
from database_servers import Server, ServerMissing
from test_daemon_reports import make_report, send, signed

from slurm_energy.errors import SlurmEnergyError

pytest_plugins = ["database_fixtures"]


def stored(daemon: RunningDaemon) -> list[int]:
    """Return the numbers of all jobs with energy, none while the database cannot be asked."""
    try:
        reply = daemon.ask("query", {"what": "report-job"})
    except SlurmEnergyError:
        return []
    jobs = json.loads(reply.fields["json"])["record"]["jobs"] if reply.verb == "ok" else []
    return sorted(job["job_id"] for job in jobs if job["gpu"]["joules"] is not None)


def deliver(daemon: RunningDaemon, *job_ids: int) -> None:
    for job_id in job_ids:
        assert send(daemon, signed([make_report(job_id)])).fields == {"accepted": "1"}


def record(daemon: RunningDaemon, *job_ids: int) -> None:
    deliver(daemon, *job_ids)
    wait_until(lambda: set(job_ids) <= set(stored(daemon)), f"jobs {job_ids}", daemon)


def problem(daemon: RunningDaemon) -> str:
    return str(daemon.query("status")["store"]["problem"])


def backup(daemon: RunningDaemon, path: Path) -> sqlite3.Connection:
    """Copy the database as it is, and return a connection to it that somebody forgot to close."""
    source = sqlite3.connect(daemon.database_path)
    with closing(sqlite3.connect(path)) as target:
        source.backup(target)
    return source


def set_revision(daemon: RunningDaemon, revision: str) -> str:
    """Change the schema's revision and return the one from before."""
    with closing(sqlite3.connect(daemon.database_path, isolation_level=None)) as connection:
        (before,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    return str(before)


def after_a_restart(daemon: RunningDaemon) -> list[int]:
    """Return the jobs that are there when the daemon has been stopped and started again."""
    assert daemon.stop() == 0
    again = start_daemon(daemon.directory, daemon.slurm, daemon.port, daemon.directory / "energy.toml")
    try:
        wait_until(lambda: stored(again), "the jobs", again)
        return stored(again)
    finally:
        assert again.stop() == 0


@pytest.mark.parametrize("somebody_has_it_open", [False, True])
def test_jobs_from_before_and_after_a_restored_backup_are_all_there(tmp_path: Path, somebody_has_it_open: bool) -> None:
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1, 2)
        other = backup(daemon, tmp_path / "backup.sqlite")
        if not somebody_has_it_open:
            other.close()
        record(daemon, 3, 4)
        daemon.database_path.rename(tmp_path / "x.sqlite")
        shutil.copy(tmp_path / "backup.sqlite", daemon.database_path)
        deliver(daemon, 5, 6)
        wait_until(lambda: "another one than was opened" in daemon.log, "complaint", daemon)
        wait_until(lambda: stored(daemon) == [1, 2, 3, 4, 5, 6], "all jobs", daemon)
        assert "database lacks what it was given before" in daemon.log
        assert problem(daemon) == "None"
        assert after_a_restart(daemon) == [1, 2, 3, 4, 5, 6]
        other.close()
        with closing(sqlite3.connect(daemon.database_path)) as look:
            assert look.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_backup_copied_into_the_open_file_is_noticed_and_put_in_place_properly_nothing_is_lost(
    tmp_path: Path, checkpointed: bool
) -> None:
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1, 2)
        backup(daemon, tmp_path / "backup.sqlite").close()
        record(daemon, 3, 4)
        with closing(sqlite3.connect(daemon.database_path)) as other:
            other.execute("PRAGMA wal_checkpoint(FULL)")
        if not checkpointed:
            record(daemon, 5)
        daemon.database_path.write_bytes((tmp_path / "backup.sqlite").read_bytes())  # as cp does
        complaint = "lacks what it was given before" if checkpointed else "was written over by a program"
        wait_until(lambda: complaint in daemon.log, "complaint", daemon)
        deliver(daemon, 6)
        assert daemon.decide().verb == "ok"
        if not checkpointed:
            assert "was written over by a program that is not SQLite" in problem(daemon)
            shutil.copy(tmp_path / "backup.sqlite", tmp_path / "new.sqlite")
            (tmp_path / "new.sqlite").rename(daemon.database_path)
        jobs = [1, 2, 3, 4, 6] if checkpointed else [1, 2, 3, 4, 5, 6]
        wait_until(lambda: stored(daemon) == jobs, "all jobs", daemon)
        assert after_a_restart(daemon) == jobs
        with closing(sqlite3.connect(daemon.database_path)) as look:
            assert look.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_database_that_is_gone_is_named_and_nothing_is_given_up_until_it_is_back(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1)
        daemon.database_path.rename(tmp_path / "x.sqlite")
        wait_until(lambda: "is gone" in problem(daemon), "the problem in the status", daemon)
        deliver(daemon, 2)
        assert daemon.decide().verb == "ok"
        wait_until(lambda: daemon.query("status")["store"]["journal_waiting_bytes"] > 1000, "journal", daemon)
        assert not daemon.database_path.exists(), "an empty one would stand in the way of the one that comes back"
        (tmp_path / "x.sqlite").rename(daemon.database_path)
        wait_until(lambda: stored(daemon) == [1, 2], "both jobs", daemon)
        assert after_a_restart(daemon) == [1, 2]


def test_a_database_that_was_removed_is_filled_again_from_the_journal(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1, 2)
        daemon.database_path.unlink()
        wait_until(lambda: "is gone" in problem(daemon), "the problem in the status", daemon)
        upgrade = [sys.executable, "-m", "slurm_energy.cli.main", "database", "upgrade"]
        url = f"sqlite:///{daemon.database_path}"
        subprocess.run([*upgrade, "--database", url], check=True, capture_output=True, timeout=60)
        deliver(daemon, 3)
        wait_until(lambda: stored(daemon) == [1, 2, 3], "all jobs", daemon)
        assert after_a_restart(daemon) == [1, 2, 3]


def test_a_database_restored_in_its_place_gets_what_it_lacks(tmp_path: Path) -> None:
    """As pg_restore does, and SQLite's own .restore: the file or server is the same, its rows are of yesterday."""
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1)
        backup(daemon, tmp_path / "backup.sqlite").close()
        record(daemon, 2, 3)
        copy, database = sqlite3.connect(tmp_path / "backup.sqlite"), sqlite3.connect(daemon.database_path)
        with closing(copy), closing(database):
            copy.backup(database)
        wait_until(lambda: "database lacks what it was given before" in daemon.log, "complaint", daemon)
        wait_until(lambda: stored(daemon) == [1, 2, 3], "all jobs", daemon)
        assert after_a_restart(daemon) == [1, 2, 3]


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("postgresql", "mariadb")]
)
def test_an_older_dump_that_is_restored_into_a_servers_database_gets_what_it_lacks(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    database = server.create_database()
    with running_daemon(tmp_path, store_url=server.url(database)) as daemon:
        record(daemon, 1)
        dump = _dump(server, database)
        record(daemon, 2, 3)
        server.restore(database, dump)
        deliver(daemon, 4)
        wait_until(lambda: "database lacks what it was given before" in daemon.log, "complaint", daemon)
        wait_until(lambda: stored(daemon) == [1, 2, 3, 4], "all jobs", daemon)
        assert problem(daemon) == "None"
        assert after_a_restart(daemon) == [1, 2, 3, 4]
    server.drop_database(database)


def _dump(server: Server, database: str) -> bytes:
    try:
        return server.dump(database)
    except ServerMissing as error:
        if os.environ.get("SLURM_ENERGY_REQUIRE_SERVERS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_another_schema_put_in_place_stops_the_recording_and_is_named(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        record(daemon, 1)
        for number, revision in ((2, "0001"), (3, "9999")):
            own = set_revision(daemon, revision)
            deliver(daemon, number)
            wait_until(lambda: revision in problem(daemon), "the problem in the status", daemon)  # noqa: B023
            assert daemon.decide().verb == "ok"
            set_revision(daemon, own)
            wait_until(lambda: stored(daemon) == [*range(1, number + 1)], "all jobs", daemon)  # noqa: B023
