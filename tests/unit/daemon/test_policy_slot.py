"""Which policy answers, as configurations and processes come and go."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from policy_parts import NODE, PARTITION, complete, question_pair, snapshot

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.decide import create_decider
from slurm_energy.daemon.ipc.frames import (
    PolicyAtSnapshot,
    PolicyLoaded,
    PolicyRefused,
    SnapshotBegins,
    SnapshotPart,
)
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.policy.slot import PolicyChild, PolicySlot
from slurm_energy.daemon.recorder.entries import JournalQueue
from slurm_energy.daemon.recorder.journal import JournalWriter
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.daemon.state import DaemonState


class Desk:
    """A slot whose processes are never started."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.state = DaemonState(
            config=config,
            decider=create_decider(config),
            journal=JournalQueue(JournalWriter(directory, "daemon")),
            recorder=None,  # type: ignore[arg-type]  # nobody asks it
            privileged=frozenset(),
        )
        copy = SnapshotCopy()
        for frame in (SnapshotBegins(), SnapshotPart(partitions=(PARTITION,), nodes=(NODE,)), complete(1.0)):
            copy.take(frame)
        self.slot = PolicySlot(self.state, copy)

    def use(self, config: Config) -> None:
        """Reload."""
        self.state.config = config
        self.slot.use(config, create_decider(config))

    @property
    def live(self) -> tuple[str, str]:
        policy = self.state.decider.policy
        return policy.name, policy.version

    @property
    def candidate(self) -> PolicyChild:
        assert self.slot._candidate is not None
        return self.slot._candidate


def become_ready(child: PolicyChild, version: str) -> None:
    ours, _theirs = question_pair()
    child.connect(ours)
    child.receive(PolicyLoaded(name="gnn", version=version, seconds=0.1))
    child.receive(PolicyAtSnapshot(taken_at_seconds=1.0, seconds=0.1))


def with_policy(name: str = "gnn", **settings: Any) -> Config:
    return replace(Config(), policy=PolicyConfig(name=name, **settings))


A, B = with_policy(checkpoint="/a"), with_policy(checkpoint="/b")


def test_a_learned_policy_is_live_from_the_start_and_the_baseline_answers_for_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    policy = desk.state.decider.policy
    assert isinstance(policy, RemotePolicy)
    assert (desk.live, desk.state.policy_process) == (("gnn", "not-loaded"), "loading")
    for _ in desk.state.decider.rehearse(snapshot()):
        pass
    assert desk.state.counters == {}, "a rehearsal asks the baseline, not the process"


def test_a_policy_without_a_process_has_no_condition(tmp_path: Path) -> None:
    assert Desk(tmp_path, with_policy("oracle")).state.policy_process is None


@pytest.mark.parametrize("first", [with_policy("oracle"), A])
def test_the_old_policy_answers_until_the_new_one_is_ready(tmp_path: Path, first: Config) -> None:
    desk = Desk(tmp_path, first)

    async def play() -> None:
        before = desk.live
        desk.use(B)
        assert desk.live == before
        desk.candidate.receive(PolicyLoaded(name="gnn", version="b", seconds=0.1))
        assert desk.live == before
        become_ready(desk.candidate, "b")

    asyncio.run(play())
    assert (desk.live, desk.state.policy_process) == (("gnn", "b"), "ready")
    assert desk.slot._candidate is None


def test_a_new_policy_that_is_refused_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(tmp_path, A)

    async def play() -> None:
        assert desk.slot._live is not None
        become_ready(desk.slot._live, "a")
        desk.use(B)
        desk.candidate.receive(PolicyRefused(reason="CheckpointError: bad weights"))

    asyncio.run(play())
    assert (desk.live, desk.slot._candidate) == (("gnn", "a"), None)
    assert "new policy refused, the old one stays name=gnn checkpoint=/b reason=CheckpointError: bad" in caplog.text


def test_a_reload_without_another_policy_keeps_its_process_and_takes_the_new_guard(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    policy, child, guard = desk.state.decider.policy, desk.slot._live, desk.state.decider._guard
    desk.use(replace(A, guard=replace(A.guard, min_energy_saving=0.5)))
    assert (desk.state.decider.policy, desk.slot._live, desk.slot._candidate) == (policy, child, None)
    assert desk.state.decider._guard is not guard


def test_a_reload_lets_a_live_policy_that_is_held_back_try_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    live = desk.slot._live
    assert live is not None

    async def play() -> None:
        await live.before_start()
        live.receive(PolicyRefused(reason="CheckpointError: bad weights", by_checkpoint=True))
        desk.use(A)
        async with asyncio.timeout(5.0):
            await live.before_start()

    asyncio.run(play())
    assert desk.slot._live is live


def test_a_second_reload_of_the_same_does_not_begin_anew(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    desk.use(B)
    candidate = desk.candidate
    desk.use(B)
    assert desk.candidate is candidate


def test_a_reload_back_to_the_old_policy_stops_the_new_one(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    live = desk.slot._live
    desk.use(B)
    desk.use(A)
    assert (desk.slot._live, desk.slot._candidate) == (live, None)


def test_a_policy_without_a_process_takes_over_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)
    desk.use(B)
    desk.use(with_policy("oracle"))
    assert (desk.live, desk.slot._live, desk.slot._candidate) == (("oracle", "1"), None, None)


def test_late_news_of_a_retired_process_changes_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path, with_policy("oracle"))

    async def play() -> None:
        desk.use(B)
        candidate = desk.candidate
        desk.use(with_policy("slurm-default"))
        become_ready(candidate, "b")

    asyncio.run(play())
    assert desk.live == ("slurm-default", "1")


def test_every_process_gets_the_snapshots(tmp_path: Path) -> None:
    desk = Desk(tmp_path, A)

    async def play() -> tuple[int, int]:
        assert desk.slot._live is not None
        desk.use(B)
        for child in (desk.slot._live, desk.candidate):
            ours, _theirs = question_pair()
            child.connect(ours)
        desk.slot.forward(complete(2.0))
        return len(desk.slot._live._waiting or ()), len(desk.candidate._waiting or ())

    assert asyncio.run(play()) == (1, 1)
