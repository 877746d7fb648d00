"""Add what a decision's slowdown is held against, and what a named partition cost.

Revision: 0080
Revises: 0060
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

from slurm_energy.store.schema import add_column

revision = "0080"
down_revision = "0060"
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(LONGTEXT(), "mariadb")


def upgrade() -> None:
    add_column("decision", sa.Column("opens", sa.Boolean(), nullable=True))
    add_column("decision", sa.Column("open_offer", LONG_TEXT, nullable=True))
    add_column("decision", sa.Column("slowdown", LONG_TEXT, nullable=True))


def downgrade() -> None:
    for column in ("slowdown", "open_offer", "opens"):
        op.drop_column("decision", column)
