"""Add how far each daemon's journal has been stored, and how far nodes' clocks are from the daemon's.

Revision: 0004
Revises: 0003
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


def upgrade() -> None:
    op.create_table(
        "journal_position",
        sa.Column("journal_id", sa.String(32), nullable=False),
        sa.Column("stream", sa.String(32), nullable=False),
        sa.Column("segment", sa.BigInteger(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("journal_id", "stream", name="pk_journal_position"),
        **TABLE_OPTIONS,
    )
    op.add_column("node_energy", sa.Column("clock_offset_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    # Not in a batch: on SQLite that rebuilds the table, and dropping the old one takes its rows' readings with it.
    op.drop_column("node_energy", "clock_offset_seconds")
    op.drop_table("journal_position")
