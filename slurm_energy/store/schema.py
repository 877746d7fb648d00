"""The schema: its version (create, upgrade and check it, through Alembic), and the tables described for people.

Also the steps of migrations that may be done again: MariaDB commits each change of the schema by itself, so an upgrade
that was stopped between two of them is run again from the beginning, and finds the first ones done.
"""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

import slurm_energy.store.promotion.tables  # so that the metadata has every table
import slurm_energy.store.rollup_rows  # noqa: F401  # the same
from slurm_energy.config import StoreConfig
from slurm_energy.errors import SchemaVersionError, StoreError
from slurm_energy.resources import shared_directory
from slurm_energy.store.session import next_step, open_engine, reading, run_in_transaction, store_session
from slurm_energy.store.sums import make_sums_of_rows, rows_without_sums
from slurm_energy.store.tables import Base

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig

UPGRADE_COMMAND = "slurm-energy database upgrade"
_LOCK_NAME = "slurm_energy_schema"
_LOCK_NUMBER = 0x736C7565
_LOCK_SECONDS = 60
_REVISIONS = re.compile(
    r'^revision = "(?P<revision>[^"]+)"\n+down_revision = (?:"(?P<before>[^"]+)"|None)$', re.MULTILINE
)
_DIALECT_FREE = {"BIGINT": "integer", "INTEGER": "integer", "SMALLINT": "integer", "BOOLEAN": "boolean"}


def code_revision() -> str:
    """Return the revision that this code needs."""
    before = _revisions()
    heads = sorted(set(before) - set(before.values()))
    if len(heads) != 1:
        found = f"several last migrations, {', '.join(heads)}" if heads else "no migrations"
        raise StoreError(f"the installation has {found}: install the package again")
    return heads[0]


def _revisions() -> dict[str, str | None]:
    """Return each revision of this code with the one before it.

    Read from the files' text: every command that opens the database asks, and Alembic takes longer to import than most
    of them to run.
    """
    found = {}
    for path in (shared_directory("migrations") / "versions").glob("*.py"):
        if match := _REVISIONS.search(path.read_text(encoding="utf-8")):
            found[match["revision"]] = match["before"]
    return found


def database_revision(engine: Engine) -> str | None:
    """Return the database's revision, None for an empty one.

    Raises:
        StoreError: the database cannot be reached.
    """
    try:
        with reading(engine).connect() as connection:
            return _revision(connection)
    except SQLAlchemyError as error:
        raise _unreachable(engine, error) from error


def _revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def check_version(engine: Engine) -> None:
    """Return if the database has exactly the schema of this code.

    Raises:
        SchemaVersionError: empty, older or newer; the message names both revisions and the next step.
    """
    found, needed = database_revision(engine), code_revision()
    if found == needed:
        return
    where = engine.url.render_as_string(hide_password=True)
    if found is None:
        raise SchemaVersionError(f"database {where} is empty, this code needs revision {needed}: run {UPGRADE_COMMAND}")
    _refuse_newer(engine, found, needed)
    raise SchemaVersionError(
        f"database {where} has revision {found}, this code needs {needed}: stop the daemon, run {UPGRADE_COMMAND}"
    )


@cache
def _needed_revision() -> str:
    return code_revision()


def check_session_version(session: Session) -> None:
    """Return if the database that a session writes to has this code's schema at this moment.

    Raises:
        SchemaVersionError: it was replaced or upgraded since it was opened.
    """
    found = session.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found != _needed_revision():
        raise SchemaVersionError(
            f"database has revision {found} by now, this code needs {_needed_revision()}: was it restored or upgraded?"
        )


def upgrade(target: Engine | str) -> str:
    """Bring the database (an engine or a URL) to this code's revision, create it if empty, return the revision.

    Raises:
        SchemaVersionError: the database is newer than this code; nothing was changed.
        StoreError: the database failed.
    """
    from alembic import command  # noqa: PLC0415  # takes longer to import than a command that only reads to run
    from alembic.util import CommandError  # noqa: PLC0415

    if isinstance(target, str):
        engine = open_engine(StoreConfig(url=target))
        try:
            return upgrade(engine)
        finally:
            engine.dispose()
    needed = code_revision()
    try:
        with target.connect() as connection, _alone(connection):
            _refuse_newer(target, _revision(connection), needed)
            configuration = _alembic_config()
            configuration.attributes["connection"] = connection
            command.upgrade(configuration, "head")
            connection.commit()
    except (SQLAlchemyError, CommandError) as error:
        raise _unreachable(target, error) from error
    finish_sums(target)
    return needed


def finish_sums(engine: Engine) -> int:
    """Make the sums of reports that an older release stored, and return of how many.

    In short transactions: an upgrade that was stopped between its schema and its sums is finished by any later call.

    Raises:
        StoreError: the database failed.
    """
    finished, after = 0, 0
    while True:
        with store_session(engine, read_only=True) as session:
            row_ids = rows_without_sums(session, after)
        if not row_ids:
            return finished
        finished += run_in_transaction(engine, partial(make_sums_of_rows, row_ids=row_ids))
        after = row_ids[-1]


def has_all_sums(engine: Engine) -> bool:
    """Return whether no upgrade was stopped before `finish_sums` was through.

    Raises:
        StoreError: the database failed.
    """
    with store_session(engine, read_only=True) as session:
        return not rows_without_sums(session)


def _refuse_newer(engine: Engine, found: str | None, needed: str) -> None:
    if found is not None and found not in _revisions():
        raise SchemaVersionError(
            f"database {engine.url.render_as_string(hide_password=True)} has revision {found[:64]!r}, which is newer "
            f"than this code's {needed}: install the slurm-energy that wrote it; nothing was changed"
        )


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Keep other upgrades waiting; SQLite's BEGIN IMMEDIATE does that by itself."""
    if connection.dialect.name == "sqlite":
        yield
        return
    if connection.dialect.name == "postgresql":
        lock, unlock = f"SELECT pg_advisory_lock({_LOCK_NUMBER})", f"SELECT pg_advisory_unlock({_LOCK_NUMBER})"
    else:
        lock, unlock = f"SELECT GET_LOCK('{_LOCK_NAME}', {_LOCK_SECONDS})", f"SELECT RELEASE_LOCK('{_LOCK_NAME}')"
    if connection.execute(text(lock)).scalar() == 0:
        raise StoreError(f"another upgrade of this database has been running for {_LOCK_SECONDS} s")
    connection.commit()
    try:
        yield
    finally:
        connection.rollback()
        connection.execute(text(unlock))
        connection.commit()


def _alembic_config() -> "AlembicConfig":
    return migrations_config(shared_directory("migrations"))


def migrations_config(directory: Path) -> "AlembicConfig":
    """Return Alembic's configuration for a folder of migrations; there is no alembic.ini."""
    from alembic.config import Config as AlembicConfig  # noqa: PLC0415

    configuration = AlembicConfig()
    configuration.set_main_option("script_location", str(directory).replace("%", "%%"))
    configuration.set_main_option("path_separator", "os")
    return configuration


def _unreachable(engine: Engine, error: Exception) -> StoreError:
    detail = " ".join(str(getattr(error, "orig", None) or error).split())[:500]
    return StoreError(f"database {engine.url.render_as_string(hide_password=True)} failed: {detail}{next_step(detail)}")


def table_descriptions() -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """Yield name, sentence and (column, type, nullable) rows of every table, in order of dependence."""
    sentences = {
        mapper.class_.__tablename__: " ".join((inspect.getdoc(mapper.class_) or "").split())
        for mapper in Base.registry.mappers
    }
    for table in Base.metadata.sorted_tables:
        rows = []
        for column in table.columns:
            kind = str(column.type.compile()).split("(")[0]
            known = _DIALECT_FREE.get(kind, "number" if kind in {"FLOAT", "DOUBLE"} else "text")
            rows.append((column.name, known, "may be NULL" if column.nullable else ""))
        yield table.name, sentences[table.name], rows


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column to a table, unless it is there."""
    from alembic import op  # noqa: PLC0415

    if column.name not in {there["name"] for there in _inspector().get_columns(table)}:
        op.add_column(table, column)


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index, unless the table has one of that name."""
    from alembic import op  # noqa: PLC0415

    if name not in {there["name"] for there in _inspector().get_indexes(table)}:
        op.create_index(name, table, columns)


def create_table(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> None:
    """Create a table, unless it is there."""
    from alembic import op  # noqa: PLC0415

    if not _inspector().has_table(name):
        op.create_table(name, *parts, **options)


def _inspector() -> sa.Inspector:
    from alembic import op  # noqa: PLC0415

    return sa.inspect(op.get_bind())
