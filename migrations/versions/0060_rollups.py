"""Add sums by hour and by day, and which hour has a job.

Revision: 0060
Revises: 0040
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column, create_index, create_table

revision = "0060"
down_revision = "0040"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}
SUMS = (
    "gpu_joules", "gpu_readings", "gpu_unknown_readings", "gpu_covered_seconds", "gpu_window_seconds",
    "gpu_timing_squares", "gpu_unbounded", "host_joules", "host_readings", "host_unknown_readings",
    "host_covered_seconds", "host_window_seconds", "host_timing_squares", "host_unbounded", "saving_joules",
    "saving_low_joules", "saving_high_joules", "idle_gpu_joules", "used_seconds", "watched_seconds", "jobs",
    "gpu_jobs", "jobs_with_energy", "jobs_without_energy", "wait_seconds", "waits", "run_seconds", "runs",
)  # fmt: skip
JOB_INDEX = "ix_job_cluster_rollup_hour_counted_until_seconds"


def upgrade() -> None:
    add_column("job", sa.Column("rollup_hour", sa.BigInteger(), server_default="0", nullable=False))
    add_column("job", sa.Column("counted_until_seconds", sa.Double(), nullable=True))
    create_index(JOB_INDEX, "job", ["cluster", "rollup_hour", "counted_until_seconds"])
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    create_table(
        "energy_rollup",
        sa.Column("row_id", number, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("period_seconds", sa.BigInteger(), nullable=False),
        sa.Column("starts_at_seconds", sa.BigInteger(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        *(sa.Column(name, sa.String(255), nullable=True) for name in ("user_name", "account", "qos", "partition")),
        *(sa.Column(name, sa.Double(), nullable=True) for name in SUMS),
        sa.PrimaryKeyConstraint("row_id", name="pk_energy_rollup"),
        **TABLE_OPTIONS,
    )
    starts = ["cluster", "period_seconds", "starts_at_seconds"]
    create_index("ix_energy_rollup_cluster_period_seconds_starts_at_seconds", "energy_rollup", starts)
    create_table(
        "rollup_period",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("period_seconds", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("starts_at_seconds", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("is_stale", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(*starts, name="pk_rollup_period"),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    op.drop_table("rollup_period")
    op.drop_table("energy_rollup")
    op.drop_index(JOB_INDEX, "job")
    op.drop_column("job", "counted_until_seconds")
    op.drop_column("job", "rollup_hour")
