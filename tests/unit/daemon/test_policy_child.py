"""A learned policy's process as the daemon sees it: fed, listened to, started again when it hangs."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from policy_parts import CASE, NODE, NOW, PARTITION, Baseline, Clock, complete, question_pair

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.ipc.frames import (
    PolicyAtSnapshot,
    PolicyLoaded,
    PolicyRefused,
    SnapshotBegins,
    SnapshotComplete,
    SnapshotPart,
)
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.policy.slot import (
    LOADING_SECONDS,
    MAX_BACKLOG_BYTES,
    MAX_STARTS,
    MAX_WAITING_FRAMES,
    SILENT_SECONDS,
    PolicyChild,
    policy_mark,
)
from slurm_energy.daemon.snapshot.feed import SnapshotCopy, SnapshotFrame

LOADED = PolicyLoaded(name="gnn", version="v1", seconds=0.1)
AT_SNAPSHOT = PolicyAtSnapshot(taken_at_seconds=NOW, seconds=0.1)


class FakeProcess:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.starts = 0
        self.backlog_bytes = 0
        self.sent: list[object] = []
        self.restarts = 0
        self.gone = False

    def send(self, frame: object) -> bool:
        self.sent.append(frame)
        return True

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self.gone:
            raise ConnectionResetError("gone")

    async def run(self) -> None:
        await asyncio.sleep(60)

    def restart(self) -> None:
        self.restarts += 1


class Desk:
    """A child without a process."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.process = FakeProcess()
        self.policy = RemotePolicy("gnn", Baseline(), timeout_seconds=0.001, max_age_seconds=60.0, clock=self.clock)
        self.copy = SnapshotCopy()
        self.heard: list[tuple[bool, str]] = []
        self.child = PolicyChild(
            Config(),
            self.policy,
            self.copy,
            lambda child: self.heard.append((child.policy.ready, child.refusal)),
            lambda child: self.process,
            self.clock,
        )
        for frame in (SnapshotBegins(), SnapshotPart(partitions=(PARTITION,), nodes=(NODE,)), complete(1.0)):
            self.copy.take(frame)

    def start(self) -> socket.socket:
        ours, theirs = question_pair()
        self.process.starts += 1
        self.child.connect(ours)
        return theirs

    async def ready(self) -> socket.socket:
        theirs = self.start()
        await rest()
        self.child.receive(LOADED)
        self.child.receive(AT_SNAPSHOT)
        return theirs

    def later(self, seconds: float) -> int:
        """Return how often the process has been restarted when it is looked after that much later."""
        self.clock.now += seconds
        self.child.look_after()
        return self.process.restarts


async def rest() -> None:
    """Let all tasks do what they can."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_new_process_gets_the_whole_copy_and_then_what_came_meanwhile() -> None:
    desk = Desk()

    async def play() -> None:
        desk.start()
        news: list[SnapshotFrame] = [SnapshotPart(nodes_gone=("n1",)), complete(2.0)]
        for frame in news:
            desk.copy.take(frame)
            desk.child.forward(frame)
        await rest()
        desk.child.forward(SnapshotPart(jobs_gone=(7,)))
        desk.child.stop()

    asyncio.run(play())
    assert desk.process.sent == [
        SnapshotBegins(),
        SnapshotPart(partitions=(PARTITION,)),
        SnapshotPart(nodes=(NODE,)),
        complete(1.0),
        SnapshotPart(nodes_gone=("n1",)),
        complete(2.0),
        SnapshotPart(jobs_gone=(7,)),
    ]


def test_a_process_that_dies_while_it_is_fed_is_fed_anew_when_it_is_back() -> None:
    desk = Desk()

    async def play() -> None:
        desk.start()
        desk.process.gone = True
        await rest()
        desk.child.connect(None)
        desk.process.gone, desk.process.sent = False, []
        desk.start()
        await rest()
        desk.child.stop()

    asyncio.run(play())
    assert (desk.process.sent[0], desk.process.sent[-1]) == (SnapshotBegins(), complete(1.0))


def test_it_is_ready_when_it_is_loaded_and_at_a_snapshot_and_no_more_when_it_ends() -> None:
    desk = Desk()

    async def play() -> None:
        await desk.ready()
        desk.child.connect(None)

    asyncio.run(play())
    assert desk.heard == [(False, ""), (True, ""), (False, "")]
    assert desk.policy.version == "v1"


def test_a_refusal_is_told_with_its_reason() -> None:
    desk = Desk()

    async def play() -> None:
        desk.start()
        desk.child.receive(PolicyRefused(reason="CheckpointError: no weights"))
        desk.child.connect(None)

    asyncio.run(play())
    assert desk.heard == [(False, "CheckpointError: no weights")] * 2
    assert desk.policy.condition == "refused: CheckpointError: no weights"


def test_a_process_that_always_ends_before_it_is_ready_is_given_up() -> None:
    desk = Desk()

    async def play() -> None:
        for _ in range(MAX_STARTS):
            desk.start()
            desk.child.connect(None)

    asyncio.run(play())
    assert desk.heard == [(False, "")] * (MAX_STARTS - 1) + [(False, "its process ended 3 times before it was ready")]


def test_a_process_that_was_ready_once_may_end_as_often_as_it_likes() -> None:
    desk = Desk()

    async def play() -> None:
        for _ in range(MAX_STARTS + 1):
            await desk.ready()
            desk.child.connect(None)

    asyncio.run(play())
    assert {refusal for _, refusal in desk.heard} == {""}


def test_one_that_does_not_load_is_started_again() -> None:
    desk = Desk()

    async def play() -> None:
        desk.start()
        await rest()
        assert desk.later(LOADING_SECONDS - 1.0) == 0
        assert desk.later(1.0) == 1
        assert desk.later(LOADING_SECONDS * 2) == 1, "it is on its way already"

    asyncio.run(play())


def test_one_that_says_nothing_about_snapshots_is_started_again() -> None:
    desk = Desk()

    async def play() -> None:
        await desk.ready()
        assert desk.later(SILENT_SECONDS * 10) == 0, "it was given none"
        desk.child.forward(complete(2.0))
        assert desk.later(SILENT_SECONDS - 1.0) == 0
        desk.child.forward(complete(3.0))
        desk.child.receive(AT_SNAPSHOT)
        assert desk.later(SILENT_SECONDS - 1.0) == 0
        desk.child.forward(complete(4.0))
        assert desk.later(SILENT_SECONDS) == 1
        assert not desk.policy.ready

    asyncio.run(play())


def test_one_that_loads_without_a_cluster_to_see_is_left_alone() -> None:
    desk = Desk()
    desk.copy.take(SnapshotBegins())

    async def play() -> None:
        desk.start()
        await rest()
        desk.child.receive(LOADED)
        assert desk.later(LOADING_SECONDS * 10) == 0
        desk.child.stop()

    asyncio.run(play())


def test_one_that_leaves_questions_unanswered_is_started_again() -> None:
    desk = Desk()

    async def play() -> None:
        theirs = await desk.ready()
        desk.policy.decide(CASE)
        assert desk.later(SILENT_SECONDS - 1.0) == 0
        assert desk.later(1.0) == 1
        theirs.close()

    asyncio.run(play())


def fill_queue(desk: Desk) -> None:
    for _ in range(MAX_WAITING_FRAMES + 1):
        desk.child.forward(SnapshotPart())


def fill_socket(desk: Desk) -> None:
    desk.process.backlog_bytes = MAX_BACKLOG_BYTES + 1


@pytest.mark.parametrize("fill", [fill_queue, fill_socket])
def test_one_that_takes_no_snapshots_does_not_fill_the_memory(fill: Callable[[Desk], None]) -> None:
    desk = Desk()

    async def play() -> None:
        desk.start()
        assert desk.later(0.0) == 0
        fill(desk)
        assert desk.later(0.0) == 1
        await rest()

    asyncio.run(play())
    assert not [frame for frame in desk.process.sent if isinstance(frame, SnapshotComplete)]


def test_trouble_with_a_snapshot_is_counted() -> None:
    desk = Desk()

    async def play() -> None:
        await desk.ready()
        desk.child.receive(replace(AT_SNAPSHOT, trouble="ValueError: no row"))

    asyncio.run(play())
    assert desk.policy.counters == {"policy snapshots failed": 1}


def test_the_mark_of_a_policy_changes_with_all_that_it_is_made_of(tmp_path: Path) -> None:
    config = Config()
    marks = [
        policy_mark(config),
        policy_mark(replace(config, policy=PolicyConfig(checkpoint="/other"))),
        policy_mark(replace(config, gpu_types={"big": "a40"})),
        policy_mark(replace(config, gpu_power_limits_watts={"a40": 250.0})),
        policy_mark(replace(config, daemon=replace(config.daemon, snapshot_max_age_seconds=5.0))),
    ]
    assert len({str(mark) for mark in marks}) == len(marks)
    assert policy_mark(replace(config, daemon=replace(config.daemon, log_level="DEBUG"))) == marks[0]
