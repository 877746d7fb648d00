"""The page that follows one job through the code names at most twelve files, and what it says of them is so."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/CONTRIBUTING.md"
MAX_FILES = 12
MAX_LINES = 400
LISTED_AS_LONGER = {"store/energy.py"}
"""Has its reason in the page's table of files of more than 400 lines."""


@dataclass(frozen=True)
class Step:
    """One row of the page's table."""

    file: str
    names: tuple[str, ...]
    reached_by: str

    @property
    def text(self) -> str:
        """What the file holds."""
        folder = ROOT / ("plugin" if self.file.endswith(".c") else "slurm_energy")
        return (folder / self.file).read_text(encoding="utf-8")


def steps() -> list[Step]:
    section = PAGE.read_text(encoding="utf-8").partition("### One job's way")[2].partition("\n### ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [
        Step(file=re.findall("`([^`]+)`", file)[0], names=tuple(re.findall("`([^`]+)`", names)), reached_by=reached_by)
        for _, file, names, reached_by in rows[2:]
    ]


STEPS = steps()


def test_one_job_passes_through_at_most_twelve_files() -> None:
    assert 10 <= len(STEPS) <= MAX_FILES
    assert len({step.file for step in STEPS}) == len(STEPS)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.file)
def test_each_step_begins_in_its_file(step: Step) -> None:
    assert step.names
    for name in step.names:
        assert re.search(rf"^(?:(?:async )?def|class|extern int) {name}\b", step.text, re.MULTILINE)


@pytest.mark.parametrize("number", range(1, len(STEPS)))
def test_what_a_step_is_reached_by_is_called_in_an_earlier_file(number: int) -> None:
    for called in re.findall("`([^`]+)`", STEPS[number].reached_by):
        assert any(re.search(rf"\b{called}\(", step.text) for step in STEPS[:number])
        assert called == "start_flush" or re.search(rf"^ *(?:async )?def {called}\b", STEPS[number].text, re.MULTILINE)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.file)
def test_no_step_is_in_a_file_that_is_too_long(step: Step) -> None:
    assert step.file in LISTED_AS_LONGER or len(step.text.splitlines()) <= MAX_LINES
