"""Add how many runs of the job's name measured what a decided clock does.

Revision: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("decision_clock", sa.Column("known_runs", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("decision_clock", "known_runs")
