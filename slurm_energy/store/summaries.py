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
    func,
    not_,
    null,
    or_,
    select,
)

from slurm_energy.domain.energy import (
    COUNTER_INTERVAL_SECONDS,
    POLLED_ERROR_SHARE,
    EnergyScope,
    EnergySource,
    QualityFlag,
)
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.store.tables import DecisionClockRow, GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow

OBSERVED_CLOCK_TOLERANCE = 1.03
"""Readings before the lock and after it pull the mean of a short job up a little."""
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
    """Which jobs a report is about; None leaves a condition out.

    `job_id` also takes the tasks of an array and the parts of a heterogeneous job. A job belongs to the moment
    at which it ended (or started, or was submitted, as far as it came), so that each is in exactly one period.
    """

    cluster: ClusterName
    job_id: JobId | None = None
    user_id: int | None = None
    user_name: str | None = None
    partition: str | None = None
    since_seconds: float | None = None
    until_seconds: float | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the WHERE terms on JobRow."""
        moment = func.coalesce(JobRow.ended_at_seconds, JobRow.started_at_seconds, JobRow.submitted_at_seconds)
        terms: list[ColumnElement[bool]] = [JobRow.cluster == self.cluster]
        if self.job_id is not None:
            terms.append(
                or_(JobRow.job_id == self.job_id, JobRow.array_job_id == self.job_id, JobRow.het_job_id == self.job_id)
            )
        if self.user_id is not None:
            terms.append(JobRow.user_id == self.user_id)
        if self.user_name is not None:
            terms.append(JobRow.user_name == self.user_name)
        if self.partition is not None:
            terms.append(JobRow.partition == self.partition)
        if self.since_seconds is not None:
            terms.append(moment >= self.since_seconds)
        if self.until_seconds is not None:
            terms.append(moment < self.until_seconds)
        return terms


def job_summaries(where: JobFilter, *about: Any) -> Select[Any]:
    """Return a query with one row per job: `about` (the row, or what to group by), then its sums.

    The energy of a requeued job is the sum over its attempts.
    """
    chosen = select(JobRow.row_id).where(*where.conditions())
    gpu, host, attempt = _gpu_sums(chosen), _host_sums(chosen), _attempt_sums(chosen)
    first_start = func.coalesce(attempt.c.first_start, JobRow.started_at_seconds)
    waited = and_(JobRow.submit_time_known, first_start >= JobRow.submitted_at_seconds)
    return (
        select(
            *about,
            first_start.label("first_start"),
            case((waited, first_start - JobRow.submitted_at_seconds), else_=null()).label("wait_seconds"),
            attempt.c.run_seconds.label("run_seconds"),
            func.coalesce(attempt.c.attempts, 0).label("attempts"),
            JobRow.gpu_count.label("gpus_of_job"),
            *(gpu.c[name].label(f"gpu_{name}") for name in SUM_NAMES),
            *(host.c[name].label(f"host_{name}") for name in SUM_NAMES),
            gpu.c.saving_joules.label("saving_joules"),
        )
        .outerjoin(gpu, gpu.c.job_row_id == JobRow.row_id)
        .outerjoin(host, host.c.job_row_id == JobRow.row_id)
        .outerjoin(attempt, attempt.c.job_row_id == JobRow.row_id)
        .where(*where.conditions())
    )


def energy_is_missing(columns: Any) -> ColumnElement[bool]:
    """Return whether a job of `job_summaries` ran with GPUs (or that is unknown) and has no known reading."""
    return and_(
        columns.gpu_joules.is_(None),
        columns.run_seconds > 0.0,
        or_(columns.gpus_of_job.is_(None), columns.gpus_of_job > 0),
    )


def _gpu_sums(chosen: Select[Any]) -> Subquery:
    """Return the sums of a job's GPU readings; a node that reported no GPU counts as one that is unknown."""
    known = GpuEnergyRow.joules.is_not(None)
    gpus_of_node = func.coalesce(JobRow.gpu_count * 1.0 / func.nullif(JobRow.node_count, 0), 1.0)
    window = _window_seconds()
    error = timing_error_joules()
    query = (
        select(
            NodeEnergyRow.job_row_id,
            func.sum(GpuEnergyRow.joules).label("joules"),
            func.count().label("readings"),
            _count(not_(known)).label("unknown_readings"),
            func.sum(case((known, GpuEnergyRow.coverage_seconds), else_=0.0)).label("covered_seconds"),
            func.sum(case((GpuEnergyRow.row_id.is_(None), window * gpus_of_node), else_=window)).label(
                "window_seconds"
            ),
            func.sum(error * error).label("timing_squares"),
            _count(and_(known, error.is_(None))).label("unbounded"),
            func.sum(saving_joules()).label("saving_joules"),
        )
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionClockRow, applied_choice())
        .where(NodeEnergyRow.job_row_id.in_(chosen))
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("gpu_sums")


def _host_sums(chosen: Select[Any]) -> Subquery:
    known = NodeEnergyRow.host_joules.is_not(None)
    query = (
        select(
            NodeEnergyRow.job_row_id,
            func.sum(NodeEnergyRow.host_joules).label("joules"),
            func.count().label("readings"),
            _count(not_(known)).label("unknown_readings"),
            func.sum(case((known, NodeEnergyRow.host_coverage_seconds), else_=0.0)).label("covered_seconds"),
            func.sum(_window_seconds()).label("window_seconds"),
            cast(null(), Double).label("timing_squares"),
            _count(known).label("unbounded"),  # how true RAPL's own model is differs by processor
        )
        .where(NodeEnergyRow.job_row_id.in_(chosen))
        .group_by(NodeEnergyRow.job_row_id)
    )
    return query.subquery("host_sums")


def _attempt_sums(chosen: Select[Any]) -> Subquery:
    attempt = JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds
    query = (
        select(
            attempt.job_row_id,
            func.min(attempt.started_at_seconds).label("first_start"),
            func.count(attempt.started_at_seconds).label("attempts"),
            func.sum(case((run >= 0.0, run), else_=null())).label("run_seconds"),
        )
        .where(attempt.job_row_id.in_(chosen))
        .group_by(attempt.job_row_id)
    )
    return query.subquery("attempt_sums")


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.sum(case((condition, 1), else_=0))


def _window_seconds() -> ColumnElement[float]:
    """Return the device time between prolog and epilog; 0 when the node's clock went backwards."""
    window = (NodeEnergyRow.ended_at_seconds - NodeEnergyRow.started_at_seconds) * NodeEnergyRow.time_scale
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


def saving_joules() -> ColumnElement[float]:
    """Return the joules saved against the default clock, by the prediction: E x (-c / (1 + c)) for a change c.

    E was measured at the chosen clock and is (1 + c) times the energy at the default clock. Not measured: the default
    clock's energy of the same run cannot be. NULL where the prediction is assumed: the GPU type was never measured.
    """
    change = DecisionClockRow.predicted_energy_change
    is_known = and_(change > -1.0, DecisionClockRow.is_assumed.is_not(True))
    return case((is_known, GpuEnergyRow.joules * (-change) / (1.0 + change)), else_=null())


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
