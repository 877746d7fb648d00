"""Progress on stderr: bars in a terminal, a line for each round of a training elsewhere."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from slurm_energy.cli.main import PROGRAM
from slurm_energy.reporting.visible import say

if TYPE_CHECKING:
    from slurm_energy.learning.imitation import ImitationProgress as Epoch
    from slurm_energy.learning.rounds import RoundReport

_SHOWN = 3
"""Figures of a round beside its bar."""
_FIRST_SHOWN = ("score", "reward_per_start")
_SELDOM_SHOWN = ("experience", "collect_seconds", "learn_seconds")


@contextmanager
def step_bar(characters: int) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar until the work ends; yield what takes what is being done, how much is done, and how much there is.

    Args:
        characters: Width of what is being done.
    """
    columns = (
        TextColumn(f"{{task.description:<{characters}}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None)

        def tell(doing: str, done: int, of: int) -> None:
            progress.update(bar, description=doing, completed=done, total=of)

        yield tell


@contextmanager
def imitation_bars(
    watched: str, runs: int, epochs: int
) -> Iterator[tuple[Callable[[int, int], None], Callable[["Epoch"], None]]]:
    """Show runs of the teacher and epochs; yield what takes a run with its decisions, and what takes an epoch."""
    with _progress() as progress:
        watching = progress.add_task(watched, total=runs, said="")
        learning = progress.add_task("epochs", total=epochs, said="")

        def shown(done: int, decisions: int) -> None:
            progress.update(watching, completed=done, said=f"{decisions} decisions")

        def on_epoch(epoch: "Epoch") -> None:
            progress.update(learning, completed=epoch.epoch, said=f"agrees in {epoch.agreement:.1%}")

        yield shown, on_epoch


@contextmanager
def round_lines(doing: str, rounds: int, *, is_shown: bool) -> Iterator[Callable[["RoundReport"], None]]:
    """Show the rounds of a training; yield what takes the report of each."""
    with _progress() as progress:
        bar = progress.add_task(doing, total=rounds, said="", visible=is_shown)

        def on_round(report: "RoundReport") -> None:
            said = main_figures(report.figures)
            progress.update(bar, completed=report.number, said=said)
            if progress.disable and is_shown:
                seconds = report.figures["collect_seconds"] + report.figures["learn_seconds"]
                say(f"round {report.number}/{report.rounds} {said} seconds={seconds:.1f}", PROGRAM)

        yield on_round


def main_figures(figures: Mapping[str, float]) -> str:
    """Return the few figures that say how it goes: the score first, then the learner's own in their order."""
    names = [name for name in _FIRST_SHOWN if name in figures]
    names += [name for name in figures if name not in names and name not in _SELDOM_SHOWN]
    return " ".join(f"{name}={figures[name]:.4g}" for name in names[:_SHOWN])


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
