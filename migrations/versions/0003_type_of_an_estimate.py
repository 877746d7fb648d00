"""Add the GPU type that a runtime estimate speaks of.

Revision: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decision", sa.Column("estimate_gpu_type", sa.String(64), nullable=True))


def downgrade() -> None:
    # Not in a batch: on SQLite that rebuilds the table, and dropping the old one takes its clocks with it.
    op.drop_column("decision", "estimate_gpu_type")
