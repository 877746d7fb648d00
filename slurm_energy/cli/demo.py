"""`slurm-energy lab demo`: the comparison as progress bars and a table."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slurm_energy.lab.demo import SAMPLE, DemoRow, Tell, compare, read_workload, run_workload

DEFAULT_POLICY = "slurm-default"


@click.command(epilog="Example: slurm-energy lab demo --policy oracle")
@click.option("--policy", default="oracle", show_default=True, help="Policy to hold against Slurm's default.")
@click.option(
    "--workload",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=SAMPLE,
    help="CSV of jobs; without it 36 jobs of the Philly trace.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table's rows as JSON.")
def demo(*, policy: str, workload: Path, as_json: bool) -> int:
    """Run one workload twice in a lab, under Slurm's default and under a policy, and print the saving.

    Energy is what the hooks measured and the daemon stored; times are those of the simulated devices.
    """
    jobs = read_workload(workload)
    outcomes = []
    for name in (DEFAULT_POLICY, policy):
        with progress_bar(name) as tell:
            outcomes.append(run_workload(name, jobs, tell))
    rows = compare(*outcomes)
    if as_json:
        click.echo(json.dumps([asdict(row) | {"saving": row.saving, "slowdown": row.slowdown} for row in rows]))
    else:
        Console().print(comparison_table(policy, rows))
    return 0


@contextmanager
def progress_bar(policy: str) -> Iterator[Tell]:
    """Show a bar on stderr for one run; yields what tells it the phase and how many jobs are through."""
    columns = (
        TextColumn("{task.fields[policy]:<13}"),
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        bar = progress.add_task("starting", total=None, policy=policy)

        def tell(phase: str, done: int, of: int) -> None:
            progress.update(bar, description=phase, completed=done, total=of)

        yield tell


def comparison_table(policy: str, rows: Sequence[DemoRow]) -> Table:
    """Return the comparison, the total as its last row."""
    table = Table(
        title=f"The same jobs under Slurm's default and under {policy}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
        padding=(0, 1, 0, 0),
        caption=f"default → {policy}; means per job; energy as measured by the hooks; simulated seconds",
    )
    table.add_column("Partition", no_wrap=True)
    for heading in ("Jobs", "Energy kJ", "Saving", "Wait s", "Run s", "Longer"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row is rows[-1]:
            table.add_section()
        table.add_row(
            row.partition,
            str(row.jobs),
            _change(row.kilojoules),
            f"{row.saving:.1%}",
            _change(row.wait_seconds),
            _change(row.run_seconds),
            f"{row.slowdown:+.1%}",
            style="bold" if row is rows[-1] else None,
        )
    return table


def _change(pair: tuple[float, float]) -> str:
    return f"{pair[0]:,.0f} → {pair[1]:,.0f}"
