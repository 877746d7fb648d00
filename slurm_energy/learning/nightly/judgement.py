"""What the gate says of a candidate, kept in its history; one that passes goes into shadow where the site allows it."""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import Stage
from slurm_energy.errors import CandidateError
from slurm_energy.evaluation.gate import GateHistory, GateSettings, LoadHistory, ScoreSheet, TwinRuns, judge
from slurm_energy.learning.nightly.night import Night
from slurm_energy.learning.nightly.site_twin import HELD_OUT_FILE
from slurm_energy.policy.candidate import CandidatePolicy, read_candidate
from slurm_energy.store.promotion import (
    candidate_rows,
    live_policy,
    move_candidate,
    note_on_candidate,
    policy_events,
    stage_of,
)
from slurm_energy.store.session import Engine, Session, open_engine, run_in_transaction, store_session
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.workloads.csv_file import read_csv
from slurm_energy.twin.world.file import load_world

GATE = "gate"
"""Reason of the event that has a score sheet as its evidence."""
ACTOR = "slurm-energyd"
_RESAMPLED_SHARE = 0.8
"""Of the held-out jobs, that each seed of the gate's twin draws."""


def judge_night(night: Night, config: Config, say: Callable[[str], None]) -> bool | None:
    """Return whether the gate is passed, after its score sheet is in the candidate's history.

    The gate judges policies. A candidate that brings clocks of names alone has the live policy: None is returned, no
    sheet is made, and what a clock does is checked by the guard at each job, and measured in shadow and canary.
    """
    engine = open_engine(config.store)
    cluster = ClusterName(config.cluster.name)
    try:
        if not has_own_policy(night.candidate, night.incumbent, config):
            run_in_transaction(engine, lambda session: _without_gate(session, cluster, night, config))
            return None
        history = _history(engine, cluster, night, config)
        seed = random.SystemRandom().randrange(1_000_000)
        settings = GateSettings(config=config, first_seed=seed)
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
        rows = [(row.candidate_id, Path(row.folder)) for row in candidate_rows(session, cluster)]
        events = policy_events(session, cluster)
    stops = [
        str(stage.get("stage"))
        for event in events
        if event.reason == GATE
        for stage in event.evidence.get("sheet", {}).get("stages", ())
        if stage.get("verdict") == "stopped"
    ]
    return GateHistory(
        twin=_twin(night, config),
        load=_load(night),
        archived=tuple(_readable(folder for name, folder in rows if name != night.candidate.candidate_id)),
        earlier_stops=stops,
    )


def _readable(folders: Iterator[Path]) -> Iterator[CandidatePolicy]:
    for folder in folders:
        try:
            yield read_candidate(folder)
        except CandidateError:  # packed away, or of another version
            continue


def _twin(night: Night, config: Config) -> TwinRuns | None:
    if night.twin is None:
        return None
    path = night.twin.world.parent / HELD_OUT_FILE

    def some(seed: int) -> Workload:
        """Return the held-out jobs without some that the seed draws: fresh objects at each call."""
        whole = read_csv(path, skip_bad=True)
        draw = random.Random(seed)  # noqa: S311  # a sample, not a secret
        kept = [job for job in whole.jobs if draw.random() < _RESAMPLED_SHARE]
        return replace(whole, jobs=tuple(kept or whole.jobs))

    return TwinRuns(world=load_world(night.twin.world), make_workload=some, config=config)


def _load(night: Night) -> LoadHistory | None:
    """Return the GPU hours of each day, and what a GPU drew."""
    days: dict[int, float] = defaultdict(float)
    for state in night.history.states:
        started, ended = state.started_at_seconds, state.ended_at_seconds
        if started is not None and ended is not None:
            days[int(ended // 86_400.0)] += (ended - started) / 3600.0 * (state.gpu_count or 0)
    seconds = sum(run.device_seconds * run.gpus for run in night.history.runs)
    if not days or seconds <= 0.0:
        return None
    series = [days.get(day, 0.0) for day in range(min(days), max(days) + 1)]
    return LoadHistory(gpu_hours=tuple(series), watts_per_gpu=sum(run.joules for run in night.history.runs) / seconds)


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
