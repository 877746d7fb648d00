"""Add the number of GPUs that was chosen for a job whose user named several.

Revision: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("decision", sa.Column("gpus", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("decision", "gpus")
