"""`slurm-energy bench`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_energy.cli.arena import typed_command
from slurm_energy.errors import EvaluationError

if TYPE_CHECKING:
    from slurm_energy.lab.bench.run import BenchPlan, Tell

_OUT = click.Path(dir_okay=False, path_type=Path)
SIZES = (16, 64, 256, 1024, 4096)


_RANDOM = "random"
"""Value of --checkpoint; a folder of that name is `./random`."""
WIDTH = 160
"""Of the tables where the output is no terminal."""


@click.group(epilog="Example: slurm-energy bench decision --nodes 16 --nodes 256")
def bench() -> None:
    """Measure how fast decisions are and what memory they need."""


@bench.command(epilog="Example: slurm-energy bench decision --nodes 16 --nodes 256 --markdown decisions.md")
@click.option(
    "--nodes",
    multiple=True,
    type=click.IntRange(4, 16_384),
    default=SIZES,
    show_default=True,
    metavar="N",
    help="Nodes with GPUs of a synthetic cluster; give it several times.",
)
@click.option(
    "--gpus-per-node", type=click.IntRange(1, 16), metavar="N", help="Else 6 up to 256 nodes, 8 in larger clusters."
)
@click.option(
    "--threads",
    multiple=True,
    type=click.IntRange(1, 64),
    default=(1, 2),
    show_default=True,
    metavar="N",
    help="CPU threads of the network; give it several times. The daemon gets the first.",
)
@click.option(
    "--decisions",
    type=click.IntRange(0, 1_000_000),
    default=1000,
    show_default=True,
    help="Decisions at each size in a process of their own; 0 leaves that part out.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, 3600.0),
    default=30.0,
    show_default=True,
    help="How long a daemon is asked over its socket at each size; 0 leaves that part out.",
)
@click.option(
    "--pending",
    type=click.IntRange(0, 100_000),
    default=200,
    show_default=True,
    help="Jobs that wait, in a process of their own.",
)
@click.option(
    "--queue",
    type=click.IntRange(0, 100_000),
    default=10_000,
    show_default=True,
    help="Jobs that wait, for the daemon.",
)
@click.option(
    "--changes-per-second",
    type=click.FloatRange(0.1, 10_000.0),
    default=32.0,
    show_default=True,
    help="Changes of one node or one job.",
)
@click.option(
    "--policy",
    type=click.Choice(["gnn", "oracle"]),
    default="gnn",
    show_default=True,
    help="What decides.",
)
@click.option(
    "--checkpoint",
    default="shipped",
    show_default=True,
    metavar="FOLDER",
    help="Weights of gnn: `shipped` for the package's, `random` for a network of options with random ones.",
)
@click.option("--json", "json_path", type=_OUT, metavar="FILE", help="Write every figure as JSON.")
@click.option("--markdown", "markdown_path", type=_OUT, metavar="FILE", help="Write a page with the tables.")
def decision(
    *,
    nodes: tuple[int, ...],
    gpus_per_node: int | None,
    threads: tuple[int, ...],
    decisions: int,
    seconds: float,
    pending: int,
    queue: int,
    changes_per_second: float,
    policy: str,
    checkpoint: str,
    json_path: Path | None,
    markdown_path: Path | None,
) -> int:
    """Measure decisions at several sizes of a cluster, alone and through a daemon of its own.

    Needs no Slurm and no GPU. Missed goals are shown as missed; the exit code does not depend on them.
    """
    from slurm_energy.lab.bench.run import BenchPlan  # noqa: PLC0415  # heavy, when needed

    plan = BenchPlan(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        threads=threads,
        decisions=decisions,
        seconds=seconds,
        pending=pending,
        queue=queue,
        changes_per_second=changes_per_second,
        policy=policy,
        checkpoint="" if checkpoint == _RANDOM else checkpoint,
    )
    return measure_decisions(plan, BenchOutput(json_path=json_path, markdown_path=markdown_path))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutput:
    """Where the figures go beside the terminal."""

    json_path: Path | None
    markdown_path: Path | None


def measure_decisions(plan: "BenchPlan", output: BenchOutput) -> int:
    """Run a plan, print and write it; return the exit code.

    Raises:
        SlurmEnergyError: something could not be measured, or a file cannot be written.
    """
    from rich.console import Console  # noqa: PLC0415  # not for the help

    from slurm_energy.lab.bench.run import run_bench  # noqa: PLC0415  # heavy, when needed
    from slurm_energy.reporting.decision_bench import bench_page, print_bench  # noqa: PLC0415  # likewise

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
def _progress() -> "Iterator[Tell]":
    """Show a bar on stderr, or one line for each step where that is not a terminal."""
    if not sys.stderr.isatty():

        def say_it(doing: str, done: int, of: int) -> None:
            print(f"bench: {done + 1} of {of}: {doing}", file=sys.stderr, flush=True)

        yield say_it
        return
    from slurm_energy.cli.progress import step_bar  # noqa: PLC0415  # not for the help

    with step_bar(24) as tell:
        yield tell
