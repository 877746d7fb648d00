"""How large nodes are, as Slurm counts."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import NodeSize
from slurm_energy.domain.ids import ClusterName
from slurm_energy.store.tables import NodeSizeRow


def record_node_sizes(
    session: Session, cluster: ClusterName, sizes: Sequence[NodeSize], seen_at_seconds: float
) -> None:
    """Store sizes; what was seen later wins, in whatever order they come."""
    for size in sizes:
        row = session.get(NodeSizeRow, (cluster, size.name))
        if row is None:
            row = NodeSizeRow(cluster=cluster, node=size.name, seen_at_seconds=seen_at_seconds)
            session.add(row)
        elif row.seen_at_seconds > seen_at_seconds:
            continue
        row.cpus, row.gpus, row.seen_at_seconds = size.cpus, size.gpus, seen_at_seconds
