"""Databases for the store's tests: SQLite, and private PostgreSQL and MariaDB servers of this test run."""

import os
from collections.abc import Iterator
from pathlib import Path

import database_servers
import pytest
from sqlalchemy import Engine

from slurm_energy.config import StoreConfig
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import open_engine
from slurm_energy.store.tables import Base

KINDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
]


def _server(start: database_servers.Starter) -> Iterator[database_servers.Server]:
    try:
        server = start()
    except database_servers.ServerMissing as error:
        if os.environ.get("SLURM_ENERGY_REQUIRE_SERVERS") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[database_servers.Server]:
    yield from _server(database_servers.start_postgresql)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[database_servers.Server]:
    yield from _server(database_servers.start_mariadb)


@pytest.fixture(params=KINDS)
def empty_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine on a database of each kind without tables, of this test alone."""
    yield from _empty(request.param, request, tmp_path)


@pytest.fixture
def own_engine(empty_engine: Engine) -> Engine:
    """An engine on a database with all tables, of this test alone."""
    upgrade(empty_engine)
    return empty_engine


@pytest.fixture(scope="session", params=KINDS)
def shared_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    for engine in _empty(request.param, request, tmp_path_factory.mktemp("store")):
        upgrade(engine)
        yield engine


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """An engine on a database with all tables and no rows."""
    yield shared_engine
    with shared_engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())


def _empty(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    if kind == "sqlite":
        engine = open_engine(StoreConfig(url=f"sqlite:///{folder}/energy.sqlite"))
        yield engine
        engine.dispose()
        return
    server: database_servers.Server = request.getfixturevalue(f"{kind}_server")
    name = server.create_database()
    engine = open_engine(StoreConfig(url=server.url(name)))
    yield engine
    engine.dispose()
    server.drop_database(name)
