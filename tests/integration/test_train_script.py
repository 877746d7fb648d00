"""The batch script of a training: it begins one, goes on with one, and puts itself back into the queue."""

import os
import subprocess
from pathlib import Path

import pytest

from slurm_energy.reporting.templates import render

FAKE_SRUN = '#!/bin/sh\nprintf "%s\\n" "$@" > "$SAID/srun-said"\nexit "$CODE"\n'
FAKE_SLEEP = "#!/bin/sh\nexit 0\n"
FAKE_SCONTROL = '#!/bin/sh\nprintf "%s " "$@" > "$SAID/scontrol-said"\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL), ("sleep", FAKE_SLEEP)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = tmp_path / "train.sbatch"
    path.write_text(render("sbatch/train.sbatch.j2", {}))
    return path


def run(script: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    folder = script.parent
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SAID": str(folder),
        "CODE": str(code),
        "SLURM_JOB_ID": "42",
    }
    return subprocess.run(
        ["/bin/bash", str(script), *words], capture_output=True, text=True, env=environment, check=False
    )


def said(script: Path) -> list[str]:
    return (script.parent / "srun-said").read_text().splitlines()


def test_it_begins_a_training_where_there_is_none(script: Path) -> None:
    assert run(script, "train.toml", "new folder").returncode == 0
    assert said(script)[1:] == [
        "slurm-energy",
        "train",
        "--distributed",
        "--output",
        "new folder",
        "--config",
        "train.toml",
    ]
    assert not (script.parent / "scontrol-said").exists()


def test_it_goes_on_where_there_is_one(script: Path) -> None:
    folder = script.parent / "made"
    folder.mkdir()
    (folder / "state.pt").touch()
    assert run(script, "train.toml", str(folder)).returncode == 0
    assert said(script)[3:] == ["--distributed", "--resume", str(folder), "--config", "train.toml"]


def test_it_is_queued_again_when_the_training_can_go_on(script: Path) -> None:
    assert run(script, "train.toml", "made", code=130).returncode == 130
    assert (script.parent / "scontrol-said").read_text() == "requeue 42 "


def test_it_fails_when_the_training_failed(script: Path) -> None:
    assert run(script, "train.toml", "made", code=1).returncode == 1
    assert not (script.parent / "scontrol-said").exists()


def test_it_says_how_it_is_used(script: Path) -> None:
    done = run(script, "train.toml")
    assert done.returncode != 0
    assert "usage: sbatch train.sbatch CONFIG FOLDER" in done.stderr


def test_what_sbatch_reads_stands_before_the_first_command(script: Path) -> None:
    lines = script.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(number < first for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert sum(line.startswith("#SBATCH") for line in lines) == 7
