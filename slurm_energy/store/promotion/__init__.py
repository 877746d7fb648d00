"""Candidate policies in the database: each step of one, with who made it and why, in one transaction.

A step writes its line of the history and the row of the live policy together, so that a process that is killed leaves
the state before or the one after, never half of one.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.plain import to_plain
from slurm_energy.domain.promotion import (
    CONFIGURED,
    NEXT_STAGES,
    Assignment,
    LivePolicy,
    PolicyEvent,
    Stage,
)
from slurm_energy.errors import PolicyError, StoreError
from slurm_energy.store.promotion.tables import (
    LivePolicyRow,
    PolicyAssignmentRow,
    PolicyCandidateRow,
    PolicyEventRow,
)
from slurm_energy.store.tables import insert_if_absent

PAUSED, RESUMED = "promotion paused", "promotion resumed"
"""Reasons of the events that say so."""
_NOT_A_CANDIDATE = "list the candidates with: slurm-energy policy list"


def add_candidate(  # noqa: PLR0913  # each is a column
    session: Session,
    cluster: ClusterName,
    *,
    candidate_id: str,
    made_at_seconds: float,
    parent_id: str,
    folder: str,
    document: Mapping[str, Any],
    actor: str,
) -> bool:
    """Note a candidate that was made; return whether it is new. A known one changes nothing."""
    if session.get(PolicyCandidateRow, candidate_id) is not None:
        return False
    session.add(
        PolicyCandidateRow(
            candidate_id=candidate_id,
            cluster=cluster,
            made_at_seconds=made_at_seconds,
            parent_id=parent_id,
            folder=folder,
            document=_storable(document),
        )
    )
    _add_event(session, cluster, candidate_id, None, Stage.CANDIDATE, made_at_seconds, actor, "made", {})
    return True


def live_policy(session: Session, cluster: ClusterName) -> LivePolicy:
    """Return which policies decide now; the configured one alone where none was ever promoted."""
    row = session.get(LivePolicyRow, cluster, populate_existing=True)
    if row is None:
        return LivePolicy()
    return LivePolicy(
        champion_id=row.champion_id,
        challenger_id=row.challenger_id,
        stage=None if row.stage is None else Stage(row.stage),
        canary_share=row.canary_share,
        paused=row.paused,
        since_seconds=row.since_seconds,
        generation=row.generation,
        champion_folder=candidate_folder(session, row.champion_id),
        challenger_folder=candidate_folder(session, row.challenger_id),
    )


def candidate_folder(session: Session, candidate_id: str) -> str:
    """Return where a candidate's files are; empty for the configured policy and for none."""
    row = session.get(PolicyCandidateRow, candidate_id) if candidate_id else None
    return "" if row is None else row.folder


def candidate_rows(session: Session, cluster: ClusterName) -> list[PolicyCandidateRow]:
    """Return the candidates of a cluster, the newest first."""
    query = select(PolicyCandidateRow).where(PolicyCandidateRow.cluster == cluster)
    return list(session.scalars(query.order_by(PolicyCandidateRow.made_at_seconds.desc())))


def find_candidate(session: Session, cluster: ClusterName, candidate_id: str) -> PolicyCandidateRow:
    """Return a candidate.

    Raises:
        PolicyError: the cluster has none of that id.
    """
    row = session.get(PolicyCandidateRow, candidate_id)
    if row is None or row.cluster != cluster:
        raise PolicyError(f"candidate {candidate_id[:64]!r} is not known for cluster {cluster}: {_NOT_A_CANDIDATE}")
    return row


def policy_events(session: Session, cluster: ClusterName, candidate_id: str | None = None) -> list[PolicyEvent]:
    """Return the history, of one candidate or of all, the oldest first."""
    query = select(PolicyEventRow).where(PolicyEventRow.cluster == cluster)
    if candidate_id is not None:
        query = query.where(PolicyEventRow.candidate_id == candidate_id)
    return [
        PolicyEvent(
            candidate_id=row.candidate_id,
            at_seconds=row.at_seconds,
            before=None if row.stage_before is None else Stage(row.stage_before),
            after=None if row.stage_after is None else Stage(row.stage_after),
            actor=row.actor,
            reason=row.reason,
            evidence=row.evidence,
        )
        for row in session.scalars(query.order_by(PolicyEventRow.row_id))
    ]


def stage_of(session: Session, cluster: ClusterName, candidate_id: str) -> Stage | None:
    """Return the stage of a candidate by its last event; None for one that is not known."""
    query = (
        select(PolicyEventRow.stage_after)
        .where(PolicyEventRow.cluster == cluster, PolicyEventRow.candidate_id == candidate_id)
        .order_by(PolicyEventRow.row_id.desc())
        .limit(1)
    )
    found = session.scalar(query)
    return None if found is None else Stage(found)


def move_candidate(  # noqa: PLR0913  # each is a column of the history
    session: Session,
    cluster: ClusterName,
    candidate_id: str,
    after: Stage,
    *,
    at_seconds: float,
    actor: str,
    reason: str,
    evidence: Mapping[str, Any] | None = None,
    canary_share: float = 0.0,
    unusable: Collection[str] = (),
) -> LivePolicy:
    """Bring a candidate to its next stage; return which policies decide from now on.

    Args:
        session: Of one transaction.
        cluster: Whose candidate it is.
        candidate_id: The candidate.
        after: Its next stage.
        at_seconds: Now.
        actor: Who does it.
        reason: Why.
        evidence: What it rests on.
        canary_share: Of the users, for the stage `canary`.
        unusable: Candidates that do not become active again in place of one that is taken back.

    Raises:
        PolicyError: the stage does not follow on its present one, or another candidate is in shadow or canary.
    """
    find_candidate(session, cluster, candidate_id)
    before, live = stage_of(session, cluster, candidate_id), live_policy(session, cluster)
    if before is None or after not in NEXT_STAGES[before]:
        allowed = ", ".join(sorted(stage.value for stage in NEXT_STAGES[before])) if before else "none"
        raise PolicyError(
            f"candidate {candidate_id} is {before.value if before else 'unknown'} and cannot become {after.value}: "
            f"possible: {allowed}"
        )
    if after is Stage.SHADOW and live.challenger_id not in ("", candidate_id):
        raise PolicyError(
            f"candidate {live.challenger_id} is in stage {live.stage.value if live.stage else '?'}: one at a time; "
            f"wait, or stop it with: slurm-energy policy rollback {live.challenger_id}"
        )

    def note(other: str, its_before: Stage, its_after: Stage, why: str) -> None:
        _add_event(session, cluster, other, its_before, its_after, at_seconds, actor, why, {})

    champion, challenger, stage, share = live.champion_id, live.challenger_id, live.stage, live.canary_share
    if after in (Stage.SHADOW, Stage.CANARY):
        challenger, stage, share = candidate_id, after, canary_share if after is Stage.CANARY else 0.0
    elif after is Stage.ACTIVE:
        if champion and champion != candidate_id:
            note(champion, Stage.ACTIVE, Stage.RETIRED, f"{candidate_id} is active")
        champion = candidate_id
        challenger, stage, share = ("", None, 0.0) if challenger == candidate_id else (challenger, stage, share)
    elif challenger == candidate_id:
        challenger, stage, share = "", None, 0.0
    elif champion == candidate_id:
        able = (one for one in earlier_champions(session, cluster, candidate_id) if one not in unusable)
        champion = next(able, CONFIGURED)
        if champion:
            note(champion, Stage.RETIRED, Stage.ACTIVE, f"{candidate_id} was taken back")
    _add_event(session, cluster, candidate_id, before, after, at_seconds, actor, reason, evidence or {})
    is_same = (champion, challenger, stage) == (live.champion_id, live.challenger_id, live.stage)
    changed = LivePolicy(
        champion_id=champion,
        challenger_id=challenger,
        stage=stage,
        canary_share=share,
        paused=live.paused,
        # What becomes of another candidate does not begin a challenger's time again, and keeps its jobs.
        since_seconds=live.since_seconds if is_same else at_seconds,
        generation=live.generation,
    )
    _put_live(session, cluster, changed)
    return live_policy(session, cluster)


def pause_promotion(session: Session, cluster: ClusterName, *, paused: bool, at_seconds: float, actor: str) -> bool:
    """Let no candidate get farther, or let them again; return whether that changed anything."""
    live = live_policy(session, cluster)
    if live.paused == paused:
        return False
    candidate_id = live.challenger_id or live.champion_id
    stage = stage_of(session, cluster, candidate_id)
    words = PAUSED if paused else RESUMED
    _add_event(session, cluster, candidate_id, stage, stage, at_seconds, actor, words, {"paused": paused})
    _put_live(
        session,
        cluster,
        LivePolicy(
            champion_id=live.champion_id,
            challenger_id=live.challenger_id,
            stage=live.stage,
            canary_share=live.canary_share,
            paused=paused,
            since_seconds=live.since_seconds,
            generation=live.generation,
        ),
    )
    return True


def paused_seconds(session: Session, cluster: ClusterName, since_seconds: float, until_seconds: float) -> float:
    """Return for how long promotion was paused in a time."""
    query = (
        select(PolicyEventRow.at_seconds, PolicyEventRow.reason)
        .where(PolicyEventRow.cluster == cluster, PolicyEventRow.reason.in_((PAUSED, RESUMED)))
        .order_by(PolicyEventRow.row_id)
    )
    whole, began = 0.0, None
    for at_seconds, reason in [*session.execute(query), (until_seconds, RESUMED)]:
        at = min(max(at_seconds, since_seconds), until_seconds)
        if reason == PAUSED:
            began = at if began is None else began
        elif began is not None:
            whole, began = whole + max(0.0, at - began), None
    return whole


def note_on_candidate(  # noqa: PLR0913  # each is a column of the history
    session: Session,
    cluster: ClusterName,
    candidate_id: str,
    *,
    at_seconds: float,
    actor: str,
    reason: str,
    evidence: Mapping[str, Any],
) -> None:
    """Add a line to a candidate's history that moves nothing: a score sheet, a verdict of a person.

    Raises:
        PolicyError: there is no such candidate.
    """
    find_candidate(session, cluster, candidate_id)
    stage = stage_of(session, cluster, candidate_id)
    _add_event(session, cluster, candidate_id, stage, stage, at_seconds, actor, reason, evidence)


def record_assignments(
    session: Session, cluster: ClusterName, assignments: Sequence[tuple[str, float, Assignment]]
) -> None:
    """Store which policy decided some decisions (id, time); a known id changes nothing."""
    insert_if_absent(
        session,
        PolicyAssignmentRow,
        [
            {
                "decision_id": decision_id,
                "cluster": cluster,
                "decided_at_seconds": at_seconds,
                "candidate_id": one.candidate_id,
                "challenger_id": one.challenger_id,
                "stage": one.stage.value,
                "probability": one.probability,
                "milliseconds": one.milliseconds,
                "differs": one.differs,
                "shadow": None if one.shadow is None else to_plain(one.shadow),
            }
            for decision_id, at_seconds, one in assignments
        ],
    )


def earlier_champions(session: Session, cluster: ClusterName, candidate_id: str) -> Iterator[str]:
    """Yield the retired candidates that are active again when a champion is taken back: the one before it, and so on.

    One that was itself taken back since is passed over.
    """
    seen = {candidate_id}
    while True:
        query = (
            select(PolicyEventRow.candidate_id)
            .where(
                PolicyEventRow.cluster == cluster,
                PolicyEventRow.stage_after == Stage.RETIRED.value,
                PolicyEventRow.reason == f"{candidate_id} is active",
            )
            .order_by(PolicyEventRow.row_id.desc())
            .limit(1)
        )
        found = session.scalar(query)
        if not found or found in seen:
            return
        seen.add(found)
        if stage_of(session, cluster, found) is Stage.RETIRED:
            yield found
        candidate_id = found


def _add_event(  # noqa: PLR0913, PLR0917  # each is a column
    session: Session,
    cluster: ClusterName,
    candidate_id: str,
    before: Stage | None,
    after: Stage | None,
    at_seconds: float,
    actor: str,
    reason: str,
    evidence: Mapping[str, Any],
) -> None:
    session.add(
        PolicyEventRow(
            cluster=cluster,
            candidate_id=candidate_id,
            at_seconds=at_seconds,
            stage_before=None if before is None else before.value,
            stage_after=None if after is None else after.value,
            actor=actor,
            reason=reason,
            evidence=_storable(evidence),
        )
    )
    session.flush()


def _put_live(session: Session, cluster: ClusterName, live: LivePolicy) -> None:
    """Write the row of the live policy.

    Raises:
        StoreError: another process changed it since it was read.
    """
    values = {
        "champion_id": live.champion_id,
        "challenger_id": live.challenger_id,
        "stage": None if live.stage is None else live.stage.value,
        "canary_share": live.canary_share,
        "paused": live.paused,
        "since_seconds": live.since_seconds,
        "generation": live.generation + 1,
    }
    if session.get(LivePolicyRow, cluster) is None:
        session.add(LivePolicyRow(cluster=cluster, **values))
        session.flush()
        return
    changed = session.execute(
        update(LivePolicyRow)
        .where(LivePolicyRow.cluster == cluster, LivePolicyRow.generation == live.generation)
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    if getattr(changed, "rowcount", 0) != 1:
        raise StoreError(f"the live policy of cluster {cluster} was changed by another process: try again")
    session.expire_all()


def _storable(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values in which numbers that are not finite are texts: evidence of a bad policy must be kept."""
    found: dict[str, Any] = json.loads(json.dumps(document, default=str), parse_constant=str)
    return found
