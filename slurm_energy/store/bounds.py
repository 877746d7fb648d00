"""How much longer jobs ran than allowed, and what named partitions cost, by user."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Text, and_, func, select, type_coerce
from sqlalchemy.orm import InstrumentedAttribute, Session

from slurm_energy.domain.bounds_report import TOLERANCE, OpenGroup, OpenReport, SlowdownGroup, SlowdownReport
from slurm_energy.domain.decision import OpenOffer, SlowdownBasis
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import from_plain
from slurm_energy.errors import ValueRangeError
from slurm_energy.store.summaries import JobFilter
from slurm_energy.store.sums import applied_choice
from slurm_energy.store.tables import (
    ClockTrialRow,
    DecisionClockRow,
    DecisionRow,
    GpuEnergyRow,
    JobRow,
    NodeEnergyRow,
)

_Value = TypeVar("_Value")
_ROWS = 1000
"""Read at a time."""


def report_slowdown(session: Session, where: JobFilter) -> SlowdownReport:
    """Return how much longer completed jobs of a period ran than where Slurm would have started them, by user."""
    kept = (
        select(func.max(ClockTrialRow.slowdown))
        .where(ClockTrialRow.node_energy_row_id == NodeEnergyRow.row_id, ClockTrialRow.kept)
        .correlate(NodeEnergyRow)
        .scalar_subquery()
    )
    query = (
        select(
            JobRow.row_id,
            JobRow.user_id,
            JobRow.user_name,
            JobRow.partition,
            _as_text(DecisionRow.partitions, "partitions"),
            DecisionRow.prefer,
            _as_text(DecisionRow.slowdown, "slowdown"),
            GpuEnergyRow.gpu_type,
            GpuEnergyRow.applied_clock_mhz,
            GpuEnergyRow.default_clock_mhz,
            DecisionClockRow.predicted_slowdown,
            kept.label("tried"),
        )
        .select_from(NodeEnergyRow)
        .join(
            JobRow, (JobRow.row_id == NodeEnergyRow.job_row_id) & (JobRow.restart_count == NodeEnergyRow.restart_count)
        )
        .join(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .join(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionClockRow, applied_choice())
        .where(*where.of_jobs(), *where.of_reports(), JobRow.state == "COMPLETED")
        .order_by(JobRow.row_id)
    )
    groups: dict[str, _Slowdowns] = {}
    total = _Slowdowns()
    found: Iterable[Row[Any]] = session.execute(query).yield_per(_ROWS)  # type: ignore[assignment]  # only by name
    for _, rows in groupby(found, key=lambda row: row.row_id):
        gpus = list(rows)
        for one in (groups.setdefault(_user(gpus[0]), _Slowdowns()), total):
            one.add(gpus)
    return SlowdownReport(
        cluster=where.cluster,
        groups=tuple(one.group(user) for user, one in sorted(groups.items())),
        total=total.group("all"),
    )


@dataclass(slots=True)
class _Slowdowns:
    jobs: int = 0
    known: int = 0
    measured: int = 0
    beyond: int = 0
    moved: int = 0
    total: float = 0.0

    def add(self, gpus: list[Row[Any]]) -> None:
        """Count one job with its GPUs, the slowest of which holds the others up."""
        self.jobs += 1
        basis = _read(SlowdownBasis, gpus[0].slowdown)
        types = {gpu.gpu_type for gpu in gpus}
        if basis is None or len(types) != 1:
            return
        (gpu_type,) = types
        by_type = None if gpu_type is None else basis.type_slowdowns.get(GpuTypeName(gpu_type))
        clocks = [_clock_slowdown(gpu) for gpu in gpus]
        if by_type is None or any(clock is None for clock in clocks):
            return
        by_clock = max(clock for clock in clocks if clock is not None)
        # Where Slurm alone chose the place, that is where it started the job by itself, whatever was foreseen.
        ours = by_type if _is_placed(gpus[0]) else 0.0
        self.known += 1
        self.measured += any(gpu.tried is not None for gpu in gpus)
        self.total += (1.0 + ours) * (1.0 + by_clock) - 1.0
        is_beyond = _is_beyond(basis, ours, by_clock)
        self.beyond += is_beyond
        self.moved += not is_beyond and _is_beyond(basis, by_type, by_clock)

    def group(self, user: str) -> SlowdownGroup:
        return SlowdownGroup(
            user=user,
            jobs=self.jobs,
            known_jobs=self.known,
            measured_jobs=self.measured,
            beyond_jobs=self.beyond,
            moved_jobs=self.moved,
            mean_slowdown=self.total / self.known if self.known else None,
        )


def _is_placed(job: Row[Any]) -> bool:
    """Return whether the decision has to do with where the job ran; else Slurm alone chose, as in mode `observe`."""
    named = _plain(job.partitions)
    return job.prefer is not None or (isinstance(named, list) and job.partition in named)


def _is_beyond(basis: SlowdownBasis, by_type: float, by_clock: float) -> bool:
    """Return whether the slowdown of GPU type and clock is beyond their bounds, or beyond the one of both."""
    if basis.type_bound is None:
        return (1.0 + by_type) * (1.0 + by_clock) - 1.0 > basis.bound + TOLERANCE
    return by_type > basis.type_bound + TOLERANCE or by_clock > basis.bound + TOLERANCE


def _as_text(column: InstrumentedAttribute[Any], label: str) -> ColumnElement[str]:
    """Return a column of JSON as it was stored: one that cannot be read must not end the report."""
    return type_coerce(column, Text).label(label)


def _plain(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def _read(kind: type[_Value], text: str | None) -> _Value | None:
    """Return what a decision says; None where it says nothing, or it is damaged or of another release."""
    value = _plain(text)
    if value is None:
        return None
    try:
        return from_plain(kind, value)
    except ValueRangeError:
        return None


def _clock_slowdown(gpu: Row[Any]) -> float | None:
    """Return what a GPU's clock did to the run: measured in the job, else predicted; None where that is not known."""
    if gpu.tried is not None:
        return float(gpu.tried)
    if gpu.predicted_slowdown is not None:
        return float(gpu.predicted_slowdown)
    is_default = gpu.applied_clock_mhz is None or gpu.applied_clock_mhz == gpu.default_clock_mhz
    return 0.0 if is_default else None


def report_open(session: Session, where: JobFilter) -> OpenReport:
    """Return what jobs of a period that named a partition left unused, by user."""
    query = (
        select(
            JobRow.row_id,
            JobRow.user_id,
            JobRow.user_name,
            DecisionRow.opens,
            _as_text(DecisionRow.open_offer, "open_offer"),
            func.sum(NodeEnergyRow.gpu_joules).label("joules"),
            func.sum(func.coalesce(NodeEnergyRow.gpu_unknown_readings, 1)).label("unknown"),
        )
        .select_from(NodeEnergyRow)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .join(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            *where.of_jobs(),
            *where.of_reports(),
            and_(DecisionRow.open_offer.is_not(None) | DecisionRow.opens.is_(True)),
        )
        .group_by(JobRow.row_id, JobRow.user_id, JobRow.user_name, DecisionRow.opens, DecisionRow.open_offer)
    )
    rows: Sequence[Row[Any]] = session.execute(query).all()  # type: ignore[assignment]  # only by name
    users = sorted({_user(row) for row in rows})
    return OpenReport(
        cluster=where.cluster,
        groups=tuple(_open_group(user, (row for row in rows if _user(row) == user)) for user in users),
        total=_open_group("all", rows),
    )


def _open_group(user: str, rows: Iterable[Row[Any]]) -> OpenGroup:
    named = opened = unknown = free = 0
    joules = 0.0
    for row in rows:
        opened += bool(row.opens)
        if row.open_offer is None:
            continue
        named += 1
        offer = _read(OpenOffer, row.open_offer)
        if offer is None:
            unknown += 1
            continue
        free += not offer.named_has_room
        if row.joules is None or row.unknown:
            unknown += 1
        else:
            joules += float(row.joules) * max(0.0, -offer.energy_change)
    return OpenGroup(
        user=user,
        named_jobs=named,
        opened_jobs=opened,
        left_joules=joules,
        unknown_jobs=unknown,
        free_elsewhere_jobs=free,
    )


def _user(row: Row[Any]) -> str:
    return row.user_name or ("unknown" if row.user_id is None else str(row.user_id))
