"""Create policy, decision, job, energy and journal tables.

Revision: 0001
Revises: none
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LONG_TEXT = sa.Text().with_variant(LONGTEXT(), "mariadb")
TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


def upgrade() -> None:
    op.create_table(
        "job",
        sa.Column("row_id", ROW_ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at_seconds", sa.Double(), nullable=False),
        sa.Column("submit_time_known", sa.Boolean(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("user_name", sa.String(255), nullable=True),
        sa.Column("name", sa.String(512), nullable=True),
        sa.Column("account", sa.String(255), nullable=True),
        sa.Column("qos", sa.String(255), nullable=True),
        sa.Column("partition", sa.String(255), nullable=True),
        sa.Column("partitions", LONG_TEXT, nullable=True),
        sa.Column("array_job_id", sa.BigInteger(), nullable=True),
        sa.Column("array_task", sa.String(255), nullable=True),
        sa.Column("het_job_id", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(64), nullable=True),
        sa.Column("started_at_seconds", sa.Double(), nullable=True),
        sa.Column("ended_at_seconds", sa.Double(), nullable=True),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("suspended_seconds", sa.Double(), nullable=False),
        sa.Column("time_limit_minutes", sa.Double(), nullable=True),
        sa.Column("nodes", LONG_TEXT, nullable=True),
        sa.Column("node_count", sa.BigInteger(), nullable=True),
        sa.Column("gpu_count", sa.BigInteger(), nullable=True),
        sa.Column("cpus", sa.BigInteger(), nullable=True),
        sa.Column("priority", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("decision_id", sa.String(64), nullable=True),
        sa.Column("slurm_energy_joules", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("row_id", name="pk_job"),
        sa.UniqueConstraint(
            "cluster", "job_id", "submitted_at_seconds", name="uq_job_cluster_job_id_submitted_at_seconds"
        ),
        **TABLE_OPTIONS,
    )
    op.create_index("ix_job_cluster_array_job_id", "job", ["cluster", "array_job_id"], unique=False)
    op.create_index("ix_job_cluster_ended_at_seconds", "job", ["cluster", "ended_at_seconds"], unique=False)
    op.create_index("ix_job_cluster_user_id_name", "job", ["cluster", "user_id", "name"], unique=False)
    op.create_index("ix_job_decision_id", "job", ["decision_id"], unique=False)
    op.create_table(
        "policy",
        sa.Column("row_id", ROW_ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.String(128), nullable=False),
        sa.Column("settings_digest", sa.String(length=64), nullable=False),
        sa.Column("settings", LONG_TEXT, nullable=False),
        sa.Column("first_used_at_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("row_id", name="pk_policy"),
        sa.UniqueConstraint("name", "version", "settings_digest", name="uq_policy_name_version_settings_digest"),
        **TABLE_OPTIONS,
    )
    op.create_table(
        "decision",
        sa.Column("decision_id", sa.String(64), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("policy_row_id", ROW_ID, nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("decided_at_seconds", sa.Double(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=False),
        sa.Column("user_name", sa.String(255), nullable=True),
        sa.Column("job_name", sa.String(512), nullable=False),
        sa.Column("request", LONG_TEXT, nullable=False),
        sa.Column("partitions", LONG_TEXT, nullable=True),
        sa.Column("reasons", sa.String(1024), nullable=False),
        sa.Column("notes", LONG_TEXT, nullable=False),
        sa.Column("estimate_seconds", sa.Double(), nullable=True),
        sa.Column("estimate_upper_seconds", sa.Double(), nullable=True),
        sa.Column("estimate_source", sa.String(64), nullable=True),
        sa.Column("snapshot_age_seconds", sa.Double(), nullable=True),
        sa.Column("message", LONG_TEXT, nullable=False),
        sa.ForeignKeyConstraint(["policy_row_id"], ["policy.row_id"], name="fk_decision_policy_row_id_policy"),
        sa.PrimaryKeyConstraint("decision_id", name="pk_decision"),
        **TABLE_OPTIONS,
    )
    op.create_index(
        "ix_decision_cluster_decided_at_seconds", "decision", ["cluster", "decided_at_seconds"], unique=False
    )
    op.create_index(
        "ix_decision_cluster_user_id_decided_at_seconds",
        "decision",
        ["cluster", "user_id", "decided_at_seconds"],
        unique=False,
    )
    op.create_table(
        "job_attempt",
        sa.Column("job_row_id", ROW_ID, nullable=False),
        sa.Column("restart_count", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("submitted_at_seconds", sa.Double(), nullable=True),
        sa.Column("state", sa.String(64), nullable=True),
        sa.Column("partition", sa.String(255), nullable=True),
        sa.Column("nodes", LONG_TEXT, nullable=True),
        sa.Column("started_at_seconds", sa.Double(), nullable=True),
        sa.Column("ended_at_seconds", sa.Double(), nullable=True),
        sa.Column("suspended_seconds", sa.Double(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_row_id"], ["job.row_id"], name="fk_job_attempt_job_row_id_job", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_row_id", "restart_count", name="pk_job_attempt"),
        **TABLE_OPTIONS,
    )
    op.create_table(
        "node_energy",
        sa.Column("row_id", ROW_ID, nullable=False),
        sa.Column("job_row_id", ROW_ID, nullable=False),
        sa.Column("restart_count", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("quality", sa.SmallInteger(), nullable=False),
        sa.Column("user_id", sa.BigInteger(), nullable=True),
        sa.Column("partition", sa.String(255), nullable=True),
        sa.Column("decision_id", sa.String(64), nullable=True),
        sa.Column("started_at_seconds", sa.Double(), nullable=False),
        sa.Column("ended_at_seconds", sa.Double(), nullable=False),
        sa.Column("time_scale", sa.Double(), nullable=False),
        sa.Column("host_measured", sa.Boolean(), nullable=False),
        sa.Column("host_joules", sa.Double(), nullable=True),
        sa.Column("host_reason", sa.String(255), nullable=True),
        sa.Column("host_coverage_seconds", sa.Double(), nullable=False),
        sa.Column("host_flags", sa.String(512), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("events", LONG_TEXT, nullable=False),
        sa.Column("received_at_seconds", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "(host_joules IS NULL) <> (host_reason IS NULL)", name="ck_node_energy_host_joules_or_reason"
        ),
        sa.CheckConstraint("host_coverage_seconds >= 0", name="ck_node_energy_host_coverage_not_negative"),
        sa.CheckConstraint("host_joules >= 0", name="ck_node_energy_host_joules_not_negative"),
        sa.ForeignKeyConstraint(
            ["job_row_id"], ["job.row_id"], name="fk_node_energy_job_row_id_job", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("row_id", name="pk_node_energy"),
        sa.UniqueConstraint("job_row_id", "restart_count", "node", name="uq_node_energy_job_row_id_restart_count_node"),
        **TABLE_OPTIONS,
    )
    op.create_table(
        "decision_clock",
        sa.Column("decision_id", sa.String(64), nullable=False),
        sa.Column("gpu_type", sa.String(64), nullable=False),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=False),
        sa.Column("default_clock_mhz", sa.Integer(), nullable=False),
        sa.Column("predicted_slowdown", sa.Double(), nullable=False),
        sa.Column("predicted_energy_change", sa.Double(), nullable=False),
        sa.Column("power_limit_watts", sa.Double(), nullable=True),
        sa.CheckConstraint("sm_clock_mhz > 0 AND default_clock_mhz > 0", name="ck_decision_clock_clocks_positive"),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decision.decision_id"], name="fk_decision_clock_decision_id_decision", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("decision_id", "gpu_type", name="pk_decision_clock"),
        **TABLE_OPTIONS,
    )
    op.create_table(
        "gpu_energy",
        sa.Column("row_id", ROW_ID, nullable=False),
        sa.Column("node_energy_row_id", ROW_ID, nullable=False),
        sa.Column("gpu_uuid", sa.String(128), nullable=False),
        sa.Column("quality", sa.SmallInteger(), nullable=False),
        sa.Column("gpu_name", sa.String(255), nullable=False),
        sa.Column("gpu_type", sa.String(64), nullable=True),
        sa.Column("joules", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(255), nullable=True),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("scope", sa.String(length=32), nullable=False),
        sa.Column("coverage_seconds", sa.Double(), nullable=False),
        sa.Column("flags", sa.String(512), nullable=False),
        sa.Column("counter_joules", sa.Double(), nullable=True),
        sa.Column("polled_joules", sa.Double(), nullable=True),
        sa.Column("asked_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("applied_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("observed_clock_mhz", sa.Double(), nullable=True),
        sa.Column("default_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("utilisation", sa.Double(), nullable=True),
        sa.CheckConstraint("(joules IS NULL) <> (reason IS NULL)", name="ck_gpu_energy_joules_or_reason"),
        sa.CheckConstraint("counter_joules >= 0 AND polled_joules >= 0", name="ck_gpu_energy_readings_not_negative"),
        sa.CheckConstraint("coverage_seconds >= 0", name="ck_gpu_energy_coverage_not_negative"),
        sa.CheckConstraint("joules >= 0", name="ck_gpu_energy_joules_not_negative"),
        sa.CheckConstraint("utilisation BETWEEN 0 AND 1", name="ck_gpu_energy_utilisation_is_share"),
        sa.ForeignKeyConstraint(
            ["node_energy_row_id"],
            ["node_energy.row_id"],
            name="fk_gpu_energy_node_energy_row_id_node_energy",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("row_id", name="pk_gpu_energy"),
        sa.UniqueConstraint("node_energy_row_id", "gpu_uuid", name="uq_gpu_energy_node_energy_row_id_gpu_uuid"),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    op.drop_table("gpu_energy")
    op.drop_table("decision_clock")
    op.drop_table("node_energy")
    op.drop_table("job_attempt")
    op.drop_index("ix_decision_cluster_user_id_decided_at_seconds", table_name="decision")
    op.drop_index("ix_decision_cluster_decided_at_seconds", table_name="decision")
    op.drop_table("decision")
    op.drop_table("policy")
    op.drop_index("ix_job_decision_id", table_name="job")
    op.drop_index("ix_job_cluster_user_id_name", table_name="job")
    op.drop_index("ix_job_cluster_ended_at_seconds", table_name="job")
    op.drop_index("ix_job_cluster_array_job_id", table_name="job")
    op.drop_table("job")
