"""Add the account and the user of each report, for an index, and the sums of all reports by partition.

Revision: 0020
Revises: 0010
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from slurm_energy.store.schema import add_column, create_index, create_table

revision = "0020"
down_revision = "0010"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
}


def upgrade() -> None:
    add_column("node_energy", sa.Column("job_account", sa.String(255), nullable=True))
    add_column("node_energy", sa.Column("job_user_id", sa.BigInteger(), nullable=True))
    job = sa.table("job", sa.column("row_id"), sa.column("account"), sa.column("user_id"))
    report = sa.table(
        "node_energy",
        *map(sa.column, ("job_row_id", "job_account", "job_user_id", "cluster", "partition", "gpu_joules")),
        *map(sa.column, ("gpu_readings", "gpu_unknown_readings")),
    )
    for column, own in (("job_account", job.c.account), ("job_user_id", job.c.user_id)):
        owner = sa.select(own).where(job.c.row_id == report.c.job_row_id).scalar_subquery()
        op.execute(sa.update(report).values({column: owner}))
        name = f"ix_node_energy_cluster_{column}_counted_at_seconds"
        create_index(name, "node_energy", ["cluster", column, "counted_at_seconds"])
    create_table(
        "energy_total",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("gpu_joules", sa.Double(), nullable=False),
        sa.Column("readings", sa.BigInteger(), nullable=False),
        sa.Column("unknown_readings", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "partition", name="pk_energy_total"),
        **TABLE_OPTIONS,
    )
    # What an older release's reports come to is added by the sums that are made after the upgrade, or here.
    total = sa.table("energy_total")
    op.execute(sa.delete(total))
    partition = sa.func.coalesce(report.c.partition, "")
    columns = ("cluster", "partition", "gpu_joules", "readings", "unknown_readings")
    op.execute(
        sa.insert(sa.table("energy_total", *map(sa.column, columns))).from_select(
            columns,
            sa.select(
                report.c.cluster,
                partition,
                sa.func.coalesce(sa.func.sum(report.c.gpu_joules), 0.0),
                sa.func.sum(report.c.gpu_readings),
                sa.func.sum(report.c.gpu_unknown_readings),
            )
            .where(report.c.gpu_readings.is_not(None), report.c.cluster.is_not(None))
            .group_by(report.c.cluster, partition),
        )
    )


def downgrade() -> None:
    op.drop_table("energy_total")
    for column in ("job_account", "job_user_id"):
        op.drop_index(f"ix_node_energy_cluster_{column}_counted_at_seconds", "node_energy")
        op.drop_column("node_energy", column)
