"""What the history of policies says for the next judgement."""

from typing import Any

from slurm_energy.domain.promotion import PolicyEvent, Stage
from slurm_energy.learning.nightly.judgement import past_outcomes
from slurm_energy.learning.nightly.stages import ACTOR, GATE


def event(name: str, before: Stage, after: Stage, actor: str = ACTOR, reason: str = "", **evidence: Any) -> PolicyEvent:
    return PolicyEvent(
        candidate_id=name, at_seconds=1.0, before=before, after=after, actor=actor, reason=reason, evidence=evidence
    )


def judged(name: str) -> PolicyEvent:
    stages = [{"stage": "twin", "score": 0.9}, {"stage": "impact", "score": 0.5}, {"stage": "logic", "score": None}]
    sheet = {"stages": stages, "weights": {"twin": 0.75, "impact": 0.25}}
    return event(name, Stage.CANDIDATE, Stage.CANDIDATE, reason=GATE, sheet=sheet)


def test_what_measured_jobs_said_of_earlier_candidates_is_an_outcome() -> None:
    events = [judged(name) for name in ("won", "lost", "by-hand", "waits")]
    events += [
        event("won", Stage.CANARY, Stage.ACTIVE),
        event("lost", Stage.CANARY, Stage.REJECTED),
        event("by-hand", Stage.CANARY, Stage.ACTIVE, actor="root"),
        event("unjudged", Stage.CANARY, Stage.ACTIVE),
    ]
    found = past_outcomes(events)
    assert [(one.raw, one.success) for one in found] == [(0.8, 1.0), (0.8, 0.0)]
    assert found[0].scores == {"twin": 0.9, "impact": 0.5}


def test_a_persons_last_word_counts_where_no_jobs_have_decided() -> None:
    events = [judged(name) for name in ("rated", "rejected", "approved", "won", "unsure")]
    events += [
        event("rated", Stage.SHADOW, Stage.SHADOW, actor="ann", reason="rate", rating=2),
        event("rated", Stage.SHADOW, Stage.SHADOW, actor="ann", reason="rate", rating=4),
        event("rejected", Stage.SHADOW, Stage.SHADOW, actor="ann", reason="reject"),
        event("approved", Stage.SHADOW, Stage.SHADOW, actor="ann", reason="approve"),
        event("won", Stage.CANARY, Stage.ACTIVE),
        event("won", Stage.ACTIVE, Stage.ACTIVE, actor="ann", reason="rate", rating=1),
        event("unsure", Stage.SHADOW, Stage.SHADOW, actor="ann", reason="rate", rating="good"),
    ]
    found = past_outcomes(events, {"rated": ("estimates.json",)})
    assert [one.success for one in found] == [0.75, 0.0, 0.75, 1.0]
    assert found[0].parts == ("estimates.json",)
