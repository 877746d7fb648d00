"""Add where a report's host energy lies in the node's own count.

Revision: 0090
Revises: 0080
"""

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column

revision = "0090"
down_revision = "0080"
branch_labels = None
depends_on = None

NUMBERS = ("host_meter_start_joules", "host_meter_end_joules")


def upgrade() -> None:
    add_column("node_energy", sa.Column("host_meter_id", sa.String(64), nullable=True))
    for column in NUMBERS:
        add_column("node_energy", sa.Column(column, sa.Double(), nullable=True))


def downgrade() -> None:
    for column in (*reversed(NUMBERS), "host_meter_id"):
        op.drop_column("node_energy", column)
