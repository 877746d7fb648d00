"""How much longer jobs ran than allowed, and what named partitions cost, by user."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Row, and_, func, select
from sqlalchemy.orm import Session

from slurm_energy.domain.bounds_report import TOLERANCE, OpenGroup, OpenReport, SlowdownGroup, SlowdownReport
from slurm_energy.domain.decision import OpenOffer, SlowdownBasis
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import from_plain
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
            DecisionRow.slowdown,
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
    for _, rows in groupby(session.execute(query).yield_per(_ROWS), key=lambda row: row.row_id):
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
    total: float = 0.0

    def add(self, gpus: list[Row[Any]]) -> None:
        """Count one job with its GPUs, the slowest of which holds the others up."""
        self.jobs += 1
        basis = None if gpus[0].slowdown is None else from_plain(SlowdownBasis, gpus[0].slowdown)
        types = {gpu.gpu_type for gpu in gpus}
        if basis is None or len(types) != 1:
            return
        (gpu_type,) = types
        by_type = None if gpu_type is None else basis.type_slowdowns.get(GpuTypeName(gpu_type))
        clocks = [_clock_slowdown(gpu) for gpu in gpus]
        if by_type is None or any(clock is None for clock in clocks):
            return
        by_clock = max(clock for clock in clocks if clock is not None)
        slowdown = (1.0 + by_type) * (1.0 + by_clock) - 1.0
        self.known += 1
        self.measured += any(gpu.tried is not None for gpu in gpus)
        self.total += slowdown
        if basis.type_bound is None:
            self.beyond += slowdown > basis.bound + TOLERANCE
        else:
            self.beyond += by_type > basis.type_bound + TOLERANCE or by_clock > basis.bound + TOLERANCE

    def group(self, user: str) -> SlowdownGroup:
        return SlowdownGroup(
            user=user,
            jobs=self.jobs,
            known_jobs=self.known,
            measured_jobs=self.measured,
            beyond_jobs=self.beyond,
            mean_slowdown=self.total / self.known if self.known else None,
        )


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
            DecisionRow.open_offer,
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
    rows = session.execute(query).all()
    users = sorted({_user(row) for row in rows})
    return OpenReport(
        cluster=where.cluster,
        groups=tuple(_open_group(user, (row for row in rows if _user(row) == user)) for user in users),
        total=_open_group("all", rows),
    )


def _open_group(user: str, rows: Iterable[Row[Any]]) -> OpenGroup:
    named = opened = unknown = free = 0
    joules = 0.0
    for row, offer in _offers(rows):
        opened += bool(row.opens)
        if offer is None:
            continue
        named += 1
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


def _offers(rows: Iterable[Row[Any]]) -> Iterator[tuple[Row[Any], OpenOffer | None]]:
    for row in rows:
        yield row, None if row.open_offer is None else from_plain(OpenOffer, row.open_offer)


def _user(row: Row[Any]) -> str:
    return row.user_name or ("unknown" if row.user_id is None else str(row.user_id))
