import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from slurm_energy.config import StoreConfig
from slurm_energy.errors import StoreError
from slurm_energy.store.session import open_engine, run_in_transaction, store_session, store_url


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:////x/y.sqlite", "sqlite"),
        ("postgresql://a:b@c/d", "postgresql+psycopg"),
        ("postgresql+psycopg://a:b@c/d", "postgresql+psycopg"),
        ("mariadb://a:b@c/d", "mariadb+pymysql"),
    ],
)
def test_driver_of_this_package_is_chosen(given: str, driver: str) -> None:
    assert store_url(given).drivername == driver


@pytest.mark.parametrize("url", ["oracle://a:secret@c/d", "mysql+pymysql://a:secret@c/d", "postgresql+psycopg2://x/y"])
def test_other_databases_are_refused_with_the_supported_ones(url: str) -> None:
    with pytest.raises(StoreError, match=r"is not supported: use sqlite, postgresql\+psycopg, mariadb") as caught:
        store_url(url)
    assert "secret" not in str(caught.value)


def test_text_that_is_no_url_is_refused() -> None:
    with pytest.raises(StoreError, match=r"store\.url is not a database URL such as sqlite:"):
        store_url("energy.sqlite")


def test_missing_driver_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install './slurm-energy\[postgresql\]'"):
        open_engine(StoreConfig(url="postgresql://a@c/d"))


def test_sqlite_uses_wal_foreign_keys_and_the_configured_wait(tmp_path: Path) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite", busy_timeout_seconds=7.5))
    with store_session(engine) as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    engine.dispose()
    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 7500, "synchronous": 2}


def test_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite", busy_timeout_seconds=0.0))
    with store_session(engine) as writer:
        writer.execute(text("CREATE TABLE t (x INTEGER)"))
        with store_session(engine, read_only=True) as reader:
            assert reader.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one() == 0
    engine.dispose()


def test_second_writer_on_a_locked_file_fails_with_the_cause_after_its_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("slurm_energy.store.session.time.sleep", pauses.append)
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite", busy_timeout_seconds=0.0))
    with store_session(engine) as writer:
        writer.execute(text("CREATE TABLE t (x INTEGER)"))
        with pytest.raises(StoreError, match="database is locked"):
            run_in_transaction(engine, lambda session: session.execute(text("SELECT 1")))
    engine.dispose()
    assert len(pauses) == 7


def test_error_in_the_work_rolls_back(tmp_path: Path) -> None:
    engine = open_engine(StoreConfig(url=f"sqlite:///{tmp_path}/e.sqlite"))
    with pytest.raises(KeyError), store_session(engine) as session:
        session.execute(text("CREATE TABLE t (x INTEGER)"))
        raise KeyError("x")
    with store_session(engine, read_only=True) as session:
        assert session.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one() == 0
    engine.dispose()
