"""Candidates on their way: what is better gets on, what is bad is stopped at the stage where it should be."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from site_database import A100, CLUSTER, Site, fill, site_config
from sqlalchemy import insert, select

from slurm_energy.config import Config
from slurm_energy.domain.ids import ClusterName, GpuTypeName
from slurm_energy.domain.promotion import TOO_SLOW, Assignment, ShadowAnswer, Stage
from slurm_energy.learning.nightly.administration import candidate_desk
from slurm_energy.learning.nightly.stages import advance
from slurm_energy.store.promotion import (
    add_candidate,
    live_policy,
    move_candidate,
    outcomes,
    pause_promotion,
    record_assignments,
    stage_of,
)
from slurm_energy.store.promotion.outcomes import ShadowCounts, canary_jobs, shadow_counts
from slurm_energy.store.session import Session, open_engine, run_in_transaction, store_session
from slurm_energy.store.tables import DecisionRow, GpuEnergyRow, JobAttemptRow, JobRow, NodeEnergyRow, PolicyRow

CLUSTER_NAME = ClusterName(CLUSTER)
BEGIN = 1_800_000_000.0
Effect = Callable[[random.Random], dict[str, float | str]]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = site_config(tmp_path, promote="automatic", shadow_decisions=50)
    fill(found, Site(jobs=400, users=12, clock_share=0.0))
    return found


def run(config: Config, work: Callable[[Session], object]) -> None:
    engine = open_engine(config.store)
    run_in_transaction(engine, work)
    engine.dispose()


def begin(session: Session, stage: Stage) -> None:
    add_candidate(
        session,
        CLUSTER_NAME,
        candidate_id="c1",
        made_at_seconds=BEGIN,
        parent_id="",
        folder="/nowhere",
        document={},
        actor="root",
    )
    for one in (Stage.SHADOW, Stage.CANARY)[: 1 if stage is Stage.SHADOW else 2]:
        move_candidate(session, CLUSTER_NAME, "c1", one, at_seconds=BEGIN, actor="root", reason="", canary_share=0.3)


def shadow(config: Config, count: int, answer: ShadowAnswer, *, differs: bool) -> Stage | None:
    found: list[Stage | None] = []

    def work(session: Session) -> None:
        begin(session, Stage.SHADOW)
        record_assignments(
            session,
            CLUSTER_NAME,
            [
                (
                    f"d{number}",
                    BEGIN + number,
                    Assignment(
                        candidate_id="",
                        challenger_id="c1",
                        stage=Stage.SHADOW,
                        probability=1.0,
                        milliseconds=0.5,
                        differs=differs,
                        shadow=answer,
                    ),
                )
                for number in range(count)
            ],
        )
        advance(session, CLUSTER_NAME, config, BEGIN + count)
        found.append(stage_of(session, CLUSTER_NAME, "c1"))

    run(config, work)
    return found[0]


def test_a_shadow_that_differs_becomes_a_canary(config: Config) -> None:
    clocks = ShadowAnswer(clocks_mhz={GpuTypeName(A100): 1110})
    assert shadow(config, 60, clocks, differs=True) is Stage.CANARY


def test_a_shadow_with_too_few_decisions_waits(config: Config) -> None:
    assert shadow(config, 30, ShadowAnswer(), differs=True) is Stage.SHADOW


def test_an_identical_candidate_is_stopped_in_shadow(config: Config) -> None:
    assert shadow(config, 60, ShadowAnswer(), differs=False) is Stage.REJECTED


def test_a_candidate_that_gives_no_number_is_stopped_in_shadow(config: Config) -> None:
    assert shadow(config, 25, ShadowAnswer(error="its policy failed"), differs=True) is Stage.REJECTED


def test_a_slow_candidate_is_stopped_in_shadow(config: Config) -> None:
    assert shadow(config, 25, ShadowAnswer(milliseconds=80.0), differs=True) is Stage.REJECTED


def test_an_answer_with_an_error_is_no_difference(config: Config) -> None:
    assert shadow(config, 0, ShadowAnswer(), differs=False) is Stage.SHADOW
    engine = open_engine(config.store)

    def work(session: Session) -> ShadowCounts:
        failed = Assignment(
            candidate_id="",
            challenger_id="c1",
            stage=Stage.SHADOW,
            probability=1.0,
            milliseconds=0.5,
            differs=True,
            shadow=ShadowAnswer(error="its policy failed"),
        )
        same = replace(failed, differs=False, shadow=ShadowAnswer())
        record_assignments(session, CLUSTER_NAME, [(f"d{n}", BEGIN, same if n else failed) for n in range(200)])
        advance(session, CLUSTER_NAME, config, BEGIN)
        return shadow_counts(session, CLUSTER_NAME, "c1", BEGIN, 20.0)

    counts = run_in_transaction(engine, work)
    engine.dispose()
    assert (counts.decisions, counts.differing, counts.errors) == (200, 0, 1)
    with candidate_desk(config) as desk:
        assert "changes 0 of 200" in desk.story("c1").line.last


def test_a_canary_that_was_cut_off_for_being_slow_is_rejected(config: Config) -> None:
    def work(session: Session) -> None:
        begin(session, Stage.CANARY)
        slow = Assignment(
            candidate_id="",
            challenger_id="c1",
            stage=Stage.SHADOW,
            probability=1.0,
            milliseconds=0.5,
            differs=True,
            shadow=ShadowAnswer(error=TOO_SLOW, milliseconds=1e6),
        )
        record_assignments(session, CLUSTER_NAME, [("d1", BEGIN + 1.0, slow)])
        advance(session, CLUSTER_NAME, config, BEGIN + 60.0)

    run(config, work)
    with candidate_desk(config) as desk:
        line = desk.story("c1").line
    assert line.stage is Stage.REJECTED
    assert "too slow" in line.last


def test_a_shadow_waits_for_a_person_where_the_site_wants_one(config: Config) -> None:
    asked = replace(config, nightly=replace(config.nightly, promote="approved"))
    assert shadow(asked, 60, ShadowAnswer(), differs=True) is Stage.SHADOW
    with candidate_desk(asked) as desk:
        desk.say("c1", "approve", "ann", "fine")
    run(asked, lambda session: advance(session, CLUSTER_NAME, asked, BEGIN + 100.0))
    with candidate_desk(asked) as desk:
        assert desk.story("c1").line.stage is Stage.CANARY


def canary(
    config: Config,
    effect: Effect,
    *,
    jobs: int = 500,
    now: float = BEGIN + 86_400.0,
    paused: bool = False,
    reports: bool = True,
    before_hooks: float = 0.0,
) -> tuple[Stage | None, str]:
    """Play a canary of so many jobs; return its stage afterwards, and why.

    Our prolog begins after a share of each run.
    """
    draw = random.Random(7)

    def work(session: Session) -> None:
        begin(session, Stage.CANARY)
        session.add(
            PolicyRow(row_id=1, name="p", version="1", settings_digest="x", settings={}, first_used_at_seconds=0.0)
        )
        session.flush()
        old = session.execute(
            select(JobRow.user_id, JobRow.name, GpuEnergyRow.joules, JobRow.started_at_seconds, JobRow.ended_at_seconds)
            .join(NodeEnergyRow, NodeEnergyRow.job_row_id == JobRow.row_id)
            .join(GpuEnergyRow, GpuEnergyRow.node_energy_row_id == NodeEnergyRow.row_id)
        ).all()
        rows: dict[type, list[dict[str, object]]] = {
            kind: [] for kind in (DecisionRow, JobRow, JobAttemptRow, NodeEnergyRow, GpuEnergyRow)
        }
        assigned: list[tuple[str, float, Assignment]] = []
        for number in range(jobs):
            user, name, joules, started, ended = draw.choice(old)
            assert joules is not None
            assert started is not None
            assert ended is not None
            is_own = draw.random() < 0.3
            change = effect(draw) if is_own else {}
            seconds = (ended - started) * float(change.get("time", 1.0)) * draw.lognormvariate(0.0, 0.01)
            job, decision, at = 10_000 + number, f"d{number:06d}", BEGIN + 10.0 + number
            started_at = at + 5.0 + float(change.get("wait", 0.0)) * seconds
            times = {"started_at_seconds": started_at, "ended_at_seconds": started_at + seconds}
            rows[DecisionRow].append(
                {
                    "decision_id": decision,
                    "cluster": CLUSTER,
                    "policy_row_id": 1,
                    "mode": "balanced",
                    "decided_at_seconds": at,
                    "user_id": user,
                    "job_name": name,
                    "request": {"gpus": [{"count": int(change.get("asked", 1.0)), "slurm_type": None}]},
                    "gpus": 1,
                    "reasons": str(change.get("reasons", "POLICY")),
                    "notes": [],
                    "message": "",
                }
            )
            rows[JobRow].append(
                {
                    "row_id": job,
                    "cluster": CLUSTER,
                    "job_id": job,
                    "submitted_at_seconds": at,
                    "submit_time_known": True,
                    "user_id": user,
                    "name": name,
                    "state": str(change.get("state", "COMPLETED")),
                    "restart_count": 0,
                    "suspended_seconds": 0.0,
                    "gpu_count": 1,
                    "decision_id": decision,
                    **times,
                }
            )
            rows[JobAttemptRow].append({"job_row_id": job, "restart_count": 0, "suspended_seconds": 0.0, **times})
            if reports:
                rows[NodeEnergyRow].append(
                    {
                        "row_id": job,
                        "cluster": CLUSTER,
                        "job_row_id": job,
                        "restart_count": 0,
                        "node": "n1",
                        "quality": 4,
                        "time_scale": 1.0,
                        "host_measured": False,
                        "host_reason": "no",
                        "host_coverage_seconds": 0.0,
                        "host_flags": "",
                        "events": [],
                        **times,
                        "started_at_seconds": started_at + before_hooks * seconds,
                    }
                )
                rows[GpuEnergyRow].append(
                    {
                        "node_energy_row_id": job,
                        "gpu_uuid": "GPU-0",
                        "quality": 4,
                        "gpu_name": A100,
                        "gpu_type": str(change.get("gpu_type", A100)),
                        "joules": joules * float(change.get("energy", 1.0)),
                        "source": "counter",
                        "scope": "gpu",
                        "coverage_seconds": seconds * (1.0 - before_hooks),
                        "flags": "",
                    }
                )
            one = Assignment(
                candidate_id="c1" if is_own else "",
                challenger_id="c1",
                stage=Stage.CANARY,
                probability=0.3 if is_own else 0.7,
                milliseconds=float(change.get("milliseconds", 0.5)),
            )
            assigned.append((decision, at, one))
        for kind, values in rows.items():
            if values:
                session.execute(insert(kind), values)
        record_assignments(session, CLUSTER_NAME, assigned)

    run(config, work)
    with candidate_desk(config) as desk:
        if paused:
            desk.pause("ann", paused=True)
    run(config, lambda session: advance(session, CLUSTER_NAME, config, now))
    with candidate_desk(config) as desk:
        line = desk.story("c1").line
        return line.stage, line.last


def test_a_canary_that_saves_energy_becomes_the_live_policy(config: Config) -> None:
    stage, why = canary(config, lambda _: {"energy": 0.88})
    assert stage is Stage.ACTIVE, why
    run(config, lambda session: check_champion(session, "c1"))


def test_short_jobs_count_though_other_prologs_run_before_ours(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_MAX_OVERHEAD_SECONDS", 1e6)  # beside it every run of these is a short one
    stage, why = canary(config, lambda _: {"energy": 0.88}, before_hooks=0.3)
    assert stage is Stage.ACTIVE, why


def test_long_jobs_of_which_hooks_saw_a_part_do_not_count(config: Config) -> None:
    stage, why = canary(config, lambda _: {"energy": 0.88}, before_hooks=0.3)
    assert stage is Stage.CANARY, why


def check_champion(session: Session, name: str) -> None:
    assert live_policy(session, CLUSTER_NAME).champion_id == name


@pytest.mark.parametrize(
    ("effect", "word"),
    [
        ({"energy": 1.2}, "joules"),
        ({"time": 1.35, "energy": 0.9}, "run time"),
        ({"time": 3.0, "energy": 3.0 * 0.88, "gpu_type": "a40"}, "joules"),
        ({"wait": 1.0, "energy": 0.9}, "from submission"),
        ({"milliseconds": 60.0, "energy": 0.9}, "too long"),
        ({"reasons": "POLICY,SLOWDOWN_BOUND", "energy": 0.9}, "guard"),
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_a_canary_that_is_worse_is_taken_back_also_while_paused(
    config: Config, effect: dict[str, float | str], word: str, paused: bool
) -> None:
    stage, why = canary(config, lambda _: effect, paused=paused)
    assert stage is Stage.REJECTED
    assert word in why


def test_a_canary_whose_jobs_time_out_is_taken_back(config: Config) -> None:
    stage, why = canary(
        config, lambda draw: {"state": "TIMEOUT" if draw.random() < 0.3 else "COMPLETED", "energy": 0.9}
    )
    assert stage is Stage.REJECTED
    assert "time limit" in why


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED"])
def test_a_canary_whose_jobs_do_not_complete_is_taken_back(config: Config, state: str) -> None:
    stage, why = canary(config, lambda draw: {"state": state if draw.random() < 0.4 else "COMPLETED", "energy": 0.88})
    assert stage is Stage.REJECTED
    assert "did not complete" in why


def test_joules_of_jobs_that_fail_are_charged_to_the_policy_that_decided_them(config: Config) -> None:
    canary(config, lambda _: {"state": "FAILED", "energy": 0.5})
    engine = open_engine(config.store)
    with store_session(engine, read_only=True) as session:
        jobs = list(canary_jobs(session, CLUSTER_NAME, "c1", "", BEGIN))
    engine.dispose()
    own = [one.energy_log for one in jobs if one.is_challenger and one.energy_log is not None]
    assert len(own) > 50
    assert median(own) == pytest.approx(0.5, abs=0.1), "half of what a run takes, for nothing"
    assert all(one.seconds_log is None for one in jobs if one.is_challenger)


def test_jobs_are_compared_by_what_was_asked_for(config: Config) -> None:
    # Two GPUs were asked for and the policy gave one: half the joules of two earlier GPUs is what is seen.
    stage, why = canary(config, lambda _: {"energy": 0.5, "asked": 2.0})
    assert stage is Stage.ACTIVE, why
    engine = open_engine(config.store)
    with store_session(engine, read_only=True) as session:
        jobs = list(canary_jobs(session, CLUSTER_NAME, "c1", "", BEGIN))
    engine.dispose()
    own = [one.energy_log for one in jobs if one.is_challenger and one.energy_log is not None]
    assert median(own) == pytest.approx(math.log(0.25), abs=0.3)


def test_jobs_of_a_policy_that_stood_in_for_the_live_one_are_of_neither(config: Config) -> None:
    canary(config, lambda _: {})
    engine = open_engine(config.store)
    with store_session(engine, read_only=True) as session:
        jobs = list(canary_jobs(session, CLUSTER_NAME, "c1", "b1", BEGIN))
    engine.dispose()
    assert jobs
    assert all(one.is_challenger for one in jobs)


def test_a_canary_as_good_as_the_live_policy_waits_and_is_given_up_in_the_end(config: Config) -> None:
    stage, _ = canary(config, lambda _: {})
    assert stage is Stage.CANARY
    run(config, lambda session: advance(session, CLUSTER_NAME, config, BEGIN + 40 * 86_400.0))
    with candidate_desk(config) as desk:
        assert desk.story("c1").line.stage is Stage.REJECTED


def test_jobs_without_reports_promote_nothing(config: Config) -> None:
    stage, _ = canary(config, lambda _: {"energy": 0.5}, reports=False)
    assert stage is Stage.CANARY


def test_what_is_better_waits_while_promotion_is_paused(config: Config) -> None:
    assert canary(config, lambda _: {"energy": 0.88}, paused=True)[0] is Stage.CANARY


def test_a_time_of_pause_is_not_the_challengers(config: Config) -> None:
    def work(session: Session) -> None:
        begin(session, Stage.SHADOW)
        for day, paused in ((1.0, True), (40.0, False)):
            at = BEGIN + day * 86_400.0
            pause_promotion(session, CLUSTER_NAME, paused=paused, at_seconds=at, actor="ann")
        advance(session, CLUSTER_NAME, config, BEGIN + 41.0 * 86_400.0)
        assert stage_of(session, CLUSTER_NAME, "c1") is Stage.SHADOW
        advance(session, CLUSTER_NAME, config, BEGIN + 70.0 * 86_400.0)
        assert stage_of(session, CLUSTER_NAME, "c1") is Stage.REJECTED

    run(config, work)
