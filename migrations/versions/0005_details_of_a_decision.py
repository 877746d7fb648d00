"""Add the details of an answer: costs by option, factors on prices, attention, preference.

Revision: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decision", sa.Column("details", sa.Text().with_variant(LONGTEXT(), "mariadb"), nullable=True))


def downgrade() -> None:
    op.drop_column("decision", "details")
