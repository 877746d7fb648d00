"""Sums that are kept up as reports come: over the GPUs of each node's report, and over all reports of a partition.

Those of a report rest on the readings, on the clocks that were decided and on the job's numbers, which come in any
order: what stores one of these makes the sums again. Those of a partition cost nothing to ask for: metrics do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, func, not_, null, or_, select, update
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import (
    COUNTER_INTERVAL_SECONDS,
    POLLED_ERROR_SHARE,
    EnergyScope,
    EnergySource,
    QualityFlag,
)
from slurm_energy.domain.ids import ClusterName
from slurm_energy.energy_model.catalog import CATALOG
from slurm_energy.store.tables import (
    DecisionClockRow,
    EnergyTotalRow,
    GpuEnergyRow,
    JobRow,
    NodeEnergyRow,
    insert_if_absent,
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
GPU_SUM_NAMES = (
    "gpu_joules",
    "gpu_readings",
    "gpu_unknown_readings",
    "gpu_covered_seconds",
    "gpu_window_seconds",
    "gpu_timing_squares",
    "gpu_unbounded",
)
_ROWS_AT_ONCE = 500
_TOTAL_NAMES = {"gpu_joules": "gpu_joules", "readings": "gpu_readings", "unknown_readings": "gpu_unknown_readings"}
"""Of a partition in all time, by the column of a report that grows it."""


def make_sums(session: Session, *rows: ColumnElement[bool]) -> int:
    """Make the sums of some reports again, with whose they are, and return of how many.

    Args:
        session: Of the database.
        *rows: Terms on NodeEnergyRow and JobRow.
    """
    query = (
        select(
            NodeEnergyRow.row_id,
            func.max(JobRow.account).label("job_account"),
            func.max(JobRow.user_id).label("job_user_id"),
            *_gpu_columns(),
        )
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionClockRow, applied_choice())
        .where(*rows)
        .group_by(NodeEnergyRow.row_id)
    )
    values = [dict(row._mapping) for row in session.execute(query)]
    if values:
        add_to_totals(session, values)
        session.execute(update(NodeEnergyRow), values)
    return len(values)


def make_sums_of_jobs(session: Session, job_row_ids: Iterable[int]) -> None:
    """Make the sums of all reports of some jobs again."""
    numbers = list(job_row_ids)
    for begin in range(0, len(numbers), _ROWS_AT_ONCE):
        make_sums(session, NodeEnergyRow.job_row_id.in_(numbers[begin : begin + _ROWS_AT_ONCE]))


def rows_without_sums(session: Session, after_row_id: int = 0) -> list[int]:
    """Return the numbers of the first reports after one that have no sums: an older release stored them."""
    missing = select(NodeEnergyRow.row_id).where(
        NodeEnergyRow.row_id > after_row_id, NodeEnergyRow.gpu_readings.is_(None)
    )
    return list(session.scalars(missing.order_by(NodeEnergyRow.row_id).limit(_ROWS_AT_ONCE)))


def make_sums_of_rows(session: Session, row_ids: Iterable[int]) -> int:
    """Make the sums of some reports again by their numbers, and return of how many."""
    return make_sums(session, NodeEnergyRow.row_id.in_(list(row_ids)))


def _gpu_columns() -> list[ColumnElement[Any]]:
    """Return the sums over a report's readings.

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
        GpuEnergyRow.flags.not_like(f"%,{QualityFlag.POWER_BUDGET.value},%"),
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


def add_to_totals(session: Session, values: Sequence[Mapping[str, Any]]) -> None:
    """Add what reports come to by now, less what they came to before; a total never falls.

    Args:
        session: Of the database; the rows still have their old sums.
        values: New sums by column, with each report's `row_id`.
    """
    row = NodeEnergyRow
    new = {value["row_id"]: value for value in values}
    columns = (row.row_id, row.cluster, row.partition, *(getattr(row, name) for name in _TOTAL_NAMES.values()))
    grown: dict[tuple[str, str], dict[str, float]] = {}
    for row_id, cluster, partition, *old in session.execute(select(*columns).where(row.row_id.in_(list(new)))):
        for (name, column), before in zip(_TOTAL_NAMES.items(), old, strict=True):
            more = (new[row_id][column] or 0) - (before or 0)
            if more and cluster is not None:
                sums = grown.setdefault((cluster, partition or ""), dict.fromkeys(_TOTAL_NAMES, 0))
                sums[name] += more
    total = EnergyTotalRow
    for (cluster, partition), sums in sorted(grown.items()):
        empty = {"cluster": cluster, "partition": partition, **dict.fromkeys(_TOTAL_NAMES, 0)}
        insert_if_absent(session, EnergyTotalRow, [empty])
        changed = {name: getattr(total, name) + max(0, more) for name, more in sums.items()}
        session.execute(update(total).where(total.cluster == cluster, total.partition == partition).values(changed))


def count_once(removed: NodeEnergyRow, stays: NodeEnergyRow) -> None:
    """Keep what a report that is removed has in the totals from being added again with the one that has its figures.

    To be called before the sums of the one that stays are made again.
    """
    for name in _TOTAL_NAMES.values():
        setattr(stays, name, (getattr(stays, name) or 0) + (getattr(removed, name) or 0))


def energy_totals(session: Session, cluster: ClusterName) -> dict[str, dict[str, float]]:
    """Return the sums of every partition."""
    rows = session.scalars(select(EnergyTotalRow).where(EnergyTotalRow.cluster == cluster))
    return {row.partition: {name: getattr(row, name) for name in _TOTAL_NAMES} for row in rows}


def running_gpus(session: Session, cluster: ClusterName) -> dict[str, dict[str, float]]:
    """Return GPUs of running jobs by partition: those of jobs for which a lower clock was decided, and the others.

    The decision is what is known while a job runs; whether its clock held is in the report that comes at its end.
    """
    lowered = exists().where(
        DecisionClockRow.decision_id == JobRow.decision_id,
        DecisionClockRow.sm_clock_mhz < DecisionClockRow.default_clock_mhz,
    )
    gpus = func.coalesce(JobRow.gpu_count, 0)
    query = (
        select(
            JobRow.partition,
            func.sum(case((lowered, 0), else_=gpus)),
            func.sum(case((lowered, gpus), else_=0)),
        )
        .where(JobRow.cluster == cluster, JobRow.ended_at_seconds.is_(None), JobRow.state == "RUNNING")
        .group_by(JobRow.partition)
    )
    return {
        partition or "": {"default": int(default), "lowered": int(low)}
        for partition, default, low in session.execute(query)
    }
