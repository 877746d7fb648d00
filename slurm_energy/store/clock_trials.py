"""Clocks that were tried in running jobs: stored beside the node's report, and read back by job name."""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.trials import ClockTrial, NamedTrial
from slurm_energy.store.tables import ClockTrialRow, DecisionRow, GpuEnergyRow, JobRow, NodeEnergyRow
from slurm_energy.store.types import bounded

MAX_TRIALS_READ = 100_000
_UNUSABLE = (QualityFlag.SHARED_GPU, QualityFlag.MIG, QualityFlag.GPU_IDENTITY_UNKNOWN)


def trial_rows(trials: Sequence[ClockTrial]) -> list[ClockTrialRow]:
    """Return the rows of a report's trials."""
    rows = []
    for number, trial in enumerate(trials):
        values = {item.name: getattr(trial, item.name) for item in fields(ClockTrial)}
        rows.append(ClockTrialRow(number=number, **{**values, "reason": bounded(trial.reason, 255)}))
    return rows


def trial_of(row: ClockTrialRow) -> ClockTrial:
    """Return what a row holds."""
    values = {item.name: getattr(row, item.name) for item in fields(ClockTrial)}
    return ClockTrial(**{**values, "gpu_type": GpuTypeName(row.gpu_type)})


def trials_of_names(session: Session, cluster: ClusterName, since_seconds: float) -> Iterator[NamedTrial]:
    """Yield the trials of named jobs that ended since then, the latest job first, each job's in their order.

    A job counts however it ended: its trials were complete by then. Not one on a GPU that others used.
    """
    query = (
        select(
            ClockTrialRow, JobRow.user_id, JobRow.name, DecisionRow.script_key, JobRow.row_id, JobRow.ended_at_seconds
        )
        .select_from(ClockTrialRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == ClockTrialRow.node_energy_row_id)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            JobRow.cluster == cluster,
            JobRow.ended_at_seconds >= since_seconds,
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            ~select(GpuEnergyRow.row_id)
            .where(
                GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id,
                or_(*(GpuEnergyRow.flags.like(f"%,{flag.value},%") for flag in _UNUSABLE)),
            )
            .exists(),
        )
        .order_by(JobRow.ended_at_seconds.desc(), JobRow.row_id, ClockTrialRow.node_energy_row_id, ClockTrialRow.number)
        .limit(MAX_TRIALS_READ)
    )
    for row, user_id, name, script_key, job, ended in session.execute(query):
        if user_id is None or name is None or ended is None:  # not one: the query asks for all three
            continue
        yield NamedTrial(
            user_id=user_id,
            name=name,
            script_key=script_key,
            run=job,
            ended_at_seconds=ended,
            trial=trial_of(row),
        )
