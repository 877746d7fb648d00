"""Sums over readings that add up, of a job, of a group or of all groups, and how they are read from rows."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, null, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import EnergyError
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.report import EnergySum, EnergyUse, ReportKind
from slurm_energy.store.summaries import (
    SUM_NAMES,
    JobFilter,
    gpu_columns,
    host_columns,
    joined_hosts,
    missing_nodes,
    partition_of_report,
    run_seconds,
)
from slurm_energy.store.sums import USE_NAMES, count_where
from slurm_energy.store.tables import JobAttemptRow, JobRow, NodeEnergyRow

PRICED_NAMES = ("cost", "co2_grams", "unpriced_joules")
COUNT_NAMES = ("jobs", "gpu_jobs", "jobs_with_energy", "jobs_without_energy")
TIME_NAMES = ("wait_seconds", "waits", "run_seconds", "runs")
ADDED_NAMES = (
    *(f"{prefix}_{name}" for prefix in ("gpu", "host") for name in SUM_NAMES),
    *USE_NAMES,
    *COUNT_NAMES,
    *TIME_NAMES,
)
"""All that rows come to, before prices."""
_NAMES = (*ADDED_NAMES, *PRICED_NAMES)
Period = tuple[float | None, float | None]
Keys = Callable[[Any, Any], list[ColumnElement[Any]]]
"""What rows are grouped by, from the column of the partition and that of the node."""


class Totals:
    """What is not known of any part stays None."""

    def __init__(self) -> None:
        self._values: dict[str, float | None] = dict.fromkeys(_NAMES)

    @property
    def values(self) -> Mapping[str, float | None]:
        """Every sum by name."""
        return self._values

    def __getitem__(self, name: str) -> float | None:
        return self._values[name]

    def count(self, name: str) -> int:
        """Return a number of things, 0 for none."""
        return int(self._values[name] or 0)

    def add(self, values: Mapping[str, Any]) -> None:
        """Add known values by name; other names are left out."""
        for name, value in values.items():
            if value is not None and name in self._values:
                self._values[name] = (self._values[name] or 0.0) + float(value)

    def add_all(self, other: "Totals") -> None:
        """Add another's sums."""
        self.add(other._values)

    def replace(self, other: "Totals", names: tuple[str, ...]) -> None:
        """Take some sums from another: what cannot be added up since one job is in several groups."""
        self._values.update({name: other._values[name] for name in names})

    def add_missing_nodes(self, nodes: int, gpus_per_node: float, device_seconds: float, wall_seconds: float) -> None:
        """Count nodes that have not reported as unknown readings of their GPUs and of their host."""
        gpus = math.ceil(gpus_per_node * nodes)
        self.add(
            {
                "gpu_readings": gpus,
                "gpu_unknown_readings": gpus,
                "gpu_window_seconds": gpus * device_seconds,
                "host_readings": nodes,
                "host_unknown_readings": nodes,
                "host_window_seconds": nodes * wall_seconds,
            }
        )

    def energy_sum(self, prefix: str) -> EnergySum:
        """Return the sum of `gpu` or `host`, with its error."""
        joules, window = self[f"{prefix}_joules"], self[f"{prefix}_window_seconds"]
        squares = self[f"{prefix}_timing_squares"]
        error = None
        if joules and not self[f"{prefix}_unbounded"] and squares is not None:
            error = EnergyError(timing=min(1.0, math.sqrt(squares) / joules))
        return EnergySum(
            joules=joules,
            readings=self.count(f"{prefix}_readings"),
            unknown_readings=self.count(f"{prefix}_unknown_readings"),
            coverage_share=min(1.0, (self[f"{prefix}_covered_seconds"] or 0.0) / window) if window else None,
            error_share=None if error is None else error.total,
            timing_error_share=None if error is None else error.timing,
            calibration_error_share=None if error is None else error.calibration,
        )

    def use(self) -> EnergyUse:
        """Return what became of the joules."""
        watched, used = self["watched_seconds"], self["used_seconds"]
        lows = sorted(value for value in (self["saving_low_joules"], self["saving_high_joules"]) if value is not None)
        return EnergyUse(
            saving_low_joules=lows[0] if lows else None,
            saving_high_joules=lows[-1] if lows else None,
            covered_gpu_seconds=self["gpu_covered_seconds"],
            idle_gpu_joules=self["idle_gpu_joules"],
            utilisation=min(1.0, used / watched) if watched and used is not None else None,
            cost=self["cost"],
            co2_grams=self["co2_grams"],
            unpriced_joules=self["unpriced_joules"] or 0.0,
        )

    def mean(self, name: str, count: str) -> float | None:
        """Return a sum over a count; None without any."""
        total, number = self[name], self[count]
        return None if total is None or not number else total / number


Groups = dict[tuple[Any, ...], Totals]


_JOB_COLUMNS: dict[str, tuple[Any, ...]] = {
    "user": (JobRow.user_name, case((JobRow.user_name.is_(None), JobRow.user_id), else_=null())),
    "account": (JobRow.account,),
    "qos": (JobRow.qos,),
    "name": (JobRow.name,),
}


def group_keys(kinds: Sequence[ReportKind], partition: Any, node: Any) -> list[ColumnElement[Any]]:
    """Return what rows are grouped by, two columns for a user and one for everything else."""
    columns: list[ColumnElement[Any]] = []
    for kind in kinds:
        own: dict[str, tuple[Any, ...]] = {"partition": (partition,), "node": (node,)}
        columns.extend(own.get(kind) or _JOB_COLUMNS[kind])
    return [column.label(f"key{number}") for number, column in enumerate(columns)]


def add_groups(session: Session, where: JobFilter, keys_of: Keys, groups: Groups, *, of_nodes: bool = False) -> None:
    """Add the sums of rows to those of their groups.

    Args:
        session: Of the database.
        where: Which rows.
        keys_of: What they are grouped by.
        groups: What is there already.
        of_nodes: Groups are of nodes: of jobs without reports it is not known where they ran.
    """
    keys = keys_of(partition_of_report(), NodeEnergyRow.node)
    sums = joined_hosts(*keys, *gpu_columns(), *host_columns(), *_job_counts())
    _add(session, groups, keys, sums.where(*where.of_jobs(), *where.of_reports()))
    for gap in session.execute(missing_nodes(where, *keys)):
        groups.setdefault(tuple(gap[: len(keys)]), Totals()).add_missing_nodes(
            gap.nodes, gap.gpus_per_node or 0.0, gap.device_seconds, gap.wall_seconds
        )
    if not of_nodes:
        _add_jobs(session, where, keys_of, groups)


def _job_counts() -> list[ColumnElement[Any]]:
    has_gpus = or_(JobRow.gpu_count.is_(None), JobRow.gpu_count > 0)
    with_energy = case((NodeEnergyRow.gpu_joules.is_not(None), NodeEnergyRow.job_row_id), else_=null())
    return [
        func.count(NodeEnergyRow.job_row_id.distinct()).label("jobs"),
        func.count(with_energy.distinct()).label("jobs_with_energy"),
        func.count(case((has_gpus, NodeEnergyRow.job_row_id), else_=null()).distinct()).label("gpu_jobs"),
    ]


def _add(session: Session, groups: Groups, keys: Sequence[Any], query: Any) -> None:
    for row in session.execute(query.group_by(*keys) if keys else query):
        groups.setdefault(tuple(row[: len(keys)]), Totals()).add(dict(row._mapping))


def _add_jobs(session: Session, where: JobFilter, keys_of: Keys, groups: Groups) -> None:
    """Add the jobs of which no node has reported, and how long attempts ran and first ones waited."""
    keys = keys_of(JobRow.partition, null())
    ran = and_(
        JobRow.ended_at_seconds > JobRow.started_at_seconds, or_(JobRow.gpu_count.is_(None), JobRow.gpu_count > 0)
    )
    jobs = select(*keys, func.count().label("jobs"), count_where(ran).label("jobs_without_energy"))
    for terms in where.of_unreported_jobs():
        _add(session, groups, keys, jobs.select_from(JobRow).where(*terms))
    keys = keys_of(func.coalesce(JobAttemptRow.partition, JobRow.partition), null())
    waited = and_(
        JobAttemptRow.restart_count == 0,
        JobRow.submit_time_known,
        JobAttemptRow.started_at_seconds >= JobRow.submitted_at_seconds,
    )
    wait = case((waited, JobAttemptRow.started_at_seconds - JobRow.submitted_at_seconds), else_=null())
    run = run_seconds()
    ran_job = case((run.is_not(None), JobAttemptRow.job_row_id), else_=null())
    times = (
        select(
            *keys,
            func.sum(wait).label("wait_seconds"),
            func.count(wait).label("waits"),
            func.sum(run).label("run_seconds"),
            func.count(ran_job.distinct()).label("runs"),
        )
        .select_from(JobAttemptRow)
        .join(JobRow, JobRow.row_id == JobAttemptRow.job_row_id)
        .where(*where.of_jobs(), *_of_attempts(where))
    )
    found: Groups = {}
    _add(session, found, keys, times)
    for key, one in found.items():
        if key in groups:  # an attempt that has ended and of which nothing was reported is no group of its own
            groups[key].add_all(one)


def _of_attempts(where: JobFilter) -> Iterator[ColumnElement[bool]]:
    if where.partition is not None:
        yield func.coalesce(JobAttemptRow.partition, JobRow.partition) == where.partition
    if where.node is not None:  # a list of nodes in Slurm's short form cannot be searched: a report says who ran where
        yield exists().where(
            NodeEnergyRow.job_row_id == JobAttemptRow.job_row_id,
            NodeEnergyRow.restart_count == JobAttemptRow.restart_count,
            NodeEnergyRow.node == where.node,
        )
    if where.since_seconds is not None:
        yield JobAttemptRow.ended_at_seconds >= where.since_seconds
    if where.until_seconds is not None:
        yield JobAttemptRow.ended_at_seconds < where.until_seconds


def periods_with_rows(session: Session, cluster: ClusterName, periods: Sequence[Period]) -> Iterator[Period]:
    """Yield the periods in which a report was counted or a job ended, started or was submitted: others have no group.

    A period without any costs no statement; jobs in roll-ups ended in their hour.
    """
    starts = [since for since, _ in periods if since is not None]
    end = periods[-1][1]
    if len(starts) < len(periods) or end is None or len(periods) == 1:
        yield from periods
        return
    moment = func.coalesce(JobRow.started_at_seconds, JobRow.submitted_at_seconds)
    live = select(moment).where(
        JobRow.cluster == cluster, JobRow.ended_at_seconds.is_(None), moment >= starts[0], moment < end
    )
    places = sorted({bisect_right(starts, one) - 1 for one in session.scalars(live)})
    place = 0
    while place < len(periods):
        found = places[bisect_left(places, place) :][:1]
        first = _first_moment(session, cluster, starts[place], end)
        found += [] if first is None else [bisect_right(starts, first) - 1]
        if not found:
            return
        place = min(found)
        yield periods[place]
        place += 1


def _first_moment(session: Session, cluster: ClusterName, since: float, until: float) -> float | None:
    """Return when the first report of a time was counted, or its first job ended; each is found by its index."""
    counted, ended = NodeEnergyRow.counted_at_seconds, JobRow.ended_at_seconds
    # Rows of older releases lack the cluster until they are completed.
    kinds = (
        (counted, NodeEnergyRow.cluster == cluster),
        (counted, NodeEnergyRow.cluster.is_(None)),
        (ended, JobRow.cluster == cluster),
    )
    firsts = [
        select(column).where(whose, column >= since, column < until).order_by(column).limit(1).scalar_subquery()
        for column, whose in kinds
    ]
    return min((one for one in session.execute(select(*firsts)).one() if one is not None), default=None)
