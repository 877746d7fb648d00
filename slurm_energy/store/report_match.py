"""To which job a node's report belongs. Job ids come again after a reset, and nobody's clock can be relied on.

A report's job is known by the decision that travelled with it; without one, by how long ago it started, which the node
tells by a clock that nobody sets; and where a node does not tell (older releases, a reboot in between), by its own wall
clock, and if that fits no job of the number, by what a job still lacks when the report arrives.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import NodeReport
from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.job_rows import CLOCK_SKEW_SECONDS, SubmitTime
from slurm_energy.store.tables import JobAttemptRow, JobRow, NodeEnergyRow

MAX_LATE_SECONDS = 7 * 86_400.0
"""After its end, a job is no longer taken for that of a report only because it lacks one."""
_SAME_MOMENT_SECONDS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What the daemon knows of a report beside its text."""

    clock_offset_seconds: float | None = None
    """What to add to the node's times to have them by the daemon's clock; None when it is not known."""
    received_at_seconds: float | None = None


def job_of_report(
    session: Session, report: NodeReport, arrival: Arrival, *, submit_time_known: bool = False
) -> JobRow | None:
    """Return the job that a report belongs to, None when no job of its number can be it.

    Args:
        session: Of the database.
        report: With the times of its node.
        arrival: Of the report.
        submit_time_known: Leave out the stand-ins of jobs of which Slurm has not told.
    """
    query = select(JobRow).where(JobRow.cluster == report.cluster, JobRow.job_id == report.job_id)
    if submit_time_known:
        query = query.where(JobRow.submit_time_known)
    rows = list(session.scalars(query.order_by(JobRow.submit_time_known.desc(), JobRow.submitted_at_seconds.desc())))
    return next(_found(session, report, arrival, rows), None)


def submit_time_of(session: Session, report: NodeReport, arrival: Arrival) -> SubmitTime:
    """Return the submit time of the job that a report belongs to; without one, the start stands in for it."""
    row = job_of_report(session, report, arrival)
    if row is not None:
        return SubmitTime(seconds=row.submitted_at_seconds, known=row.submit_time_known)
    started = report.started_at_seconds + (arrival.clock_offset_seconds or 0.0)
    return SubmitTime(seconds=round(started, 6), known=False)


def _found(session: Session, report: NodeReport, arrival: Arrival, rows: list[JobRow]) -> Iterator[JobRow]:
    if report.decision_id is not None:
        yield from (row for row in rows if row.decision_id == report.decision_id)
        rows = [row for row in rows if row.decision_id is None]
    rows = [row for row in rows if None in {row.user_id, report.user_id} or row.user_id == report.user_id]
    yield from (row for row in rows if _has_this(session, row, report))
    started = report.started_at_seconds + (arrival.clock_offset_seconds or 0.0)
    yield from (row for row in rows if _ran_then(row, started, report.restart_count))
    received = arrival.received_at_seconds
    if arrival.clock_offset_seconds is None and received is not None:
        yield from (row for row in rows if _lacks_this(session, row, report, received))


def _has_this(session: Session, row: JobRow, report: NodeReport) -> bool:
    """Return whether the report came before: one that was not acknowledged is sent again."""
    there = _node_row(session, row, report)
    return there is not None and abs(there.started_at_seconds - report.started_at_seconds) < _SAME_MOMENT_SECONDS


def _ran_then(row: JobRow, started_at_seconds: float, restart_count: int) -> bool:
    """Return whether a job was submitted by then and had not ended before, unless this is a later restart."""
    if row.submitted_at_seconds > started_at_seconds + CLOCK_SKEW_SECONDS:
        return False
    ended = row.ended_at_seconds
    return ended is None or ended >= started_at_seconds - CLOCK_SKEW_SECONDS or restart_count > row.restart_count


def _lacks_this(session: Session, row: JobRow, report: NodeReport, received_at_seconds: float) -> bool:
    """Return whether a job has been on the node, for so long, and nothing of it was reported."""
    if not row.submit_time_known or row.submitted_at_seconds > received_at_seconds + CLOCK_SKEW_SECONDS:
        return False
    attempt = session.get(JobAttemptRow, (row.row_id, report.restart_count))
    if attempt is None or not _names(attempt.nodes, report.node):
        return False
    if attempt.started_at_seconds is not None and attempt.ended_at_seconds is not None:
        longest = attempt.ended_at_seconds - attempt.started_at_seconds + CLOCK_SKEW_SECONDS
        is_late = received_at_seconds - attempt.ended_at_seconds > MAX_LATE_SECONDS
        if is_late or report.ended_at_seconds - report.started_at_seconds > longest:
            return False
    there = _node_row(session, row, report)
    return there is None or not there.gpus


def _node_row(session: Session, row: JobRow, report: NodeReport) -> NodeEnergyRow | None:
    return session.scalar(
        select(NodeEnergyRow).where(
            NodeEnergyRow.job_row_id == row.row_id,
            NodeEnergyRow.restart_count == report.restart_count,
            NodeEnergyRow.node == report.node,
        )
    )


def _names(nodes: str | None, node: str) -> bool:
    try:
        return bool(nodes) and node in expand_hostlist(nodes or "")
    except ValueRangeError:
        return False
