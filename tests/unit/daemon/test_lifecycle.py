import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_energy.config import Config, DaemonConfig, PolicyConfig
from slurm_energy.daemon.lifecycle import EnergyDaemon, lock_state_directory, notify_systemd
from slurm_energy.daemon.policy.remote import RemotePolicy
from slurm_energy.errors import ConfigError, DaemonUnavailable
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.checkpoint_files import WEIGHTS_FILE


def config(directory: Path) -> Config:
    daemon = DaemonConfig(socket_path=f"{directory}/sock", state_directory=f"{directory}/state", report_host="")
    return replace(Config(), daemon=daemon)


def test_a_part_that_fails_stops_the_daemon_instead_of_leaving_half_of_it(tmp_path: Path) -> None:
    daemon = EnergyDaemon(config(tmp_path), reload=Config)

    async def fail() -> None:
        raise RuntimeError("a fault in the snapshot feed")

    async def wait() -> None:
        await asyncio.sleep(60)

    daemon._snapshot.run = fail  # type: ignore[method-assign]  # the part that fails
    daemon._recorder.run = wait  # type: ignore[method-assign]  # no process is needed here
    with pytest.raises(DaemonUnavailable, match="part of the daemon failed"):
        asyncio.run(asyncio.wait_for(daemon.run(), 20))
    assert not (tmp_path / "sock").exists()


def test_a_state_directory_belongs_to_one_daemon(tmp_path: Path) -> None:
    lock_state_directory(tmp_path)
    with pytest.raises(ConfigError, match="another daemon uses"):
        lock_state_directory(tmp_path)


def test_a_socket_path_that_is_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sock").write_text("somebody's file")
    with pytest.raises(ConfigError, match="is not a socket"):
        asyncio.run(EnergyDaemon(config(tmp_path), reload=Config).run())
    assert (tmp_path / "sock").read_text() == "somebody's file"


def test_a_reload_with_a_damaged_checkpoint_leaves_the_learned_policy_that_serves(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        shutil.copytree(shipped_folder(), folder)
    os.truncate(bad / WEIGHTS_FILE, 1000)
    first = replace(config(tmp_path), policy=PolicyConfig(checkpoint=str(good)))
    then = replace(first, policy=PolicyConfig(checkpoint=str(bad)))
    daemon = EnergyDaemon(first, reload=lambda: then)
    before = daemon.state.decider.policy
    daemon.reload()
    assert isinstance(before, RemotePolicy)
    assert daemon.state.decider.policy is before
    assert "the previous one stays" in daemon.state.policy_note


def test_an_absent_supervisor_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "")
    notify_systemd("READY=1")
