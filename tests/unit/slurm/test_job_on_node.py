"""Slurm's answer to whether a job still holds a node, from a squeue that stands in."""

import sys
from pathlib import Path

import pytest

from slurm_energy.domain.ids import JobId, NodeName
from slurm_energy.slurm import command
from slurm_energy.slurm.command import job_on_node as ask


def squeue(folder: Path, body: str) -> str:
    """Put a squeue into the folder that runs these lines of Python; `said` is its command line."""
    path = folder / "squeue"
    path.write_text(f"#!{sys.executable} -I\nimport sys, time\n{body}\n")
    path.chmod(0o755)
    return str(folder)


def answer(folder: Path, body: str) -> str | None:
    return ask(JobId(7), NodeName("n1"), squeue(folder, body), "")


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("print('7 RUNNING')", "RUNNING"),
        ("print('7 COMPLETING')", "COMPLETING"),
        ("print()", ""),
        ("print('70 RUNNING')", ""),
        ("print('8 RUNNING\\n7 COMPLETED\\n9 PENDING')", "COMPLETED"),  # 7 leads an array
        ("sys.exit('slurm_load_jobs error: Invalid job id specified')", ""),
        ("sys.exit('slurm_load_jobs error: Unable to contact slurm controller (connect failure)')", None),
        ("sys.exit('squeue: error: Invalid node name n1')", None),
        ("print('nonsense of several words')", None),
        ("print('7')", None),
    ],
)
def test_what_squeue_says(tmp_path: Path, body: str, state: str | None) -> None:
    assert answer(tmp_path, body) == state


def test_one_job_on_one_node_is_asked_for(tmp_path: Path) -> None:
    said = tmp_path / "said"
    answer(tmp_path, f"open({str(said)!r}, 'w').write(' '.join(sys.argv[1:]))")
    assert said.read_text() == "--noheader --states=all --jobs=7 --nodelist=n1 --format=%A %T"


def test_squeue_that_is_not_there_or_hangs_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(JobId(7), NodeName("n1"), str(tmp_path / "nowhere"), "") is None
    monkeypatch.setattr(command, "ANSWER_SECONDS", 0.2)
    assert answer(tmp_path, "time.sleep(60)") is None


def test_slurm_conf_reaches_squeue_and_a_users_format_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "nonsense")
    body = "import os; print('7', os.environ['SLURM_CONF'] + ('SQUEUE_FORMAT' in os.environ) * '!')"
    assert ask(JobId(7), NodeName("n1"), squeue(tmp_path, body), "/etc/x.conf") == "/etc/x.conf"
