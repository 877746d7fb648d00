"""`slurm-energy train` in a process of its own: an end by Ctrl-C that is no loss, and a bar on a terminal."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_learner
import torch

from slurm_energy.cli.main import main
from slurm_energy.learning import round_training
from slurm_energy.learning.algorithms import ALGORITHMS
from slurm_energy.learning.collectors import InOrder
from slurm_energy.policy.gnn.checkpoint import read_checkpoint

NETWORK = """
hidden = 12
heads = 3
device_layers = 1
task_layers = 1
top_layers = 1
chebyshev_order = 2
pooled_vertices = 1
quantiles = 4
"""
MAIN = """
import sys
from slurm_energy.learning import round_training
from slurm_energy.learning.algorithms import ALGORITHMS
from slurm_energy.learning.collectors import InOrder
from slurm_energy.cli.main import main
import tiny_learner
ALGORITHMS["tiny"] = tiny_learner.ALGORITHM
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ALGORITHMS, "tiny", tiny_learner.ALGORITHM)
    path = tmp_path / "train.toml"
    path.write_text(
        f'[training]\nalgorithm = "tiny"\nworld = "lab"\nrounds = 4\nsave_every_rounds = 50\n[network]{NETWORK}'
    )
    return path


def command(words: list[str], stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "train", *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
        start_new_session=True,
    )


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 240.0
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_interrupted_says_how_to_go_on_and_ends_as_one_that_was_not(
    number: signal.Signals, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(config.read_text() + "[episodes]\npause_seconds = 0.3\n")
    made, whole = tmp_path / "made", tmp_path / "whole"
    words = ["--config", str(config), "--collectors", "2", "--rounds", "5"]
    with command([*words, "--output", str(made)]) as running:
        wait_until(lambda: (made / "log.csv").exists() and len((made / "log.csv").read_text().splitlines()) > 2)
        os.killpg(running.pid, number)  # as the terminal and Slurm do: every process gets it
        out, err = running.communicate(timeout=240.0)
    assert (running.returncode, out) == (130, "")
    assert f"resume with: slurm-energy train --resume {made}\n" in err
    assert "Traceback" not in err
    monkeypatch.setattr(
        round_training, "create_episode_runner", lambda collector, _: InOrder(collector)
    )  # the same, and faster
    assert main(["train", "--resume", str(made)]) == 0
    assert main(["train", *words, "--output", str(whole)]) == 0
    mine, theirs = (read_checkpoint(folder / "last").tensors for folder in (made, whole))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def test_on_a_terminal_a_bar_goes_through_the_rounds(config: Path, tmp_path: Path) -> None:
    ours, its = pty.openpty()
    words = ["--config", str(config), "--rounds", "3", "--output", str(tmp_path / "made")]
    with command(words, stderr=its) as running:
        os.close(its)
        shown = bytearray()
        with suppress(OSError):  # what a terminal says that nobody writes to any more
            while part := os.read(ours, 4096):
                shown += part
        out, _ = running.communicate(timeout=240.0)
    os.close(ours)
    text = shown.decode()
    assert running.returncode == 0 and "checkpoint" in out
    assert "━" in text and "0/3" in text and "3/3" in text and "score=" in text
    assert "round 1/3" not in text
