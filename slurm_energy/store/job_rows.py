"""Rows of jobs and attempts, and which of them a node's report belongs to.

Job ids come again after a reset, and no clock can be relied on. A report's job is known by the decision that travelled
with it; without one, by how long ago it started, which the node measures by a clock that is never set; and where a node
does not send that (older releases, a reboot in between), by its own wall clock, and if that fits no job of the number,
by what a job still lacks when the report arrives.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.energy import JobKey, NodeReport
from slurm_energy.domain.ids import ClusterName, JobId, decision_in_comment, expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.tables import NODE_LENGTH, Base, JobAttemptRow, JobRow, NodeEnergyRow, insert_if_absent
from slurm_energy.store.types import stored_text

CLOCK_SKEW_SECONDS = 120.0
"""Largest difference between the clocks of a node and of slurmctld that is still taken for the same moment."""
ENDED_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REQUEUED", "REVOKED", "TIMEOUT"}
)
MAX_LATE_SECONDS = 7 * 86_400.0
"""After its end, a job is no longer taken for that of a report only because it lacks one."""
NUMBERS_AT_ONCE = 500
"""In one statement: an older SQLite takes 999."""
_SAME_MOMENT_SECONDS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitTime:
    """When a job was submitted; not `known` when the start on a node stands in for it."""

    seconds: float
    known: bool


def new_job_row(key: JobKey, *, submit_time_known: bool) -> dict[str, Any]:
    """Return the least that a job's row needs."""
    return {
        "cluster": key.cluster,
        "job_id": key.job_id,
        "submitted_at_seconds": key.submitted_at_seconds,
        "submit_time_known": submit_time_known,
        "restart_count": key.restart_count,
        "suspended_seconds": 0.0,
    }


def locked_job(session: Session, key: JobKey, *, submit_time_known: bool) -> JobRow:
    """Return the job's row, made if absent, and keep other writers of this job waiting until the commit."""
    insert_if_absent(session, JobRow, [new_job_row(key, submit_time_known=submit_time_known)])
    return session.scalars(
        select(JobRow)
        .where(
            JobRow.cluster == key.cluster,
            JobRow.job_id == key.job_id,
            JobRow.submitted_at_seconds == key.submitted_at_seconds,
        )
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()


def new_attempt(session: Session, job: JobRow, restart_count: int) -> JobAttemptRow:
    """Return a new row for an attempt that has none."""
    row = JobAttemptRow(job_row_id=job.row_id, restart_count=restart_count, suspended_seconds=0.0)
    session.add(row)
    return row


def will_change(session: Session, *rows: Base) -> bool:
    """Return whether a row is new or has other values than in the database; to be asked before they are written."""
    return any(row in session.new or session.is_modified(row) for row in rows)


def assign_job(row: JobRow, state: JobState, restart_count: int) -> None:
    """Fill a job's row; news of an older attempt, or of a job that has ended, do not turn it back."""
    requeued = restart_count > row.restart_count
    ended = state.state in ENDED_STATES
    if restart_count < row.restart_count or (row.state in ENDED_STATES and not ended and not requeued):
        return
    _assign_facts(row, state)
    row.state = state.state
    row.restart_count = restart_count
    # A requeued job waits again: its old times belong to the attempt before.
    row.started_at_seconds = state.started_at_seconds or (None if requeued else row.started_at_seconds)
    # Slurm also gives an end to running jobs: the latest one that the time limit allows.
    row.ended_at_seconds = (state.ended_at_seconds or row.ended_at_seconds) if ended else None
    row.suspended_seconds = state.suspended_seconds


def _assign_facts(row: JobRow, state: JobState) -> None:
    if state.user_id >= 0:
        row.user_id = state.user_id
    for name in ("user_name", "name", "account", "qos", "array_job_id", "array_task", "het_job_id", "nodes"):
        setattr(row, name, getattr(state, name) or getattr(row, name))
    for name in ("time_limit_minutes", "gpu_count", "cpus", "priority", "exit_code"):
        value = getattr(state, name)
        setattr(row, name, getattr(row, name) if value is None else value)
    row.node_count = state.node_count or row.node_count
    if state.partitions:
        row.partition, row.partitions = state.partitions[0], list(state.partitions)
    if state.energy_joules is not None:
        row.slurm_energy_joules = state.energy_joules
    row.decision_id = decision_in_comment(state.admin_comment) or row.decision_id


def assign_attempt(row: JobAttemptRow, state: JobState) -> None:
    """Fill an attempt's row; an end that is known stays."""
    ended = state.state in ENDED_STATES
    row.submitted_at_seconds = state.submitted_at_seconds
    if row.state in ENDED_STATES and not ended:
        return
    row.state = state.state
    row.suspended_seconds = state.suspended_seconds
    row.nodes = state.nodes or row.nodes
    row.started_at_seconds = state.started_at_seconds or row.started_at_seconds
    if row.started_at_seconds is not None and state.partitions:
        row.partition = state.partitions[0]
    if ended:
        row.ended_at_seconds = state.ended_at_seconds or row.ended_at_seconds
        row.exit_code = row.exit_code if state.exit_code is None else state.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What the daemon knows of a report beside its text."""

    clock_offset_seconds: float | None = None
    """What to add to the node's times to have them by the daemon's clock; None when it is not known."""
    received_at_seconds: float | None = None


@dataclass(slots=True)
class KnownJobs:
    """The rows of some job numbers, locked: which of them a state of Slurm's, or a node's report, belongs to.

    Read at once for many: most of what storing a burst costs is the number of statements.
    """

    jobs: dict[int, list[JobRow]]
    """By job number, youngest first."""
    attempts: dict[tuple[int, int], JobAttemptRow]
    reports: dict[tuple[int, int, str], NodeEnergyRow] = field(default_factory=dict)
    """By job row, restart and node, where they were asked for."""

    @classmethod
    def load(
        cls, session: Session, cluster: ClusterName, job_ids: Iterable[JobId], *, with_reports: bool = False
    ) -> "KnownJobs":
        """Return the jobs of some numbers, with their attempts."""
        ids, known = sorted(set(job_ids)), cls({}, {})
        for begin in range(0, len(ids), NUMBERS_AT_ONCE):
            known._add(session, cluster, ids[begin : begin + NUMBERS_AT_ONCE], with_reports=with_reports)
        return known

    def _add(self, session: Session, cluster: ClusterName, ids: Sequence[JobId], *, with_reports: bool) -> None:
        query = select(JobRow).where(JobRow.cluster == cluster, JobRow.job_id.in_(ids)).order_by(JobRow.row_id)
        rows = list(session.scalars(query.with_for_update().execution_options(populate_existing=True)))
        for row in sorted(rows, key=lambda row: -row.submitted_at_seconds):
            self.jobs.setdefault(row.job_id, []).append(row)
        self._add_what_hangs_on([row.row_id for row in rows], session, with_reports=with_reports)

    def _add_what_hangs_on(self, row_ids: Sequence[int], session: Session, *, with_reports: bool) -> None:
        for begin in range(0, len(row_ids), NUMBERS_AT_ONCE):
            chunk = row_ids[begin : begin + NUMBERS_AT_ONCE]
            attempts = select(JobAttemptRow).where(JobAttemptRow.job_row_id.in_(chunk))
            for attempt in session.scalars(attempts.execution_options(populate_existing=True)):
                self.attempts[attempt.job_row_id, attempt.restart_count] = attempt
            if with_reports:
                of_jobs = select(NodeEnergyRow).where(NodeEnergyRow.job_row_id.in_(chunk))
                for report in session.scalars(of_jobs.execution_options(populate_existing=True)):
                    self.reports[report.job_row_id, report.restart_count, report.node] = report

    def locked(self, session: Session, key: JobKey, *, submit_time_known: bool) -> JobRow:
        """Return the job's row, made if absent."""
        for row in self.jobs.get(key.job_id, ()):
            if row.submitted_at_seconds == key.submitted_at_seconds:
                return row
        row = locked_job(session, key, submit_time_known=submit_time_known)
        # Another process may have made it since these were read.
        self._add_what_hangs_on([row.row_id], session, with_reports=True)
        self.jobs.setdefault(key.job_id, []).append(row)
        self.jobs[key.job_id].sort(key=lambda one: -one.submitted_at_seconds)
        return row

    def report_row(self, row: JobRow, report: NodeReport) -> NodeEnergyRow | None:
        """Return what is stored of a report, None for nothing."""
        return self.reports.get((row.row_id, report.restart_count, stored_text(report.node, NODE_LENGTH)))

    def find(self, state: JobState) -> tuple[JobRow, int] | None:
        """Return the row of the job and the restart count of the attempt.

        Slurm gives a requeued job a new submit time (so that its database keeps both records): such a state
        belongs to the youngest older job of that number and user, and a job keeps its first submit time here.
        """
        rows = self.jobs.get(state.job_id, [])
        for row in rows:
            if row.submitted_at_seconds == state.submitted_at_seconds:
                return row, state.restart_count
            for (row_id, restart_count), attempt in self.attempts.items():
                if row_id == row.row_id and attempt.submitted_at_seconds == state.submitted_at_seconds:
                    return row, max(restart_count, state.restart_count)
        if state.restart_count > 0:
            for row in rows:
                same_user = row.user_id in {None, state.user_id} or state.user_id < 0
                if same_user and row.submit_time_known and row.submitted_at_seconds < state.submitted_at_seconds:
                    return row, state.restart_count
        return None

    def attempt(self, session: Session, row: JobRow, restart_count: int) -> JobAttemptRow:
        """Return the row of one attempt, made if absent."""
        key = (row.row_id, restart_count)
        if key not in self.attempts:
            self.attempts[key] = new_attempt(session, row, restart_count)
        return self.attempts[key]

    def with_provisional_twin(self) -> list[int]:
        """Return the job numbers under which reports wait with a stand-in submit time."""
        return [number for number, rows in self.jobs.items() if not all(row.submit_time_known for row in rows)]


def job_of_report(
    known: KnownJobs, report: NodeReport, arrival: Arrival, *, submit_time_known: bool = False
) -> JobRow | None:
    """Return the job that a report belongs to, None when no job of its number can be it.

    Args:
        known: The jobs of its number, with what was reported of them.
        report: With the times of its node.
        arrival: Of the report.
        submit_time_known: Leave out the stand-ins of jobs that Slurm has not reported.
    """
    rows = [row for row in known.jobs.get(report.job_id, ()) if row.submit_time_known or not submit_time_known]
    rows.sort(key=lambda row: (not row.submit_time_known, -row.submitted_at_seconds))
    return next(_found(known, report, arrival, rows), None)


def submit_time_of(
    session: Session, report: NodeReport, arrival: Arrival, known: KnownJobs | None = None
) -> SubmitTime:
    """Return the submit time of the job that a report belongs to; without one, the start stands in for it."""
    known = known or KnownJobs.load(session, report.cluster, [report.job_id], with_reports=True)
    row = job_of_report(known, report, arrival)
    if row is not None:
        return SubmitTime(seconds=row.submitted_at_seconds, known=row.submit_time_known)
    started = report.started_at_seconds + (arrival.clock_offset_seconds or 0.0)
    return SubmitTime(seconds=round(started, 6), known=False)


def _found(known: KnownJobs, report: NodeReport, arrival: Arrival, rows: list[JobRow]) -> Iterator[JobRow]:
    if report.decision_id is not None:
        yield from (row for row in rows if row.decision_id == report.decision_id)
        rows = [row for row in rows if row.decision_id is None]
    rows = [row for row in rows if None in {row.user_id, report.user_id} or row.user_id == report.user_id]
    yield from (row for row in rows if _has_this(known, row, report))
    started = report.started_at_seconds + (arrival.clock_offset_seconds or 0.0)
    yield from (row for row in rows if _ran_then(row, started, report.restart_count))
    received = arrival.received_at_seconds
    if arrival.clock_offset_seconds is None and received is not None:
        yield from (row for row in rows if _lacks_this(known, row, report, received))


def _has_this(known: KnownJobs, row: JobRow, report: NodeReport) -> bool:
    """Return whether the report came before: one that was not acknowledged is sent again."""
    there = known.report_row(row, report)
    return there is not None and abs(there.started_at_seconds - report.started_at_seconds) < _SAME_MOMENT_SECONDS


def _ran_then(row: JobRow, started_at_seconds: float, restart_count: int) -> bool:
    """Return whether a job was submitted by then and had not ended before, unless this is a later restart."""
    if row.submitted_at_seconds > started_at_seconds + CLOCK_SKEW_SECONDS:
        return False
    ended = row.ended_at_seconds
    return ended is None or ended >= started_at_seconds - CLOCK_SKEW_SECONDS or restart_count > row.restart_count


def _lacks_this(known: KnownJobs, row: JobRow, report: NodeReport, received_at_seconds: float) -> bool:
    """Return whether a job has been on the node, for so long, and nothing of it was reported."""
    if not row.submit_time_known or row.submitted_at_seconds > received_at_seconds + CLOCK_SKEW_SECONDS:
        return False
    attempt = known.attempts.get((row.row_id, report.restart_count))
    if attempt is None or not _names(attempt.nodes, report.node):
        return False
    if attempt.started_at_seconds is not None and attempt.ended_at_seconds is not None:
        longest = attempt.ended_at_seconds - attempt.started_at_seconds + CLOCK_SKEW_SECONDS
        is_late = received_at_seconds - attempt.ended_at_seconds > MAX_LATE_SECONDS
        if is_late or report.ended_at_seconds - report.started_at_seconds > longest:
            return False
    there = known.report_row(row, report)
    return there is None or not there.gpus


def _names(nodes: str | None, node: str) -> bool:
    try:
        return bool(nodes) and node in expand_hostlist(nodes or "")
    except ValueRangeError:
        return False
