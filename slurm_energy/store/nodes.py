"""How large nodes are, as Slurm counts, and which part of a node's processors a job has."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, case, func, or_, select, update
from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import NodeSize
from slurm_energy.domain.ids import ClusterName
from slurm_energy.store.job_rows import ENDED_STATES
from slurm_energy.store.tables import JobRow, NodeEnergyRow, NodeSizeRow


def record_node_sizes(
    session: Session, cluster: ClusterName, sizes: Sequence[NodeSize], seen_at_seconds: float
) -> None:
    """Store sizes; what was seen later wins, in whatever order they come. Attempts that are over keep their share."""
    known = {size.name: session.get(NodeSizeRow, (cluster, size.name)) for size in sizes}
    newer = [size for size in sizes if (row := known[size.name]) is None or row.seen_at_seconds <= seen_at_seconds]
    resized = [size.name for size in newer if (row := known[size.name]) is not None and row.cpus != size.cpus]
    if resized:
        keep_host_shares(session, NodeEnergyRow.cluster == cluster, NodeEnergyRow.node.in_(resized), attempt_is_over())
    for size in newer:
        row = known[size.name]
        if row is None:
            row = NodeSizeRow(cluster=cluster, node=size.name, seen_at_seconds=seen_at_seconds)
            session.add(row)
            known[size.name] = row
        row.cpus, row.gpus, row.seen_at_seconds = size.cpus, size.gpus, seen_at_seconds


def keep_host_shares(session: Session, *rows: ColumnElement[bool]) -> None:
    """Write down which share of its host each report's job had, where that is known and none is written down yet.

    What a month's report says must not depend on how many CPUs the node has later, or the job after a requeue.

    Args:
        session: Of the database.
        *rows: Terms on NodeEnergyRow and JobRow.
    """
    share = host_share()
    query = (
        select(NodeEnergyRow.row_id, share.label("host_share"))
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .join(NodeSizeRow, size_of_report())
        .where(NodeEnergyRow.host_share.is_(None), share.is_not(None), *rows)
    )
    values = [dict(row._mapping) for row in session.execute(query)]
    if values:
        session.execute(update(NodeEnergyRow), values)


def attempt_is_over() -> ColumnElement[bool]:
    """Return whether Slurm has said that a report's attempt ended, by NodeEnergyRow and JobRow."""
    return or_(NodeEnergyRow.restart_count < JobRow.restart_count, JobRow.state.in_(sorted(ENDED_STATES)))


def size_of_report() -> ColumnElement[bool]:
    """Return the join of NodeEnergyRow with JobRow to the size of its node."""
    return and_(NodeSizeRow.cluster == JobRow.cluster, NodeSizeRow.node == NodeEnergyRow.node)


def host_share() -> ColumnElement[float | None]:
    """Return a job's CPUs over those of the node, as both are known now; NULL where one is not."""
    share = JobRow.cpus * 1.0 / func.nullif(JobRow.node_count, 0) / func.nullif(NodeSizeRow.cpus, 0)
    return case((share > 1.0, 1.0), else_=share)
