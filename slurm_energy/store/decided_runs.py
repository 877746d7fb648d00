"""How much longer the latest jobs ran by the clocks that were decided for them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf
from typing import Any

from sqlalchemy import Row, and_, func, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.estimation.decided_runs import COUNTED_RUNS, DecidedRun
from slurm_energy.store.sums import applied_choice
from slurm_energy.store.tables import (
    ClockTrialRow,
    DecisionClockRow,
    DecisionRow,
    GpuEnergyRow,
    JobAttemptRow,
    JobRow,
    NodeEnergyRow,
)

_DECIDING = (EnergyMode.BALANCED.value, EnergyMode.SAVER.value)
_MIXED = (QualityFlag.RESCUED, QualityFlag.POWER_BUDGET, QualityFlag.GPU_IDENTITY_UNKNOWN, QualityFlag.CLOCK_UNVERIFIED)
"""A run with such a flag was not at one known clock."""


def decided_runs(
    session: Session, cluster: ClusterName, since_seconds: float, limit: int = COUNTED_RUNS
) -> Iterator[DecidedRun]:
    """Yield the latest completed runs whose clock was decided here and is known, newest first.

    What trials in a job measured of the clock that it ran at counts, also where the job kept that clock in the place of
    the decided one; without such, what was predicted of the decided clock.
    """
    jobs = (
        select(JobRow.row_id)
        .join(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            JobRow.cluster == cluster,
            JobRow.ended_at_seconds >= since_seconds,
            JobRow.state == "COMPLETED",
            JobRow.user_id.is_not(None),
            JobRow.gpu_count > 0,
            DecisionRow.mode.in_(_DECIDING),
            DecisionRow.reasons.not_like(f"%{Reason.USER_CLOCK.value}%"),
        )
        .order_by(JobRow.ended_at_seconds.desc(), JobRow.row_id.desc())
        .limit(limit)
        .subquery("latest")
    )
    trial = ClockTrialRow
    tried = (
        select(func.avg(trial.slowdown))
        .where(
            trial.node_energy_row_id == NodeEnergyRow.row_id,
            trial.gpu_type == GpuEnergyRow.gpu_type,
            trial.sm_clock_mhz == GpuEnergyRow.applied_clock_mhz,
            trial.slowdown > -1.0,
            trial.reason == "",
        )
        .correlate(NodeEnergyRow, GpuEnergyRow)
        .scalar_subquery()
    )
    attempt, reading = JobAttemptRow, GpuEnergyRow
    query = (
        select(
            JobRow.row_id,
            JobRow.user_id,
            JobRow.gpu_count,
            attempt.ended_at_seconds,
            (attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds).label("seconds"),
            or_(reading.applied_clock_mhz.is_(None), reading.applied_clock_mhz == reading.default_clock_mhz).label(
                "is_default"
            ),
            and_(*(reading.flags.not_like(f"%,{flag.value},%") for flag in _MIXED)).label("is_clear"),
            DecisionClockRow.predicted_slowdown,
            tried.label("tried"),
        )
        .join(jobs, jobs.c.row_id == JobRow.row_id)
        .join(attempt, and_(attempt.job_row_id == JobRow.row_id, attempt.restart_count == JobRow.restart_count))
        .join(
            NodeEnergyRow,
            and_(NodeEnergyRow.job_row_id == JobRow.row_id, NodeEnergyRow.restart_count == JobRow.restart_count),
        )
        .join(reading, reading.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionClockRow, and_(applied_choice(), DecisionClockRow.predicted_slowdown > -1.0))
        .order_by(attempt.ended_at_seconds.desc(), JobRow.row_id)
    )
    for _, rows in groupby(session.execute(query), key=lambda row: row.row_id):
        run = _run(list(rows))
        if run is not None:
            yield run


def _run(gpus: Sequence[Row[Any]]) -> DecidedRun | None:
    """Return one job's, whose slowest GPU holds the others up; None where a clock is not known."""
    first = gpus[0]
    if not all(gpu.is_clear for gpu in gpus) or not 0.0 < first.seconds < inf:
        return None
    slowed = [gpu for gpu in gpus if not gpu.is_default]
    found = [gpu.predicted_slowdown if gpu.tried is None else gpu.tried for gpu in slowed]
    if any(slowdown is None for slowdown in found):
        return None
    return DecidedRun(
        user=first.user_id,
        gpu_seconds=first.gpu_count * first.seconds,
        ended_at_seconds=first.ended_at_seconds,
        slowdown=max([0.0, *(float(slowdown) for slowdown in found)]),
        is_slowed=bool(slowed),
        is_measured=bool(slowed) and all(gpu.tried is not None for gpu in slowed),
    )
