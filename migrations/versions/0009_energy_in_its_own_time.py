"""Add when and under which sums each report is counted, what a node's host drew as a whole, and the sizes of nodes.

The sums of rows that are there already are filled in by `slurm_energy.store.sums` after the upgrade.

Revision: 0009
Revises: 0008
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column, create_index, create_table

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


NUMBERS = (
    "counted_at_seconds",
    "host_node_joules",
    "host_share",
    "gpu_joules",
    "gpu_covered_seconds",
    "gpu_window_seconds",
    "gpu_timing_squares",
    "saving_joules",
    "saving_low_joules",
    "saving_high_joules",
    "idle_gpu_joules",
    "used_seconds",
    "watched_seconds",
)
COUNTS = ("gpu_readings", "gpu_unknown_readings", "gpu_unbounded")


def upgrade() -> None:
    add_column("node_energy", sa.Column("cluster", sa.String(64), nullable=True))
    for name in NUMBERS:
        add_column("node_energy", sa.Column(name, sa.Double(), nullable=True))
    for name in COUNTS:
        add_column("node_energy", sa.Column(name, sa.Integer(), nullable=True))
    op.execute("UPDATE node_energy SET counted_at_seconds = ended_at_seconds + COALESCE(clock_offset_seconds, 0)")
    op.execute("UPDATE node_energy SET cluster = (SELECT cluster FROM job WHERE job.row_id = node_energy.job_row_id)")
    create_index("ix_node_energy_cluster_counted_at_seconds", "node_energy", ["cluster", "counted_at_seconds"])
    create_index("ix_job_attempt_ended_at_seconds", "job_attempt", ["ended_at_seconds"])
    create_index("ix_job_cluster_het_job_id", "job", ["cluster", "het_job_id"])
    create_table(
        "node_size",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("cpus", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("seen_at_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", name="pk_node_size"),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    op.drop_table("node_size")
    op.drop_index("ix_job_cluster_het_job_id", "job")
    op.drop_index("ix_job_attempt_ended_at_seconds", "job_attempt")
    op.drop_index("ix_node_energy_cluster_counted_at_seconds", "node_energy")
    for name in (*COUNTS, *NUMBERS, "cluster"):
        op.drop_column("node_energy", name)
