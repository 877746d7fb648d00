"""Candidates, logs and stages for the gate's tests."""

from random import Random
from typing import Any

from slurm_energy.evaluation.gate import LoggedDecision, StageResult, StageVerdict
from slurm_energy.policy.candidate import CandidatePolicy


def make_candidate(policy: str | None = "oracle", **changes: Any) -> CandidatePolicy:
    return CandidatePolicy(
        candidate_id=changes.pop("candidate_id", "c1"), made_at_seconds=1.0, policy=policy, **changes
    )


def make_stage(stage: str, score: float | None = 0.7, **changes: Any) -> StageResult:
    given: dict[str, Any] = {"verdict": StageVerdict.PASSED, "summary": "well"}
    return StageResult(stage=stage, score=score, **(given | changes))


def make_log(count: int, saving: float, seed: int = 0, share: float = 0.5) -> list[LoggedDecision]:
    """Return decisions of which a share were made by chance at a low clock, which saves so much."""
    random = Random(seed)
    rows = []
    for number in range(count):
        low = random.random() < share
        noise = random.gauss(0.0, 0.05)
        rows.append(
            LoggedDecision(
                user=f"user{number % 20}",
                group=f"a100/{number % 3}",
                action="low" if low else "",
                probability=share if low else 1.0 - share,
                cost=max(0.0, 1.0 - (saving if low else 0.0) + noise),
                candidate_action="low",
            )
        )
    return rows
