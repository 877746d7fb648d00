"""`slurm-energy arena`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_energy.cli.context import JSON_OPTION, print_json

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@click.group(epilog="Example: slurm-energy arena run --world chsac --hours 24 --policy slurm-default --policy greedy")
def arena() -> None:
    """Compare policies on a simulated cluster.

    Each figure has its interval over seeds, next to the bound that no policy can pass.
    """


def comparison_options(command: _Command) -> _Command:
    """Add the options that every comparison has."""
    options = (
        click.option(
            "--policy",
            "policies",
            multiple=True,
            metavar="NAME[:KEY=VALUE,…]",
            help="A policy to compare; give it several times. `arena policies` lists them.",
        ),
        click.option(
            "--reference",
            default="",
            metavar="NAME",
            help="Policy to compare the others with; the first one by default.",
        ),
        click.option("--hours", type=float, metavar="H", help="Length of a run; else the world's own."),
        click.option(
            "--warm-up-hours",
            type=click.FloatRange(0.0),
            default=0.0,
            show_default=True,
            metavar="H",
            help="Simulate so much of the run first and count from then on.",
        ),
        click.option("--drain", is_flag=True, help="Take no arrivals after that time, and run until no job is left."),
        click.option("--workers", type=click.IntRange(1, 4096), metavar="N", help="Processes; else one for each CPU."),
        click.option("--skip-bad", is_flag=True, help="Leave bad rows of a file out and count them."),
        click.option("--json", "json_path", type=_OUT, metavar="FILE", help="Write every figure as JSON."),
        click.option("--html", "html_path", type=_OUT, metavar="FILE", help="Write a page with plots."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@arena.command(
    epilog="Example: slurm-energy arena run --world chsac --policy slurm-default --policy adaptive-price --seeds 5"
)
@click.option("--world", required=True, metavar="NAME|FILE", help="A world of the package, or a TOML file.")
@click.option("--workload", type=_FILE, metavar="FILE", help="Jobs to run in place of the world's own generator.")
@click.option("--seeds", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Number of seeds.")
@click.option("--first-seed", type=click.IntRange(0), default=1, show_default=True, help="The first of them.")
@click.option(
    "--history-days",
    type=click.FloatRange(0.0, 31.0),
    default=0.0,
    show_default=True,
    metavar="D",
    help="Ended runs that policies know at the start, in a world that hides what jobs do.",
)
@click.option("--compat", is_flag=True, help="Draw from one stream, as the published simulator of world chsac does.")
@comparison_options
def run(
    *,
    world: str,
    workload: Path | None,
    seeds: int,
    first_seed: int,
    history_days: float,
    compat: bool,
    policies: tuple[str, ...],
    reference: str,
    hours: float | None,
    warm_up_hours: float,
    drain: bool,
    workers: int | None,
    skip_bad: bool,
    json_path: Path | None,
    html_path: Path | None,
) -> int:
    """Run policies on the same arrivals and print them side by side.

    Exits with 1 when a run failed; the results of the others are printed anyway.
    """
    from slurm_energy.cli.comparison import Output, compare  # noqa: PLC0415  # numpy and scipy only when needed
    from slurm_energy.evaluation.arena.plan import ArenaPlan, seeds_from  # noqa: PLC0415  # likewise

    plan = ArenaPlan(
        policies=named_policies(policies),
        world=world,
        workload=workload,
        seeds=seeds_from(first_seed, seeds),
        horizon_seconds=None if hours is None else hours * 3600.0,
        warm_up_seconds=warm_up_hours * 3600.0,
        drain=drain,
        compat=compat,
        skip_bad=skip_bad,
        history_days=history_days,
        reference=reference,
    )
    return compare(plan, Output(json_path=json_path, html_path=html_path, command=typed_command()), workers)


@arena.command(epilog="Example: slurm-energy arena policies --json")
@JSON_OPTION
def policies(as_json: bool) -> int:
    """List the policies with their settings."""
    from slurm_energy.cli.comparison import list_rules, rules_document  # noqa: PLC0415  # numpy only when needed

    if as_json:
        print_json(rules_document())
    else:
        list_rules()
    return 0


@arena.command(epilog="Example: slurm-energy arena worlds")
@JSON_OPTION
def worlds(as_json: bool) -> int:
    """List the worlds of the package."""
    return show_worlds(as_json)


def show_worlds(as_json: bool) -> int:
    """Print the worlds of the package."""
    from slurm_energy.cli.comparison import list_worlds, worlds_document  # noqa: PLC0415  # numpy only when needed

    if as_json:
        print_json(worlds_document())
    else:
        list_worlds()
    return 0


def named_policies(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the policies, or refuse an empty list."""
    if not given:
        raise click.UsageError("give at least one --policy; `slurm-energy arena policies` lists them")
    return given


def typed_command() -> str:
    """Return the command line for the record."""
    from shlex import join  # noqa: PLC0415  # one use

    return join(["slurm-energy", *sys.argv[1:]])
