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

from slurm_energy.domain.energy import (
    COUNTER_INTERVAL_SECONDS,
    POLLED_ERROR_SHARE,
    EnergyScope,
    EnergySource,
    QualityFlag,
)
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.store.job_rows import ENDED_STATES
from slurm_energy.store.tables import (
    DecisionClockRow,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
    NodeSizeRow,
)

OBSERVED_CLOCK_TOLERANCE = 1.03
"""Readings before the lock and after it pull the mean of a short job up a little."""
MIN_UTILISATION = 0.05
"""Under it a GPU did nothing that a prediction is about."""
MIN_WORK_POWER = 1.2
"""Of a type's idle power: boards of a type idle up to a fifth apart."""
SAVING_ERROR = 0.04
"""Of a predicted change, either way: what fits were off their readings at the clocks that get chosen."""
USE_NAMES = (
    "saving_joules", "saving_low_joules", "saving_high_joules", "idle_gpu_joules", "used_seconds", "watched_seconds",
)  # fmt: skip
"""Per job: the saving with its interval, what idle GPUs drew, and device seconds at work and watched."""
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
    since_seconds: float | None = None
    until_seconds: float | None = None

    def of_jobs(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on JobRow alone, without the period."""
        terms: list[ColumnElement[bool]] = [JobRow.cluster == self.cluster]
        if self.job_id is not None:
            columns = (JobRow.job_id, JobRow.array_job_id, JobRow.het_job_id)
            # Each with the cluster, so that each finds its own index.
            terms = [or_(*(and_(JobRow.cluster == self.cluster, column == self.job_id) for column in columns))]
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

    def of_reports(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on NodeEnergyRow beside JobRow: where and when the energy was used."""
        terms: list[ColumnElement[bool]] = []
        if self.partition is not None:
            terms.append(partition_of_report() == self.partition)
        if self.node is not None:
            terms.append(NodeEnergyRow.node == self.node)
        if self.since_seconds is not None:
            terms.append(NodeEnergyRow.counted_at_seconds >= self.since_seconds)
        if self.until_seconds is not None:
            terms.append(NodeEnergyRow.counted_at_seconds < self.until_seconds)
        return terms

    def of_unreported_jobs(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on JobRow for jobs of which no node has reported."""
        terms = [*self.of_jobs(), not_(exists().where(NodeEnergyRow.job_row_id == JobRow.row_id))]
        if self.partition is not None:
            terms.append(JobRow.partition == self.partition)
        if self.node is not None:
            terms.append(JobRow.row_id < 0)
        if self.since_seconds is None and self.until_seconds is None:
            return terms
        of_ended = [JobRow.cluster == self.cluster, JobRow.ended_at_seconds.is_not(None)]
        of_others = [JobRow.cluster == self.cluster, JobRow.ended_at_seconds.is_(None)]
        other_moment = func.coalesce(JobRow.started_at_seconds, JobRow.submitted_at_seconds)
        if self.since_seconds is not None:
            of_ended.append(JobRow.ended_at_seconds >= self.since_seconds)
            of_others.append(other_moment >= self.since_seconds)
        if self.until_seconds is not None:
            of_ended.append(JobRow.ended_at_seconds < self.until_seconds)
            of_others.append(other_moment < self.until_seconds)
        return [*terms, or_(and_(*of_ended), and_(*of_others))]


def partition_of_report() -> ColumnElement[str | None]:
    """Return the partition in which the attempt ran: a job that is requeued may run in another one."""
    return func.coalesce(NodeEnergyRow.partition, JobRow.partition)


def chosen_jobs(where: JobFilter) -> Select[Any]:
    """Return the row ids of the jobs that have energy in the period, and of those without reports that belong to it."""
    unreported = select(JobRow.row_id).where(*where.of_unreported_jobs())
    reported = (
        select(NodeEnergyRow.job_row_id)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .where(*where.of_jobs(), *where.of_reports())
    )
    rows = union(unreported, reported).subquery("chosen")
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
    """Return the sums over GPU readings, of NodeEnergyRow with JobRow, GpuEnergyRow and DecisionClockRow joined.

    A node that reported no GPU of a job that has some counts as one reading that is unknown.
    """
    is_reading = or_(GpuEnergyRow.row_id.is_not(None), JobRow.gpu_count.is_(None), JobRow.gpu_count > 0)
    known = GpuEnergyRow.joules.is_not(None)
    gpus_of_node = func.coalesce(JobRow.gpu_count * 1.0 / func.nullif(JobRow.node_count, 0), 1.0)
    window = window_seconds() * NodeEnergyRow.time_scale
    error, low, high = timing_error_joules(), saving_joules(SAVING_ERROR), saving_joules(-SAVING_ERROR)
    use = GpuEnergyRow.utilisation
    return [
        func.sum(GpuEnergyRow.joules).label("gpu_joules"),
        count_where(is_reading).label("gpu_readings"),
        count_where(and_(is_reading, not_(known))).label("gpu_unknown_readings"),
        func.sum(case((known, GpuEnergyRow.coverage_seconds), else_=0.0)).label("gpu_covered_seconds"),
        func.sum(
            case((not_(is_reading), 0.0), (GpuEnergyRow.row_id.is_(None), window * gpus_of_node), else_=window)
        ).label("gpu_window_seconds"),
        func.sum(error * error).label("gpu_timing_squares"),
        count_where(and_(known, error.is_(None))).label("gpu_unbounded"),
        func.sum(saving_joules()).label("saving_joules"),
        func.sum(low).label("saving_low_joules"),
        func.sum(high).label("saving_high_joules"),
        func.sum(case((known, idle_joules()), else_=null())).label("idle_gpu_joules"),
        func.sum(case((use.is_not(None), use * GpuEnergyRow.coverage_seconds), else_=null())).label("used_seconds"),
        func.sum(case((use.is_not(None), GpuEnergyRow.coverage_seconds), else_=null())).label("watched_seconds"),
    ]


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


def joined_readings(*columns: Any) -> Select[Any]:
    """Return a query over node reports with their job, GPUs and the clocks that were in force."""
    return (
        select(*columns)
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionClockRow, applied_choice())
    )


def joined_hosts(*columns: Any) -> Select[Any]:
    """Return a query over node reports with their job and the size of the node."""
    return (
        select(*columns)
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(NodeSizeRow, and_(NodeSizeRow.cluster == JobRow.cluster, NodeSizeRow.node == NodeEnergyRow.node))
    )


def host_joules() -> ColumnElement[float | None]:
    """Return a job's part of its node's processors: its share of the node's cores, whatever runs beside it.

    What no job has allocated is in no job's part. Where the cores are not known, the part is the equal one that the
    node itself computed.
    """
    cpus_here = JobRow.cpus * 1.0 / func.nullif(JobRow.node_count, 0)
    share = cpus_here / func.nullif(NodeSizeRow.cpus, 0)
    by_cores = NodeEnergyRow.host_node_joules * case((share > 1.0, 1.0), else_=share)
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
    query = joined_readings(NodeEnergyRow.job_row_id, *gpu_columns())
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


def count_where(condition: ColumnElement[bool]) -> ColumnElement[int]:
    """Return the number of rows for which the condition holds."""
    return func.sum(case((condition, 1), else_=0))


def window_seconds() -> ColumnElement[float]:
    """Return the wall time between prolog and epilog; 0 when the node's clock went backwards."""
    window = NodeEnergyRow.ended_at_seconds - NodeEnergyRow.started_at_seconds
    return case((window > 0.0, window), else_=0.0)


def applied_choice() -> ColumnElement[bool]:
    """Return the join of a GPU reading to the decided clock, if that clock was in force all the time.

    A driver can accept a lock and ignore it: a busy GPU seen clearly above the lock had none.
    """
    observed = GpuEnergyRow.observed_clock_mhz
    return and_(
        DecisionClockRow.decision_id == JobRow.decision_id,
        DecisionClockRow.gpu_type == GpuEnergyRow.gpu_type,
        DecisionClockRow.sm_clock_mhz == GpuEnergyRow.applied_clock_mhz,
        GpuEnergyRow.flags.not_like(f"%,{QualityFlag.RESCUED.value},%"),
        or_(observed.is_(None), observed <= GpuEnergyRow.applied_clock_mhz * OBSERVED_CLOCK_TOLERANCE),
    )


def saving_joules(error: float = 0.0) -> ColumnElement[float | None]:
    """Return the joules saved against the default clock, by the prediction: E x (-c / (1 + c)) for a change c.

    E, of the time in which the GPU worked, was measured at the chosen clock and is (1 + c) times the energy at the
    default clock. Not measured: the default clock's energy of the same run cannot be. The prediction is about a GPU at
    work: an idle one draws the same at any clock, so its time is left out, and of a GPU that never worked, by its
    utilisation or by its power, nothing is claimed. NULL also where the prediction is assumed (the GPU type was never
    measured), and where it is not known whether the GPU worked.

    Args:
        error: Added to the predicted change.
    """
    change = DecisionClockRow.predicted_energy_change + error
    use, idle = GpuEnergyRow.utilisation, _idle_watts()
    at_work = func.coalesce(GpuEnergyRow.joules - idle_joules(), GpuEnergyRow.joules * use)
    seen_at_work = and_(
        or_(use.is_(None), use >= MIN_UTILISATION),
        or_(idle.is_(None), GpuEnergyRow.joules > MIN_WORK_POWER * idle * GpuEnergyRow.coverage_seconds),
    )
    applies = and_(change > -1.0, DecisionClockRow.is_assumed.is_not(True), seen_at_work, at_work > 0.0)
    return case((applies, at_work * (-change) / (1.0 + change)), else_=null())


def idle_joules() -> ColumnElement[float | None]:
    """Return what a GPU drew in the time in which it did nothing, by its utilisation and its type's idle power.

    NULL where one of them is not known; never more than the reading. Without a utilisation a saving takes the GPU to
    have worked all the time.
    """
    unused = (1.0 - func.coalesce(GpuEnergyRow.utilisation, 1.0)) * GpuEnergyRow.coverage_seconds * _idle_watts()
    return case((unused > GpuEnergyRow.joules, GpuEnergyRow.joules), else_=unused)


def _idle_watts() -> ColumnElement[float | None]:
    known = {name: row.idle_watts for name, row in CATALOG.items() if row.idle_watts is not None}
    return case(known, value=GpuEnergyRow.gpu_type, else_=null())


def timing_error_joules() -> ColumnElement[float]:
    """Return the timing's error bound of a GPU reading in J: `energy_error(...).timing` in SQL; NULL for none."""
    row = GpuEnergyRow
    share = 2.0 * COUNTER_INTERVAL_SECONDS / row.coverage_seconds
    polled = case((row.source == EnergySource.POLLED.value, POLLED_ERROR_SHARE), else_=0.0)
    return case(
        (row.source.in_([EnergySource.MODEL.value, EnergySource.NONE.value]), null()),
        (row.scope.in_([EnergyScope.MIG_ESTIMATE.value, EnergyScope.SHARED_ESTIMATE.value]), null()),
        (row.coverage_seconds <= 0.0, row.joules),
        (share + polled >= 1.0, row.joules),
        else_=row.joules * (share + polled),
    )
