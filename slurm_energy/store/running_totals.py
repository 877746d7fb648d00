"""Sums that are kept up as reports come, so that asking for them costs nothing: for metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import case, exists, func, select, update
from sqlalchemy.orm import Session

from slurm_energy.domain.ids import ClusterName
from slurm_energy.store.tables import DecisionClockRow, EnergyTotalRow, JobRow, NodeEnergyRow, insert_if_absent

_NAMES = {"gpu_joules": "gpu_joules", "readings": "gpu_readings", "unknown_readings": "gpu_unknown_readings"}


def add_to_totals(session: Session, values: Sequence[Mapping[str, Any]]) -> None:
    """Add what reports come to by now, less what they came to before; a total never falls.

    Args:
        session: Of the database; the rows still have their old sums.
        values: New sums by column, with each report's `row_id`.
    """
    row = NodeEnergyRow
    new = {value["row_id"]: value for value in values}
    columns = (row.row_id, row.cluster, row.partition, *(getattr(row, name) for name in _NAMES.values()))
    grown: dict[tuple[str, str], dict[str, float]] = {}
    for row_id, cluster, partition, *old in session.execute(select(*columns).where(row.row_id.in_(list(new)))):
        for (name, column), before in zip(_NAMES.items(), old, strict=True):
            more = (new[row_id][column] or 0) - (before or 0)
            if more and cluster is not None:
                sums = grown.setdefault((cluster, partition or ""), dict.fromkeys(_NAMES, 0))
                sums[name] += more
    total = EnergyTotalRow
    for (cluster, partition), sums in sorted(grown.items()):
        empty = {"cluster": cluster, "partition": partition, **dict.fromkeys(_NAMES, 0)}
        insert_if_absent(session, EnergyTotalRow, [empty])
        changed = {name: getattr(total, name) + max(0, more) for name, more in sums.items()}
        session.execute(update(total).where(total.cluster == cluster, total.partition == partition).values(changed))


def energy_totals(session: Session, cluster: ClusterName) -> dict[str, dict[str, float]]:
    """Return the sums of every partition."""
    rows = session.scalars(select(EnergyTotalRow).where(EnergyTotalRow.cluster == cluster))
    return {row.partition: {name: getattr(row, name) for name in _NAMES} for row in rows}


def running_gpus(session: Session, cluster: ClusterName) -> dict[str, dict[str, float]]:
    """Return GPUs of running jobs by partition: those of jobs for which a lower clock was decided, and the others.

    The decision is what is known while a job runs; whether its clock held is in the report that comes at its end.
    """
    lowered = exists().where(
        DecisionClockRow.decision_id == JobRow.decision_id,
        DecisionClockRow.sm_clock_mhz < DecisionClockRow.default_clock_mhz,
    )
    gpus = func.coalesce(JobRow.gpu_count, 0)
    query = (
        select(
            JobRow.partition,
            func.sum(case((lowered, 0), else_=gpus)),
            func.sum(case((lowered, gpus), else_=0)),
        )
        .where(JobRow.cluster == cluster, JobRow.ended_at_seconds.is_(None), JobRow.state == "RUNNING")
        .group_by(JobRow.partition)
    )
    return {
        partition or "": {"default": int(default), "lowered": int(low)}
        for partition, default, low in session.execute(query)
    }
