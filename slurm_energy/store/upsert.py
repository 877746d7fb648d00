"""Insert unless the key is there: the one statement that each database spells in its own way."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Insert, inspect
from sqlalchemy.dialects.mysql import insert as mariadb_insert
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from slurm_energy.store.tables import Base


def insert_if_absent(session: Session, kind: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert the rows whose key no other row has; safe while other sessions insert the same."""
    if rows:
        session.execute(_statement(session, kind), [dict(row) for row in rows])


def _statement(session: Session, kind: type[Base]) -> Insert:
    match session.get_bind().dialect.name:
        case "sqlite":
            return sqlite_insert(kind).on_conflict_do_nothing()
        case "postgresql":
            return postgresql_insert(kind).on_conflict_do_nothing()
        case _:
            # INSERT IGNORE would also swallow a value that does not fit.
            key = inspect(kind).primary_key[0]
            return mariadb_insert(kind).on_duplicate_key_update({key.name: key})
