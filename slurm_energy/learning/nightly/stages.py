"""How a challenger gets on by itself: from shadow to canary to active, or back, on what its jobs showed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import LivePolicy, PolicyEvent, Stage
from slurm_energy.learning.nightly.sequential import CanaryOutcome, CanaryReport, CanaryVerdict, report_of
from slurm_energy.store.promotion import candidate_rows, live_policy, move_candidate, paused_seconds, policy_events
from slurm_energy.store.promotion.outcomes import ShadowCounts, canary_jobs, shadow_counts
from slurm_energy.store.session import Session

ACTOR = "slurm-energyd"
GATE = "gate"
"""Reason of the event that has a score sheet as its evidence."""
APPROVE, REJECT, RATE = "approve", "reject", "rate"
"""Reasons of events with which a person says what to do with a candidate."""
MIN_SHADOW_ANSWERS = 20
"""Before a challenger's errors say something."""
MAX_ERROR_SHARE = 0.01
"""Of a shadow's answers, that may be none."""
MAX_LATE_SHARE = 0.05


_MAX_LOOKED_AT = 30
"""Of the newest candidates, when the place of the challenger is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step of one candidate, with why."""

    candidate_id: str
    after: Stage
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the evidence of one moment asks for."""

    generation: int
    """Of the row that was read: when it has changed since, nothing is moved."""
    moves: tuple[Move, ...]


def advance(session: Session, cluster: ClusterName, config: Config, now_seconds: float) -> LivePolicy:
    """Move the challenger if its evidence says so; return which policies decide from now on."""
    return take_step(session, cluster, config, next_step(session, cluster, config, now_seconds), now_seconds)


def next_step(session: Session, cluster: ClusterName, config: Config, now_seconds: float) -> Step:
    """Return what the evidence asks for; nothing is written, so that a long look at many jobs blocks no other process.

    What is worse is taken back also while promotion is paused or a person is waited for; what is not clear stays, up
    to a maximum of time; without data nothing ever gets on. Where the place of the challenger is free, the newest
    candidate that may goes into shadow.
    """
    live = live_policy(session, cluster)
    moves: tuple[Move, ...] = ()
    if not live.challenger_id or live.stage is None:
        moves = _into_free_place(session, cluster, config, live)
    elif live.stage is Stage.SHADOW:
        moves = _after_shadow(session, cluster, config, live, now_seconds)
    elif live.stage is Stage.CANARY:
        moves = _after_canary(session, cluster, config, live, now_seconds)
    return Step(generation=live.generation, moves=moves)


def take_step(session: Session, cluster: ClusterName, config: Config, step: Step, now_seconds: float) -> LivePolicy:
    """Move candidates as a step says, if none has been moved since it was worked out; return who decides now."""
    live = live_policy(session, cluster)
    if live.generation != step.generation:
        return live
    for move in step.moves:
        live = move_candidate(
            session,
            cluster,
            move.candidate_id,
            move.after,
            at_seconds=now_seconds,
            actor=ACTOR,
            reason=move.reason,
            evidence=move.evidence,
            canary_share=config.nightly.canary_share,
        )
    return live


def _into_free_place(session: Session, cluster: ClusterName, config: Config, live: LivePolicy) -> tuple[Move, ...]:
    waiting = None if live.paused or config.nightly.promote == "off" else _waiting(session, cluster)
    if waiting is None:
        return ()
    return (Move(candidate_id=waiting, after=Stage.SHADOW, reason="the place of the challenger is free"),)


def _waiting(session: Session, cluster: ClusterName) -> str | None:
    """Return the newest candidate that may go into shadow, if none that was made after it has been there."""
    for row in candidate_rows(session, cluster)[:_MAX_LOOKED_AT]:
        events = policy_events(session, cluster, row.candidate_id)
        if any(event.after is Stage.SHADOW for event in events):
            return None
        if events and events[-1].after is Stage.CANDIDATE and _may_go_into_shadow(events):
            return row.candidate_id
    return None


def _may_go_into_shadow(events: Sequence[PolicyEvent]) -> bool:
    """Return whether the gate was passed, or a person has approved."""
    if _last_word(events) is not None:
        return _last_word(events) == APPROVE
    sheet = next((event.evidence for event in reversed(events) if event.reason == GATE), None)
    return sheet is not None and sheet.get("passed") is True and not sheet.get("needs_person")


def _after_shadow(
    session: Session, cluster: ClusterName, config: Config, live: LivePolicy, now_seconds: float
) -> tuple[Move, ...]:
    counts = shadow_evidence(session, cluster, config, live)
    evidence = {
        "decisions": counts.decisions,
        "differing": counts.differing,
        "errors": counts.errors,
        "late": counts.late,
    }
    after, reason, following = None, "", None
    if counts.decisions >= MIN_SHADOW_ANSWERS and counts.errors > MAX_ERROR_SHARE * counts.decisions:
        after, reason = Stage.REJECTED, f"{counts.errors} of {counts.decisions} answers in shadow are none"
    elif counts.decisions >= MIN_SHADOW_ANSWERS and counts.late > MAX_LATE_SHARE * counts.decisions:
        limit = config.nightly.late_milliseconds
        after, reason = Stage.REJECTED, f"{counts.late} of {counts.decisions} answers took over {limit:g} ms"
    elif counts.decisions >= config.nightly.shadow_decisions and not counts.differing:
        after, reason = Stage.REJECTED, f"changes 0 of {counts.decisions} decisions"
    elif counts.decisions >= config.nightly.shadow_decisions and _may_get_on(session, cluster, config, live):
        after = Stage.CANARY
        reason = f"changes {counts.differing} of {counts.decisions} decisions in shadow, without an error"
    elif _is_over(session, cluster, config, live, now_seconds):
        after, reason = Stage.REJECTED, f"{counts.decisions} decisions in shadow within {_days(config)}: given up"
    elif counts.decisions >= config.nightly.shadow_decisions and config.nightly.promote == "approved":
        following = None if live.paused else _waiting(session, cluster)
        if following is not None:
            after, reason = Stage.REJECTED, f"was not approved before {following} was ready"
    if after is None:
        return ()
    own = Move(candidate_id=live.challenger_id, after=after, reason=reason, evidence=evidence)
    if following is None:
        return (own,)
    return own, Move(candidate_id=following, after=Stage.SHADOW, reason=f"newer than {live.challenger_id}")


def _after_canary(
    session: Session, cluster: ClusterName, config: Config, live: LivePolicy, now_seconds: float
) -> tuple[Move, ...]:
    report = canary_report(session, cluster, config, live)
    after, reason = None, ""
    if shadow_evidence(session, cluster, config, live).not_asked:
        after, reason = Stage.REJECTED, "too slow: it is not asked any more"
    elif report.verdict is CanaryVerdict.WORSE:
        after, reason = Stage.REJECTED, f"worse than the live policy: {report.reason}"
    elif report.verdict is CanaryVerdict.BETTER and _may_get_on(session, cluster, config, live):
        after, reason = Stage.ACTIVE, f"better than the live policy: {report.reason}"
    elif _is_over(session, cluster, config, live, now_seconds):
        after, reason = Stage.REJECTED, f"no clear difference within {_days(config)}: {report.reason}"
    if after is None:
        return ()
    return (Move(candidate_id=live.challenger_id, after=after, reason=reason, evidence=report.document()),)


def shadow_evidence(session: Session, cluster: ClusterName, config: Config, live: LivePolicy) -> ShadowCounts:
    """Return what the challenger in shadow said so far."""
    late = config.nightly.late_milliseconds
    return shadow_counts(session, cluster, live.challenger_id, live.since_seconds, late)


def canary_report(session: Session, cluster: ClusterName, config: Config, live: LivePolicy) -> CanaryReport:
    """Return what the jobs of the canary say so far."""
    late = config.nightly.late_milliseconds
    outcomes = (
        CanaryOutcome(
            user_id=job.user_id,
            is_challenger=job.is_challenger,
            energy=job.energy_log,
            seconds=job.seconds_log,
            turnaround=job.turnaround_log,
            timed_out=job.timed_out,
            guard_changed=job.guard_changed,
            late=job.milliseconds > late,
            completed=job.completed,
        )
        for job in canary_jobs(session, cluster, live.challenger_id, live.champion_id, live.since_seconds)
    )
    return report_of(outcomes, max_slowdown=config.policy.max_slowdown)


def is_approved(session: Session, cluster: ClusterName, candidate_id: str) -> bool:
    """Return whether a person's last word on a candidate is an approval."""
    return _last_word(policy_events(session, cluster, candidate_id)) == APPROVE


def _last_word(events: Sequence[PolicyEvent]) -> str | None:
    return next((event.reason for event in reversed(events) if event.reason in (APPROVE, REJECT)), None)


def _may_get_on(session: Session, cluster: ClusterName, config: Config, live: LivePolicy) -> bool:
    if live.paused or config.nightly.promote == "off":
        return False
    return config.nightly.promote == "automatic" or is_approved(session, cluster, live.challenger_id)


def _is_over(session: Session, cluster: ClusterName, config: Config, live: LivePolicy, now_seconds: float) -> bool:
    """Return whether a challenger had all its time; while promotion is paused none passes."""
    seconds = now_seconds - live.since_seconds
    if live.paused or seconds <= config.nightly.max_stage_days * 86_400.0:
        return False
    paused = paused_seconds(session, cluster, live.since_seconds, now_seconds)
    return seconds - paused > config.nightly.max_stage_days * 86_400.0


def _days(config: Config) -> str:
    return f"{config.nightly.max_stage_days:g} days (nightly.max_stage_days)"
