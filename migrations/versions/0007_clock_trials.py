"""Add the clocks that were tried while jobs ran.

Revision: 0007
Revises: 0006
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import create_table

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


def upgrade() -> None:
    create_table(
        "clock_trial",
        sa.Column("node_energy_row_id", ROW_ID, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("gpu_type", sa.String(64), nullable=False),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=False),
        sa.Column("default_clock_mhz", sa.Integer(), nullable=False),
        sa.Column("at_seconds", sa.Double(), nullable=False),
        sa.Column("watts", sa.Double(), nullable=False),
        sa.Column("default_watts", sa.Double(), nullable=False),
        sa.Column("slowdown", sa.Double(), nullable=True),
        sa.Column("error", sa.Double(), nullable=True),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(255), nullable=False),
        sa.CheckConstraint("sm_clock_mhz > 0 AND default_clock_mhz > 0", name=op.f("ck_clock_trial_clocks_positive")),
        sa.CheckConstraint("(slowdown IS NULL) = (error IS NULL)", name=op.f("ck_clock_trial_slowdown_with_error")),
        sa.ForeignKeyConstraint(
            ["node_energy_row_id"],
            ["node_energy.row_id"],
            name="fk_clock_trial_node_energy_row_id_node_energy",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("node_energy_row_id", "number", name="pk_clock_trial"),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    op.drop_table("clock_trial")
