"""Runs a comparison for a command: progress on stderr, tables on stdout, files where they are wanted."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm_energy.cli.main import PROGRAM
from slurm_energy.cli.progress import step_bar
from slurm_energy.cli.say import say
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.comparison import ArenaResult, Tell, run_arena
from slurm_energy.evaluation.arena.plan import ArenaPlan
from slurm_energy.evaluation.arena.summary import ArenaSummary, summary_of
from slurm_energy.reporting.arena_context import RunContext, notes_of, software_versions
from slurm_energy.reporting.arena_document import render_arena_json
from slurm_energy.reporting.arena_table import WIDTH, print_arena


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a comparison goes beside the terminal."""

    json_path: Path | None
    html_path: Path | None
    command: str
    assumptions: tuple[str, ...] = ()
    """Told before the run, and noted in every output."""


def compare(plan: ArenaPlan, output: Output, workers: int | None) -> int:
    """Run a plan, print and write it; return the exit code.

    Raises:
        SlurmEnergyError: nothing could be run, or a file cannot be written.
    """
    for path in (output.json_path, output.html_path):
        _check_folder(path)
    begun = time.monotonic()
    with _progress() as tell:
        result = run_arena(plan, workers=workers, tell=tell)
    context = RunContext(
        command=output.command,
        created_at_seconds=time.time(),
        wall_seconds=time.monotonic() - begun,
        notes=notes_of(result, output.assumptions),
        versions=software_versions(),
    )
    summary = summary_of(result)
    print_arena(summary, context, Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False))
    _write(result, summary, context, output)
    for failure in result.failed:
        where = "" if failure.seed is None else f", seed {failure.seed}"
        say(f"policy {failure.policy}{where} failed: {failure.error}", PROGRAM)
    return 1 if result.failed else 0


def _write(result: ArenaResult, summary: ArenaSummary, context: RunContext, output: Output) -> None:
    if output.json_path is not None:
        _put(output.json_path, render_arena_json(result, summary, context))
    if output.html_path is not None:
        from slurm_energy.reporting.arena_page import render_arena_page  # noqa: PLC0415  # matplotlib only when needed

        _put(output.html_path, render_arena_page(result, summary, context))


def _check_folder(path: Path | None) -> None:
    """Refuse a file that could not be written before minutes are spent on it."""
    if path is not None and not path.parent.is_dir():
        raise EvaluationError(f"{str(path)!r} cannot be written: folder {str(path.parent)!r} does not exist")


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{str(path)!r} cannot be written: {error}") from error


@contextmanager
def _progress() -> Iterator[Tell | None]:
    """Show a bar on stderr; none when that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with step_bar(8) as tell:
        yield tell
