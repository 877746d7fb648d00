"""Runs a measurement for a command: progress on stderr, tables on stdout, files where they are wanted."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from slurm_energy.cli.arena import typed_command
from slurm_energy.cli.progress import step_bar
from slurm_energy.errors import EvaluationError
from slurm_energy.lab.bench.run import BenchPlan, Tell, run_bench
from slurm_energy.reporting.decision_bench import bench_page, print_bench

WIDTH = 160
"""Of the tables where the output is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutput:
    """Where the figures go beside the terminal."""

    json_path: Path | None
    markdown_path: Path | None


def measure_decisions(plan: BenchPlan, output: BenchOutput) -> int:
    """Run a plan, print and write it; return the exit code.

    Raises:
        SlurmEnergyError: something could not be measured, or a file cannot be written.
    """
    for path in (output.json_path, output.markdown_path):
        if path is not None and not path.parent.is_dir():
            raise EvaluationError(f"{str(path)!r} cannot be written: folder {str(path.parent)!r} does not exist")
    with _progress() as tell:
        bench = run_bench(plan, tell)
    print_bench(bench, Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False))
    if output.json_path is not None:
        _put(output.json_path, json.dumps(bench.document(), indent=2) + "\n")
    if output.markdown_path is not None:
        _put(output.markdown_path, bench_page(bench, typed_command()))
    return 0


def _put(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvaluationError(f"{str(path)!r} cannot be written: {error}") from error


@contextmanager
def _progress() -> Iterator[Tell]:
    """Show a bar on stderr, or one line for each step where that is not a terminal."""
    if not sys.stderr.isatty():

        def say_it(doing: str, done: int, of: int) -> None:
            print(f"bench: {done + 1} of {of}: {doing}", file=sys.stderr, flush=True)

        yield say_it
        return
    with step_bar(24) as tell:
        yield tell
