"""What the gate says of a candidate, kept in its history; one that passes goes into shadow where the site allows it."""

import json
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import Stage
from slurm_energy.evaluation.site_evidence import SiteEvidence
from slurm_energy.learning.nightly.night import Night
from slurm_energy.store.promotion import (
    candidate_rows,
    live_policy,
    move_candidate,
    note_on_candidate,
    stage_of,
)
from slurm_energy.store.session import Session, open_engine, run_in_transaction, store_session

GATE = "gate"
"""Reason of the event that has a score sheet as its evidence."""
ACTOR = "slurm-energyd"
_GATE = "slurm_energy.evaluation.gate"
"""With `judge(candidate, incumbent, evidence, config)`; z3 and others that it needs are imported with it alone."""


class ScoreSheetLike(Protocol):
    """What is needed of a score sheet."""

    @property
    def passed(self) -> bool:
        """Whether every stage was passed."""
        ...

    @property
    def value(self) -> float:
        """In (0, 1)."""
        ...

    def to_json(self) -> Any:
        """Return it as plain values, or as their text."""
        ...


def judge_night(night: Night, config: Config) -> ScoreSheetLike:
    """Return the gate's score sheet, after it is in the candidate's history."""
    engine = open_engine(config.store)
    cluster = ClusterName(config.cluster.name)
    try:
        with store_session(engine, read_only=True) as session:
            folders = [Path(row.folder) for row in candidate_rows(session, cluster)]
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
            held_out=None if twin is None else twin.held_out,
            archive=tuple(folder for folder in folders if folder != night.candidate.folder and folder.is_dir()),
        )
        sheet: ScoreSheetLike = import_module(_GATE).judge(night.candidate, night.incumbent, evidence, config)
        run_in_transaction(engine, lambda session: _after_gate(session, cluster, night, sheet, config))
    finally:
        engine.dispose()
    return sheet


def has_gate() -> bool:
    """Return whether this version can judge."""
    return find_spec(_GATE) is not None


def sheet_document(sheet: ScoreSheetLike) -> dict[str, Any]:
    """Return a score sheet as plain values."""
    found = sheet.to_json()
    document = json.loads(found) if isinstance(found, str | bytes) else found
    return {"passed": bool(sheet.passed), "value": sheet.value, "sheet": document}


def _after_gate(session: Session, cluster: ClusterName, night: Night, sheet: ScoreSheetLike, config: Config) -> None:
    now, candidate_id = time.time(), night.candidate.candidate_id
    note_on_candidate(
        session,
        cluster,
        candidate_id,
        at_seconds=now,
        actor=ACTOR,
        reason=GATE,
        evidence=sheet_document(sheet),
    )
    if stage_of(session, cluster, candidate_id) is not Stage.CANDIDATE:
        return
    if not sheet.passed:
        move_candidate(
            session,
            cluster,
            candidate_id,
            Stage.REJECTED,
            at_seconds=now,
            actor=ACTOR,
            reason="the gate was not passed",
        )
        return
    live = live_policy(session, cluster)
    if config.nightly.promote != "off" and not live.challenger_id and not live.paused:
        move_candidate(
            session,
            cluster,
            candidate_id,
            Stage.SHADOW,
            at_seconds=now,
            actor=ACTOR,
            reason="the gate was passed",
        )
