"""Add what like scripts share, how many runs an estimate rests on, and whether a clock's figures are assumed.

Revision: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decision", sa.Column("estimate_runs", sa.Integer(), nullable=True))
    op.add_column("decision", sa.Column("script_key", sa.String(16), nullable=True))
    op.add_column("decision_clock", sa.Column("is_assumed", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("decision_clock", "is_assumed")
    op.drop_column("decision", "script_key")
    op.drop_column("decision", "estimate_runs")
