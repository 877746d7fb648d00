"""What the gate says of a candidate, kept in its history; one that passes goes into shadow where the site allows it."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import PolicyEvent, Stage
from slurm_energy.evaluation.gate import GateHistory, GateSettings, LoopLimits, PastOutcome, ScoreSheet, judge
from slurm_energy.evaluation.gate.evidence import history_of_site
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.learning.nightly.night import Night
from slurm_energy.learning.nightly.stages import ACTOR, GATE
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.store.promotion import (
    candidate_rows,
    live_policy,
    move_candidate,
    note_on_candidate,
    policy_events,
    stage_of,
)
from slurm_energy.store.session import Engine, Session, open_engine, run_in_transaction, store_session

FUSION = "fusion"


def judge_night(night: Night, config: Config, say: Callable[[str], None], seconds_left: float = inf) -> bool | None:
    """Return whether the gate is passed, after its score sheet is in the candidate's history.

    The gate judges policies. A candidate that brings clocks of names alone has the live policy: None is returned, no
    sheet is made, and what a clock does is checked by the guard at each job, and measured in shadow and canary.
    `seconds_left` is what remains of the night for replays.
    """
    engine = open_engine(config.store)
    cluster = ClusterName(config.cluster.name)
    try:
        if not has_own_policy(night.candidate, night.incumbent, config):
            run_in_transaction(engine, lambda session: _without_gate(session, cluster, night, config))
            return None
        history = _history(engine, cluster, night, config)
        seed = random.SystemRandom().randrange(1_000_000)
        loop = LoopLimits(seconds=max(0.0, min(LoopLimits().seconds, seconds_left)))
        settings = GateSettings(config=config, first_seed=seed, loop=loop)
        sheet = judge(night.candidate, night.incumbent, history, settings, lambda stage: say(f"gate: {stage}"))
        run_in_transaction(engine, lambda session: _after_gate(session, cluster, night, sheet, config))
        for stage in sheet.stages:
            say(f"gate: {stage.stage} {stage.verdict.value}: {stage.summary}")
        return sheet.passed
    finally:
        engine.dispose()


def has_own_policy(candidate: CandidatePolicy, incumbent: CandidatePolicy, config: Config) -> bool:
    """Return whether a candidate's policy is another than the live one."""
    return candidate.configured(config).policy != incumbent.configured(config).policy


def sheet_document(sheet: ScoreSheet) -> dict[str, Any]:
    """Return a score sheet as plain values, for the history."""
    return {
        "passed": sheet.passed,
        "value": sheet.value,
        "hyperscore": sheet.hyperscore,
        "needs_person": sheet.needs_person,
        "sheet": json.loads(sheet.to_json()),
    }


def _history(engine: Engine, cluster: ClusterName, night: Night, config: Config) -> GateHistory:
    with store_session(engine, read_only=True) as session:
        folders = [Path(row.folder) for row in candidate_rows(session, cluster)]
        events = policy_events(session, cluster)
    stops = [
        str(stage.get("stage"))
        for event in events
        if event.reason == GATE
        for stage in event.evidence.get("sheet", {}).get("stages", ())
        if stage.get("verdict") == "stopped"
    ]
    twin = night.twin
    evidence = SiteEvidence(
        cluster=cluster,
        database_url=config.store.url,
        states=night.history.states,
        runs=night.history.runs,
        split_seconds=night.history.split_seconds,
        now_seconds=night.candidate.made_at_seconds,
        world=None if twin is None else twin.world,
        learned_from=None if twin is None else twin.learned_from,
        held_out=None if twin is None else twin.judged,
        archive=tuple(folder for folder in folders if folder != night.candidate.folder and folder.is_dir()),
    )
    return replace(
        history_of_site(evidence, night.candidate, config), earlier_stops=stops, outcomes=past_outcomes(events)
    )


def past_outcomes(events: Sequence[PolicyEvent]) -> tuple[PastOutcome, ...]:
    """Return what came of earlier candidates in canary: one became active by its evidence, or was rejected there.

    What a person moved says nothing of their jobs.
    """
    sheets = {event.candidate_id: event.evidence for event in events if event.reason == GATE}
    found = {}
    for event in events:
        sheet = sheets.get(event.candidate_id, {})
        scores = {
            str(stage["stage"]): float(stage["score"])
            for stage in sheet.get("sheet", {}).get("stages", ())
            if stage.get("score") is not None and stage.get("stage") != FUSION
        }
        ended = event.before is Stage.CANARY and event.after in (Stage.ACTIVE, Stage.REJECTED)
        if not scores or not ended or event.actor != ACTOR:
            continue
        weights = sheet.get("sheet", {}).get("weights", {})
        total = sum(float(weights.get(name, 0.0)) for name in scores)
        if total > 0.0:
            found[event.candidate_id] = PastOutcome(
                scores=scores,
                raw=sum(float(weights.get(name, 0.0)) * score for name, score in scores.items()) / total,
                improved=event.after is Stage.ACTIVE,
            )
    return tuple(found.values())


def _without_gate(session: Session, cluster: ClusterName, night: Night, config: Config) -> None:
    estimates = night.candidate.estimates
    clocks = 0 if estimates is None else len(estimates.clocks)
    if stage_of(session, cluster, night.candidate.candidate_id) is not Stage.CANDIDATE:
        return
    if not clocks:
        _reject(session, cluster, night, "changes no decision: neither prices nor clocks of names are its own")
        return
    _into_shadow(session, cluster, night, config, f"clocks of {clocks} names, which the guard checks at each job")


def _after_gate(session: Session, cluster: ClusterName, night: Night, sheet: ScoreSheet, config: Config) -> None:
    note_on_candidate(
        session,
        cluster,
        night.candidate.candidate_id,
        at_seconds=time.time(),
        actor=ACTOR,
        reason=GATE,
        evidence=sheet_document(sheet),
    )
    if stage_of(session, cluster, night.candidate.candidate_id) is not Stage.CANDIDATE:
        return
    if not sheet.passed:
        stopped = sheet.stopped_by
        why = "the gate was not passed" if stopped is None else f"stopped by {stopped.stage}: {stopped.summary}"
        _reject(session, cluster, night, why)
    elif not sheet.needs_person:
        _into_shadow(session, cluster, night, config, "the gate was passed")


def _reject(session: Session, cluster: ClusterName, night: Night, reason: str) -> None:
    move_candidate(
        session,
        cluster,
        night.candidate.candidate_id,
        Stage.REJECTED,
        at_seconds=time.time(),
        actor=ACTOR,
        reason=reason,
    )


def _into_shadow(session: Session, cluster: ClusterName, night: Night, config: Config, reason: str) -> None:
    live = live_policy(session, cluster)
    if config.nightly.promote == "off" or live.challenger_id or live.paused:
        return
    move_candidate(
        session,
        cluster,
        night.candidate.candidate_id,
        Stage.SHADOW,
        at_seconds=time.time(),
        actor=ACTOR,
        reason=reason,
    )
