"""The whole story of one job, put together from its decision and its reports."""

from collections import Counter

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from slurm_energy.domain.energy import GpuEnergy, NodeReport, relative_error
from slurm_energy.domain.ids import ClusterName, JobId
from slurm_energy.domain.report import (
    ComparisonRecord,
    DecisionRecord,
    ExplainRecord,
    GpuOutcomeRecord,
    JobEnergyRecord,
)
from slurm_energy.estimation.job_groups import name_stem
from slurm_energy.store.decisions import get_decision
from slurm_energy.store.energy import stored_reports
from slurm_energy.store.reports import job_energy
from slurm_energy.store.sums import count_where
from slurm_energy.store.tables import DecisionRow, GpuEnergyRow, JobRow, NodeEnergyRow


def explain(session: Session, cluster: ClusterName, job_id: JobId) -> ExplainRecord | None:
    """Return the story of the youngest job of that number, None when the database has never seen it."""
    jobs = job_energy(session, cluster, job_id)
    if not jobs:
        return None
    job = jobs[0]
    reports = stored_reports(session, cluster, job_id, job.submitted_at_seconds)
    decision = None if job.decision_id is None else get_decision(session, job.decision_id)
    gpus = tuple(_outcome(report, gpu) for report in reports for gpu in report.gpus)
    return ExplainRecord(
        job=job,
        decision=decision,
        gpus=gpus,
        comparisons=_comparisons(session, job, decision, gpus),
        events=tuple(f"{report.node}: {event}" for report in reports for event in report.events),
        trials=tuple(trial for report in reports for trial in report.trials),
    )


def _outcome(report: NodeReport, gpu: GpuEnergy) -> GpuOutcomeRecord:
    return GpuOutcomeRecord(
        node=report.node,
        restart_count=report.restart_count,
        gpu_uuid=gpu.gpu_uuid,
        gpu_name=gpu.gpu_name,
        gpu_type=gpu.gpu_type,
        asked_clock_mhz=gpu.asked_clock_mhz,
        applied_clock_mhz=gpu.applied_clock_mhz,
        observed_clock_mhz=gpu.observed_clock_mhz,
        default_clock_mhz=gpu.default_clock_mhz,
        joules=gpu.joules,
        reason=gpu.reason,
        source=gpu.source,
        scope=gpu.scope,
        coverage_seconds=gpu.coverage_seconds,
        error_share=None if gpu.joules is None else relative_error(gpu.source, gpu.scope, gpu.coverage_seconds),
        utilisation=gpu.utilisation,
        flags=gpu.flags,
    )


def _comparisons(
    session: Session, job: JobEnergyRecord, decision: DecisionRecord | None, gpus: tuple[GpuOutcomeRecord, ...]
) -> tuple[ComparisonRecord, ...]:
    if decision is None:
        return ()
    last = [gpu for gpu in gpus if gpu.restart_count == max(other.restart_count for other in gpus)]
    found: list[ComparisonRecord] = []
    for choice in decision.clocks:
        of_type = [gpu for gpu in last if gpu.gpu_type == choice.gpu_type]
        if not of_type:
            continue
        observed = [gpu.observed_clock_mhz for gpu in of_type if gpu.observed_clock_mhz is not None]
        found.append(
            ComparisonRecord(
                quantity=f"SM clock of {choice.gpu_type}",
                unit="MHz",
                predicted=float(choice.sm_clock_mhz),
                actual=sum(observed) / len(observed) if observed else None,
                basis="decided; mean over samples of busy GPUs" if observed else "decided; no samples of busy GPUs",
            )
        )
        if any(gpu.applied_clock_mhz == choice.sm_clock_mhz for gpu in of_type):
            found.append(_runtime(job, decision, choice.predicted_slowdown))
            found.append(_energy(session, job, decision, gpus, choice.predicted_energy_change))
    return tuple(found)


def _runtime(job: JobEnergyRecord, decision: DecisionRecord, slowdown: float) -> ComparisonRecord:
    estimate = decision.estimate
    if estimate is None:
        basis = "there was no runtime estimate"
    else:
        known = f" over {estimate.runs} runs" if estimate.runs > 1 else ""
        basis = f"estimate from {estimate.source}{known} at the default clock, {slowdown:+.1%} for the chosen one"
    one_run = job.attempts <= 1
    return ComparisonRecord(
        quantity="run time",
        unit="s",
        predicted=None if estimate is None else estimate.seconds * (1.0 + slowdown),
        actual=job.run_seconds if one_run else None,
        basis=basis if one_run else f"{basis}; the job ran {job.attempts} times",
    )


def _energy(
    session: Session,
    job: JobEnergyRecord,
    decision: DecisionRecord,
    gpus: tuple[GpuOutcomeRecord, ...],
    change: float,
) -> ComparisonRecord:
    """Compare the predicted change with earlier runs of the same user, name and GPUs at the default clock.

    The energy of a job that ran several times is that of all its runs: no single run of another job is like it.
    """
    script = decision.asked.script
    by_script = script is not None and bool(script.key) and not name_stem(job.name or "")
    one_run = job.attempts <= 1 and len({gpu.restart_count for gpu in gpus}) <= 1
    script_key = script.key if by_script and script is not None else None
    reference, runs = _default_clock_joules(session, job, gpus, script_key) if one_run else (None, 0)
    like = "script" if by_script else "name"
    joules = job.gpu.joules if not job.gpu.unknown_readings else None
    actual = joules / reference - 1.0 if joules is not None and reference else None
    if runs:
        basis = f"against {runs} earlier completed runs of this {like} at the default clock, on the same GPUs"
    else:
        assumed = any(choice.is_assumed and choice.predicted_energy_change == change for choice in decision.clocks)
        model = "assumed, from another GPU" if assumed else "predicted by the model"
        missing = f"no completed run of this {like} at the default clock on the same GPUs to compare with"
        basis = f"{model}; {missing if one_run else f'the job ran {job.attempts} times'}"
    return ComparisonRecord(
        quantity="GPU energy against the default clock",
        unit="share",
        predicted=change,
        actual=actual,
        basis=f"{basis} ({decision.policy} {decision.policy_version})",
    )


def _default_clock_joules(
    session: Session, job: JobEnergyRecord, gpus: tuple[GpuOutcomeRecord, ...], script_key: str | None
) -> tuple[float | None, int]:
    """Return mean GPU joules and number of whole, completed, unslowed runs by this user under this name or script.

    Only of runs on as many GPUs of each type.
    """
    if job.user_id is None or not job.name:
        return None, 0
    slowed = case(
        (GpuEnergyRow.applied_clock_mhz < func.coalesce(GpuEnergyRow.default_clock_mhz, 0), 1),
        (GpuEnergyRow.joules.is_(None), 1),
        else_=0,
    )
    board = func.coalesce(GpuEnergyRow.gpu_type, GpuEnergyRow.gpu_name)
    numbers = Counter(gpu.gpu_type or gpu.gpu_name for gpu in gpus)
    of_each_type = [count_where(board == name) == number for name, number in sorted(numbers.items())]
    runs = (
        select(func.sum(GpuEnergyRow.joules).label("joules"))
        .select_from(GpuEnergyRow)
        .join(NodeEnergyRow, NodeEnergyRow.row_id == GpuEnergyRow.node_energy_row_id)
        .join(JobRow, JobRow.row_id == NodeEnergyRow.job_row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .where(
            JobRow.cluster == job.cluster,
            JobRow.user_id == job.user_id,
            JobRow.name == job.name if script_key is None else DecisionRow.script_key == script_key,
            JobRow.state == "COMPLETED",
            JobRow.restart_count == 0,
            JobRow.submitted_at_seconds < job.submitted_at_seconds,
        )
        .group_by(JobRow.row_id)
        .having(func.sum(slowed) == 0, func.count() == max(1, job.gpu.readings), *of_each_type)
        .subquery("runs")
    )
    mean, count = session.execute(select(func.avg(runs.c.joules), func.count())).one()
    return (None if mean is None else float(mean)), int(count)
