"""Add the number of GPUs that was chosen for a job whose user named several.

Revision: 0009
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decision", sa.Column("gpus", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("decision", "gpus")
