"""Add candidate policies: what was made, what became of each, which one is live, and which one decided a job.

Revision: 0030
Revises: 0020
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

from slurm_energy.store.schema import create_index, create_table

revision = "0030"
down_revision = "0020"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}
JSON_TEXT = sa.Text().with_variant(LONGTEXT(), "mariadb")


def upgrade() -> None:
    create_table(
        "policy_candidate",
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("made_at_seconds", sa.Double(), nullable=False),
        sa.Column("parent_id", sa.String(64), nullable=False),
        sa.Column("folder", sa.String(1024), nullable=False),
        sa.Column("document", JSON_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("candidate_id", name="pk_policy_candidate"),
        **TABLE_OPTIONS,
    )
    create_index("ix_policy_candidate_cluster_made_at_seconds", "policy_candidate", ["cluster", "made_at_seconds"])
    create_table(
        "live_policy",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("champion_id", sa.String(64), nullable=False),
        sa.Column("challenger_id", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=True),
        sa.Column("canary_share", sa.Double(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("since_seconds", sa.Double(), nullable=False),
        sa.CheckConstraint("canary_share BETWEEN 0 AND 1", name=op.f("ck_live_policy_canary_share_is_share")),
        sa.PrimaryKeyConstraint("cluster", name="pk_live_policy"),
        **TABLE_OPTIONS,
    )
    create_table(
        "policy_event",
        sa.Column("row_id", ROW_ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("at_seconds", sa.Double(), nullable=False),
        sa.Column("stage_before", sa.String(16), nullable=True),
        sa.Column("stage_after", sa.String(16), nullable=True),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("reason", JSON_TEXT, nullable=False),
        sa.Column("evidence", JSON_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("row_id", name="pk_policy_event"),
        **TABLE_OPTIONS,
    )
    create_index("ix_policy_event_cluster_candidate_id", "policy_event", ["cluster", "candidate_id"])
    create_table(
        "policy_assignment",
        sa.Column("decision_id", sa.String(64), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("decided_at_seconds", sa.Double(), nullable=False),
        sa.Column("candidate_id", sa.String(64), nullable=False),
        sa.Column("challenger_id", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("milliseconds", sa.Double(), nullable=False),
        sa.Column("differs", sa.Boolean(), nullable=True),
        sa.Column("shadow", JSON_TEXT, nullable=True),
        sa.CheckConstraint(
            "probability > 0 AND probability <= 1", name=op.f("ck_policy_assignment_probability_is_share")
        ),
        sa.PrimaryKeyConstraint("decision_id", name="pk_policy_assignment"),
        **TABLE_OPTIONS,
    )
    create_index(
        "ix_policy_assignment_cluster_challenger_id_decided_at_seconds",
        "policy_assignment",
        ["cluster", "challenger_id", "decided_at_seconds"],
    )


def downgrade() -> None:
    for name in ("policy_assignment", "policy_event", "live_policy", "policy_candidate"):
        op.drop_table(name)
