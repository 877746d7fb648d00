"""What became of the jobs that were decided while a challenger was there: its shadow's answers, its canary's jobs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, null, or_, select
from sqlalchemy.orm import Session

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import TOO_SLOW, Stage
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
_MAX_OVERHEAD_SECONDS = 60.0
"""Of a run as Slurm counts it, before our prolog and after our epilog: the site's other prologs, and the time until
slurmctld sees the end. It is the same under both policies; without it no short job of such a site would count."""
_Key = tuple[int, str]
"""User and name, and nothing that a policy chooses: GPU type and count are what the policies differ in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCounts:
    """What a challenger in shadow said so far."""

    decisions: int
    differing: int
    """Of the answers without an error."""
    errors: int
    late: int
    not_asked: int = 0
    """Answers that it was too slow to be asked for; also in canary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryJob:
    """A job that ended, against what is usual for its name."""

    user_id: int
    is_challenger: bool
    energy_log: float | None
    """ln of its joules per GPU asked for, over the median of the name's earlier runs on any GPUs; None where one of
    them is not known. Of a job that did not complete, the ratio itself: all of it is to be spent once more."""
    seconds_log: float | None
    """The same of its run time."""
    turnaround_log: float | None
    """The same of the time from its submission to its end."""
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
    decisions = differing = errors = late = not_asked = 0
    for differs, shadow in session.execute(query.limit(MAX_RUNS)):
        decisions += 1
        answer: Mapping[str, Any] = shadow or {}
        differing += bool(differs) and not answer.get("error")
        errors += bool(answer.get("error"))
        not_asked += answer.get("error") == TOO_SLOW
        late += float(answer.get("milliseconds", 0.0)) > late_milliseconds
    return ShadowCounts(decisions=decisions, differing=differing, errors=errors, late=late, not_asked=not_asked)


def canary_jobs(
    session: Session, cluster: ClusterName, challenger_id: str, champion_id: str, since_seconds: float
) -> Iterator[CanaryJob]:
    """Yield the ended jobs that were decided since then by the challenger, or by the live policy beside it.

    A job that another policy decided, because the live one could not be read, is of neither.
    """
    decided = [
        PolicyAssignmentRow.cluster == cluster,
        PolicyAssignmentRow.challenger_id == challenger_id,
        PolicyAssignmentRow.candidate_id.in_((challenger_id, champion_id)),
        PolicyAssignmentRow.stage == Stage.CANARY.value,
        PolicyAssignmentRow.decided_at_seconds >= since_seconds,
    ]
    rows = list(_runs(session, cluster, since_seconds, decided))
    if not rows:
        return
    base = _usual(session, cluster, since_seconds, sorted({row["user_id"] for row in rows}))
    for row in rows:
        usual = base.get(_key(row), {})
        logs = {name: value - usual[name] for name, value in _logs(row).items() if name in usual}
        completed = row["state"] == "COMPLETED"
        reasons = set((row["reasons"] or "").split(","))
        yield CanaryJob(
            user_id=row["user_id"],
            is_challenger=row["candidate_id"] == challenger_id,
            energy_log=_charged(logs.get("joules"), completed=completed),
            seconds_log=logs.get("seconds") if completed else None,
            turnaround_log=logs.get("turnaround") if completed else None,
            completed=completed,
            timed_out=row["state"] == "TIMEOUT",
            guard_changed=any(reason.value in reasons for reason in GUARD_REASONS),
            milliseconds=row["milliseconds"],
        )


def _charged(energy_log: float | None, *, completed: bool) -> float | None:
    """Return what a job's joules count for the policy that decided it."""
    return energy_log if energy_log is None or completed else exp(min(energy_log, 10.0))


def _logs(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the logarithms of what a run took, as far as they are known; joules for each GPU that was asked for."""
    values = {"seconds": row["seconds"], "turnaround": row["turnaround"]}
    if row["is_sound"] and row["joules"]:
        values["joules"] = row["joules"] / _asked_gpus(row)
    return {name: log(value) for name, value in values.items() if value and value > 0.0}


def _asked_gpus(row: Mapping[str, Any]) -> int:
    """Return how many GPUs the user asked for: how many the job got may be the policy's choice."""
    request: Mapping[str, Any] = row["changed_request"] or {}
    asked = sum(int(demand.get("count", 0)) for demand in request.get("gpus") or ())
    return asked or int(row["gpus"])


def _key(row: Mapping[str, Any]) -> _Key:
    return row["user_id"], job_group(row["name"], row["script_key"])


def _usual(
    session: Session, cluster: ClusterName, before_seconds: float, users: Sequence[int]
) -> dict[_Key, dict[str, float]]:
    """Return the medians of the logarithms of the names' earlier runs."""
    found: dict[_Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for begin in range(0, len(users), 200):
        terms = [
            JobRow.ended_at_seconds < before_seconds,
            JobRow.state == "COMPLETED",
            JobRow.user_id.in_(users[begin : begin + 200]),
        ]
        since = before_seconds - HISTORY_DAYS * 86_400.0
        for row in _runs(session, cluster, since, terms):
            for name, value in _logs(row).items():
                found[_key(row)][name].append(value)
    return {
        key: {name: median(values) for name, values in logs.items() if len(values) >= _MIN_BASE_RUNS}
        for key, logs in found.items()
    }


def _runs(
    session: Session, cluster: ClusterName, since_seconds: float, terms: Sequence[ColumnElement[bool]]
) -> Iterator[dict[str, Any]]:
    """Yield one row for each ended job: who, what it took, and how it was decided."""
    reading, attempt = GpuEnergyRow, JobAttemptRow
    run = attempt.ended_at_seconds - attempt.started_at_seconds - attempt.suspended_seconds
    hooks = NodeEnergyRow.ended_at_seconds - NodeEnergyRow.started_at_seconds
    overhead = case((run > 2.0 * _MAX_OVERHEAD_SECONDS, _MAX_OVERHEAD_SECONDS), else_=run / 2.0)
    to_cover = case((hooks >= run - overhead, hooks), else_=run)
    columns: list[ColumnElement[Any]] = [
        JobRow.user_id.label("user_id"),
        JobRow.name.label("name"),
        DecisionRow.script_key.label("script_key"),
        JobRow.state.label("state"),
        JobRow.gpu_count.label("gpus"),
        # The nodes' own times where they reported: Slurm's are whole seconds.
        func.coalesce(func.max(hooks), run).label("seconds"),
        (JobRow.ended_at_seconds - JobRow.submitted_at_seconds).label("turnaround"),
        case((DecisionRow.gpus.is_not(None), DecisionRow.request), else_=null()).label("changed_request"),
        func.sum(reading.joules).label("joules"),
        case(
            (
                and_(
                    func.count(reading.row_id) == JobRow.gpu_count,
                    func.sum(case((is_sound_reading(to_cover), 0), else_=1)) == 0,
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
            DecisionRow.decision_id,
            attempt.ended_at_seconds,
            attempt.started_at_seconds,
            attempt.suspended_seconds,
        )
        .order_by(JobRow.ended_at_seconds.desc(), JobRow.row_id)
        .limit(MAX_RUNS)
    )
    for row in session.execute(query):
        yield dict(row._mapping)
