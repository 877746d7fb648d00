"""SQL building blocks: the energy, attempts and saving of each job as subqueries with one row per job."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    Subquery,
    and_,
    case,
    cast,
    exists,
    func,
    not_,
    null,
    or_,
    select,
    union,
)
from sqlalchemy.orm import aliased

from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.store.job_rows import ENDED_STATES
from slurm_energy.store.nodes import host_share, size_of_report
from slurm_energy.store.sums import GPU_SUM_NAMES, USE_NAMES, count_where, window_seconds
from slurm_energy.store.tables import (
    IN_NO_HOUR,
    NOT_ROLLED_UP,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
    NodeSizeRow,
)

SUM_NAMES = (
    "joules",
    "readings",
    "unknown_readings",
    "covered_seconds",
    "window_seconds",
    "timing_squares",
    "unbounded",
)
"""Per job and prefix (`gpu_`, `host_`): `timing_squares` sums the squares of the timing's error bounds, in J x J, and
`unbounded` counts known readings whose error has no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs a report is about, and which of their energy; None leaves a condition out.

    What a node reported of an attempt is counted at the moment at which the attempt ended there: a period that is over
    does not change when the job runs again later. A job of which no node has reported belongs to the moment at which it
    ended (or started, or was submitted, as far as it came).
    """

    cluster: ClusterName
    job_id: JobId | None = None
    """Also takes the tasks of an array and the parts of a heterogeneous job."""
    exact_job_id: JobId | None = None
    """Takes no parts."""
    user_id: int | None = None
    coordinated_accounts: tuple[str, ...] = ()
    """Beside the jobs of `user_id`, all jobs of these accounts; nothing without `user_id`."""
    user_name: str | None = None
    account: str | None = None
    qos: str | None = None
    name: str | None = None
    partition: str | None = None
    """Where the attempt ran."""
    node: str | None = None
    row_ids: tuple[int, ...] | None = None
    """Numbers of the jobs' rows."""
    raw_hours: tuple[int, ...] | None = None
    """Of jobs that are in roll-ups, only those of these hours; None: all jobs."""
    since_seconds: float | None = None
    until_seconds: float | None = None

    @property
    def is_found_by_time(self) -> bool:
        """Whether the rows are looked for in a period first, and not by a job's number."""
        is_of_a_period = self.since_seconds is not None or self.until_seconds is not None
        return is_of_a_period and not any(
            value is not None for value in (self.job_id, self.exact_job_id, self.row_ids, self.raw_hours)
        )

    @property
    def is_of_all_jobs(self) -> bool:
        """Whether nothing is asked of a job but where and when it ran."""
        of_jobs = (
            self.job_id, self.exact_job_id, self.user_id, self.user_name, self.account, self.qos, self.name,
            self.partition, self.row_ids,
        )  # fmt: skip
        return all(value is None for value in of_jobs)

    def of_jobs(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on JobRow alone, without the period."""
        # A period is found by its own index; that of the cluster alone, which planners like to take, has all jobs.
        by_other_index = self.is_found_by_time or self.raw_hours is not None
        cluster = func.coalesce(JobRow.cluster, "") if by_other_index else JobRow.cluster
        terms: list[ColumnElement[bool]] = [cluster == self.cluster]
        if self.job_id is not None:
            columns = (JobRow.job_id, JobRow.array_job_id, JobRow.het_job_id)
            # Each with the cluster, so that each finds its own index.
            terms = [or_(*(and_(JobRow.cluster == self.cluster, column == self.job_id) for column in columns))]
        if self.row_ids is not None:
            terms.append(JobRow.row_id.in_(self.row_ids))
        if self.raw_hours is not None:
            terms.append(self._is_raw(self.raw_hours))
        if self.exact_job_id is not None:
            terms.append(JobRow.job_id == self.exact_job_id)
        if self.user_id is not None and self.coordinated_accounts:
            terms.append(or_(JobRow.user_id == self.user_id, JobRow.account.in_(self.coordinated_accounts)))
        elif self.user_id is not None:
            terms.append(JobRow.user_id == self.user_id)
        for column, value in (
            (JobRow.user_name, self.user_name),
            (JobRow.account, self.account),
            (JobRow.qos, self.qos),
            (JobRow.name, self.name),
        ):
            if value is not None:
                terms.append(column == value)
        return terms

    def _is_raw(self, hours: tuple[int, ...]) -> ColumnElement[bool]:
        """Return whether a job is in no roll-up, or in that of an hour whose jobs are read themselves."""
        in_no_hour = [JobRow.rollup_hour == IN_NO_HOUR]
        if self.since_seconds is not None:
            in_no_hour.append(JobRow.counted_until_seconds >= self.since_seconds)
        kinds = [[JobRow.rollup_hour == NOT_ROLLED_UP], in_no_hour]
        kinds += [[JobRow.rollup_hour.in_(hours)]] if hours else []
        # Each with the cluster, so that each finds the index.
        return or_(*(and_(JobRow.cluster == self.cluster, *kind) for kind in kinds))

    def of_reports(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on NodeEnergyRow beside JobRow: where and when the energy was used."""
        terms: list[ColumnElement[bool]] = []
        if self.is_found_by_time:
            # Only then: of a single job planners like this index too, and would read all of the cluster's history.
            terms.append(NodeEnergyRow.cluster == self.cluster)
            if self.account is not None:
                terms.append(NodeEnergyRow.job_account == self.account)
            if self.user_id is not None and not self.coordinated_accounts:
                terms.append(NodeEnergyRow.job_user_id == self.user_id)
        if self.partition is not None:
            terms.append(partition_of_report() == self.partition)
        if self.node is not None:
            terms.append(NodeEnergyRow.node == self.node)
        if self.since_seconds is not None:
            terms.append(NodeEnergyRow.counted_at_seconds >= self.since_seconds)
        if self.until_seconds is not None:
            terms.append(NodeEnergyRow.counted_at_seconds < self.until_seconds)
        return terms

    def of_unreported_jobs(self) -> tuple[list[ColumnElement[bool]], ...]:
        """Return the WHERE terms on JobRow for jobs of which no node has reported: those that ended, and the others.

        Apart, because each has an index that the two together would not.
        """
        terms = [*self.of_jobs(), not_(exists().where(NodeEnergyRow.job_row_id == JobRow.row_id))]
        if self.partition is not None:
            terms.append(JobRow.partition == self.partition)
        if self.node is not None:
            return ()
        if self.since_seconds is None and self.until_seconds is None:
            return (terms,)
        if self.raw_hours is None:
            terms.append(JobRow.cluster == self.cluster)
        of_ended = [*terms, JobRow.ended_at_seconds.is_not(None)]
        of_others = [*terms, JobRow.ended_at_seconds.is_(None)]
        other_moment = func.coalesce(JobRow.started_at_seconds, JobRow.submitted_at_seconds)
        if self.since_seconds is not None:
            of_ended.append(JobRow.ended_at_seconds >= self.since_seconds)
            of_others.append(other_moment >= self.since_seconds)
        if self.until_seconds is not None:
            of_ended.append(JobRow.ended_at_seconds < self.until_seconds)
            of_others.append(other_moment < self.until_seconds)
        return of_ended, of_others


def partition_of_report() -> ColumnElement[str | None]:
    """Return the partition in which the attempt ran: a job that is requeued may run in another one."""
    return func.coalesce(NodeEnergyRow.partition, JobRow.partition)


def chosen_jobs(where: JobFilter) -> Select[Any]:
    """Return the row ids of the jobs that have energy in the period, and of those without reports that belong to it."""
    unreported = [select(JobRow.row_id).where(*terms) for terms in where.of_unreported_jobs()]
    reported = (
        select(NodeEnergyRow.job_row_id.label("row_id"))
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .where(*where.of_jobs(), *where.of_reports())
    )
    rows = union(reported, *unreported).subquery("chosen")
    return select(rows.c.row_id)


def job_summaries(where: JobFilter, *about: Any) -> Select[Any]:
    """Return a query with one row per job: `about` (the row, or what to group by), then its sums.

    The energy of a requeued job is the sum over those of its attempts that ended in the period.
    """
    chosen = chosen_jobs(where)
    gpu, host, attempt = _gpu_sums(chosen, where), _host_sums(chosen, where), _attempt_sums(chosen)
    first_start = func.coalesce(attempt.c.first_start, JobRow.started_at_seconds)
    waited = and_(JobRow.submit_time_known, first_start >= JobRow.submitted_at_seconds)
    return (
        select(
            *about,
            first_start.label("first_start"),
            case((waited, first_start - JobRow.submitted_at_seconds), else_=null()).label("wait_seconds"),
            attempt.c.run_seconds.label("run_seconds"),
            func.coalesce(attempt.c.attempts, 0).label("attempts"),
            *(gpu.c[name].label(f"gpu_{name}") for name in SUM_NAMES),
            *(host.c[name].label(f"host_{name}") for name in SUM_NAMES),
            *(gpu.c[name].label(name) for name in USE_NAMES),
        )
        .outerjoin(gpu, gpu.c.job_row_id == JobRow.row_id)
        .outerjoin(host, host.c.job_row_id == JobRow.row_id)
        .outerjoin(attempt, attempt.c.job_row_id == JobRow.row_id)
        .where(JobRow.row_id.in_(chosen))
    )


def gpu_columns() -> list[ColumnElement[Any]]:
    """Return the sums over the GPUs of NodeEnergyRow; a report whose sums are not made yet counts as unknown."""
    unfinished: dict[str, Any] = {
        "gpu_readings": 1,
        "gpu_unknown_readings": 1,
        "gpu_window_seconds": window_seconds() * NodeEnergyRow.time_scale,
    }
    columns = {name: getattr(NodeEnergyRow, name) for name in (*GPU_SUM_NAMES, *USE_NAMES)}
    columns |= {name: func.coalesce(columns[name], value) for name, value in unfinished.items()}
    return [func.sum(column).label(name) for name, column in columns.items()]


def host_columns() -> list[ColumnElement[Any]]:
    """Return the sums over hosts, of NodeEnergyRow with JobRow and NodeSizeRow joined; times are the wall's."""
    joules = host_joules()
    known = joules.is_not(None)
    return [
        func.sum(joules).label("host_joules"),
        func.count().label("host_readings"),
        count_where(not_(known)).label("host_unknown_readings"),
        func.sum(case((known, NodeEnergyRow.host_coverage_seconds), else_=0.0)).label("host_covered_seconds"),
        func.sum(window_seconds()).label("host_window_seconds"),
        cast(null(), Double).label("host_timing_squares"),
        count_where(known).label("host_unbounded"),  # how true RAPL's own model is differs by processor
    ]


def joined_hosts(*columns: Any) -> Select[Any]:
    """Return a query over node reports with their job and the size of the node."""
    return (
        select(*columns)
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(NodeSizeRow, size_of_report())
    )


def host_joules() -> ColumnElement[float | None]:
    """Return a job's part of its node's processors: its share of the node's cores, whatever runs beside it.

    What no job has allocated is in no job's part. The share is that of the time when the attempt was over, and the
    present one for as long as none is written down. Where the cores are not known, the part is the equal one that the
    node itself computed.
    """
    by_cores = NodeEnergyRow.host_node_joules * func.coalesce(NodeEnergyRow.host_share, host_share())
    return case((NodeEnergyRow.host_joules.is_(None), null()), else_=func.coalesce(by_cores, NodeEnergyRow.host_joules))


def missing_nodes(where: JobFilter, *about: ColumnElement[Any]) -> Select[Any]:
    """Return ended attempts of which some nodes have reported and others not: `about`, then what is missing.

    Each is counted where its youngest row is, so that it is in one period alone.
    """
    other = aliased(NodeEnergyRow)
    same = and_(other.job_row_id == NodeEnergyRow.job_row_id, other.restart_count == NodeEnergyRow.restart_count)
    reported = select(func.count()).where(same).scalar_subquery()
    youngest = select(func.max(other.row_id)).where(same).scalar_subquery()
    attempt = and_(
        JobAttemptRow.job_row_id == NodeEnergyRow.job_row_id,
        JobAttemptRow.restart_count == NodeEnergyRow.restart_count,
    )
    return (
        select(
            *about,
            NodeEnergyRow.job_row_id,
            (JobRow.node_count - reported).label("nodes"),
            (JobRow.gpu_count * 1.0 / JobRow.node_count).label("gpus_per_node"),
            window_seconds().label("wall_seconds"),
            (window_seconds() * NodeEnergyRow.time_scale).label("device_seconds"),
        )
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .join(JobAttemptRow, attempt)
        .where(
            *where.of_jobs(),
            *where.of_reports(),
            JobRow.node_count > 1,
            # Of an attempt before the last one, the number of nodes may have been another.
            JobRow.restart_count == NodeEnergyRow.restart_count,
            JobAttemptRow.state.in_(sorted(ENDED_STATES)),
            NodeEnergyRow.row_id == youngest,
            reported < JobRow.node_count,
        )
    )


def _gpu_sums(chosen: Select[Any], where: JobFilter) -> Subquery:
    query = joined_hosts(NodeEnergyRow.job_row_id, *gpu_columns())
    query = query.where(NodeEnergyRow.job_row_id.in_(chosen), *where.of_reports()).group_by(NodeEnergyRow.job_row_id)
    return _without_prefix(query, "gpu_").subquery("gpu_sums")


def _host_sums(chosen: Select[Any], where: JobFilter) -> Subquery:
    query = joined_hosts(NodeEnergyRow.job_row_id, *host_columns())
    query = query.where(NodeEnergyRow.job_row_id.in_(chosen), *where.of_reports()).group_by(NodeEnergyRow.job_row_id)
    return _without_prefix(query, "host_").subquery("host_sums")


def _without_prefix(query: Select[Any], prefix: str) -> Select[Any]:
    inner = query.subquery()
    return select(*(column.label(column.name.removeprefix(prefix)) for column in inner.c))


def _attempt_sums(chosen: Select[Any]) -> Subquery:
    attempt = JobAttemptRow
    query = (
        select(
            attempt.job_row_id,
            func.min(attempt.started_at_seconds).label("first_start"),
            func.count(attempt.started_at_seconds).label("attempts"),
            func.sum(run_seconds()).label("run_seconds"),
        )
        .where(attempt.job_row_id.in_(chosen))
        .group_by(attempt.job_row_id)
    )
    return query.subquery("attempt_sums")


def run_seconds() -> ColumnElement[float | None]:
    """Return how long an attempt ran, without suspension; NULL before its end."""
    run = JobAttemptRow.ended_at_seconds - JobAttemptRow.started_at_seconds - JobAttemptRow.suspended_seconds
    return case((run >= 0.0, run), else_=null())
