"""Agents of the results page: trained by whoever makes the page, and again whenever something of them changed."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from research.agents import __main__ as agents
from research.agents.__main__ import AGENTS, Agent, main, train

LEARNER = next(agent for agent in AGENTS if agent.label == "chsac")
TEACHER = next(agent for agent in AGENTS if agent.name == LEARNER.begins_as)


class Trainings:
    """Takes the place of the command: notes what is asked, leaves a state and, unless it is broken off, weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_broken_off = False
        self.seen: list[tuple[str, str]] = []

    def __call__(self, argv: Sequence[str], **_: Any) -> None:
        words = list(argv)
        how = "resume" if "--resume" in words else "output"
        target = Path(words[words.index(f"--{how}") + 1])
        assert how == "resume" or not target.exists()  # the command refuses a folder that exists
        self.seen.append((how, target.name))
        is_imitation = "--teacher" in words
        if not is_imitation:
            target.mkdir(exist_ok=True)
            (target / "state.pt").touch()
        if self.is_broken_off:
            raise subprocess.CalledProcessError(1, words)
        (target if is_imitation else target / "last").mkdir()

    def of(self, *chosen: Agent) -> list[tuple[str, str]]:
        """Train the agents, and return what was asked for."""
        self.seen.clear()
        for agent in chosen:
            train(agent, self.folder)
        return list(self.seen)


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    found = Trainings(tmp_path)
    monkeypatch.setattr(subprocess, "run", found)
    monkeypatch.setattr(agents, "revision", lambda: "one")
    return found


def test_what_was_trained_is_not_trained_again(trainings: Trainings) -> None:
    assert trainings.of(TEACHER, LEARNER) == [("output", TEACHER.name), ("output", LEARNER.name)]
    assert trainings.of(TEACHER, LEARNER) == []


def test_another_revision_trains_again_unless_the_first_will_do(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings.of(TEACHER, LEARNER)
    monkeypatch.setattr(agents, "revision", lambda: "two")
    train(TEACHER, trainings.folder, ["one"])
    train(LEARNER, trainings.folder, ["one"])
    assert len(trainings.seen) == 2
    assert trainings.of(TEACHER, LEARNER) == [("output", TEACHER.name), ("output", LEARNER.name)]


def test_another_recipe_network_or_teacher_trains_again(trainings: Trainings, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings.of(TEACHER, LEARNER)
    (trainings.folder / "recipes").mkdir()
    text = (agents._RECIPES / "chsac.toml").read_text(encoding="utf-8")
    (trainings.folder / "recipes" / "chsac.toml").write_text(text + "# longer\n", encoding="utf-8")
    monkeypatch.setattr(agents, "_RECIPES", trainings.folder / "recipes")
    assert trainings.of(TEACHER, LEARNER) == [("output", LEARNER.name)]
    monkeypatch.setitem(agents.NETWORKS, "hierarchical", {**agents.NETWORKS["hierarchical"], "hidden": "12"})
    assert trainings.of(TEACHER, LEARNER) == [("output", TEACHER.name), ("output", LEARNER.name)]
    monkeypatch.setattr(agents, "_TEACHER", (*agents._TEACHER, "--verbose"))
    assert trainings.of(TEACHER, LEARNER) == [("output", TEACHER.name), ("output", LEARNER.name)]


def test_what_was_broken_off_goes_on_and_only_at_the_same_revision(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings.of(TEACHER)
    trainings.is_broken_off = True
    with pytest.raises(subprocess.CalledProcessError):
        trainings.of(LEARNER)
    with pytest.raises(subprocess.CalledProcessError):
        trainings.of(LEARNER)
    trainings.is_broken_off = False
    assert trainings.seen == [("resume", LEARNER.name)]
    monkeypatch.setattr(agents, "revision", lambda: "two")
    assert trainings.of(TEACHER, LEARNER) == [("output", TEACHER.name), ("output", LEARNER.name)]
    assert trainings.of(LEARNER) == []


def test_an_imitation_that_was_broken_off_begins_anew(trainings: Trainings) -> None:
    trainings.is_broken_off = True
    with pytest.raises(subprocess.CalledProcessError):
        trainings.of(TEACHER)
    trainings.is_broken_off = False
    assert trainings.of(TEACHER) == [("output", TEACHER.name)]


@pytest.mark.slow
def test_the_command_trains_and_writes_a_page_with_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "AGENTS", (replace(TEACHER, label="tiny"),))
    monkeypatch.setattr(
        agents, "_TEACHER", ("--world", "lab-open", "--teacher", "greedy", "--hours", "1", "--epochs", "1")
    )
    page = tmp_path / "page.md"
    options = ["--quick", "--only", "lab-open", "--seeds", "1", "--workers", "1"]
    assert main(["--folder", str(tmp_path / "agents"), "--write", str(page), *options]) == 0
    assert "| `tiny` |" in page.read_text(encoding="utf-8")
