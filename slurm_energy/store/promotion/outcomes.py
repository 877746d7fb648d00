"""What became of the jobs that were decided while a challenger was there: its shadow's answers, its canary's jobs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, null, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import Stage
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.store.past_runs import HISTORY_DAYS, is_sound_reading
from slurm_energy.store.promotion.tables import PolicyAssignmentRow
from slurm_energy.store.tables import DecisionRow, GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow

GUARD_REASONS = (
    Reason.SLOWDOWN_BOUND,
    Reason.TIME_LIMIT,
    Reason.DEADLINE,
    Reason.CLOCK_TABLE,
    Reason.PARTITION_NOT_ALLOWED,
    Reason.POLICY_ERROR,
)
"""With which the guard says that it changed an answer."""
MAX_RUNS = 100_000
_MIN_BASE_RUNS = 2
"""Earlier runs of a name, to say what is usual for it."""
_Key = tuple[int, str, str | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCounts:
    """What a challenger in shadow said so far."""

    decisions: int
    differing: int
    errors: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryJob:
    """A job that ended, against what is usual for its name."""

    user_id: int
    is_challenger: bool
    energy_log: float | None
    """ln of its joules over the median of the name's earlier runs; None where one of them is not known."""
    seconds_log: float | None
    completed: bool
    timed_out: bool
    guard_changed: bool
    milliseconds: float


def shadow_counts(
    session: Session, cluster: ClusterName, challenger_id: str, since_seconds: float, late_milliseconds: float
) -> ShadowCounts:
    """Return what a challenger in shadow said since then."""
    query = select(PolicyAssignmentRow.differs, PolicyAssignmentRow.shadow).where(
        PolicyAssignmentRow.cluster == cluster,
        PolicyAssignmentRow.challenger_id == challenger_id,
        PolicyAssignmentRow.stage == Stage.SHADOW.value,
        PolicyAssignmentRow.decided_at_seconds >= since_seconds,
        PolicyAssignmentRow.differs.is_not(None),
    )
    decisions = differing = errors = late = 0
    for differs, shadow in session.execute(query.limit(MAX_RUNS)):
        decisions += 1
        differing += bool(differs)
        answer: Mapping[str, Any] = shadow or {}
        errors += bool(answer.get("error"))
        late += float(answer.get("milliseconds", 0.0)) > late_milliseconds
    return ShadowCounts(decisions=decisions, differing=differing, errors=errors, late=late)


def canary_jobs(
    session: Session, cluster: ClusterName, challenger_id: str, since_seconds: float
) -> Iterator[CanaryJob]:
    """Yield the ended jobs that were decided since then, under either policy."""
    decided = [
        PolicyAssignmentRow.cluster == cluster,
        PolicyAssignmentRow.challenger_id == challenger_id,
        PolicyAssignmentRow.stage == Stage.CANARY.value,
        PolicyAssignmentRow.decided_at_seconds >= since_seconds,
    ]
    rows = list(_runs(session, cluster, since_seconds, decided))
    names = {(row["user_id"], row["name"]) for row in rows}
    if not names:
        return
    base = _usual(session, cluster, since_seconds, sorted({user for user, _ in names}))
    for row in rows:
        usual_energy, usual_seconds = base.get(_key(row), (None, None))
        completed = row["state"] == "COMPLETED"
        reasons = set((row["reasons"] or "").split(","))
        yield CanaryJob(
            user_id=row["user_id"],
            is_challenger=row["candidate_id"] == challenger_id,
            energy_log=_log_over(row["joules"], usual_energy) if completed and row["is_sound"] else None,
            seconds_log=_log_over(row["seconds"], usual_seconds) if completed else None,
            completed=completed,
            timed_out=row["state"] == "TIMEOUT",
            guard_changed=any(reason.value in reasons for reason in GUARD_REASONS),
            milliseconds=row["milliseconds"],
        )


def _log_over(value: float | None, usual: float | None) -> float | None:
    return None if value is None or usual is None or value <= 0.0 else log(value) - usual


def _key(row: Mapping[str, Any]) -> _Key:
    return row["user_id"], job_group(row["name"], row["script_key"]), row["gpu_type"], row["gpus"]


def _usual(
    session: Session, cluster: ClusterName, before_seconds: float, users: Sequence[int]
) -> dict[_Key, tuple[float | None, float | None]]:
    """Return the median logarithms of joules and seconds of the names' earlier runs."""
    energies: dict[_Key, list[float]] = defaultdict(list)
    times: dict[_Key, list[float]] = defaultdict(list)
    for begin in range(0, len(users), 200):
        terms = [
            JobRow.ended_at_seconds < before_seconds,
            JobRow.state == "COMPLETED",
            JobRow.user_id.in_(users[begin : begin + 200]),
        ]
        since = before_seconds - HISTORY_DAYS * 86_400.0
        for row in _runs(session, cluster, since, terms):
            if row["seconds"] and row["seconds"] > 0.0:
                times[_key(row)].append(log(row["seconds"]))
            if row["is_sound"] and row["joules"] and row["joules"] > 0.0:
                energies[_key(row)].append(log(row["joules"]))
    return {
        key: (
            median(energies[key]) if len(energies[key]) >= _MIN_BASE_RUNS else None,
            median(values) if len(values) >= _MIN_BASE_RUNS else None,
        )
        for key, values in times.items()
    }


def _runs(
    session: Session, cluster: ClusterName, since_seconds: float, terms: Sequence[ColumnElement[bool]]
) -> Iterator[dict[str, Any]]:
    """Yield one row for each ended job: who, what it took, and how it was decided."""
    reading, attempt = GpuEnergyRow, JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds
    same_type = func.min(reading.gpu_type) == func.max(reading.gpu_type)
    columns: list[ColumnElement[Any]] = [
        JobRow.user_id.label("user_id"),
        JobRow.name.label("name"),
        DecisionRow.script_key.label("script_key"),
        JobRow.state.label("state"),
        case((same_type, func.min(reading.gpu_type)), else_=null()).label("gpu_type"),
        JobRow.gpu_count.label("gpus"),
        # The nodes' own times where they reported: Slurm's are whole seconds.
        func.coalesce(func.max(NodeEnergyRow.ended_at_seconds - NodeEnergyRow.started_at_seconds), run).label(
            "seconds"
        ),
        func.sum(reading.joules).label("joules"),
        case(
            (
                and_(
                    func.count(reading.row_id) == JobRow.gpu_count,
                    func.sum(case((is_sound_reading(run), 0), else_=1)) == 0,
                ),
                1,
            ),
            else_=0,
        ).label("is_sound"),
        DecisionRow.reasons.label("reasons"),
        func.max(PolicyAssignmentRow.candidate_id).label("candidate_id"),
        func.max(PolicyAssignmentRow.milliseconds).label("milliseconds"),
    ]
    query = (
        select(*columns)
        .select_from(JobRow)
        .join(attempt, (attempt.job_row_id == JobRow.row_id) & (attempt.restart_count == JobRow.restart_count))
        .outerjoin(
            NodeEnergyRow,
            (NodeEnergyRow.job_row_id == JobRow.row_id) & (NodeEnergyRow.restart_count == JobRow.restart_count),
        )
        .outerjoin(reading, reading.node_energy_row_id == NodeEnergyRow.row_id)
        .outerjoin(DecisionRow, DecisionRow.decision_id == JobRow.decision_id)
        .outerjoin(PolicyAssignmentRow, PolicyAssignmentRow.decision_id == JobRow.decision_id)
        .where(
            JobRow.cluster == cluster,
            JobRow.ended_at_seconds >= since_seconds,
            JobRow.user_id.is_not(None),
            JobRow.name.is_not(None),
            JobRow.gpu_count > 0,
            or_(run > 0.0, JobRow.state != "COMPLETED"),
            *terms,
        )
        .group_by(
            JobRow.row_id,
            DecisionRow.script_key,
            DecisionRow.reasons,
            attempt.ended_at_seconds,
            attempt.started_at_seconds,
            attempt.suspended_seconds,
        )
        .order_by(JobRow.ended_at_seconds.desc(), JobRow.row_id)
        .limit(MAX_RUNS)
    )
    for row in session.execute(query):
        yield dict(row._mapping)
