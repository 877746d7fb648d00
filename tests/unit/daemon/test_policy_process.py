"""The policy child's loop: questions first, snapshots in steps, and nothing that the policy does ends it."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from policy_parts import CASE, NODE, PARTITION, DetachablePolicy, SteppedPolicy, complete, question_pair

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.channel import number_of, pack, pack_numbered, receive, unpack_numbered
from slurm_energy.daemon.ipc.frames import (
    PolicyAtSnapshot,
    PolicyLoaded,
    PolicyQuestion,
    PolicyRefused,
    PolicyReply,
    SnapshotBegins,
    SnapshotPart,
)
from slurm_energy.daemon.policy.process import PolicyLoop
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.errors import PolicyError


class Child:
    """A loop in this process, with the daemon's ends in the test's hand."""

    def __init__(self, policy: Any = None) -> None:
        self.frames, theirs = socket.socketpair()
        self.questions, asked = question_pair()
        self.theirs = (theirs, asked)
        self.policy = SteppedPolicy() if policy is None else policy
        self.loop = PolicyLoop(Config(), theirs, asked, lambda config: self.policy)
        for ours in (self.frames, self.questions):
            ours.settimeout(5.0)

    def loaded(self) -> "Child":
        self.loop.load()
        frame = receive(self.frames)
        assert isinstance(frame, PolicyLoaded)
        assert (frame.name, frame.version) == (self.policy.name, self.policy.version)
        return self

    def give(self, *frames: object) -> None:
        for frame in frames:
            self.frames.sendall(pack(frame))

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.turn()

    def until_told(self) -> PolicyAtSnapshot:
        """Turn until the child tells of a snapshot."""
        self.frames.setblocking(False)
        for _ in range(100):
            self.loop.turn()
            try:
                self.frames.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            self.frames.settimeout(5.0)
            told = receive(self.frames)
            assert isinstance(told, PolicyAtSnapshot)
            return told
        raise AssertionError("nothing told within 100 turns")

    def ask(self, number: int) -> None:
        self.questions.send(pack_numbered(number, PolicyQuestion.of(CASE)))

    def answered(self) -> tuple[int, PolicyReply]:
        message = self.questions.recv(1 << 20)
        reply = unpack_numbered(message)
        assert isinstance(reply, PolicyReply)
        return number_of(message), reply

    def close(self) -> None:
        for end in (self.frames, self.questions, *self.theirs):
            end.close()


@pytest.fixture
def given_way(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where it is noted that the process gives way; this one keeps its rank."""
    noted: list[str] = []
    monkeypatch.setattr("slurm_energy.daemon.policy.process.give_way", lambda: noted.append("gave way"))
    return noted


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child().loaded()
    yield made
    made.close()


FIRST = (SnapshotBegins(), SnapshotPart(partitions=(PARTITION,), nodes=(NODE,)))


def test_a_question_is_answered_from_the_snapshot_that_the_policy_is_at(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    assert child.until_told().taken_at_seconds == 10.0
    child.ask(5)
    child.turns(1)
    number, reply = child.answered()
    assert number == 5
    assert reply == PolicyReply(answer=PolicyAnswer(notes=("at 10.0, given 10.0, job train",)), taken_at_seconds=10.0)


def test_the_first_decision_is_rehearsed_before_anybody_waits_for_it(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    assert child.policy.decided == [(0, 10.0)]
    child.give(complete(20.0))
    child.until_told()
    assert child.policy.decided == [(0, 10.0)]


def test_a_question_comes_between_two_steps_and_is_answered_from_before(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    child.give(complete(20.0))
    while child.policy.begun != [10.0, 20.0]:
        child.turns(1)
    child.ask(1)
    child.turns(1)
    assert child.answered()[1].taken_at_seconds == 10.0
    told = child.until_told()
    assert (told.taken_at_seconds, told.trouble) == (20.0, "")
    assert told.seconds >= 0.0
    child.ask(2)
    child.turns(1)
    assert child.answered()[1].taken_at_seconds == 20.0


def test_a_question_comes_before_parts_that_wait(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    child.give(*[SnapshotPart() for _ in range(50)])
    child.ask(1)
    child.turns(1)
    assert child.answered()[0] == 1


def test_half_a_frame_is_not_waited_for(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    frame = pack(complete(20.0))
    child.frames.sendall(frame[:-3])
    child.turns(1)
    child.ask(1)
    child.turns(1)
    assert child.answered()[1].taken_at_seconds == 10.0
    child.frames.sendall(frame[-3:])
    assert child.until_told().taken_at_seconds == 20.0


def test_of_several_snapshots_only_the_newest_is_worked_on(child: Child) -> None:
    child.give(*FIRST, complete(10.0), complete(20.0), complete(30.0))
    assert child.until_told().taken_at_seconds == 30.0
    assert child.policy.begun == [30.0]


def test_of_several_questions_only_the_newest_is_answered(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    for number in (1, 2, 3):
        child.ask(number)
    child.turns(1)
    assert child.answered()[0] == 3
    child.questions.setblocking(False)
    with pytest.raises(BlockingIOError):
        child.questions.recv(1)


def test_without_a_snapshot_there_is_no_answer(child: Child) -> None:
    child.ask(1)
    child.turns(1)
    assert child.answered()[1] == PolicyReply(answer=None, error="it has no snapshot yet")


def test_a_policy_that_cannot_follow_goes_on_from_the_snapshot_before(child: Child) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    child.policy.fail_at = 20.0
    child.give(complete(20.0))
    told = child.until_told()
    assert (told.taken_at_seconds, told.trouble) == (20.0, "ValueError: a row is missing")
    child.ask(1)
    child.turns(1)
    assert child.answered()[1].taken_at_seconds == 10.0
    child.give(complete(30.0))
    assert child.until_told().trouble == ""


def test_a_policy_that_cannot_take_its_first_snapshot_is_refused(child: Child) -> None:
    child.policy.fail_at = 10.0
    child.give(*FIRST, complete(10.0))
    with pytest.raises(PolicyError, match="a row is missing"):
        child.turns(100)
    assert receive(child.frames) == PolicyRefused(reason="ValueError: a row is missing")


def test_a_policy_that_cannot_be_made_is_refused() -> None:
    child = Child()

    def fail(config: Config) -> Any:
        raise OSError("the disk is gone")

    child.loop = PolicyLoop(Config(), *child.theirs, fail)
    with pytest.raises(PolicyError, match="the disk is gone"):
        child.loop.load()
    assert receive(child.frames) == PolicyRefused(reason="OSError: the disk is gone")
    child.close()


def raising() -> PolicyAnswer:
    raise ZeroDivisionError("x" * 10_000)


@pytest.mark.parametrize(
    ("how", "error"),
    [
        (raising, "ZeroDivisionError: xxx"),
        (lambda: lambda: None, "pickle"),
        (lambda: PolicyAnswer(notes=("x" * 100_000,)), "bytes, at most 65536 are taken"),
    ],
)
def test_whatever_the_policy_does_there_is_a_short_answer(child: Child, how: Any, error: str) -> None:
    child.give(*FIRST, complete(10.0))
    child.until_told()
    child.policy.decide_how = how
    child.ask(1)
    child.turns(1)
    number, reply = child.answered()
    assert (number, reply.answer) == (1, None)
    assert error in reply.error
    assert len(reply.error) < 300


def test_a_policy_without_warm_up_follows_at_once() -> None:
    class Plain:
        name = version = "plain"

        def decide(self, *given: object) -> PolicyAnswer:
            return PolicyAnswer()

    child = Child(Plain()).loaded()
    child.give(*FIRST, complete(10.0))
    assert child.until_told().taken_at_seconds == 10.0
    child.close()


def test_a_policy_that_warms_up_at_once_is_given_every_snapshot() -> None:
    class AtOnce(SteppedPolicy):
        warm_up_steps = None  # type: ignore[assignment]  # it has none

        def warm_up(self, snapshot: Any) -> None:
            self.at = snapshot.taken_at_seconds
            assert [node.name for node in snapshot.nodes] == ["n1"]

    child = Child(AtOnce()).loaded()
    child.give(*FIRST, complete(10.0))
    child.until_told()
    assert child.policy.at == 10.0
    child.close()


@pytest.mark.parametrize("which", [0, 1])
def test_it_ends_with_the_daemon(child: Child, which: int) -> None:
    (child.frames, child.questions)[which].close()
    with pytest.raises(EOFError):
        child.turns(10)


def detachable(how: str = "") -> Child:
    policy = DetachablePolicy()
    policy.how = how
    return Child(policy).loaded()


def test_a_policy_that_can_be_detached_is_told_at_each_snapshot(given_way: list[str]) -> None:
    child = detachable()
    child.give(*FIRST, complete(10.0))
    told = child.until_told()
    assert told.detached is not None
    assert unpack_numbered(told.detached).at == 10.0
    child.give(complete(20.0))
    again = child.until_told()
    assert again.detached is not None
    assert unpack_numbered(again.detached).at == 20.0
    assert len(given_way) == 2, "nobody waits for the process any more"
    child.close()


@pytest.mark.usefixtures("given_way")
def test_a_policy_that_follows_no_snapshot_leaves_the_one_detached_before() -> None:
    child = detachable()
    child.give(*FIRST, complete(10.0))
    child.until_told()
    child.policy.fail_at = 20.0
    child.give(complete(20.0))
    told = child.until_told()
    assert (told.detached, told.trouble) == (None, "ValueError: a row is missing")
    child.close()


@pytest.mark.usefixtures("given_way")
def test_a_policy_that_cannot_be_detached_after_all_is_in_trouble() -> None:
    child = detachable()
    child.give(*FIRST, complete(10.0))
    child.until_told()
    assert isinstance(child.policy, DetachablePolicy)
    child.policy.how = "cannot be detached"
    child.give(complete(20.0))
    assert child.until_told().trouble == "ValueError: not now"
    child.close()


def test_one_that_cannot_be_detached_keeps_its_rank_since_it_is_asked(child: Child, given_way: list[str]) -> None:
    child.give(*FIRST, complete(10.0))
    assert child.until_told().detached is None
    assert given_way == []
