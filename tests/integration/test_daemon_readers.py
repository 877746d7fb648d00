"""A pyslurm that crashes, or that was made for another Slurm, costs no snapshot: Slurm's commands are read."""

import os
from pathlib import Path

import pytest
from daemon_support import RunningDaemon, running_daemon, wait_until

PYSLURM = """
import os, signal
from types import SimpleNamespace

class RPCError(Exception):
    pass

def load():
    open({mark!r}, "a").write("x")
    os.kill(os.getpid(), signal.{signal})

Jobs = Nodes = Partitions = SimpleNamespace(load=load)
"""


@pytest.fixture
def pyslurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a daemon find a pyslurm 25.11.2 that crashes; return the folder of its distribution."""
    folder = tmp_path / "packages"
    distribution = folder / "pyslurm-25.11.2.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    (folder / "pyslurm.py").write_text(PYSLURM.format(mark=str(tmp_path / "read"), signal="SIGSEGV"))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    monkeypatch.setenv("SLURM_ENERGY_CLUSTER_READER", "pyslurm")
    return distribution


def note(daemon: RunningDaemon) -> str:
    status = daemon.query("status")["daemon"]
    assert status["snapshot_nodes"] == 2
    return str(status["reader_note"])


def test_a_reader_that_crashes_is_left_for_slurms_commands_and_named(pyslurm: Path, tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert note(daemon).startswith("pyslurm crashed (SIGSEGV)")
        assert (tmp_path / "read").read_text() == "x", "it was asked once"
        calls = daemon.slurm.calls("squeue")
        wait_until(lambda: daemon.slurm.calls("squeue") > calls, "another reading", daemon)
        assert daemon.decide().verb == "ok"


def test_a_reader_that_was_made_for_another_slurm_is_not_called_at_all(pyslurm: Path, tmp_path: Path) -> None:
    (pyslurm / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 26.5.0\n")
    with running_daemon(tmp_path) as daemon:
        assert "pyslurm 26.5.0 is not made for this Slurm (slurm 25.11.2)" in note(daemon)
        assert not (tmp_path / "read").exists()


def test_a_reader_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ENERGY_CLUSTER_READER", "pyslurm")
    with running_daemon(tmp_path) as daemon:
        assert note(daemon).startswith("pyslurm is not installed")
