"""Asking a policy in another process: an answer in time, or the baseline's with the reason for it."""

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from policy_parts import CASE, JOB, NOW, Baseline, Clock, LeftBehind, answer, question_pair, snapshot

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.ipc.channel import number_of, pack_numbered, unpack_numbered
from slurm_energy.daemon.ipc.frames import PolicyQuestion, PolicyReply
from slurm_energy.daemon.policy.remote import (
    BREAKER_FAILURES,
    BREAKER_SECONDS,
    MAX_REPLY_BYTES,
    NOT_LOADED,
    QuestionLine,
    RemotePolicy,
    remote_policy,
)
from slurm_energy.domain.decision import PolicyAnswer, Reason
from slurm_energy.domain.job import JobRequest
from slurm_energy.policy.guard import Guard

LIMIT_SECONDS = 0.005
BY_RULE = PolicyAnswer(reasons=(Reason.NO_IDLE_PARTITION,), notes=("by rule",))


class Asked:
    """A remote policy with the other end of its line in the test's hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.policy = RemotePolicy(
            "gnn", Baseline(), timeout_seconds=LIMIT_SECONDS, max_age_seconds=60.0, clock=self.clock
        )
        ours, self.other = question_pair()
        self.policy.connect(ours)
        self.policy.loaded("v1")
        self.policy.at_snapshot()

    def decide(self, job: JobRequest = JOB) -> PolicyAnswer:
        return self.policy.decide(replace(CASE, job=job))

    def answers(self, number: int, reply: object) -> None:
        """Answer the question of that number, which may be yet to come."""
        self.other.send(pack_numbered(number, reply))

    def replies(self, number: int) -> None:
        self.answers(number, PolicyReply(answer=answer(), taken_at_seconds=NOW - 1.0))

    def questions(self) -> list[tuple[int, PolicyQuestion]]:
        """Return what has been asked since the last look."""
        self.other.setblocking(False)
        found: list[tuple[int, PolicyQuestion]] = []
        try:
            while message := self.other.recv(1 << 20):
                found.append((number_of(message), unpack_numbered(message)))
        except BlockingIOError:
            pass
        return found


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.policy.disconnect()
    made.other.close()


def by_baseline(reason: Reason, note: str) -> PolicyAnswer:
    return replace(BY_RULE, reasons=(reason, *BY_RULE.reasons), notes=(f"{note}: plain decided", *BY_RULE.notes))


def test_an_answer_in_time_is_taken_as_it_is(asked: Asked) -> None:
    asked.replies(1)
    assert asked.decide() == answer()
    assert asked.questions() == [(1, PolicyQuestion.of(CASE))]
    assert (asked.policy.version, asked.policy.condition) == ("v1", "ready")


def test_without_an_answer_the_baseline_decides_when_the_time_is_over(asked: Asked) -> None:
    began = time.monotonic()
    decided = asked.decide()
    assert time.monotonic() - began >= LIMIT_SECONDS
    assert decided == by_baseline(Reason.POLICY_TIMEOUT, "policy gnn gave no answer within 5 ms")
    assert asked.policy.counters == {"policy timeouts": 1, "policy baseline answers": 1}


def test_late_answers_are_dropped_and_the_right_one_is_found_behind_them(asked: Asked) -> None:
    asked.decide()
    asked.answers(1, PolicyReply(answer=answer("too late"), taken_at_seconds=NOW))
    asked.replies(2)
    assert asked.decide().notes == ("from afar",)
    asked.replies(2)
    assert asked.decide().reasons[0] is Reason.POLICY_TIMEOUT


def test_after_three_late_answers_it_is_left_in_peace_for_a_while(asked: Asked) -> None:
    for _ in range(BREAKER_FAILURES):
        asked.decide()
    assert [number for number, _ in asked.questions()] == [1, 2, 3]
    for _ in range(50):
        decided = asked.decide()
    assert asked.questions() == [], "whoever is not asked is not waited for"
    assert decided == by_baseline(Reason.POLICY_TIMEOUT, "policy gnn does not answer at present")
    assert (asked.questions(), asked.policy.condition) == ([], "not answering")
    asked.clock.now += BREAKER_SECONDS + 0.1
    asked.decide()
    asked.decide()
    assert [number for number, _ in asked.questions()] == [4], "one try, then peace again"
    asked.clock.now += BREAKER_SECONDS + 0.1
    asked.replies(5)
    assert asked.decide() == answer()
    asked.decide()
    asked.decide()
    assert [number for number, _ in asked.questions()] == [5, 6, 7], "an answer restores the trust"


def test_silence_is_counted_from_the_first_question_that_nobody_answered(asked: Asked) -> None:
    asked.decide()
    asked.clock.now += 31.0
    assert asked.policy.silent_seconds() == 31.0
    asked.replies(2)
    asked.decide()
    assert asked.policy.silent_seconds() == 0.0


def test_while_it_loads_it_is_not_asked() -> None:
    policy = RemotePolicy("gnn", Baseline(), timeout_seconds=LIMIT_SECONDS, max_age_seconds=60.0)
    loading = by_baseline(Reason.POLICY_LOADING, "policy gnn is not ready yet")
    assert policy.decide(CASE) == loading
    ours, other = question_pair()
    policy.connect(ours)
    policy.loaded("v1")
    assert policy.decide(CASE) == loading
    other.setblocking(False)
    with other, pytest.raises(BlockingIOError):
        other.recv(1)
    policy.disconnect()
    assert (policy.condition, policy.version) == ("loading", "v1")


def test_a_refused_one_says_why() -> None:
    policy = RemotePolicy("gnn", Baseline(), timeout_seconds=LIMIT_SECONDS, max_age_seconds=60.0)
    policy.refused("no such file")
    assert policy.decide(CASE) == by_baseline(Reason.POLICY_ERROR, "policy gnn was refused, no such file")
    assert policy.condition == "refused: no such file"


def test_an_error_of_the_policy_lets_the_baseline_decide(asked: Asked) -> None:
    asked.answers(1, PolicyReply(answer=None, error="ValueError: no row", taken_at_seconds=NOW))
    assert asked.decide() == by_baseline(Reason.POLICY_ERROR, "policy gnn failed, ValueError: no row")


@pytest.mark.parametrize("taken_at", [None, NOW - 60.5])
def test_an_answer_from_an_old_picture_is_not_used(asked: Asked, taken_at: float | None) -> None:
    asked.answers(1, PolicyReply(answer=answer(), taken_at_seconds=taken_at))
    assert asked.decide() == by_baseline(Reason.STALE_SNAPSHOT, "policy gnn sees an old snapshot of the cluster")


def test_a_process_that_has_gone_costs_nothing(asked: Asked) -> None:
    asked.other.close()
    assert asked.decide().reasons[0] is Reason.POLICY_ERROR
    assert asked.decide().reasons[0] is Reason.POLICY_LOADING


@pytest.mark.parametrize(
    "message",
    [
        b"short",
        pack_numbered(1, "a text"),
        pack_numbered(1, None)[:-1],
        pack_numbered(1, None)[:8] + b"\x80\x05nonsense",
        pack_numbered(1, None)[:8] + b"cno_such_module\nname\n.",
        pack_numbered(1, "x" * MAX_REPLY_BYTES),
    ],
)
def test_nonsense_from_the_process_ends_the_line_and_nothing_else(asked: Asked, message: bytes) -> None:
    asked.other.send(message)
    assert asked.decide().reasons[0] is Reason.POLICY_ERROR
    assert not asked.policy.ready


def test_a_process_that_reads_nothing_holds_nobody_up(asked: Asked) -> None:
    ours, other = question_pair()
    line = QuestionLine(ours)
    with other:
        for _ in range(2000):
            assert line.ask(PolicyQuestion.of(CASE), 0.0001) is None
    line.close()


def test_a_question_too_large_for_the_socket_leaves_the_line_as_it_is(asked: Asked) -> None:
    asked.replies(2)
    huge = replace(JOB, name="x" * 4_000_000)
    assert asked.decide(huge).reasons[0] is Reason.POLICY_ERROR
    assert asked.decide() == answer()


def test_notes_from_the_process_are_made_plain_by_the_guard(asked: Asked) -> None:
    config = Config()
    note = "\x1b[31mred\nline" + "x" * 1000
    asked.answers(1, PolicyReply(answer=answer(note), taken_at_seconds=NOW - 1.0))
    decision = Guard(config).decide(asked.policy, JOB, snapshot(), NOW)
    assert (decision.policy, decision.policy_version) == ("gnn", "v1")
    assert decision.notes[0] == "?[31mred?line" + "x" * (200 - len("?[31mred?line"))
    assert Reason.POLICY in decision.reasons


def test_the_guard_keeps_the_reason_why_the_baseline_decided(asked: Asked) -> None:
    decision = Guard(Config()).decide(asked.policy, JOB, snapshot(), NOW)
    assert decision.reasons[0] is Reason.POLICY_TIMEOUT
    assert Reason.POLICY not in decision.reasons


@pytest.mark.parametrize("name", ["oracle", "fixed-clock", "slurm-default"])
def test_the_baseline_is_the_one_that_the_site_names(name: str) -> None:
    config = replace(Config(), policy=PolicyConfig(name="gnn", checkpoint="/x", baseline=name))  # type: ignore[arg-type]  # each is one of the allowed
    policy = remote_policy(config)
    assert (policy.name, policy.version, policy.baseline.name) == ("gnn", NOT_LOADED, name)


def test_what_travels_is_as_it_was() -> None:
    question = PolicyQuestion.of(CASE)
    assert unpack_numbered(pack_numbered(2**63, question)) == question
    assert number_of(pack_numbered(2**63, question)) == 2**63
    assert pickle.loads(pickle.dumps(answer())) == answer()


def left_behind(asked: Asked, how: str = "", taken_at: float | None = NOW - 1.0) -> None:
    """Let the process tell a policy that answers without it."""
    asked.policy.at_snapshot(pack_numbered(0, LeftBehind(5.0, how)), taken_at)


def test_a_detached_policy_answers_here_and_its_process_is_not_asked(asked: Asked) -> None:
    left_behind(asked)
    assert asked.decide() == PolicyAnswer(notes=("left at 5.0",))
    assert asked.questions() == []
    assert asked.policy.counters == {"policy answers": 1}
    assert asked.policy.silent_seconds() == 0.0
    assert isinstance(asked.policy.answering_here, LeftBehind)


def test_a_detached_policy_goes_on_while_its_process_is_started_again(asked: Asked) -> None:
    left_behind(asked)
    asked.policy.disconnect()
    assert not asked.policy.ready
    assert asked.decide() == PolicyAnswer(notes=("left at 5.0",))


@pytest.mark.parametrize("taken_at", [None, NOW - 60.5])
def test_a_detached_policy_with_an_old_picture_does_not_answer(asked: Asked, taken_at: float | None) -> None:
    left_behind(asked, taken_at=taken_at)
    assert asked.decide() == by_baseline(Reason.STALE_SNAPSHOT, "policy gnn sees an old snapshot of the cluster")


def test_an_error_of_a_detached_policy_lets_the_baseline_decide(asked: Asked) -> None:
    left_behind(asked, "fails")
    assert asked.decide() == by_baseline(Reason.POLICY_ERROR, "policy gnn failed, ValueError: a row is missing")
    assert asked.policy.counters == {"policy errors": 1, "policy baseline answers": 1}


@pytest.mark.parametrize("packed", [pack_numbered(0, LeftBehind(5.0, "cannot be unpacked")), b"nonsense", b""])
def test_what_cannot_be_unpacked_leaves_the_process_to_be_asked(asked: Asked, packed: bytes) -> None:
    asked.policy.at_snapshot(packed, NOW - 1.0)
    asked.replies(1)
    assert asked.decide() == answer()
    assert asked.policy.counters["policy errors"] == 1


def test_a_snapshot_without_a_detached_policy_ends_the_one_before(asked: Asked) -> None:
    left_behind(asked)
    asked.policy.at_snapshot()
    asked.replies(1)
    assert asked.decide() == answer()
