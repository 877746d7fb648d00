"""Tables of sums by hour and by day, and how a job leaves them before its rows change.

A stale hour counts for nothing until it is made again (`rollups`). Times are Unix time, in UTC.
"""

import math
from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, Index, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from slurm_energy.store.tables import IN_NO_HOUR, NOT_ROLLED_UP, TABLE_OPTIONS, Base, JobRow, RowId, insert_if_absent
from slurm_energy.store.totals import ADDED_NAMES
from slurm_energy.store.types import BoundedText, FiniteDouble

HOUR_SECONDS = 3600
DAY_SECONDS = 86_400
ROLLUP_KEYS = ("user_id", "user_name", "account", "qos", "partition")
"""What the jobs of one row of sums have in common."""


class EnergyRollupRow(Base):
    """Sums over jobs of one user, account, QOS and partition that ended in one hour or day, as reports make them."""

    __tablename__ = "energy_rollup"
    __table_args__ = (Index(None, "cluster", "period_seconds", "starts_at_seconds"), TABLE_OPTIONS)

    row_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    cluster: Mapped[str] = mapped_column(BoundedText(64))
    period_seconds: Mapped[int] = mapped_column(BigInteger)
    """3600 or 86400."""
    starts_at_seconds: Mapped[int] = mapped_column(BigInteger)
    user_id: Mapped[int | None] = mapped_column(BigInteger)
    user_name: Mapped[str | None] = mapped_column(BoundedText(255))
    account: Mapped[str | None] = mapped_column(BoundedText(255))
    qos: Mapped[str | None] = mapped_column(BoundedText(255))
    partition: Mapped[str | None] = mapped_column(BoundedText(255))


for _name in ADDED_NAMES:
    setattr(EnergyRollupRow, _name, mapped_column(FiniteDouble, nullable=True))


class RollupPeriodRow(Base):
    """An hour or day of which there is a roll-up, and whether a job has left it since; of length 0: a lock."""

    __tablename__ = "rollup_period"
    __table_args__ = (TABLE_OPTIONS,)

    cluster: Mapped[str] = mapped_column(BoundedText(64), primary_key=True)
    period_seconds: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    starts_at_seconds: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    is_stale: Mapped[bool] = mapped_column(Boolean)
    """A stale hour has no rows of sums: its jobs are read themselves."""


def take_out(session: Session, *jobs: ColumnElement[bool]) -> None:
    """Take jobs whose rows are about to change out of roll-ups; to be called in the transaction that changes them.

    Args:
        session: Of the database.
        *jobs: Terms on JobRow.
    """
    is_in = (JobRow.rollup_hour != NOT_ROLLED_UP, *jobs)
    hours: dict[str, set[int]] = {}
    # All are locked, also those that are in none: another process may be about to roll them up as they were.
    of_jobs = select(JobRow.cluster, JobRow.rollup_hour).where(*jobs).with_for_update()
    found = {(cluster, hour) for cluster, hour in session.execute(of_jobs) if hour != NOT_ROLLED_UP}
    if not found:
        return
    for cluster, hour in found:
        if hour != IN_NO_HOUR:
            hours.setdefault(cluster, set()).add(hour)
    out = {"rollup_hour": NOT_ROLLED_UP, "counted_until_seconds": None}
    session.execute(update(JobRow).where(*is_in).values(out), execution_options={"synchronize_session": "fetch"})
    for cluster, starts in sorted(hours.items()):
        make_stale(session, cluster, starts)


def make_stale(session: Session, cluster: str, starts: set[int]) -> None:
    """Let hours count for nothing, and their days, until they are made again."""
    row = RollupPeriodRow
    period = {"cluster": cluster, "period_seconds": HOUR_SECONDS, "is_stale": True}
    insert_if_absent(session, row, [{**period, "starts_at_seconds": start} for start in sorted(starts)])
    of_hours = (row.cluster == cluster, row.period_seconds == HOUR_SECONDS, row.starts_at_seconds.in_(sorted(starts)))
    session.execute(update(row).where(*of_hours).values(is_stale=True))
    delete_sums(session, cluster, HOUR_SECONDS, starts)
    forget_days(session, cluster, starts)


def delete_sums(session: Session, cluster: str, period_seconds: int, starts: set[int]) -> None:
    """Remove the sums of some hours or days."""
    row = EnergyRollupRow
    session.execute(
        delete(row).where(
            row.cluster == cluster, row.period_seconds == period_seconds, row.starts_at_seconds.in_(sorted(starts))
        )
    )


def forget_days(session: Session, cluster: str, hours: set[int]) -> None:
    """Remove the days of some hours: they are made again when the hours are."""
    days = {hour - hour % DAY_SECONDS for hour in hours}
    row = RollupPeriodRow
    session.execute(
        delete(row).where(
            row.cluster == cluster, row.period_seconds == DAY_SECONDS, row.starts_at_seconds.in_(sorted(days))
        )
    )
    delete_sums(session, cluster, DAY_SECONDS, days)


def hour_of(moment_seconds: float) -> int:
    """Return when the hour of a moment starts."""
    return math.floor(moment_seconds / HOUR_SECONDS) * HOUR_SECONDS


def rollup_sums() -> list[ColumnElement[Any]]:
    """Return the sums over rows of roll-ups, by name."""
    return [func.sum(getattr(EnergyRollupRow, name)).label(name) for name in ADDED_NAMES]
