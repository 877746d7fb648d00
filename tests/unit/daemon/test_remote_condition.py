"""What the daemon says of a learned policy's process, and whose version decisions carry, as processes come and go."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from policy_parts import CASE, JOB, NOW, Baseline, Clock, LeftBehind, question_pair, snapshot

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import pack_numbered
from slurm_energy.daemon.policy.remote import NOT_LOADED, RemotePolicy
from slurm_energy.domain.decision import EnergyDecision, PolicyAnswer, Reason
from slurm_energy.policy.guard import Guard

MAX_AGE_SECONDS = 60.0
TROUBLE = "PolicyError: the network's prices are not finite"


class Served:
    """A policy whose prices answer here; time goes on for process and prices alike."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.began = self.clock.now
        self.policy = RemotePolicy(
            "gnn", Baseline(), timeout_seconds=0.001, max_age_seconds=MAX_AGE_SECONDS, clock=self.clock
        )
        self.others: list[socket.socket] = []
        self.start("v1")
        self.look()

    def start(self, version: str) -> None:
        """Let a process start and load."""
        ours, theirs = question_pair()
        self.others.append(theirs)
        self.policy.connect(ours)
        self.policy.loaded(version)

    @property
    def now_seconds(self) -> float:
        return NOW + self.clock.now - self.began

    def look(self) -> None:
        """Let the process tell its prices of this moment."""
        self.policy.at_snapshot(pack_numbered(0, LeftBehind(self.now_seconds)), self.now_seconds)

    def answer(self) -> PolicyAnswer:
        return self.policy.decide(replace(CASE, snapshot=snapshot(self.now_seconds), now_seconds=self.now_seconds))

    def decision(self) -> EnergyDecision:
        return Guard(Config()).decide(self.policy, JOB, snapshot(self.now_seconds), self.now_seconds)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.policy.disconnect()
    for other in made.others:
        other.close()


def test_one_that_looks_at_the_cluster_is_ready(served: Served) -> None:
    served.clock.now += MAX_AGE_SECONDS
    assert served.policy.condition == "ready"


def test_one_that_fails_says_why_and_from_when_its_answers_are(served: Served) -> None:
    served.clock.now += 12.0
    served.policy.troubled(TROUBLE)
    assert served.policy.condition == f"behind: {TROUBLE}; its last look, 12 s ago, decides"
    assert served.answer().notes == (f"left at {NOW}",)
    served.clock.now += MAX_AGE_SECONDS
    assert served.policy.condition == f"behind: {TROUBLE}; its last look, 72 s ago, is too old: plain decides"
    answer = served.answer()
    assert answer.reasons[0] is Reason.STALE_SNAPSHOT
    assert answer.notes[0] == f"policy gnn sees an old snapshot of the cluster: {TROUBLE}: plain decided"
    served.look()
    assert served.policy.condition == "ready"


def test_trouble_at_any_length_leaves_room_for_who_decided(served: Served) -> None:
    served.policy.troubled("x" * 160)
    served.clock.now += MAX_AGE_SECONDS + 1.0
    assert served.answer().notes[0].endswith(": plain decided")
    assert len(served.answer().notes[0]) <= 200


def test_one_that_says_nothing_for_long_is_not_ready(served: Served) -> None:
    served.clock.now += MAX_AGE_SECONDS + 1.0
    assert served.policy.condition == "behind; its last look, 61 s ago, is too old: plain decides"


def test_while_one_starts_again_it_says_that_the_last_prices_decide(served: Served) -> None:
    served.policy.disconnect()
    served.clock.now += 3.0
    assert served.policy.condition == "loading; its last look, 3 s ago, decides"
    served.clock.now += MAX_AGE_SECONDS
    assert served.policy.condition == "loading; its last look, 63 s ago, is too old: plain decides"
    note = "policy gnn sees an old snapshot of the cluster: its process is not ready yet: plain decided"
    assert served.answer().notes[0] == note


def test_one_that_is_refused_when_it_starts_again_leaves_its_prices_as_long_as_they_are_new(served: Served) -> None:
    served.policy.disconnect()
    served.policy.refused("CheckpointError: no such file", "tried again soon")
    served.clock.now += 5.0
    assert served.answer() == PolicyAnswer(notes=(f"left at {NOW}",))
    refused = "refused: CheckpointError: no such file; tried again soon; its last look, "
    assert served.policy.condition == f"{refused}5 s ago, decides"
    served.clock.now += MAX_AGE_SECONDS
    answer = served.answer()
    assert answer.reasons[0] is Reason.POLICY_ERROR
    assert answer.notes[0] == "policy gnn was refused, CheckpointError: no such file: plain decided"
    assert served.policy.condition == f"{refused}65 s ago, is too old: plain decides"


def test_a_decision_carries_the_version_of_the_prices_that_answered(served: Served) -> None:
    assert served.decision().policy_version == "v1"
    served.policy.disconnect()
    served.start("v2")
    decision = served.decision()
    assert (decision.policy_version, decision.notes[0]) == ("v1", f"left at {NOW}")
    served.clock.now += 1.0
    served.look()
    decision = served.decision()
    assert (decision.policy_version, decision.notes[0]) == ("v2", f"left at {NOW + 1.0}")


def test_before_the_first_look_the_version_is_what_is_loaded() -> None:
    policy = RemotePolicy("gnn", Baseline(), timeout_seconds=0.001, max_age_seconds=60.0)
    assert (policy.version, policy.condition) == (NOT_LOADED, "loading")
    policy.loaded("v1")
    assert (policy.version, policy.condition) == ("v1", "loading")
