"""Old rows go with all that hangs on them, a copy is whole, and neither needs the daemon to stop."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from store_samples import (
    CLUSTER,
    SUBMITTED,
    make_decision,
    make_key,
    make_report,
    make_request,
    make_state,
    record_decision,
)

from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.errors import StoreError
from slurm_energy.store import upkeep
from slurm_energy.store.energy import record_report
from slurm_energy.store.jobs import upsert_jobs
from slurm_energy.store.reports import report_jobs
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.tables import (
    DecisionClockRow,
    DecisionRow,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
)
from slurm_energy.store.upkeep import OldRows, backup, count_old, optimize, prune, prune_some

pytest_plugins = ["database_fixtures"]
DAY = 86_400.0
TABLES = (JobRow, JobAttemptRow, NodeEnergyRow, GpuEnergyRow, DecisionRow, DecisionClockRow)


def fill(engine: Engine) -> None:
    """Store a job of each of three days, each with its decision; the last one runs."""
    with store_session(engine) as session:
        for day in range(3):
            at, decision = SUBMITTED + day * DAY, f"d000000{day}"
            ended = {} if day < 2 else {"state": "RUNNING"}
            state = make_state(
                day + 1,
                submitted_at_seconds=at,
                started_at_seconds=at + 50.0,
                ended_at_seconds=at + 150.0,
                admin_comment=f"energy:{decision}",
                **ended,
            )
            record_decision(session, make_decision(decision, decided_at_seconds=at), make_request(), CLUSTER)
            upsert_jobs(session, CLUSTER, [state])
            report = make_report(
                job_id=day + 1, decision_id=None, started_at_seconds=at + 50.0, ended_at_seconds=at + 150.0
            )
            record_report(session, report, make_key(day + 1, at))


def rows(engine: Engine) -> list[int]:
    with store_session(engine, read_only=True) as session:
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in TABLES]


def test_jobs_that_were_over_go_with_their_energy_and_decisions(engine: Engine) -> None:
    fill(engine)
    cut = SUBMITTED + DAY + 100.0  # the second job ended after it, although it was submitted before
    with store_session(engine, read_only=True) as session:
        assert count_old(session, CLUSTER, cut) == OldRows(jobs=1, decisions=1)
        assert count_old(session, ClusterName("other"), cut) == OldRows(jobs=0, decisions=0)
    assert rows(engine) == [3] * 6
    assert prune(engine, CLUSTER, cut) == 2
    assert rows(engine) == [2] * 6
    with store_session(engine, read_only=True) as session:
        assert [job.job_id for job in report_jobs(session, JobFilter(cluster=CLUSTER)).jobs] == [3, 2]


@pytest.mark.parametrize("empty_engine", ["sqlite"], indirect=True)  # the deadlock is made here, not by the database
def test_what_is_stopped_by_a_deadlock_with_the_recording_is_removed_again(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(own_engine)
    victims = iter([True])

    def prune_as_victim(session: Session, cluster: ClusterName, before_seconds: float) -> int:
        removed = prune_some(session, cluster, before_seconds)
        if next(victims, False):
            raise OperationalError("DELETE", {}, sqlite3.OperationalError("database is locked"))
        return removed

    monkeypatch.setattr(upkeep, "prune_some", prune_as_victim)
    assert prune(own_engine, CLUSTER, SUBMITTED + DAY + 100.0) == 2
    assert rows(own_engine) == [2] * 6


def test_a_job_whose_energy_is_counted_after_the_cut_stays(engine: Engine) -> None:
    """Its node ended it later than Slurm says: the energy is in a report of the time that is kept."""
    fill(engine)
    cut = SUBMITTED + 160.0
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, [make_state(9)])
        record_report(session, make_report(job_id=9, ended_at_seconds=cut + 10.0), make_key(9))
    with store_session(engine, read_only=True) as session:
        kept = JobFilter(cluster=CLUSTER, since_seconds=cut)
        before = report_jobs(session, kept).total
        assert count_old(session, CLUSTER, cut) == OldRows(jobs=1, decisions=1)
    assert prune(engine, CLUSTER, cut) == 2
    with store_session(engine, read_only=True) as session:
        assert report_jobs(session, kept).total == before
        assert session.scalars(select(JobRow.job_id).order_by(JobRow.job_id)).all() == [2, 3, 9]


def test_a_job_that_still_runs_stays_however_old(engine: Engine) -> None:
    fill(engine)
    prune(engine, CLUSTER, SUBMITTED + 1000.0 * DAY)
    with store_session(engine, read_only=True) as session:
        assert session.scalars(select(JobRow.job_id)).all() == [JobId(3)]
        assert session.scalars(select(DecisionRow.decision_id)).all() == ["d0000002"]


def test_each_transaction_removes_a_bounded_number(engine: Engine) -> None:
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, [make_state(number) for number in range(1, 6)])
    left = []
    for _ in range(3):
        with store_session(engine) as session:
            prune_some(session, CLUSTER, SUBMITTED + DAY, limit=2)
        left.append(rows(engine)[0])
    assert left == [3, 1, 0]


def test_the_planner_is_informed_and_space_given_back_while_it_is_open(engine: Engine) -> None:
    fill(engine)
    optimize(engine)
    optimize(engine, give_back_space=True)
    assert rows(engine) == [3] * 6


def test_a_backup_is_whole_while_a_writer_is_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    from slurm_energy.store.schema import upgrade  # beside the fixture's own

    url = f"sqlite:///{tmp_path}/energy.sqlite"
    upgrade(url)
    engine = open_engine(StoreConfig(url=url))
    fill(engine)
    target = tmp_path / "copy.sqlite"
    with store_session(engine) as session:
        upsert_jobs(session, CLUSTER, [make_state(99)])
        session.flush()
        assert backup(engine, target) == target.stat().st_size
    engine.dispose()
    with closing(sqlite3.connect(target)) as copy:
        assert [row[0] for row in copy.execute("SELECT job_id FROM job ORDER BY job_id")] == [1, 2, 3]
    assert target.stat().st_mode & 0o777 == 0o640
    with pytest.raises(StoreError, match="exists: name a file that does not"):
        backup(open_engine(StoreConfig(url=url)), target)
    with pytest.raises(StoreError, match="cannot be copied"):
        backup(open_engine(StoreConfig(url=url)), tmp_path / "nosuch" / "copy.sqlite")


@pytest.mark.parametrize(
    ("url", "tool"), [("postgresql://u:secret@h/d", "pg_dump"), ("mariadb://u:secret@h/d", "mariadb-dump")]
)
def test_a_server_is_copied_with_its_own_tool(url: str, tool: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=tool) as raised:
        backup(open_engine(StoreConfig(url=url)), tmp_path / "copy")
    assert "secret" not in str(raised.value)


def test_a_question_that_takes_too_long_is_stopped_and_the_next_one_is_answered(own_engine: Engine) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000000) SELECT max(i) FROM n"
    if own_engine.url.get_backend_name() == "mariadb":  # which ends recursion by itself
        columns = "information_schema.columns"
        endless = f"SELECT SUM(LENGTH(a.COLUMN_NAME)) FROM {columns} a, {columns} b, {columns} c"
    with (
        pytest.raises(StoreError, match="takes too long: ask for a shorter time"),
        store_session(own_engine, read_only=True, limit_seconds=0.2) as session,
    ):
        session.execute(text(endless))
    with store_session(own_engine, read_only=True, limit_seconds=30.0) as session:
        assert session.execute(text("SELECT 1")).scalar() == 1
    with store_session(own_engine) as session:
        assert session.execute(text("SELECT 2")).scalar() == 2
