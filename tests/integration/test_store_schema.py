"""The schema: made from nothing, equal to the tables, refused when another version wrote it."""

import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command, op
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from store_samples import CLUSTER, make_gpu, make_key, make_report

from slurm_energy import resources
from slurm_energy.config import StoreConfig
from slurm_energy.domain.report import EnergySum
from slurm_energy.errors import SchemaVersionError, StoreError
from slurm_energy.store.decisions import get_decision
from slurm_energy.store.energy import record_report
from slurm_energy.store.reports import report_jobs
from slurm_energy.store.schema import (
    UPGRADE_COMMAND,
    check_version,
    code_revision,
    database_revision,
    finish_sums,
    has_all_sums,
    migrations_config,
    upgrade,
)
from slurm_energy.store.session import open_engine, store_session
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.sums import GPU_SUM_NAMES, USE_NAMES, make_sums_of_rows
from slurm_energy.store.tables import Base, NodeEnergyRow

pytest_plugins = ["database_fixtures"]
NEEDED = code_revision()


def test_upgrade_creates_every_table_in_an_empty_database(empty_engine: Engine) -> None:
    assert database_revision(empty_engine) is None
    assert upgrade(empty_engine) == code_revision()
    assert set(inspect(empty_engine).get_table_names()) == {*Base.metadata.tables, "alembic_version"}
    check_version(empty_engine)


def test_the_revision_that_is_read_from_the_files_is_alembics_own() -> None:
    scripts = ScriptDirectory.from_config(migrations_config(resources.shared_directory("migrations")))
    assert scripts.get_heads() == [code_revision()]


def test_migrated_schema_equals_the_tables(own_engine: Engine) -> None:
    assert differences(own_engine) == []


def test_upgrade_twice_changes_nothing_and_keeps_rows(own_engine: Engine) -> None:
    with store_session(own_engine) as session:
        record_report(session, make_report(), make_key())
    upgrade(own_engine)
    with own_engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM gpu_energy")).scalar_one() == 1


def without_sums(engine: Engine) -> None:
    """Leave reports as an upgrade does that is stopped after the schema and before the sums."""
    with store_session(engine) as session:
        for job_id in range(1, 6):
            record_report(session, make_report(job_id=job_id), make_key(job_id))
        session.execute(update(NodeEnergyRow).values(dict.fromkeys((*GPU_SUM_NAMES, *USE_NAMES))))


def total(engine: Engine) -> EnergySum:
    with store_session(engine, read_only=True) as session:
        return report_jobs(session, JobFilter(cluster=CLUSTER)).total.gpu


def test_reports_that_a_stopped_upgrade_left_without_sums_are_unknown_until_it_is_finished(
    own_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurm_energy.store.sums._ROWS_AT_ONCE", 2)
    without_sums(own_engine)
    assert not has_all_sums(own_engine)
    stopped = total(own_engine)
    assert (stopped.joules, stopped.readings, stopped.unknown_readings, stopped.coverage_share) == (None, 5, 5, 0.0)
    upgrade(own_engine)
    assert has_all_sums(own_engine) and finish_sums(own_engine) == 0
    finished = total(own_engine)
    assert finished.joules == pytest.approx(5 * 20_000.25) and finished.unknown_readings == 0


def test_sums_go_on_where_they_were_stopped(own_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_energy.store.sums._ROWS_AT_ONCE", 2)
    without_sums(own_engine)
    batches: list[list[int]] = []

    def stop_at_the_second(session: Session, row_ids: list[int]) -> int:
        batches.append(row_ids)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return make_sums_of_rows(session, row_ids)

    monkeypatch.setattr("slurm_energy.store.schema.make_sums_of_rows", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        finish_sums(own_engine)
    assert total(own_engine).unknown_readings == 3
    assert finish_sums(own_engine) == 3
    assert total(own_engine).joules == pytest.approx(5 * 20_000.25)


def test_upgrades_at_the_same_moment_all_succeed(empty_engine: Engine) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            upgrade(empty_engine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    check_version(empty_engine)


def test_downgrade_removes_every_table_of_ours(own_engine: Engine) -> None:
    migrate(own_engine, command.downgrade, "base")
    assert set(inspect(own_engine).get_table_names()) == {"alembic_version"}


def migrate(engine: Engine, step: Callable[[AlembicConfig, str], None], revision: str) -> None:
    with engine.connect() as connection:
        configuration = migrations_config(resources.shared_directory("migrations"))
        configuration.attributes["connection"] = connection
        step(configuration, revision)
        connection.commit()


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


@pytest.mark.parametrize("done", ["0007", "0008", "0009", "0010"])
def test_an_upgrade_that_was_killed_before_its_revision_was_noted_is_done_again(
    empty_engine: Engine, done: str
) -> None:
    migrate(empty_engine, command.upgrade, done)
    with empty_engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))
    upgrade(empty_engine)
    assert differences(empty_engine) == []


@pytest.mark.parametrize("stop_at", [3, 12, 20, 22, 23])
def test_an_upgrade_that_was_killed_between_two_changes_goes_on_with_the_rest(
    empty_engine: Engine, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB commits each change of the schema by itself, and keeps those before the kill."""
    migrate(empty_engine, command.upgrade, "0006")
    steps: list[str] = []

    def step(name: str, do: Callable[..., object]) -> Callable[..., object]:
        def run(*parts: object, **options: object) -> object:
            steps.append(name)
            if len(steps) == stop_at:
                raise KeyboardInterrupt
            return do(*parts, **options)

        return run

    with monkeypatch.context() as killed:
        for name in ("add_column", "create_index", "create_table"):
            killed.setattr(op, name, step(name, getattr(op, name)))
        with pytest.raises(KeyboardInterrupt):
            upgrade(empty_engine)
    upgrade(empty_engine)
    assert differences(empty_engine) == []


def test_decisions_of_the_first_schema_keep_their_clocks_and_prefer_nothing(empty_engine: Engine) -> None:
    migrate(empty_engine, command.upgrade, "0001")
    with empty_engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO policy (row_id, name, version, settings_digest, settings, first_used_at_seconds)"
                " VALUES (1, 'oracle', '1', 'x', '{}', 1)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO decision (decision_id, cluster, policy_row_id, mode, decided_at_seconds, user_id,"
                " job_name, request, reasons, notes, message) VALUES ('d0000001', 'lab', 1, 'saver', 1, 1000, 'train',"
                " '{\"user_id\": 1000}', 'POLICY', '[]', '')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO decision_clock (decision_id, gpu_type, sm_clock_mhz, default_clock_mhz,"
                " predicted_slowdown, predicted_energy_change) VALUES ('d0000001', 'a40', 1200, 1740, 0.1, -0.2)"
            )
        )
    upgrade(empty_engine)
    with store_session(empty_engine) as session:
        old = get_decision(session, "d0000001")
        assert old is not None
        assert (old.prefer, [clock.sm_clock_mhz for clock in old.clocks]) == (None, [1200])
    migrate(empty_engine, command.downgrade, "0001")
    with empty_engine.connect() as connection:
        assert "prefer" not in {column["name"] for column in inspect(connection).get_columns("decision")}
        assert connection.execute(text("SELECT sm_clock_mhz FROM decision_clock")).scalar_one() == 1200


def test_empty_database_is_refused_with_the_command_to_run(empty_engine: Engine) -> None:
    with pytest.raises(SchemaVersionError, match=f"is empty, this code needs revision {NEEDED}: run {UPGRADE_COMMAND}"):
        check_version(empty_engine)


def test_newer_database_is_refused_with_both_revisions_and_not_touched(own_engine: Engine) -> None:
    with own_engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaVersionError, match=f"revision '9999', which is newer than this code's {NEEDED}"):
        check_version(own_engine)
    with pytest.raises(SchemaVersionError, match=f"revision '9999', which is newer than this code's {NEEDED}"):
        upgrade(own_engine)
    assert database_revision(own_engine) == "9999"


def test_older_database_is_refused_with_both_revisions(own_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_energy.store.schema.code_revision", lambda: "9998")
    with pytest.raises(SchemaVersionError, match=f"has revision {NEEDED}, this code needs 9998: .*{UPGRADE_COMMAND}"):
        check_version(own_engine)


def test_migrations_are_found_in_the_layout_of_the_wheel(
    empty_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(resources.shared_directory("migrations"), tmp_path / "50% done" / "_shared" / "migrations")
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "50% done")
    assert resources.shared_directory("migrations").parent.name == "_shared"
    upgrade(empty_engine)
    check_version(empty_engine)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE gpu_energy SET joules = -1",
        "UPDATE gpu_energy SET joules = NULL",
        "UPDATE gpu_energy SET reason = 'both'",
        "UPDATE gpu_energy SET coverage_seconds = -1",
        "UPDATE gpu_energy SET counter_joules = -1",
        "UPDATE gpu_energy SET utilisation = 1.5",
        "UPDATE node_energy SET host_joules = -1",
        "UPDATE node_energy SET host_joules = NULL",
        (
            "INSERT INTO gpu_energy (node_energy_row_id, gpu_uuid, quality, gpu_name, joules, source, scope,"
            " coverage_seconds, flags) SELECT node_energy_row_id, gpu_uuid, 2, 'x', 1, 'counter', 'gpu', 1, ''"
            " FROM gpu_energy"
        ),
        (
            "INSERT INTO node_energy (job_row_id, restart_count, node, quality, started_at_seconds, ended_at_seconds,"
            " time_scale, host_measured, host_reason, host_coverage_seconds, host_flags, events) VALUES"
            " (999, 0, 'n', 0, 1, 2, 1, false, 'x', 0, '', '[]')"
        ),
    ],
)
def test_database_itself_refuses_impossible_rows(engine: Engine, statement: str) -> None:
    with store_session(engine) as session:
        record_report(session, make_report(make_gpu()), make_key())
    with pytest.raises(DBAPIError, match=r"(?i)constraint|uq_gpu_energy"), engine.begin() as connection:
        connection.execute(text(statement))


def test_sqlite_file_is_readable_by_owner_and_group_only(tmp_path: Path) -> None:
    path = tmp_path / "energy.sqlite"
    engine = open_engine(StoreConfig(url=f"sqlite:///{path}"))
    upgrade(engine)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    engine.dispose()
    assert set(modes.values()) == {0o640}
    assert set(modes) >= {"energy.sqlite", "energy.sqlite-wal"}


def test_missing_folder_of_the_sqlite_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}/absent/energy.sqlite cannot be created: No such file"):
        open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/absent/energy.sqlite"))


def test_failed_connection_names_the_database_without_its_password() -> None:
    engine = open_engine(StoreConfig(url="postgresql://energy:s3cret@127.0.0.1:1/energy"))
    with pytest.raises(StoreError, match=r"energy:\*\*\*@127.0.0.1:1/energy failed") as caught:
        check_version(engine)
    assert "s3cret" not in str(caught.value)
