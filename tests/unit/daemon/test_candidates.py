"""Candidates in the answering process: in shadow nothing is applied, in canary a user's jobs go one way for a while."""

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_parts import A40, answer
from policy_parts import snapshot as a40_cluster

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.decide import Decider, create_decider
from slurm_energy.daemon.doors.callers import Peer
from slurm_energy.daemon.doors.plugin import SlurmVerbs
from slurm_energy.daemon.policy.candidates import (
    MAX_LATE_ANSWERS,
    Candidates,
    CandidateSlot,
    ServedCandidate,
    draws,
    make_candidates,
)
from slurm_energy.daemon.recorder.entries import DecisionEntryLine, JournalQueue, decode_entry
from slurm_energy.daemon.recorder.journal import JournalReader, JournalWriter
from slurm_energy.daemon.state import DaemonState
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.promotion import TOO_SLOW, LivePolicy, Stage
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.policy.base import Case
from slurm_energy.policy.candidate import CandidatePolicy, NameClocks, SiteEstimates, write_candidate
from slurm_energy.policy.guard import Guard
from slurm_energy.wire.codec import Message

ROOT = Peer(process_id=1, user_id=0, privileged=True)
CLOCK = LearnedClock(
    sm_clock_mhz=1350,
    default_clock_mhz=1740,
    slowdown=0.01,
    error=0.002,
    energy_change=-0.2,
    runs=9,
    measured_at_seconds=1.0,
    by_trial=False,
)


class Lower:
    """A policy that gives one clock."""

    name, version = "lower", "1"

    def __init__(self, fault: Exception | None = None, seconds: float = 0.0) -> None:
        self.fault, self.seconds, self.asked = fault, seconds, 0

    def decide(self, case: Case) -> PolicyAnswer:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        found = answer()
        return replace(found, clocks=tuple(replace(clock, sm_clock_mhz=1350) for clock in found.clocks))


class Desk:
    def __init__(self, directory: Path) -> None:
        config = replace(
            Config(), policy=PolicyConfig(name="slurm-default", max_slowdown=0.2, min_saving_per_slowdown=0.0)
        )
        self.directory = directory
        self.state = DaemonState(
            config=config,
            decider=create_decider(config),
            journal=JournalQueue(JournalWriter(directory, "daemon")),
            recorder=None,  # type: ignore[arg-type]  # no question is asked of it
            privileged=frozenset({0}),
            snapshot=a40_cluster(time.time()),
        )
        self.verbs = SlurmVerbs(self.state)

    def use(
        self,
        stage: Stage | None,
        policy: Any = None,
        *,
        share: float = 0.0,
        clocks: Mapping[Any, Any] | None = None,
        champion: bool = False,
    ) -> None:
        decider = None if policy is None else Decider(policy, Guard(self.state.config))
        one = ServedCandidate(candidate_id="c1", decider=decider, clocks=clocks or {})
        live = LivePolicy(challenger_id="c1", stage=stage, canary_share=share)
        if champion:
            live = LivePolicy(champion_id="c1")
        self.state.candidates.take(live, one if champion else None, None if champion else one, "")

    def submit(self, user: int = 1000, name: str = "train") -> DecisionEntryLine:
        fields = {"uid": str(user), "name": name, "tres_per_node": "gres:gpu:1", "partition": "a40"}
        reply = self.verbs.for_slurm(Message("decide", fields), ROOT)
        assert reply.afterwards is not None
        reply.afterwards()
        asyncio.run(self.state.journal.flush())
        line = JournalReader(self.directory, "daemon").read(1000)[-1]
        entry = decode_entry(line.text)
        assert isinstance(entry, DecisionEntryLine)
        return entry


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_without_a_candidate_nothing_is_noted(desk: Desk) -> None:
    entry = desk.submit()
    assert entry.assignment is None
    assert not entry.decision.clocks


def test_in_shadow_the_difference_is_kept_and_nothing_is_applied(desk: Desk) -> None:
    desk.use(Stage.SHADOW, Lower())
    entry = desk.submit()
    assert not entry.decision.clocks
    assert entry.assignment is not None
    assert (entry.assignment.candidate_id, entry.assignment.challenger_id) == ("", "c1")
    assert entry.assignment.differs
    assert entry.assignment.shadow is not None
    assert entry.assignment.shadow.clocks_mhz[A40] > 0


def test_an_equal_policy_in_shadow_differs_in_nothing(desk: Desk) -> None:
    desk.use(Stage.SHADOW, desk.state.decider.policy)
    entry = desk.submit()
    assert entry.assignment is not None
    assert entry.assignment.differs is False


def test_a_policy_that_fails_in_shadow_is_an_error_and_the_job_has_its_decision(desk: Desk) -> None:
    desk.use(Stage.SHADOW, Lower(ValueError("nan")))
    entry = desk.submit()
    assert entry.assignment is not None
    assert entry.assignment.shadow is not None
    assert "failed" in entry.assignment.shadow.error


def test_a_slow_policy_in_shadow_is_soon_not_asked_any_more(desk: Desk) -> None:
    slow = Lower(seconds=0.03)
    desk.use(Stage.SHADOW, slow)
    entries = [desk.submit(name=f"job{number}") for number in range(MAX_LATE_ANSWERS + 3)]
    assert slow.asked == MAX_LATE_ANSWERS
    assert entries[-1].assignment is not None
    assert entries[-1].assignment.shadow is not None
    assert "too slow" in entries[-1].assignment.shadow.error


def test_a_slow_policy_in_canary_decides_no_more_whatever_it_answered_between(desk: Desk) -> None:
    slow = Lower(seconds=0.03)
    desk.use(Stage.CANARY, slow, share=1.0)
    for number in range(MAX_LATE_ANSWERS):
        slow.seconds = 0.03
        desk.submit(name=f"slow{number}")
        slow.seconds = 0.0
        desk.submit(name=f"quick{number}")
    # A row that changes makes the candidate again, and forgives nothing.
    desk.use(Stage.CANARY, slow, share=1.0)
    asked = slow.asked
    entry = desk.submit(name="last")
    assert slow.asked == asked
    assert entry.assignment is not None
    assert (entry.assignment.candidate_id, entry.assignment.stage) == ("", Stage.SHADOW)
    assert entry.assignment.shadow is not None
    assert entry.assignment.shadow.error == TOO_SLOW


def test_an_answer_given_again_says_nothing_of_a_policys_speed(desk: Desk) -> None:
    slow = Lower(seconds=0.03)
    desk.use(Stage.CANARY, slow, share=1.0)
    for number in range(MAX_LATE_ANSWERS - 1):
        desk.submit(name=f"job{number}")
    slow.seconds = 0.0
    for number in range(60):
        ids = {"decision_id": f"{number:032x}", "base_decision_id": f"{1000 + number:032x}"}
        reply = desk.verbs.for_slurm(Message("reused", {"uid": "1000", "name": "again", **ids}), ROOT)
        assert reply.afterwards is not None
        reply.afterwards()
    slow.seconds = 0.03
    desk.submit(name="late")
    asked = slow.asked
    desk.submit(name="last")
    assert slow.asked == asked


def test_there_is_no_canary_beside_a_champion_that_cannot_be_read(desk: Desk) -> None:
    own = ServedCandidate(candidate_id="c1", decider=Decider(Lower(), Guard(desk.state.config)), clocks={})
    for stage in (Stage.CANARY, Stage.SHADOW):
        live = LivePolicy(champion_id="b1", challenger_id="c1", stage=stage, canary_share=1.0)
        desk.state.candidates.take(live, None, own, "b1 cannot be read")
        entry = desk.submit(name=stage.value)
        assert not entry.decision.clocks
        assert entry.assignment is not None
        assert (entry.assignment.candidate_id, entry.assignment.challenger_id) == ("", "")
        assert entry.assignment.differs is None


def test_in_canary_a_share_of_the_users_has_the_candidate_and_it_is_known_who(desk: Desk) -> None:
    desk.use(Stage.CANARY, Lower(), share=0.3)
    entries = [desk.submit(user=1000 + number) for number in range(120)]
    own = [entry for entry in entries if entry.assignment and entry.assignment.candidate_id == "c1"]
    assert 12 <= len(own) <= 70
    for entry in entries:
        assert entry.assignment is not None
        is_own = entry in own
        assert bool(entry.decision.clocks) == is_own
        assert entry.decision.policy_version.endswith("+c1") == is_own
        assert entry.assignment.probability == pytest.approx(0.3 if is_own else 0.7)


def test_jobs_of_one_user_behave_alike_in_a_period_and_are_drawn_again_in_the_next() -> None:
    drawn = [draws("c1", 1000, hour * 3600.0, 24.0) for hour in range(24 * 10)]
    assert len(set(drawn)) == 10
    assert len(set(drawn[:24])) == 1
    every = [draws("c1", user, 0.0, 24.0) for user in range(2000)]
    assert 0.17 < sum(one < 0.2 for one in every) / len(every) < 0.23


def test_a_champion_decides_all_jobs_and_says_so(desk: Desk) -> None:
    desk.use(None, Lower(), champion=True)
    entry = desk.submit()
    assert entry.decision.clocks
    assert entry.assignment is not None
    assert (entry.assignment.candidate_id, entry.assignment.stage) == ("c1", Stage.ACTIVE)


def test_clocks_of_a_candidate_count_for_its_names_alone(desk: Desk) -> None:
    desk.state.config = replace(Config(), policy=PolicyConfig(name="oracle"))
    desk.state.decider = create_decider(desk.state.config)
    desk.use(None, None, clocks={(1000, "train"): {A40: CLOCK}}, champion=True)
    known, other = desk.submit(name="train"), desk.submit(name="other")
    assert [clock.sm_clock_mhz for clock in known.decision.clocks] == [1350]
    assert 1350 not in [clock.sm_clock_mhz for clock in other.decision.clocks]


def test_a_candidate_that_cannot_be_read_leaves_the_configured_policy(tmp_path: Path) -> None:
    live = LivePolicy(champion_id="gone", champion_folder=str(tmp_path / "gone"))
    champion, challenger, trouble = make_candidates(live, Config(), None)
    assert champion is None
    assert challenger is None
    assert "gone" in trouble


def pipe_folder(folder: Path) -> Path:
    folder.mkdir()
    os.mkfifo(folder / "candidate.toml")
    return folder


def test_a_pipe_in_a_candidates_folder_is_not_waited_for(tmp_path: Path) -> None:
    live = LivePolicy(champion_id="c1", champion_folder=str(pipe_folder(tmp_path / "c1")))
    assert "no file of a candidate" in make_candidates(live, Config(), None)[2]


def test_what_a_row_does_not_name_stops_while_the_files_of_another_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates, config, hangs = Candidates(), Config(), threading.Event()
    monkeypatch.setattr("slurm_energy.daemon.policy.candidates.READ_SECONDS", 0.01)
    monkeypatch.setattr("slurm_energy.daemon.policy.candidates.read_candidate", lambda _folder: hangs.wait())
    served = ServedCandidate(candidate_id="c1", decider=None, clocks={})
    candidates.take(LivePolicy(challenger_id="c1", stage=Stage.CANARY, canary_share=1.0), None, served, "")

    async def follow() -> None:
        slot = CandidateSlot(candidates, lambda: config, lambda: None)
        slot.use(LivePolicy(champion_id="c2", champion_folder=str(tmp_path), challenger_id="c1", stage=Stage.CANARY))
        assert candidates.challenger is served
        await asyncio.sleep(0)
        slot.use(LivePolicy(champion_id="c2", champion_folder=str(tmp_path)))
        assert candidates.is_idle
        while not candidates.trouble:
            await asyncio.sleep(0)
        assert "not read within" in candidates.trouble
        slot.use(LivePolicy())
        while candidates.trouble:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(follow(), 30.0))
    hangs.set()
    assert candidates.is_idle


def test_a_candidate_that_could_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_energy.daemon.policy.candidates.RETRY_SECONDS", 0.0)
    candidates, folder = Candidates(), tmp_path / "c7"

    async def follow() -> None:
        slot = CandidateSlot(candidates, Config, lambda: None)
        slot.use(LivePolicy(champion_id="c7", champion_folder=str(folder)))
        while not candidates.trouble:
            await asyncio.sleep(0)
        write_candidate(CandidatePolicy(candidate_id="c7", made_at_seconds=1.0, policy="total-cost:V=0"), folder)
        while candidates.trouble:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(follow(), 30.0))
    assert candidates.champion is not None


def test_a_row_is_followed_without_a_moment_between(tmp_path: Path) -> None:
    estimates = SiteEstimates(clocks=(NameClocks(user_id=1, group="train", clocks={A40: CLOCK}),))
    made = CandidatePolicy(candidate_id="c7", made_at_seconds=1.0, policy="total-cost:V=0", estimates=estimates)
    write_candidate(made, tmp_path / "c7")
    candidates, config = Candidates(), replace(Config(), policy=PolicyConfig(name="oracle"))

    async def follow() -> None:
        slot = CandidateSlot(candidates, lambda: config, lambda: a40_cluster(time.time()))
        for stage in (Stage.SHADOW, Stage.CANARY):
            slot.use(LivePolicy(challenger_id="c7", stage=stage, challenger_folder=str(tmp_path / "c7")))
        while candidates.challenger is None:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(follow(), 30.0))
    assert candidates.challenger is not None
    assert candidates.challenger.decider is not None
    assert candidates.challenger.decider.policy.name == "total-cost"
    assert candidates.trouble == ""
