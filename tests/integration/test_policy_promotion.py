"""Candidate policies in the database: every step is whole, in order, and kept with who made it and why."""

from pathlib import Path

import pytest
from sqlalchemy import Engine

from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.promotion import CONFIGURED, Assignment, ShadowAnswer, Stage
from slurm_energy.errors import PolicyError, StoreError
from slurm_energy.store.promotion import (
    add_candidate,
    earlier_champions,
    live_policy,
    move_candidate,
    note_on_candidate,
    pause_promotion,
    paused_seconds,
    policy_events,
    record_assignments,
    stage_of,
)
from slurm_energy.store.promotion.tables import PolicyAssignmentRow
from slurm_energy.store.session import Session, run_in_transaction, store_session

pytest_plugins = ("database_fixtures",)
CLUSTER = ClusterName("lab")
WAY = (Stage.SHADOW, Stage.CANARY, Stage.ACTIVE)


def make(session: Session, *ids: str) -> None:
    for number, name in enumerate(ids):
        add_candidate(
            session,
            CLUSTER,
            candidate_id=name,
            made_at_seconds=100.0 + number,
            parent_id="",
            folder=f"/var/lib/{name}",
            document={"figures": {}},
            actor="root",
        )


def move(session: Session, name: str, *stages: Stage) -> None:
    for stage in stages:
        move_candidate(
            session, CLUSTER, name, stage, at_seconds=200.0, actor="root", reason="because", canary_share=0.2
        )


def test_the_whole_way_is_one_row_and_a_history(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b")
        move(session, "a", *WAY)
        move(session, "b", Stage.SHADOW, Stage.CANARY)
        live = live_policy(session, CLUSTER)
        assert (live.champion_id, live.challenger_id, live.stage, live.canary_share) == ("a", "b", Stage.CANARY, 0.2)
        assert (live.champion_folder, live.challenger_folder) == ("/var/lib/a", "/var/lib/b")
        move(session, "b", Stage.ACTIVE)
        assert live_policy(session, CLUSTER).champion_id == "b"
        assert stage_of(session, CLUSTER, "a") is Stage.RETIRED
        assert [event.after for event in policy_events(session, CLUSTER, "b")] == [Stage.CANDIDATE, *WAY]


def test_taking_back_returns_to_the_policy_before(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b")
        move(session, "a", *WAY)
        move(session, "b", *WAY, Stage.REJECTED)
        assert live_policy(session, CLUSTER).champion_id == "a"
        assert stage_of(session, CLUSTER, "a") is Stage.ACTIVE
        move(session, "a", Stage.REJECTED)
        assert live_policy(session, CLUSTER).champion_id == CONFIGURED


def test_a_retired_candidate_that_was_rejected_never_decides_again(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b", "c")
        for name in ("a", "b", "c"):
            move(session, name, *WAY)
        move(session, "b", Stage.REJECTED)
        assert list(earlier_champions(session, CLUSTER, "c")) == ["a"]
        move(session, "c", Stage.REJECTED)
        assert live_policy(session, CLUSTER).champion_id == "a"


def test_champions_that_took_turns_end_in_the_configured_policy(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b")
        move(session, "a", *WAY)
        move(session, "b", *WAY)
        move(session, "a", Stage.ACTIVE, Stage.REJECTED)
        assert live_policy(session, CLUSTER).champion_id == "b"
        move(session, "b", Stage.REJECTED)
        assert live_policy(session, CLUSTER).champion_id == CONFIGURED


def test_what_becomes_of_another_candidate_leaves_a_challenger_its_time_and_jobs(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b")
        move(session, "a", Stage.SHADOW, Stage.CANARY)
        move_candidate(session, CLUSTER, "b", Stage.REJECTED, at_seconds=900.0, actor="gate", reason="not passed")
        assert live_policy(session, CLUSTER).since_seconds == 200.0


def test_paused_time_is_counted_where_it_lies_in_the_asked_time(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a")
        for at, paused in ((50.0, True), (150.0, False), (300.0, True), (400.0, False), (900.0, True)):
            pause_promotion(session, CLUSTER, paused=paused, at_seconds=at, actor="ann")
        assert paused_seconds(session, CLUSTER, 100.0, 1000.0) == 50.0 + 100.0 + 100.0
        assert paused_seconds(session, CLUSTER, 150.0, 300.0) == 0.0


@pytest.mark.parametrize("stage", [Stage.CANARY, Stage.ACTIVE, Stage.RETIRED, Stage.CANDIDATE])
def test_no_stage_is_left_out(engine: Engine, stage: Stage) -> None:
    with store_session(engine) as session:
        make(session, "a")
        with pytest.raises(PolicyError, match="cannot become"):
            move(session, "a", stage)


def test_one_challenger_at_a_time(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a", "b")
        move(session, "a", Stage.SHADOW)
        with pytest.raises(PolicyError, match="one at a time"):
            move(session, "b", Stage.SHADOW)
        move(session, "a", Stage.REJECTED)
        move(session, "b", Stage.SHADOW)


def test_a_step_that_is_stopped_leaves_the_state_before(engine: Engine) -> None:
    run_in_transaction(engine, lambda session: make(session, "a"))

    class Killed(BaseException):
        pass

    with pytest.raises(Killed), store_session(engine) as session:
        move(session, "a", Stage.SHADOW)
        raise Killed
    with store_session(engine, read_only=True) as session:
        assert live_policy(session, CLUSTER).challenger_id == ""
        assert stage_of(session, CLUSTER, "a") is Stage.CANDIDATE


def test_a_change_behind_ones_back_is_refused(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a")
        move(session, "a", Stage.SHADOW)
    from slurm_energy.store import promotion

    with store_session(engine) as session, pytest.raises(StoreError, match="another process"):
        old = live_policy(session, CLUSTER)
        promotion._put_live(session, CLUSTER, old)
        promotion._put_live(session, CLUSTER, old)


def test_notes_and_pauses_are_kept_and_move_nothing(engine: Engine) -> None:
    with store_session(engine) as session:
        make(session, "a")
        move(session, "a", Stage.SHADOW)
        note_on_candidate(
            session,
            CLUSTER,
            "a",
            at_seconds=1.0,
            actor="ann",
            reason="gate",
            evidence={"value": float("nan"), "passed": False},
        )
        assert pause_promotion(session, CLUSTER, paused=True, at_seconds=2.0, actor="ann")
        assert not pause_promotion(session, CLUSTER, paused=True, at_seconds=3.0, actor="ann")
        assert live_policy(session, CLUSTER).paused
        assert policy_events(session, CLUSTER, "a")[2].evidence == {"value": "NaN", "passed": False}
        assert stage_of(session, CLUSTER, "a") is Stage.SHADOW


def test_it_is_known_which_policy_decided_a_job(engine: Engine) -> None:
    one = Assignment(
        candidate_id="",
        challenger_id="a",
        stage=Stage.SHADOW,
        probability=1.0,
        milliseconds=0.4,
        differs=True,
        shadow=ShadowAnswer(clocks_mhz={GpuTypeName("a100"): 1110}),
    )
    with store_session(engine) as session:
        record_assignments(session, CLUSTER, [("d1", 5.0, one)])
        record_assignments(session, CLUSTER, [("d1", 6.0, one)])
        found = session.get(PolicyAssignmentRow, "d1")
        assert found is not None
        assert (found.challenger_id, found.decided_at_seconds, found.probability) == ("a", 5.0, 1.0)
        assert found.shadow == {"clocks_mhz": {"a100": 1110}, "partitions": [], "error": "", "milliseconds": 0.0}


def test_the_folder_is_kept_as_it_was_written(engine: Engine, tmp_path: Path) -> None:
    with store_session(engine) as session:
        make(session, "a")
        assert not add_candidate(
            session,
            CLUSTER,
            candidate_id="a",
            made_at_seconds=9.0,
            parent_id="",
            folder=str(tmp_path),
            document={},
            actor="root",
        )
