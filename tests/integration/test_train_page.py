"""The page about training: its files and commands work in the order in which they stand there, on less of it all."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from slurm_energy.cli.main import main
from slurm_energy.policy.gnn.checkpoint import read_checkpoint

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "train-a-network.md"
_BLOCK = re.compile(r"```(toml|console)\n(.*?)```", re.DOTALL)
_COMMAND = re.compile(r"^\$ (slurm-energy (?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_NAMED = re.compile(r"# (\S+\.toml)\n")
LESS = (
    (r"philly-a100", "lab"),
    (r"--hours \d+", "--hours 0.3"),
    (r"--epochs \d+", "--epochs 1"),
    (r"\brounds = \d+", "rounds = 1"),
    (r"--rounds \d+", "--rounds 2"),
    (r"\bcollectors = \d+", "collectors = 1"),
    (r"\bhours = [\d.]+", "hours = 0.1"),
)


def parts(begin: str, end: str) -> list[tuple[str, str]]:
    """Return the files and commands between two headings, each with its kind, made small."""
    text = PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    for pattern, small in LESS:
        text = re.sub(pattern, small, text)
    return _BLOCK.findall(text)


def test_the_commands_of_the_page_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for kind, text in parts("## By imitation", "### On a GPU"):
        if kind == "toml":
            named = _NAMED.match(text)
            if named is not None or "[" not in text.partition("#")[0]:  # else a part of a file
                (tmp_path / (named[1] if named else "network.toml")).write_text(text, encoding="utf-8")
            continue
        for command in _COMMAND.findall(text):
            _, *words = shlex.split(command.replace("\\\n", " "), comments=True)
            assert main(words) == 0, command
    assert main(["train", "--resume", "run1", "--rounds", "2"]) == 0
    hidden = {name: read_checkpoint(tmp_path / name).metadata.architecture.hidden for name in ("first", "small")}
    assert hidden == {"first": 48, "small": 24}
    assert read_checkpoint(tmp_path / "run2" / "last").metadata.architecture.hidden == 48
