"""`slurm-energy calibrate`: what is known of each GPU type, sweeps of own boards, fits of published data sets."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from slurm_energy.cli.context import JSON_OPTION, print_json
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.errors import ConfigError
from slurm_energy.reporting.visible import say
from slurm_energy.resources import install_command

if TYPE_CHECKING:
    from slurm_energy.energy_model.calibration.files import Tell
    from slurm_energy.energy_model.calibration.parts import FreshFit

_SHOWN_DIFFERENCES = 5


@click.command(epilog="Example: slurm-energy calibrate --node --output site-curves.json")
@click.option("--node", is_flag=True, help="Measure this node's own boards; it must be drained, or in a job with them.")
@click.option(
    "--load",
    "loads",
    multiple=True,
    metavar="NAME=COMMAND",
    help="With --node: a program that loads the GPU, in place of the built-in ones, which need torch.",
)
@click.option(
    "--clocks", type=click.IntRange(4, 20), default=10, show_default=True, metavar="N", help="With --node: clocks."
)
@click.option(
    "--window-seconds",
    type=click.FloatRange(1.0, 300.0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="With --node: how long each clock is measured, after a third of it to settle.",
)
@click.option(
    "--max-minutes",
    type=click.FloatRange(0.1, 240.0),
    default=30.0,
    show_default=True,
    metavar="M",
    help="With --node: end the sweep by then.",
)
@click.option(
    "--from-history", is_flag=True, help="Fit curves from the clocks that were tried in this site's jobs, see the page."
)
@click.option(
    "--days",
    type=click.FloatRange(1.0, 3650.0),
    default=90.0,
    show_default=True,
    metavar="D",
    help="With --from-history: jobs that ended in so many days.",
)
@DATABASE_OPTION
@click.option("--data", type=click.Path(path_type=Path), help="Fit data sets, each in a folder of its own here.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="With --data: folder for the coefficients, or one .json file. Else: the file of the site's curves.",
)
@click.option("--part", "parts", multiple=True, metavar="NAME", help="Fit this part only; may be given again.")
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 1 when the package has other coefficients, or an error is beyond its bound.",
)
@JSON_OPTION
def calibrate(  # one for each option
    *,
    node: bool,
    loads: Sequence[str],
    clocks: int,
    window_seconds: float,
    max_minutes: float,
    from_history: bool,
    days: float,
    database: str | None,
    data: Path | None,
    output: Path | None,
    parts: Sequence[str],
    check: bool,
    as_json: bool,
) -> int:
    """Show how each GPU type's clock curves are known; measure your own boards.

    Without an option: measured, assumed from a GPU of the same chip, or none, for each type. With --node the boards of
    this node are swept over their clocks, and clocks are put back on any end. With --from-history the curves are those
    of clocks that were tried in jobs (policy.clock_trials). With --data the energy model is fitted to data sets;
    numbers of the package and of the fit count as equal up to a relative difference of 1e-6.
    """
    from slurm_energy.cli import boards  # noqa: PLC0415  # only when needed

    if node + from_history + (data is not None) > 1:
        raise ConfigError(
            "--node, --from-history and --data exclude each other: measure boards, fit what jobs tried, or data sets"
        )
    if from_history:
        return boards.fit_history(output or Path("site-curves.json"), database, days, as_json=as_json)
    if node:
        from slurm_energy.node.board_sweep import SweepSettings  # noqa: PLC0415  # only when needed

        settings = SweepSettings(
            clocks=clocks,
            window_seconds=window_seconds,
            settle_seconds=window_seconds / 3.0,
            max_seconds=60.0 * max_minutes,
        )
        return boards.measure_node(output or Path("site-curves.json"), loads, settings)
    if data is None:
        boards.use_configured_curves()
        if as_json:
            print_json(boards.known_types())
        else:
            boards.list_types()
        return 0
    return _fit(data, output, parts, check=check, as_json=as_json)


def _fit(data: Path, output: Path | None, parts: Sequence[str], *, check: bool, as_json: bool) -> int:
    """Fit data sets and print how well that went; return 1 when a check fails."""
    try:
        from slurm_energy.energy_model.calibration import parts as packaged  # noqa: PLC0415  # needs numpy
    except ImportError as error:
        raise ConfigError(f"fitting needs {error.name}: {install_command('twin')}") from error
    with progress_bar() as tell:
        fits = packaged.fit_parts(packaged.PACKAGED_PARTS, data, parts, tell)
    for path in packaged.write_fits(fits, output) if output else ():
        say(f"wrote {path}", "slurm-energy")
    if as_json:
        print_json([_plain(fit) for fit in fits])
    else:
        Console().print(error_table(fits))
    say_differences(fits)
    return 1 if check and not all(is_confirmed(fit) for fit in fits) else 0


def is_confirmed(fit: "FreshFit") -> bool:
    """Return whether the kept coefficients are those of the fit, and every error is within its bound."""
    within = all(error.bound is None or error.mean_relative_error <= error.bound for error in fit.errors)
    return within and not fit.differences


@contextmanager
def progress_bar() -> "Iterator[Tell]":
    """Show a bar for each part on stderr; yields what tells it how far a part is."""
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:

        def tell(what: str, done: int, of: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what)
            progress.update(bars[what], completed=done, total=of)

        yield tell


def error_table(fits: "Sequence[FreshFit]") -> Table:
    """Return every fit error, part by part."""
    table = Table(
        title="Fitted coefficients and their mean relative errors",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
        padding=(0, 1, 0, 0),
        caption="fit: judged at the points that were fitted; else at what was left out of the fit",
    )
    table.add_column("Quantity", overflow="fold")
    table.add_column("Judged by", no_wrap=True)
    for heading in ("Error", "Bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for fit in fits:
        state = f"differs from the package in {len(fit.differences)}" if fit.differences else "as in the package"
        table.add_section()
        table.add_row(Text(f"{fit.name}.json, {state}", style="bold"))
        for error in fit.errors:
            beyond = error.bound is not None and error.mean_relative_error > error.bound
            table.add_row(
                Text(f"  {error.quantity}"),
                error.method,
                Text(f"{error.mean_relative_error:.1%}", style="bold red" if beyond else ""),
                "" if error.bound is None else f"{error.bound:.0%}",
            )
    return table


def _plain(fit: "FreshFit") -> dict[str, Any]:
    return {
        "part": fit.name,
        "source": fit.source,
        "fit_errors": [asdict(error) for error in fit.errors],
        "equal": not fit.differences,
        "differences": [{"place": place, "packaged": old, "fresh": new} for place, old, new in fit.differences],
    }


def say_differences(fits: "Sequence[FreshFit]") -> None:
    """Print the first coefficients of each part that are kept otherwise than they were fitted."""
    for fit in fits:
        for place, old, new in fit.differences[:_SHOWN_DIFFERENCES]:
            say(f"{fit.name}{place}: package has {str(old)[:40]}, the fit gives {str(new)[:40]}", "slurm-energy")
        if len(fit.differences) > _SHOWN_DIFFERENCES:
            say(f"{fit.name}: {len(fit.differences) - _SHOWN_DIFFERENCES} more differences", "slurm-energy")
