"""Host energy that is in no job, by node and period, from the stretches of nodes' counts that reports name."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import func
from sqlalchemy.orm import Session

from slurm_energy.domain.host_count import HostStretch, UnusedHost, unused_host
from slurm_energy.domain.ids import ClusterName
from slurm_energy.store.summaries import host_joules, joined_hosts
from slurm_energy.store.tables import NodeEnergyRow
from slurm_energy.store.totals import Period

MAX_IDLE_SECONDS = 7 * 86_400.0
"""How far before a period a node's last job is looked for: what it drew since then is in no job."""


def unused_hosts(
    session: Session, cluster: ClusterName, periods: Sequence[Period], node: str | None = None
) -> list[dict[str, float]]:
    """Return for each period the joules in no job by node; a node without a count is not in it.

    The time between two jobs is of the period in which the later one began: nothing is counted twice, whatever the
    periods. What a job that still runs has is in no job until its report is there.

    Args:
        session: Of the database.
        cluster: Whose nodes.
        periods: In order and without gaps.
        node: This one alone.
    """
    begin, end = periods[0][0], periods[-1][1]
    starts = [-math.inf if since is None else since for since, _ in periods]
    found: list[dict[str, float]] = [{} for _ in periods]
    for name, pieces in _pieces(session, cluster, begin, end, node).items():
        for piece in pieces:
            number = bisect_right(starts, piece.until_seconds) - 1
            if number >= 0 and (end is None or piece.until_seconds < end):
                found[number][name] = found[number].get(name, 0.0) + piece.joules
    return found


def _pieces(
    session: Session, cluster: ClusterName, begin: float | None, end: float | None, node: str | None
) -> dict[str, tuple[UnusedHost, ...]]:
    row = NodeEnergyRow
    started = row.started_at_seconds + func.coalesce(row.clock_offset_seconds, 0.0)
    part = host_joules() / func.nullif(row.host_node_joules, 0.0)
    query = joined_hosts(
        row.node,
        row.host_meter_id,
        row.host_meter_start_joules,
        row.host_meter_end_joules,
        started,
        row.counted_at_seconds,
        part,
    ).where(row.cluster == cluster, row.host_meter_id.is_not(None))
    if node is not None:
        query = query.where(row.node == node)
    if begin is not None:
        query = query.where(row.counted_at_seconds >= begin - MAX_IDLE_SECONDS)
    if end is not None:
        query = query.where(started < end)  # one that has not ended by then holds its cores all the same
    stretches: dict[str, list[HostStretch]] = defaultdict(list)
    for name, count_id, start, stop, from_seconds, ended, share in session.execute(query):
        stretches[name].append(
            HostStretch(
                count_id=count_id,
                start_joules=start,
                end_joules=stop,
                started_at_seconds=from_seconds,
                ended_at_seconds=ended,
                share=min(share or 0.0, 1.0),
            )
        )
    return {name: unused_host(found) for name, found in stretches.items()}
