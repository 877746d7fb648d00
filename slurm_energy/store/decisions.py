"""Decisions and the policies that made them: written once, read for explanations."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Select, delete, func, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.decision import AnswerDetails, ClockChoice, DecisionChange, RuntimeEstimate
from slurm_energy.domain.decision import EnergyDecision as Decision
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, JobId, PartitionName
from slurm_energy.domain.job import EnergyMode, JobRequest
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.domain.report import DecisionRecord, ReasonRecord, reason_sentence
from slurm_energy.store.rollup_rows import take_out
from slurm_energy.store.sums import make_sums
from slurm_energy.store.tables import (
    DecisionChangeRow,
    DecisionClockRow,
    DecisionRow,
    JobRow,
    PolicyRow,
    insert_if_absent,
)
from slurm_energy.store.types import bounded

MAX_TEXT = 4096
"""Longest text of a request that is kept whole."""
DEFAULT_DECISIONS = 100
_CHUNK = 500


def record_decisions(
    session: Session,
    decided: Sequence[tuple[Decision, JobRequest]],
    cluster: ClusterName,
    settings: Mapping[str, Any] | None = None,
) -> int:
    """Store decisions with their policies and settings; return how many were new. A known id changes nothing."""
    first: dict[DecisionId, tuple[Decision, JobRequest]] = {}
    for decision, request in decided:
        first.setdefault(decision.decision_id, (decision, request))
    known: set[str] = set()
    for begin in range(0, len(first), _CHUNK):
        ids = list(first)[begin : begin + _CHUNK]
        known.update(session.scalars(select(DecisionRow.decision_id).where(DecisionRow.decision_id.in_(ids))))
    new = [(decision, request) for decision, request in first.values() if decision.decision_id not in known]
    policies: dict[tuple[str, str], int] = {}
    for decision, _ in new:
        name = decision.policy, decision.policy_version
        if name not in policies:
            policies[name] = ensure_policy(session, *name, settings or {}, decision.decided_at_seconds).row_id
    insert_if_absent(
        session,
        DecisionRow,
        [
            _decision_values(decision, request, cluster, policies[decision.policy, decision.policy_version])
            for decision, request in new
        ],
    )
    clocks = [_clock_values(decision.decision_id, choice) for decision, _ in new for choice in decision.clocks]
    insert_if_absent(session, DecisionClockRow, clocks)
    # A job's reports may be there before its decision.
    ids = [decision.decision_id for decision, _ in new if decision.clocks]
    for begin in range(0, len(ids), _CHUNK):
        carry_it = JobRow.decision_id.in_(ids[begin : begin + _CHUNK])
        take_out(session, carry_it)
        make_sums(session, carry_it)
    return len(new)


def record_change(session: Session, change: DecisionChange) -> bool:
    """Store what was decided again for a job; return whether it was new, and its decision is known.

    Its clocks are those in force from then on: what was saved is counted against them.
    """
    if session.get(DecisionRow, change.decision_id) is None:
        return False
    values = {
        "decision_id": change.decision_id,
        "number": change.number,
        "decided_at_seconds": change.decided_at_seconds,
        "outcome": change.outcome,
        "partitions": _bounded_texts(list(change.partitions)),
        "gpus": change.gpus,
        "clocks": to_plain(change.clocks),
        "note": change.note,
    }
    if session.get(DecisionChangeRow, (change.decision_id, change.number)) is not None:
        return False
    insert_if_absent(session, DecisionChangeRow, [values])
    session.execute(delete(DecisionClockRow).where(DecisionClockRow.decision_id == change.decision_id))
    insert_if_absent(session, DecisionClockRow, [_clock_values(change.decision_id, choice) for choice in change.clocks])
    take_out(session, JobRow.decision_id == change.decision_id)
    make_sums(session, JobRow.decision_id == change.decision_id)
    return True


def changes_of(session: Session, decision_id: str) -> tuple[DecisionChange, ...]:
    """Return what was decided again for the job of a decision, in order."""
    rows = session.scalars(
        select(DecisionChangeRow).where(DecisionChangeRow.decision_id == decision_id).order_by(DecisionChangeRow.number)
    )
    return tuple(
        from_plain(
            DecisionChange,
            {
                "decision_id": row.decision_id,
                "number": row.number,
                "decided_at_seconds": row.decided_at_seconds,
                "outcome": row.outcome,
                "partitions": row.partitions,
                "gpus": row.gpus,
                "clocks": row.clocks,
                "note": row.note,
            },
        )
        for row in rows
    )


def _decision_values(
    decision: Decision, request: JobRequest, cluster: ClusterName, policy_row_id: int
) -> dict[str, Any]:
    estimate = decision.estimate
    return {
        "decision_id": decision.decision_id,
        "cluster": cluster,
        "policy_row_id": policy_row_id,
        "mode": decision.mode.value,
        "decided_at_seconds": decision.decided_at_seconds,
        "user_id": request.user_id,
        "user_name": request.user_name,
        "job_name": request.name,
        "request": _bounded_texts(to_plain(request)),
        "partitions": None if decision.partitions is None else _bounded_texts(list(decision.partitions)),
        "prefer": decision.prefer,
        "gpus": decision.gpus,
        "reasons": ",".join(decision.reasons),
        "notes": _bounded_texts(list(decision.notes)),
        "details": None if decision.details == AnswerDetails() else _bounded_texts(to_plain(decision.details)),
        "estimate_seconds": None if estimate is None else estimate.seconds,
        "estimate_upper_seconds": None if estimate is None else estimate.upper_seconds,
        "estimate_source": None if estimate is None else estimate.source,
        "estimate_runs": None if estimate is None else estimate.runs,
        "script_key": None if request.script is None else request.script.key or None,
        "estimate_gpu_type": None if estimate is None else estimate.gpu_type,
        "snapshot_age_seconds": decision.snapshot_age_seconds,
        "opens": decision.opens,
        "open_offer": None if decision.offer is None else to_plain(decision.offer),
        "slowdown": None if decision.slowdown is None else to_plain(decision.slowdown),
        "message": decision.message,
    }


def get_decision(session: Session, decision_id: str) -> DecisionRecord | None:
    """Return one decision, None when it is not (yet) stored."""
    row = session.get(DecisionRow, decision_id)
    return None if row is None else replace(_record(row), changes=changes_of(session, decision_id))


def recent_decisions(  # noqa: PLR0913  # each is one condition, and most are left out
    session: Session,
    cluster: ClusterName,
    *,
    user_id: int | None = None,
    user_name: str | None = None,
    job_id: int | None = None,
    partition: str | None = None,
    since_seconds: float | None = None,
    until_seconds: float | None = None,
    limit: int = DEFAULT_DECISIONS,
) -> tuple[DecisionRecord, ...]:
    """Return decisions made in [since, until) with the jobs that carry them, newest first.

    Job (or its array, or heterogeneous job) and partition are those of the jobs that carry a decision.
    """
    terms = [DecisionRow.cluster == cluster]
    if user_id is not None:
        terms.append(DecisionRow.user_id == user_id)
    if user_name is not None:
        terms.append(DecisionRow.user_name == user_name)
    if since_seconds is not None:
        terms.append(DecisionRow.decided_at_seconds >= since_seconds)
    if until_seconds is not None:
        terms.append(DecisionRow.decided_at_seconds < until_seconds)
    if job_id is not None:
        of_job = or_(JobRow.job_id == job_id, JobRow.array_job_id == job_id, JobRow.het_job_id == job_id)
        terms.append(DecisionRow.decision_id.in_(_carried(cluster).where(of_job)))
    if partition is not None:
        terms.append(DecisionRow.decision_id.in_(_carried(cluster).where(JobRow.partition == partition)))
    ordered = select(DecisionRow).where(*terms).order_by(DecisionRow.decided_at_seconds.desc(), DecisionRow.decision_id)
    rows = session.scalars(ordered.limit(limit)).all()
    jobs = _jobs_of(session, cluster, [row.decision_id for row in rows])
    return tuple(replace(_record(row), job_ids=jobs.get(row.decision_id, ())) for row in rows)


def _carried(cluster: ClusterName) -> Select[Any]:
    return select(JobRow.decision_id).where(JobRow.cluster == cluster, JobRow.decision_id.is_not(None))


def _jobs_of(session: Session, cluster: ClusterName, decision_ids: Sequence[str]) -> dict[str, tuple[JobId, ...]]:
    """Return the jobs that carry some decisions; the tasks of an array are one."""
    number = func.coalesce(JobRow.array_job_id, JobRow.job_id)
    found: dict[str, tuple[JobId, ...]] = {}
    for begin in range(0, len(decision_ids), _CHUNK):
        query = (
            select(JobRow.decision_id, number)
            .where(JobRow.cluster == cluster, JobRow.decision_id.in_(decision_ids[begin : begin + _CHUNK]))
            .distinct()
            .order_by(number)
        )
        for decision_id, job_id in session.execute(query):
            if decision_id is not None:
                found[decision_id] = (*found.get(decision_id, ()), JobId(job_id))
    return found


def _clock_values(decision_id: DecisionId, choice: ClockChoice) -> dict[str, Any]:
    return {
        "decision_id": decision_id,
        "gpu_type": choice.gpu_type,
        "sm_clock_mhz": choice.sm_clock_mhz,
        "default_clock_mhz": choice.default_clock_mhz,
        "predicted_slowdown": choice.predicted_slowdown,
        "predicted_energy_change": choice.predicted_energy_change,
        "power_limit_watts": choice.power_limit_watts,
        "is_assumed": choice.is_assumed,
        "known_runs": choice.known_runs,
    }


def clock_choice(row: DecisionClockRow) -> ClockChoice:
    """Return the stored choice for one GPU type."""
    return ClockChoice(
        gpu_type=GpuTypeName(row.gpu_type),
        sm_clock_mhz=row.sm_clock_mhz,
        default_clock_mhz=row.default_clock_mhz,
        predicted_slowdown=row.predicted_slowdown,
        predicted_energy_change=row.predicted_energy_change,
        power_limit_watts=row.power_limit_watts,
        is_assumed=bool(row.is_assumed),
        known_runs=row.known_runs or 0,
    )


def _record(row: DecisionRow) -> DecisionRecord:
    estimate = None
    if row.estimate_seconds is not None and row.estimate_upper_seconds is not None:
        estimate = RuntimeEstimate(
            seconds=row.estimate_seconds,
            upper_seconds=row.estimate_upper_seconds,
            source=row.estimate_source or "",
            runs=row.estimate_runs or 0,
            gpu_type=None if row.estimate_gpu_type is None else GpuTypeName(row.estimate_gpu_type),
        )
    codes = [code for code in row.reasons.split(",") if code]
    changed = row.partitions is not None or row.prefer is not None or bool(row.clocks)
    return DecisionRecord(
        decision_id=DecisionId(row.decision_id),
        cluster=ClusterName(row.cluster),
        policy=row.policy.name,
        policy_version=row.policy.version,
        mode=EnergyMode(row.mode),
        decided_at_seconds=row.decided_at_seconds,
        asked=from_plain(JobRequest, row.request),
        partitions=None if row.partitions is None else tuple(PartitionName(name) for name in row.partitions),
        clocks=tuple(clock_choice(clock) for clock in row.clocks),
        prefer=row.prefer,
        gpus=row.gpus,
        reasons=tuple(ReasonRecord(code=code, sentence=reason_sentence(code, changed=changed)) for code in codes),
        notes=tuple(row.notes),
        details=AnswerDetails() if row.details is None else from_plain(AnswerDetails, row.details),
        estimate=estimate,
        snapshot_age_seconds=row.snapshot_age_seconds,
        message=row.message,
    )


def _bounded_texts(value: Any) -> Any:
    if isinstance(value, str):
        return bounded(value, MAX_TEXT)
    if isinstance(value, list):
        return [_bounded_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _bounded_texts(item) for key, item in value.items()}
    return value


def ensure_policy(
    session: Session, name: str, version: str, settings: Mapping[str, Any], used_at_seconds: float
) -> PolicyRow:
    """Return the policy's row, made at its first use."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    query = select(PolicyRow).where(
        PolicyRow.name == name, PolicyRow.version == version, PolicyRow.settings_digest == digest
    )
    row = session.scalar(query)
    if row is None:
        values = {
            "name": name,
            "version": version,
            "settings_digest": digest,
            "settings": json.loads(text),
            "first_used_at_seconds": used_at_seconds,
        }
        insert_if_absent(session, PolicyRow, [values])
        row = session.scalars(query).one()
    return row
