"""Steps of a migration that may be done again.

MariaDB commits each change of the schema by itself: an upgrade that was stopped between two of them is run again from
the beginning, and finds the first ones done.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column to a table, unless it is there."""
    if column.name not in {there["name"] for there in _inspector().get_columns(table)}:
        op.add_column(table, column)


def create_index(name: str, table: str, columns: list[str]) -> None:
    """Create an index, unless the table has one of that name."""
    if name not in {there["name"] for there in _inspector().get_indexes(table)}:
        op.create_index(name, table, columns)


def create_table(name: str, *parts: sa.schema.SchemaItem, **options: Any) -> None:
    """Create a table, unless it is there."""
    if not _inspector().has_table(name):
        op.create_table(name, *parts, **options)


def _inspector() -> sa.Inspector:
    return sa.inspect(op.get_bind())
