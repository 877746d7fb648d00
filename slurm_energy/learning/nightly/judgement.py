"""What the gate says of a candidate, kept in its history; one that passes goes into shadow where the site allows it.

A candidate is judged on what the daemon knows of earlier jobs, read from its database at once.
"""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.promotion import LivePolicy, PolicyEvent, Stage
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.estimation.job_history import (
    CompareTypes,
    JobHistory,
    NameOf,
    ended_run,
    named_work,
    scaled_names,
    timed_names,
)
from slurm_energy.estimation.learned_clocks import learned_clocks
from slurm_energy.estimation.run_time import RUNS_PER_NAME
from slurm_energy.estimation.site_clocks import EndedJobs, site_clocks
from slurm_energy.evaluation.gate import GateHistory, GateSettings, LoopLimits, PastOutcome, ScoreSheet, judge
from slurm_energy.evaluation.gate.evidence import history_of_site
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.learning.nightly.night import Night
from slurm_energy.learning.nightly.site_twin import last_week
from slurm_energy.learning.nightly.stages import ACTOR, APPROVE, GATE, RATE, REJECT
from slurm_energy.policy.candidate import CandidatePolicy
from slurm_energy.policy.site.comparison import TypeComparison
from slurm_energy.policy.site.settings import site_board_limits
from slurm_energy.store.clock_trials import trials_of_names
from slurm_energy.store.past_runs import (
    HISTORY_DAYS,
    all_recent_runtimes,
    counted_failures,
    failed_jobs,
    measured_runs,
    read_scripts,
)
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
_APPROVED = 0.75
"""What an approval counts for: it says that a candidate may try, not that it did well."""


def judge_night(night: Night, config: Config, say: Callable[[str], None], seconds_left: float = inf) -> bool | None:
    """Return whether the gate is passed, after its score sheet is in the candidate's history.

    None where the night proposes no candidate. `seconds_left` is what remains of the night for replays.
    """
    candidate = night.candidate
    if candidate is None:
        return None
    engine = open_engine(config.store)
    cluster = ClusterName(config.cluster.name)
    try:
        history = _history(engine, cluster, night, candidate, config)
        seed = random.SystemRandom().randrange(1_000_000)
        loop = LoopLimits(seconds=max(0.0, min(LoopLimits().seconds, seconds_left)))
        settings = GateSettings(
            config=config,
            first_seed=seed,
            loop=loop,
            preferences=config.nightly.preferences,
            person_for_different=config.nightly.person_for_different,
        )
        sheet = judge(candidate, night.incumbent, history, settings, lambda stage: say(f"gate: {stage}"))
        for stage in sheet.stages:
            say(f"gate: {stage.stage} {stage.verdict.value}: {stage.summary}")
        say(run_in_transaction(engine, lambda session: _after_gate(session, cluster, candidate, sheet, config)))
        return sheet.passed
    finally:
        engine.dispose()


def sheet_document(sheet: ScoreSheet) -> dict[str, Any]:
    """Return a score sheet as plain values, for the history."""
    return {
        "passed": sheet.passed,
        "value": sheet.value,
        "hyperscore": sheet.hyperscore,
        "needs_person": sheet.needs_person,
        "sheet": json.loads(sheet.to_json()),
    }


def _history(
    engine: Engine, cluster: ClusterName, night: Night, candidate: CandidatePolicy, config: Config
) -> GateHistory:
    with store_session(engine, read_only=True) as session:
        rows = candidate_rows(session, cluster)
        folders = [Path(row.folder) for row in rows]
        parts = {row.candidate_id: tuple(map(str, row.document.get("parts", ()))) for row in rows}
        events = policy_events(session, cluster)
        known = known_jobs(session, cluster, config, candidate.made_at_seconds)
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
        states=night.history.states,
        runs=night.history.runs,
        split_seconds=night.history.split_seconds,
        now_seconds=candidate.made_at_seconds,
        world=None if twin is None else twin.world,
        learned_from=None if twin is None else twin.learned_from,
        held_out=None if twin is None else twin.judged,
        archive=tuple(folder for folder in folders if folder != candidate.folder and folder.is_dir()),
        known=known,
    )
    return replace(
        history_of_site(evidence, candidate, config),
        last_week=() if twin is None else last_week(night.history, twin, night.incumbent, config),
        earlier_stops=stops,
        outcomes=past_outcomes(events, parts),
    )


def past_outcomes(
    events: Sequence[PolicyEvent], parts: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[PastOutcome, ...]:
    """Return what came of earlier candidates: what their jobs showed in canary, else what a person said of them.

    One became active by its evidence, or was rejected there. Of those that did not get so far, the last word of a
    person counts: a rejection 0, an approval three quarters, a rating of 1 to 5 from 0 to 1.

    Args:
        events: Of all candidates, the oldest first.
        parts: What each candidate brought.
    """
    sheets = {event.candidate_id: event.evidence for event in events if event.reason == GATE}
    success: dict[str, float] = {}
    measured = set()
    for event in events:
        ended = event.before is Stage.CANARY and event.after in (Stage.ACTIVE, Stage.REJECTED)
        if ended and event.actor == ACTOR:
            success[event.candidate_id] = float(event.after is Stage.ACTIVE)
            measured.add(event.candidate_id)
        word = _said(event)
        if word is not None and event.candidate_id not in measured:
            success[event.candidate_id] = word
    found = []
    for candidate_id, value in success.items():
        sheet = sheets.get(candidate_id, {}).get("sheet", {})
        scores = {
            str(stage["stage"]): float(stage["score"])
            for stage in sheet.get("stages", ())
            if stage.get("score") is not None and stage.get("stage") != FUSION
        }
        weights = sheet.get("weights", {})
        total = sum(float(weights.get(name, 0.0)) for name in scores)
        if total > 0.0:
            found.append(
                PastOutcome(
                    scores=scores,
                    raw=sum(float(weights.get(name, 0.0)) * score for name, score in scores.items()) / total,
                    success=value,
                    parts=(parts or {}).get(candidate_id, ()),
                )
            )
    return tuple(found)


def _said(event: PolicyEvent) -> float | None:
    """Return how good a person holds a candidate for; None where the event is no word on that."""
    if event.reason == REJECT:
        return 0.0
    if event.reason == APPROVE:
        return _APPROVED
    rating = event.evidence.get("rating") if event.reason == RATE else None
    return (float(rating) - 1.0) / 4.0 if isinstance(rating, int) and 1 <= rating <= 5 else None


def _after_gate(
    session: Session, cluster: ClusterName, candidate: CandidatePolicy, sheet: ScoreSheet, config: Config
) -> str:
    """Keep the sheet and move the candidate; return what comes of it, in words."""
    note_on_candidate(
        session,
        cluster,
        candidate.candidate_id,
        at_seconds=time.time(),
        actor=ACTOR,
        reason=GATE,
        evidence=sheet_document(sheet),
    )
    stage = stage_of(session, cluster, candidate.candidate_id)
    if stage is not Stage.CANDIDATE:
        return f"candidate {candidate.candidate_id} is {'?' if stage is None else stage.value} already"
    if not sheet.passed:
        stopped = sheet.stopped_by
        why = "the gate was not passed" if stopped is None else f"stopped by {stopped.stage}: {stopped.summary}"
        _move(session, cluster, candidate, Stage.REJECTED, why)
        return f"candidate {candidate.candidate_id} is rejected: {why}"
    waits = _waits_for(sheet, config, live_policy(session, cluster))
    if waits:
        note_on_candidate(
            session,
            cluster,
            candidate.candidate_id,
            at_seconds=time.time(),
            actor=ACTOR,
            reason=f"waits: {waits}",
            evidence={},
        )
        return f"candidate {candidate.candidate_id} passed the gate and waits: {waits}"
    _move(session, cluster, candidate, Stage.SHADOW, "the gate was passed")
    return f"candidate {candidate.candidate_id} passed the gate and is in shadow"


def _waits_for(sheet: ScoreSheet, config: Config, live: LivePolicy) -> str:
    """Return why a candidate that passed is not moved into shadow; empty where it is."""
    if config.nightly.promote == "off":
        return f"nightly.promote is off; promote it with: slurm-energy policy promote {sheet.candidate_id}"
    if sheet.needs_person:
        return (
            "it is very different from the live policy and nightly.person_for_different is on; approve it with: "
            f"slurm-energy policy approve {sheet.candidate_id}"
        )
    if live.paused:
        return "promotion is paused; resume with: slurm-energy policy resume"
    if live.challenger_id and live.stage is not None:
        return f"{live.challenger_id} is in {live.stage.value}; the newest that passed follows it"
    return ""


def _move(session: Session, cluster: ClusterName, candidate: CandidatePolicy, after: Stage, reason: str) -> None:
    move_candidate(session, cluster, candidate.candidate_id, after, at_seconds=time.time(), actor=ACTOR, reason=reason)


def known_jobs(session: Session, cluster: ClusterName, config: Config, now_seconds: float) -> JobHistory:
    """Return what ended jobs say of the next ones, under the site's settings.

    Args:
        session: Of the site's database.
        cluster: Whose jobs.
        config: The site's: what its daemon learns from runs, it learns here.
        now_seconds: Unix time.

    Raises:
        StoreError: the database cannot be read.
    """
    policy, limits = config.policy, site_board_limits(config)
    begin = now_seconds - HISTORY_DAYS * 86_400.0
    timed = list(all_recent_runtimes(session, cluster, begin, RUNS_PER_NAME))
    measured = list(measured_runs(session, cluster, begin, RUNS_PER_NAME))
    scripts = read_scripts(session, cluster, begin) if policy.learn_from_runs else {}
    failed = counted_failures(run for _, _, run in failed_jobs(session, cluster, begin))
    works = named_work(measured, failed, scripts)[0] if policy.learn_from_runs else []
    work = {(user, name): estimate for user, name, estimate in works}

    def compare_for(user: int, name: str) -> CompareTypes:
        return TypeComparison(limits=limits, work=work.get((user, name))).cost

    tried = [] if policy.clock_trials == "off" else list(learned_clocks(trials_of_names(session, cluster, begin)))
    clocks: dict[NameOf, Mapping[GpuTypeName, LearnedClock]] = {(user, name): found for user, name, found in tried}
    history = JobHistory(
        runtimes={(user, name): found for user, name, found in timed_names(timed, compare_for)[0]},
        work=work,
        clocks=clocks,
    )
    if policy.learn_from_runs:
        scaling = scaled_names(timed, compare_for)
        history = replace(history, scaling={(user, name): found for user, name, found in scaling})
    if policy.slowdown_bound == "mean":
        bounds = (policy.max_slowdown, policy.saver_max_slowdown)
        ended = EndedJobs(timed=map(ended_run, timed))
        of_site = site_clocks(tried, measured, bounds, limits, now_seconds, ended)
        history = replace(history, site_clocks=of_site)
    if policy.clock_predictions == "network":
        from slurm_energy.policy.gnn.outcomes.inference import loaded_network  # noqa: PLC0415  # numpy: no base
        from slurm_energy.policy.gnn.outcomes.site import SitePredictions, run_records  # noqa: PLC0415  # the same

        records = list(run_records(measured if policy.learn_from_runs else (), scripts, clocks))
        table = SitePredictions(loaded_network(), records, limits, now_seconds).table()
        history = replace(history, predicted={(user, name): found for user, name, found in table})
    return history
