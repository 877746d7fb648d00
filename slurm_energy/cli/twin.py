"""`slurm-energy twin`."""

from pathlib import Path

import click

from slurm_energy.cli.arena import comparison_options, show_worlds, typed_command
from slurm_energy.cli.context import JSON_OPTION

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REPLAYED = ("slurm-default", "adaptive-price")


@click.group(epilog="Example: slurm-energy twin replay --sacct week.json")
def twin() -> None:
    """Replay a site's history on a simulated cluster, or write jobs for one."""


@twin.command(epilog="Example: slurm-energy twin replay --sacct week.json --policy slurm-default --policy greedy")
@click.option("--sacct", type=_FILE, required=True, metavar="FILE", help="Output of sacct --json, or of sacct -P.")
@click.option(
    "--world",
    metavar="NAME|FILE",
    help="Cluster to replay on; else one made from the accounting; what is assumed is printed.",
)
@click.option(
    "--orders", is_flag=True, help="Try every order of the partitions under Slurm alone instead, and name the best."
)
@comparison_options
def replay(
    *,
    sacct: Path,
    world: str | None,
    orders: bool,
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
    """Run a cluster's own jobs under several policies, until no job is left or for --hours.

    Jobs come when they were submitted and have the work that they did; what they drew is modelled, not read. Without
    --policy: slurm-default and adaptive-price. With --orders it says which static order of the partitions is the best.
    """
    from slurm_energy.cli.comparison import Output, compare  # noqa: PLC0415  # numpy and scipy only when needed
    from slurm_energy.evaluation.arena.plan import ArenaPlan  # noqa: PLC0415  # likewise
    from slurm_energy.evaluation.partition_order import order_sentences, tried_orders  # noqa: PLC0415  # likewise
    from slurm_energy.evaluation.replay import world_of_accounting  # noqa: PLC0415  # likewise

    assumptions = () if world is not None else world_of_accounting(sacct, skip_bad=skip_bad).assumptions
    plan = ArenaPlan(
        policies=policies or _REPLAYED,
        world=world,
        sacct=sacct,
        seeds=(1,),
        horizon_seconds=None if hours is None else hours * 3600.0,
        warm_up_seconds=warm_up_hours * 3600.0,
        drain=drain,
        skip_bad=skip_bad,
        reference=reference,
    )
    assumed = tuple(f"Assumed: {text}." for text in assumptions)
    if orders:
        for line in (*order_sentences(tried_orders(plan)), *assumed):
            click.echo(line)
        return 0
    output = Output(json_path=json_path, html_path=html_path, command=typed_command(), assumptions=assumed)
    return compare(plan, output, workers)


@twin.command(epilog="Example: slurm-energy twin worlds")
@JSON_OPTION
def worlds(as_json: bool) -> int:
    """List the worlds of the package."""
    return show_worlds(as_json)


@twin.command(epilog="Example: slurm-energy twin workload --world chsac --hours 24 --seed 7 --output day.csv")
@click.option("--world", metavar="NAME|FILE", help="World whose own generator is used, with its settings.")
@click.option(
    "--generator", metavar="NAME", help="A generator in the place of a world's; without either all are listed."
)
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A setting of the generator.")
@click.option("--hours", type=float, metavar="H", help="Length of the workload.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed makes the same jobs.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="CSV to write.")
def workload(
    *,
    world: str | None,
    generator: str | None,
    given: tuple[str, ...],
    hours: float | None,
    seed: int,
    output: Path | None,
) -> int:
    """Write generated jobs as a CSV that can be changed and given to `arena run --workload`."""
    from slurm_energy.cli.comparison import list_generators, write_workload  # noqa: PLC0415  # numpy only when needed

    if world is None and generator is None:
        list_generators()
        return 0
    if output is None:
        raise click.UsageError("name the file to write with --output FILE")
    settings = dict(_setting(text) for text in given)
    if hours is not None:
        settings["hours"] = str(hours)
    jobs, source = write_workload(world, generator, settings, seed, output)
    click.echo(f"{jobs} jobs of {source} are in {output}.", err=True)
    return 0


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals:
        raise click.UsageError(f"--set {text[:64]!r} is not of the form KEY=VALUE")
    return key.strip(), value.strip()
