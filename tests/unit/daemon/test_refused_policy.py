"""A checkpoint that was refused is not loaded again and again: only with other files, or at a reload."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from policy_parts import Baseline, question_pair
from test_policy_child import AT_SNAPSHOT, LOADED, FakeProcess
from test_policy_process import Child

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.ipc.channel import receive
from slurm_energy.daemon.ipc.frames import PolicyRefused
from slurm_energy.daemon.policy import slot
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.daemon.policy.slot import PolicyChild
from slurm_energy.daemon.snapshot.feed import SnapshotCopy
from slurm_energy.errors import CheckpointError, PolicyError
from slurm_energy.policy.checkpoint_files import WEIGHTS_FILE

REFUSED = PolicyRefused(reason="CheckpointError: bad weights", by_checkpoint=True)
PATIENCE_SECONDS = 5.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(slot, "FILES_LOOK_SECONDS", 0.001)
    (tmp_path / WEIGHTS_FILE).write_bytes(b"bad")
    return tmp_path


def child_of(folder: Path) -> PolicyChild:
    config = replace(Config(), policy=PolicyConfig(name="gnn", checkpoint=str(folder)))
    policy = RemotePolicy("gnn", Baseline(), timeout_seconds=0.001, max_age_seconds=60.0)
    return PolicyChild(config, policy, SnapshotCopy(), lambda _child: None, lambda _child: FakeProcess())


async def is_held_back(child: PolicyChild) -> bool:
    """Return whether the next start waits."""
    task = asyncio.create_task(child.before_start())
    done, _ = await asyncio.wait([task], timeout=0.05)
    task.cancel()
    return not done


async def start_and_hear(child: PolicyChild, *frames: object) -> None:
    await child.before_start()
    ours, _theirs = question_pair()
    child.connect(ours)
    for frame in frames:
        child.receive(frame)
    child.connect(None)


def test_a_refused_checkpoint_is_not_loaded_again_as_it_is(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = child_of(folder)

    async def play() -> None:
        await start_and_hear(child, REFUSED)
        assert await is_held_back(child)

    asyncio.run(play())
    assert f"policy not started again before other files or a reload checkpoint={folder}" in caplog.text
    assert child.policy.condition == (
        "refused: CheckpointError: bad weights; tried again with other files or at a reload"
    )


def write_anew(folder: Path, _child: PolicyChild) -> None:
    (folder / WEIGHTS_FILE).write_bytes(b"good ones")


def remove(folder: Path, _child: PolicyChild) -> None:
    (folder / WEIGHTS_FILE).unlink()


def reload(_folder: Path, child: PolicyChild) -> None:
    child.try_again()


@pytest.mark.parametrize("event", [write_anew, remove, reload])
def test_other_files_or_a_reload_let_it_start_again(folder: Path, event: Callable[[Path, PolicyChild], None]) -> None:
    child = child_of(folder)

    async def play() -> None:
        await start_and_hear(child, REFUSED)
        waits = asyncio.create_task(child.before_start())
        await asyncio.wait([waits], timeout=0.02)
        assert not waits.done()
        event(folder, child)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await waits
        assert not await is_held_back(child), "it has not been refused since"

    asyncio.run(play())


def test_files_that_change_while_they_are_loaded_are_tried_again(folder: Path) -> None:
    child = child_of(folder)

    async def play() -> None:
        await child.before_start()
        write_anew(folder, child)
        child.receive(REFUSED)
        assert not await is_held_back(child)

    asyncio.run(play())


@pytest.mark.parametrize("frames", [(), (LOADED, AT_SNAPSHOT), (PolicyRefused(reason="PolicyError: not finite"),)])
def test_one_that_ends_for_another_reason_is_started_again(folder: Path, frames: tuple[object, ...]) -> None:
    child = child_of(folder)

    async def play() -> None:
        await start_and_hear(child, *frames)
        assert not await is_held_back(child)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "by_checkpoint"), [(CheckpointError("bad weights"), True), (PolicyError("no torch"), False)]
)
def test_the_process_says_whether_the_checkpoint_is_at_fault(error: Exception, by_checkpoint: bool) -> None:
    child = Child()

    def fail(_config: Config) -> None:
        raise error

    child.loop._policy_factory = fail  # type: ignore[assignment]  # it makes nothing
    with pytest.raises(PolicyError):
        child.loop.load()
    assert receive(child.frames) == PolicyRefused(
        reason=f"{type(error).__name__}: {error}", by_checkpoint=by_checkpoint
    )
    child.close()
