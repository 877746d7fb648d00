"""How a challenger gets on by itself: from shadow to canary to active, or back, on what its jobs showed."""

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import LivePolicy, Stage
from slurm_energy.learning.nightly.sequential import CanaryOutcome, CanaryReport, CanaryVerdict, report_of
from slurm_energy.store.promotion import live_policy, move_candidate, policy_events
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


def advance(session: Session, cluster: ClusterName, config: Config, now_seconds: float) -> LivePolicy:
    """Move the challenger if its evidence says so; return which policies decide from now on.

    What is worse is taken back also while promotion is paused or a person is waited for; what is not clear stays, up
    to a maximum of time; without data nothing ever gets on.
    """
    live = live_policy(session, cluster)
    if not live.challenger_id or live.stage is None:
        return live
    if live.stage is Stage.SHADOW:
        _after_shadow(session, cluster, config, live, now_seconds)
    elif live.stage is Stage.CANARY:
        _after_canary(session, cluster, config, live, now_seconds)
    return live_policy(session, cluster)


def _after_shadow(session: Session, cluster: ClusterName, config: Config, live: LivePolicy, now_seconds: float) -> None:
    counts = shadow_evidence(session, cluster, config, live)
    evidence = {
        "decisions": counts.decisions,
        "differing": counts.differing,
        "errors": counts.errors,
        "late": counts.late,
    }
    after, reason = None, ""
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
    elif _is_over(config, live, now_seconds):
        after, reason = Stage.REJECTED, f"{counts.decisions} decisions in shadow within {_days(config)}: given up"
    if after is not None:
        move_candidate(
            session,
            cluster,
            live.challenger_id,
            after,
            at_seconds=now_seconds,
            actor=ACTOR,
            reason=reason,
            evidence=evidence,
            canary_share=config.nightly.canary_share,
        )


def _after_canary(session: Session, cluster: ClusterName, config: Config, live: LivePolicy, now_seconds: float) -> None:
    report = canary_report(session, cluster, config, live)
    after, reason = None, ""
    if shadow_evidence(session, cluster, config, live).not_asked:
        after, reason = Stage.REJECTED, "too slow: it is not asked any more"
    elif report.verdict is CanaryVerdict.WORSE:
        after, reason = Stage.REJECTED, f"worse than the live policy: {report.reason}"
    elif report.verdict is CanaryVerdict.BETTER and _may_get_on(session, cluster, config, live):
        after, reason = Stage.ACTIVE, f"better than the live policy: {report.reason}"
    elif _is_over(config, live, now_seconds):
        after, reason = Stage.REJECTED, f"no clear difference within {_days(config)}: {report.reason}"
    if after is not None:
        move_candidate(
            session,
            cluster,
            live.challenger_id,
            after,
            at_seconds=now_seconds,
            actor=ACTOR,
            reason=reason,
            evidence=report.document(),
        )


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
    words = [event.reason for event in policy_events(session, cluster, candidate_id)]
    said = [word for word in words if word in (APPROVE, REJECT)]
    return bool(said) and said[-1] == APPROVE


def _may_get_on(session: Session, cluster: ClusterName, config: Config, live: LivePolicy) -> bool:
    if live.paused or config.nightly.promote == "off":
        return False
    return config.nightly.promote == "automatic" or is_approved(session, cluster, live.challenger_id)


def _is_over(config: Config, live: LivePolicy, now_seconds: float) -> bool:
    return not live.paused and now_seconds - live.since_seconds > config.nightly.max_stage_days * 86_400.0


def _days(config: Config) -> str:
    return f"{config.nightly.max_stage_days:g} days (nightly.max_stage_days)"
