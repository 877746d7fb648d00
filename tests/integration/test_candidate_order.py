"""Candidates beside each other: who takes the free place, who waits for a person, and what a rollback goes back to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from site_database import CLUSTER, site_config

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.frames import LivePolicies
from slurm_energy.daemon.recorder.process import PromotionLoop
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import Assignment, ShadowAnswer, Stage
from slurm_energy.errors import PolicyError
from slurm_energy.learning.nightly.administration import candidate_desk
from slurm_energy.learning.nightly.stages import GATE, advance, next_step, take_step
from slurm_energy.policy.candidate import CandidatePolicy, write_candidate
from slurm_energy.store.promotion import (
    add_candidate,
    live_policy,
    move_candidate,
    note_on_candidate,
    pause_promotion,
    record_assignments,
    stage_of,
)
from slurm_energy.store.schema import upgrade
from slurm_energy.store.session import Session, open_engine, run_in_transaction

CLUSTER_NAME = ClusterName(CLUSTER)
BEGIN = 1_800_000_000.0


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = site_config(tmp_path, promote="automatic", shadow_decisions=50)
    upgrade(found.store.url)
    return found


def run(config: Config, work: Callable[[Session], object]) -> None:
    engine = open_engine(config.store)
    run_in_transaction(engine, work)
    engine.dispose()


def add(session: Session, name: str, made: float, **sheet: object) -> None:
    """Add a candidate with prices of its own, and what the gate said of it."""
    add_candidate(
        session,
        CLUSTER_NAME,
        candidate_id=name,
        made_at_seconds=BEGIN + made,
        parent_id="",
        folder="/nowhere",
        document={"parts": ["weights.json", "estimates.json"]},
        actor="root",
    )
    if sheet:
        note_on_candidate(
            session, CLUSTER_NAME, name, at_seconds=BEGIN + made, actor="gate", reason=GATE, evidence=sheet
        )


def challenger(config: Config, session: Session, at: float) -> str:
    return advance(session, CLUSTER_NAME, config, BEGIN + at).challenger_id


def test_the_newest_candidate_that_passed_takes_a_free_place(config: Config) -> None:
    def work(session: Session) -> None:
        add(session, "old", 1.0, passed=True, needs_person=False)
        add(session, "passed", 2.0, passed=True, needs_person=False)
        add(session, "different", 3.0, passed=True, needs_person=True)
        add(session, "unjudged", 4.0)
        pause_promotion(session, CLUSTER_NAME, paused=True, at_seconds=BEGIN, actor="ann")
        assert challenger(config, session, 5.0) == ""
        pause_promotion(session, CLUSTER_NAME, paused=False, at_seconds=BEGIN, actor="ann")
        off = replace(config, nightly=replace(config.nightly, promote="off"))
        assert challenger(off, session, 5.0) == ""
        assert challenger(config, session, 6.0) == "passed"
        move_candidate(
            session, CLUSTER_NAME, "passed", Stage.REJECTED, at_seconds=BEGIN + 7.0, actor="ann", reason="no"
        )
        assert challenger(config, session, 8.0) == ""

    run(config, work)


def test_an_approval_brings_a_candidate_that_waits_for_a_person_into_shadow(config: Config) -> None:
    run(config, lambda session: add(session, "different", 3.0, passed=True, needs_person=True))
    run(config, lambda session: advance(session, CLUSTER_NAME, config, BEGIN + 4.0))
    with candidate_desk(config) as desk:
        assert desk.live().challenger_id == ""
        desk.say("different", "approve", "ann", "looked at")
    run(config, lambda session: advance(session, CLUSTER_NAME, config, BEGIN + 5.0))
    with candidate_desk(config) as desk:
        assert desk.live().challenger_id == "different"


def test_a_newer_candidate_takes_the_place_of_one_that_waits_for_a_person(config: Config) -> None:
    asked = replace(config, nightly=replace(config.nightly, promote="approved"))

    def work(session: Session) -> None:
        add(session, "c1", 0.0)
        move_candidate(session, CLUSTER_NAME, "c1", Stage.SHADOW, at_seconds=BEGIN, actor="root", reason="")
        answer = Assignment(
            candidate_id="",
            challenger_id="c1",
            stage=Stage.SHADOW,
            probability=1.0,
            milliseconds=0.5,
            differs=True,
            shadow=ShadowAnswer(),
        )
        record_assignments(session, CLUSTER_NAME, [(f"d{number}", BEGIN + number, answer) for number in range(60)])
        assert challenger(asked, session, 65.0) == "c1"
        add(session, "newer", 70.0, passed=True, needs_person=False)
        assert challenger(asked, session, 80.0) == "newer"
        assert stage_of(session, CLUSTER_NAME, "c1") is Stage.REJECTED

    run(asked, work)


def test_a_look_at_the_evidence_writes_nothing_and_moves_nothing_that_was_moved_since(config: Config) -> None:
    def work(session: Session) -> None:
        add(session, "passed", 2.0, passed=True, needs_person=False)
        before = live_policy(session, CLUSTER_NAME)
        step = next_step(session, CLUSTER_NAME, config, BEGIN + 3.0)
        assert [move.candidate_id for move in step.moves] == ["passed"]
        assert live_policy(session, CLUSTER_NAME) == before
        pause_promotion(session, CLUSTER_NAME, paused=True, at_seconds=BEGIN + 4.0, actor="ann")
        assert not take_step(session, CLUSTER_NAME, config, step, BEGIN + 5.0).challenger_id

    run(config, work)


def test_the_recorder_fills_a_free_place_and_says_so(config: Config) -> None:
    run(config, lambda session: add(session, "passed", 2.0, passed=True, needs_person=False))
    sent: list[object] = []
    engine = open_engine(config.store)
    PromotionLoop(config, sent.append).step(engine)
    engine.dispose()
    (frame,) = sent
    assert isinstance(frame, LivePolicies)
    assert (frame.live.challenger_id, frame.live.stage) == ("passed", Stage.SHADOW)


def champions(config: Config, folder: Path, *names: str) -> None:
    """Let candidates become active one after the other."""

    def work(session: Session) -> None:
        for number, name in enumerate(names):
            write_candidate(
                CandidatePolicy(candidate_id=name, made_at_seconds=BEGIN + number, policy="total-cost:V=0"),
                folder / name,
            )
            add_candidate(
                session,
                CLUSTER_NAME,
                candidate_id=name,
                made_at_seconds=BEGIN + number,
                parent_id="",
                folder=str(folder / name),
                document={},
                actor="root",
            )
            for stage in (Stage.SHADOW, Stage.CANARY, Stage.ACTIVE):
                move_candidate(session, CLUSTER_NAME, name, stage, at_seconds=BEGIN, actor="root", reason="")

    run(config, work)


def test_what_a_rollback_needs_is_not_packed_away(config: Config, tmp_path: Path) -> None:
    kept = replace(config, nightly=replace(config.nightly, keep=1, directory=str(tmp_path)))
    champions(kept, tmp_path, "a1", "b1", "c1")
    with candidate_desk(kept) as desk:
        assert desk.archive([]) == []
        with pytest.raises(PolicyError, match="decides again after a rollback of c1"):
            desk.archive(["a1"])
        desk.say("b1", "reject", "ann", "worse in the end")
        assert [path.name for path in desk.archive([])] == ["b1.tar.gz"]
        assert desk.roll_back("", "ann", "").champion_id == "a1"


def test_a_rollback_passes_over_a_policy_whose_files_cannot_be_used(config: Config, tmp_path: Path) -> None:
    champions(config, tmp_path, "a1", "b1", "c1")
    (tmp_path / "b1" / "candidate.toml").unlink()
    with candidate_desk(config) as desk:
        assert desk.roll_back("", "ann", "too warm").champion_id == "a1"
        last = desk.story("c1").line.last
    assert "too warm" in last
    assert "b1 is passed over" in last
