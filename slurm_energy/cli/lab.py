"""`slurm-energy lab`, and its demo: a comparison as progress bars and a table."""

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

from slurm_energy.cli.context import JSON_OPTION, print_json
from slurm_energy.lab.cluster import (
    Lab,
    LabSpec,
    LabStatus,
    find_labs,
    open_lab,
    parse_partition,
    start_lab,
)
from slurm_energy.lab.demo import SAMPLE, DemoRow, Tell, compare, read_workload, run_workload
from slurm_energy.lab.spec import DEFAULT_PARTITIONS
from slurm_energy.reporting.visible import visible

_NAME = click.option("--name", default="lab", show_default=True, help="Which lab; several can run at once.")
DEFAULT_POLICY = "slurm-default"


@click.group(epilog="Example: slurm-energy lab up && slurm-energy lab shell")
def lab() -> None:
    """Run a real Slurm cluster with simulated GPUs on this machine.

    It lives in a folder and namespaces of its own, beside any Slurm that is there, and needs root and Debian's
    Slurm packages.
    """


@lab.command(epilog="Example: slurm-energy lab up --name small --partition a100:2x4 --accounting")
@_NAME
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="NAME:NODESxGPUS[:TYPE]",
    help="A partition; the first is Slurm's default. Without it: a100 4x4, a40 4x8, v100 2x4.",
)
@click.option("--accounting", is_flag=True, help="Run slurmdbd on MariaDB, too.")
@click.option("--no-energy", is_flag=True, help="Plain Slurm, without plugin, daemon and hooks.")
@click.option("--no-daemon", is_flag=True, help="Everything but slurm-energyd.")
@click.option(
    "--time-scale", type=float, default=60.0, show_default=True, help="Seconds on the simulated GPUs per second here."
)
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), help="Folder of the lab.")
@click.option("--keep", is_flag=True, help="Leave the folder when the lab stops.")
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Run another root file system's Slurm, made with scripts/lab-root.sh.",
)
def up(
    *,
    name: str,
    partitions: tuple[str, ...],
    accounting: bool,
    no_energy: bool,
    no_daemon: bool,
    time_scale: float,
    directory: Path | None,
    keep: bool,
    root: Path | None,
) -> int:
    """Start a lab and return when its nodes are idle; it keeps running until `lab down`."""
    spec = LabSpec(
        name=name,
        directory=directory,
        accounting=accounting,
        energy=not no_energy,
        daemon=not no_daemon,
        time_scale=time_scale,
        keep=keep,
        root=root,
        partitions=tuple(parse_partition(text) for text in partitions) or DEFAULT_PARTITIONS,
    )
    started = start_lab(spec, progress=lambda step: click.echo(step, err=True))
    click.echo(f"Lab {started.name} runs in {started.directory}.")
    click.echo(f"Enter it:  slurm-energy lab shell{_named(started)}")
    click.echo(f"Stop it:   slurm-energy lab down{_named(started)}")
    return 0


def _named(lab: Lab) -> str:
    return "" if lab.name == "lab" else f" --name {lab.name}"


@lab.command(epilog="Example: slurm-energy lab down --all")
@_NAME
@click.option("--all", "every", is_flag=True, help="Every lab of this user.")
def down(name: str, every: bool) -> int:
    """Stop a lab, its jobs included, and remove its folder."""
    for one in find_labs() if every else [open_lab(name)]:
        one.stop()
        click.echo(f"Lab {one.name} has stopped.")
    return 0


@lab.command(epilog="Example: slurm-energy lab status --json")
@JSON_OPTION
def status(as_json: bool) -> int:
    """Show the labs that run, with their nodes and daemon."""
    states = [one.status() for one in find_labs()]
    if as_json:
        print_json([_plain_status(state) for state in states])
        return 0
    if not states:
        click.echo("No lab runs. Start one with: slurm-energy lab up", err=True)
    for state in states:
        click.echo(f"{state.name}: {state.directory}")
        for node in state.nodes:
            click.echo(f"  {node.name:<12} {node.partition:<12} {node.state}")
        daemon = "none" if state.daemon is None else f"{state.daemon.get('version')}, {state.daemon.get('policy')}"
        click.echo(f"  slurm-energyd: {daemon}")
        if state.problem:
            click.echo(f"  problem: {visible(state.problem)}")
    return 0


def _plain_status(state: LabStatus) -> dict[str, object]:
    return {
        "name": state.name,
        "directory": str(state.directory),
        "log_directory": str(state.log_directory),
        "nodes": [{"name": node.name, "partition": node.partition, "state": node.state} for node in state.nodes],
        "daemon": None if state.daemon is None else dict(state.daemon),
        "problem": state.problem,
    }


@lab.command(epilog="Example: slurm-energy lab shell --user alice", context_settings={"ignore_unknown_options": True})
@_NAME
@click.option("--user", help="One of the lab's users, such as alice; root without it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(name: str, user: str | None, command: tuple[str, ...]) -> int:
    """Open a shell inside a lab, or run one command there and pass on its exit code.

    Put -- before a command that has options of its own: slurm-energy lab shell -- squeue -l
    """
    opened = open_lab(name)
    if not command:
        return opened.shell(user)
    done = opened.run(command, user=user, timeout=86_400.0)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


@lab.command(epilog="Example: slurm-energy lab logs slurmctld --lines 50")
@_NAME
@click.argument("which", required=False)
@click.option("--lines", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Last lines of each log.")
def logs(name: str, which: str | None, lines: int) -> int:
    """Show the end of a lab's logs, or of those whose name begins with a word."""
    for path in open_lab(name).log_paths():
        if which is not None and not path.name.startswith(which):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        click.echo(f"==> {path} <==")
        for line in text:
            click.echo(visible(line.expandtabs()))
    return 0


@lab.command(epilog="Example: slurm-energy lab demo --policy oracle")
@click.option("--policy", default="oracle", show_default=True, help="Policy to compare with Slurm's default.")
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
