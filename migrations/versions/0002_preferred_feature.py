"""Add the node feature that a decision prefers.

Revision: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decision", sa.Column("prefer", sa.String(64), nullable=True))


def downgrade() -> None:
    # Not in a batch: on SQLite that rebuilds the table, and dropping the old one takes its clocks with it.
    op.drop_column("decision", "prefer")
