"""Makes the sums by hour and by day, so that a report over a month reads days instead of jobs.

A job is in a roll-up whole or not at all: in the one hour that holds the end of its only attempt and all its reports.
What does not fit into an hour (jobs that ran again, nodes that ended in different hours, nodes that owe a report) stays
in its rows, and so does what is not over for an hour yet. A job whose rows change is taken out before they do: its hour
then counts for nothing, is read from rows and made again. So the sums of a period are those of its rows at every
moment, in whatever order, how late and how often reports come. Times are Unix time, in UTC.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session, aliased

from slurm_energy.domain.ids import ClusterName
from slurm_energy.store.job_rows import ENDED_STATES
from slurm_energy.store.rollup_rows import (
    DAY_SECONDS,
    HOUR_SECONDS,
    ROLLUP_KEYS,
    EnergyRollupRow,
    RollupPeriodRow,
    forget_days,
    hour_of,
    make_stale,
    rollup_sums,
)
from slurm_energy.store.session import Engine, run_in_transaction, store_session
from slurm_energy.store.summaries import JobFilter, partition_of_report
from slurm_energy.store.tables import (
    IN_NO_HOUR,
    NOT_ROLLED_UP,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
    insert_if_absent,
)
from slurm_energy.store.totals import ADDED_NAMES, Groups, Totals, add_groups

DELAY_SECONDS = 3600.0
"""After its end a job waits so long: reports and Slurm's last word are there by then."""
NO_END_SECONDS = 30 * 86_400.0
"""A job without an end that began so long ago is put aside: it was lost, or its end takes it out again."""
JOBS_AT_ONCE = 500
"""In one transaction, which the recording waits for."""
_LOCK_PERIOD = 0
"""Of the one row of each cluster that who makes roll-ups locks."""


def roll_up_some(session: Session, cluster: ClusterName, now_seconds: float, limit: int = JOBS_AT_ONCE) -> int:
    """Bring the next jobs that are over into roll-ups, or make a day of its hours; return how many, 0 for nothing left.

    What it costs depends on what is new and on the jobs of the last 30 days without an end, not on the history; when
    nothing is left, also on the number of hours that there are.

    Args:
        session: Of the database, new: what it reads must be what other processes have committed.
        cluster: Whose jobs.
        now_seconds: The present.
        limit: Of jobs.
    """
    _wait_for_others(session, cluster)
    stale_hour = _first_stale_hour(session, cluster)
    if stale_hour is not None:
        return _empty_hour(session, cluster, stale_hour, limit) or 1
    jobs = session.execute(
        select(JobRow.row_id, JobRow.ended_at_seconds)
        .where(JobRow.cluster == cluster, JobRow.rollup_hour == NOT_ROLLED_UP, _is_due(now_seconds))
        .limit(limit)
        .with_for_update()
    ).all()
    if not jobs:
        return _make_day(session, cluster, now_seconds)
    row_ids = [row_id for row_id, _ in jobs]
    hours, until = _hours(session, row_ids)
    # An hour that is stale still has jobs that left its sums: it is opened by a later call, and then has all at once.
    stale = _locked_hours(session, cluster, sorted(set(hours.values())))
    waiting = {row_id for row_id, hour in hours.items() if hour in stale}
    jobs = [job for job in jobs if job.row_id not in waiting]
    hours = {row_id: hour for row_id, hour in hours.items() if row_id not in waiting}
    if not jobs:
        return len(waiting)
    values = [
        {"row_id": row_id, "rollup_hour": hours.get(row_id, IN_NO_HOUR), "counted_until_seconds": until[row_id]}
        for row_id, _ in jobs
    ]
    session.execute(update(JobRow), values)
    for hour, members in groupby(sorted(hours, key=lambda row_id: hours[row_id]), key=lambda row_id: hours[row_id]):
        _add_to_hour(session, cluster, hour, list(members))
    return len(row_ids)


def _is_due(now_seconds: float) -> ColumnElement[bool]:
    """Return whether a job has been over for long enough, or has no end after so long that none may come.

    Those would be looked at for ever otherwise, one by one, by each call and by each report.
    """
    # Not by the index of ends: it has the whole history.
    is_over = JobRow.ended_at_seconds + 0.0 < now_seconds - DELAY_SECONDS
    has_no_end = and_(JobRow.ended_at_seconds.is_(None), _last_sign() < now_seconds - NO_END_SECONDS)
    return or_(is_over, has_no_end)


def _last_sign() -> ColumnElement[float]:
    """Return what reports take for the moment of a job without an end."""
    return func.coalesce(JobRow.started_at_seconds, JobRow.submitted_at_seconds) + 0.0


def _wait_for_others(session: Session, cluster: ClusterName) -> None:
    """Keep other processes from making roll-ups of the cluster until the commit: two would make one day twice.

    To be called first in a transaction. SQLite's have the whole database by then.
    """
    row = RollupPeriodRow
    key = {"cluster": cluster, "period_seconds": _LOCK_PERIOD, "starts_at_seconds": 0}
    insert_if_absent(session, row, [{**key, "is_stale": False}])
    of_lock = (row.cluster == cluster, row.period_seconds == _LOCK_PERIOD, row.starts_at_seconds == 0)
    session.execute(select(row.cluster).where(*of_lock).with_for_update()).all()


def _locked_hours(session: Session, cluster: ClusterName, starts: Sequence[int]) -> set[int]:
    """Keep other processes from making hours stale until the commit, and return which of them are stale already."""
    row = RollupPeriodRow
    period = {"cluster": cluster, "period_seconds": HOUR_SECONDS, "is_stale": False}
    insert_if_absent(session, row, [{**period, "starts_at_seconds": start} for start in starts])
    of_hours = (row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.starts_at_seconds.in_(starts))
    locked = select(row.starts_at_seconds, row.is_stale).where(*of_hours).order_by(row.starts_at_seconds)
    return {start for start, is_stale in session.execute(locked.with_for_update()) if is_stale}


def _first_stale_hour(session: Session, cluster: ClusterName) -> int | None:
    row = RollupPeriodRow
    stale = (row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.is_stale)
    return session.scalar(select(func.min(row.starts_at_seconds)).where(*stale))


def _empty_hour(session: Session, cluster: ClusterName, start: int, limit: int) -> int:
    """Take the next jobs of an hour out, so that they are rolled up as new ones, and return how many.

    Until it is empty the hour is stale. Jobs are locked before hours, as in `take_out`.
    """
    of_hour = (JobRow.cluster == cluster, JobRow.rollup_hour == start)
    row_ids = session.scalars(select(JobRow.row_id).where(*of_hour).limit(limit).with_for_update()).all()
    make_stale(session, cluster, {start})
    _take_rows_out(session, row_ids)
    # Not by their number: rows that another process has changed in between are left out of what was found.
    if session.scalar(select(JobRow.row_id).where(*of_hour).limit(1)) is None:
        row = RollupPeriodRow
        of_period = (row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.starts_at_seconds == start)
        session.execute(delete(row).where(*of_period))
    return len(row_ids)


def _take_rows_out(session: Session, row_ids: Sequence[int]) -> None:
    out = {"rollup_hour": NOT_ROLLED_UP, "counted_until_seconds": None}
    of_rows = update(JobRow).where(JobRow.row_id.in_(row_ids)).values(out)
    session.execute(of_rows, execution_options={"synchronize_session": False})


def _hours(session: Session, row_ids: Sequence[int]) -> tuple[dict[int, int], dict[int, float]]:
    """Return the hour that holds all of a job, for those that have one, and when the last of each job is counted."""
    attempt_partition = func.coalesce(JobAttemptRow.partition, JobRow.partition)
    attempts = {
        row.row_id: row
        for row in session.execute(
            select(
                JobRow.row_id,
                func.count().label("number"),
                func.min(JobAttemptRow.ended_at_seconds).label("first"),
                func.max(JobAttemptRow.ended_at_seconds).label("last"),
                func.max(attempt_partition).label("partition"),
            )
            .join(JobAttemptRow, JobAttemptRow.job_row_id == JobRow.row_id)
            .where(JobRow.row_id.in_(row_ids))
            .group_by(JobRow.row_id)
        )
    }
    share_may_change = and_(NodeEnergyRow.host_node_joules.is_not(None), NodeEnergyRow.host_share.is_(None))
    unfinished = or_(
        NodeEnergyRow.gpu_readings.is_(None),
        NodeEnergyRow.counted_at_seconds.is_(None),
        NodeEnergyRow.cluster.is_(None),
        share_may_change,
    )
    partition = partition_of_report()
    reports = {
        row.row_id: row
        for row in session.execute(
            select(
                JobRow.row_id,
                func.count().label("number"),
                func.min(NodeEnergyRow.counted_at_seconds).label("first"),
                func.max(NodeEnergyRow.counted_at_seconds).label("last"),
                func.min(partition).label("low"),
                func.max(partition).label("high"),
                func.count(partition).label("with_partition"),
                func.max(case((unfinished, 1), else_=0)).label("unfinished"),
                func.max(NodeEnergyRow.restart_count).label("restarts"),
            )
            .join(NodeEnergyRow, NodeEnergyRow.job_row_id == JobRow.row_id)
            .where(JobRow.row_id.in_(row_ids))
            .group_by(JobRow.row_id)
        )
    }
    columns = ("row_id", "state", "submit_time_known", "restart_count", "node_count", "partition", "ended_at_seconds")
    of_jobs = select(*(getattr(JobRow, name) for name in columns), _last_sign().label("last_sign"))
    jobs = session.execute(of_jobs.where(JobRow.row_id.in_(row_ids)))
    hours: dict[int, int] = {}
    until: dict[int, float] = {}
    for job in jobs:
        attempt, report = attempts.get(job.row_id), reports.get(job.row_id)
        moments = [moment for row in (attempt, report) if row is not None for moment in (row.first, row.last)]
        known = [moment for moment in (*moments, job.ended_at_seconds) if moment is not None]
        if job.ended_at_seconds is None:
            until[job.row_id] = max([*known, job.last_sign])
            continue
        until[job.row_id] = max(known)
        hour = hour_of(job.ended_at_seconds)
        is_plain = (
            job.state in ENDED_STATES
            and hour > 0  # not what stands for no hour; a host's clock may have begun in 1970
            and job.submit_time_known
            and job.restart_count == 0
            and attempt is not None
            and attempt.number == 1
            and None not in moments
            and all(hour_of(moment) == hour for moment in known)
        )
        if not is_plain or attempt is None:
            continue
        if report is None:
            fits = attempt.partition == job.partition
        else:
            has_all = (job.node_count or 0) <= 1 or report.number >= job.node_count
            one_partition = report.low == report.high == attempt.partition
            same_unknown = report.with_partition in {0, report.number}
            fits = has_all and one_partition and same_unknown and not report.unfinished and report.restarts == 0
        if fits:
            hours[job.row_id] = hour
    return hours, until


def _add_to_hour(session: Session, cluster: ClusterName, hour: int, row_ids: Sequence[int]) -> None:
    """Add the sums of some jobs to an hour, to the rows that it has of their groups."""
    groups: Groups = {}

    def keys(partition: Any, _node: Any) -> list[ColumnElement[Any]]:
        found = (JobRow.user_id, JobRow.user_name, JobRow.account, JobRow.qos, partition)
        return [column.label(f"key{number}") for number, column in enumerate(found)]

    add_groups(session, JobFilter(cluster=cluster, row_ids=tuple(row_ids)), keys, groups)
    _insert(session, cluster, HOUR_SECONDS, hour, _added_to_rows(session, cluster, hour, groups))
    forget_days(session, cluster, {hour})


def _added_to_rows(session: Session, cluster: ClusterName, hour: int, groups: Groups) -> Groups:
    """Add sums to the rows that an hour has of their groups, and return those of groups that it has none of."""
    row = EnergyRollupRow
    columns = [getattr(row, name) for name in (*ROLLUP_KEYS, *ADDED_NAMES)]
    of_hour = (row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.starts_at_seconds == hour)
    left, values = dict(groups), []
    for found in session.execute(select(row.row_id, *columns).where(*of_hour).order_by(row.row_id)):
        one = left.pop(tuple(found[1 : 1 + len(ROLLUP_KEYS)]), None)
        if one is not None:
            one.add(dict(found._mapping))
            values.append({"row_id": found.row_id, **{name: one[name] for name in ADDED_NAMES}})
    if values:
        session.execute(update(row), values)
    return left


def _insert(session: Session, cluster: ClusterName, period_seconds: int, start: int, groups: Groups) -> None:
    period = {"cluster": cluster, "period_seconds": period_seconds, "starts_at_seconds": start}
    rows = [
        {**period, **dict(zip(ROLLUP_KEYS, key, strict=True)), **{name: one[name] for name in ADDED_NAMES}}
        for key, one in groups.items()
    ]
    if rows:
        session.execute(insert(EnergyRollupRow), rows)
    insert_if_absent(session, RollupPeriodRow, [{**period, "is_stale": False}])


def _make_day(session: Session, cluster: ClusterName, now_seconds: float) -> int:
    """Make the first day of which all hours are there by now, and that has no roll-up yet."""
    hour, day = RollupPeriodRow, aliased(RollupPeriodRow)
    of_day = hour.starts_at_seconds - hour.starts_at_seconds % DAY_SECONDS
    is_made = (
        select(1)
        .where(day.cluster == cluster, day.period_seconds == DAY_SECONDS, day.starts_at_seconds == of_day)
        .exists()
    )
    start = session.scalar(
        select(func.min(hour.starts_at_seconds)).where(
            hour.cluster == cluster,
            hour.period_seconds == HOUR_SECONDS,
            hour.starts_at_seconds < math.floor((now_seconds - DELAY_SECONDS) / DAY_SECONDS) * DAY_SECONDS,
            ~is_made,
        )
    )
    if start is None:
        return 0
    start -= start % DAY_SECONDS
    _locked_hours(session, cluster, range(start, start + DAY_SECONDS, HOUR_SECONDS))
    row = EnergyRollupRow
    keys = [getattr(row, name) for name in ROLLUP_KEYS]
    hours = (
        row.cluster == cluster,
        row.period_seconds == HOUR_SECONDS,
        row.starts_at_seconds >= start,
        row.starts_at_seconds < start + DAY_SECONDS,
    )
    groups: Groups = {}
    for found in session.execute(select(*keys, *rollup_sums()).where(*hours).group_by(*keys)):
        groups.setdefault(tuple(found[: len(keys)]), Totals()).add(dict(found._mapping))
    _insert(session, cluster, DAY_SECONDS, start, groups)
    return 1


def waiting_jobs(session: Session, cluster: ClusterName, now_seconds: float) -> int:
    """Return how many jobs that have been over for long enough are in no roll-up yet."""
    found = select(func.count()).where(
        JobRow.cluster == cluster,
        JobRow.rollup_hour == NOT_ROLLED_UP,
        JobRow.ended_at_seconds + 0.0 < now_seconds - DELAY_SECONDS,
    )
    return session.scalar(found) or 0


def roll_up_waiting(engine: Engine, now_seconds: float, tell: Callable[[int, int], None]) -> int:
    """Bring all jobs that wait into roll-ups, in transactions that each let the recording through; return how many.

    Args:
        engine: Of the database.
        now_seconds: The present.
        tell: Takes how many jobs are done, and how many there are.
    """
    clusters = _clusters(engine)
    with store_session(engine, read_only=True) as session:
        total = sum(waiting_jobs(session, cluster, now_seconds) for cluster in clusters)
    done = 0
    for cluster in clusters:
        while more := run_in_transaction(engine, partial(roll_up_some, cluster=cluster, now_seconds=now_seconds)):
            done += more
            tell(min(done, total), total)
    return total


def forget_rollups(engine: Engine, tell: Callable[[int, int], None]) -> None:
    """Take all jobs out of roll-ups, in transactions that each let the recording through; reports read rows then.

    Args:
        engine: Of the database.
        tell: Takes how many hours are done, and how many there are.
    """
    for cluster in _clusters(engine):
        with store_session(engine, read_only=True) as session:
            starts = _all_starts(session, cluster)
            in_no_hour = (JobRow.cluster == cluster, JobRow.rollup_hour == IN_NO_HOUR)
            row_ids = session.scalars(select(JobRow.row_id).where(*in_no_hour)).all()
        for number, start in enumerate(starts, 1):
            while run_in_transaction(engine, partial(_forget_some, cluster=cluster, start=start)):
                pass
            tell(number, len(starts))
        for begin in range(0, len(row_ids), JOBS_AT_ONCE):
            chunk = row_ids[begin : begin + JOBS_AT_ONCE]
            run_in_transaction(engine, partial(_forget_rows, row_ids=chunk))


def _clusters(engine: Engine) -> list[ClusterName]:
    with store_session(engine, read_only=True) as session:
        return [ClusterName(name) for name in session.scalars(select(JobRow.cluster).distinct())]


def _all_starts(session: Session, cluster: ClusterName) -> list[int]:
    """Return the start of every hour or day that a job, a row of sums or a period names."""
    job, sums, period = JobRow, EnergyRollupRow, RollupPeriodRow
    named = (
        select(job.rollup_hour).where(job.cluster == cluster, job.rollup_hour > 0),
        select(sums.starts_at_seconds).where(sums.cluster == cluster),
        select(period.starts_at_seconds).where(period.cluster == cluster, period.period_seconds != _LOCK_PERIOD),
    )
    return sorted({start for query in named for start in session.scalars(query.distinct())})


def _forget_some(session: Session, cluster: ClusterName, start: int) -> int:
    _wait_for_others(session, cluster)
    return _empty_hour(session, cluster, start, JOBS_AT_ONCE)


def _forget_rows(session: Session, row_ids: Sequence[int]) -> None:
    in_no_hour = (JobRow.row_id.in_(row_ids), JobRow.rollup_hour == IN_NO_HOUR)
    _take_rows_out(session, session.scalars(select(JobRow.row_id).where(*in_no_hour).with_for_update()).all())
