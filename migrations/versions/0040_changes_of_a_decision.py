"""Add what was decided again for jobs that waited.

Revision: 0040
Revises: 0030
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

from slurm_energy.store.schema import create_table

revision = "0040"
down_revision = "0030"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(LONGTEXT(), "mariadb")
TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


def upgrade() -> None:
    create_table(
        "decision_change",
        sa.Column("decision_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("decided_at_seconds", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("partitions", LONG_TEXT, nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("clocks", LONG_TEXT, nullable=False),
        sa.Column("note", sa.String(255), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decision.decision_id"],
            name="fk_decision_change_decision_id_decision",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("decision_id", "number", name="pk_decision_change"),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    op.drop_table("decision_change")
