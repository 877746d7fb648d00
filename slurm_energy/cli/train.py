"""`slurm-energy train`."""

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@click.command(epilog="Example: slurm-energy train --world lab --teacher price:V=20 --hours 48 --output first")
@click.option("--world", required=True, metavar="NAME|FILE", help="Cluster whose generator makes the jobs.")
@click.option("--teacher", required=True, metavar="POLICY", help="Policy to learn from, as `arena run` takes it.")
@click.option("--hours", type=click.FloatRange(0.01, 100_000.0), required=True, help="Simulated hours of each run.")
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="New checkpoint.")
@click.option("--runs", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of the teacher.")
@click.option("--every", type=click.IntRange(1, 100_000), default=1, show_default=True, help="One decision in so many.")
@click.option("--epochs", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Passes over them.")
@click.option(
    "--seed", type=click.IntRange(0, 1_000_000), default=0, show_default=True, help="Of weights and arrivals."
)
@click.option("--version", default="1", show_default=True, metavar="TEXT", help="What decisions are recorded under.")
@click.option(
    "--network",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML with settings of the network; without it the defaults.",
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="CPU threads.")
def train(
    *,
    world: str,
    teacher: str,
    hours: float,
    output: Path,
    runs: int,
    every: int,
    epochs: int,
    seed: int,
    version: str,
    network: Path | None,
    threads: int,
) -> int:
    """Train the graph network to decide as another policy does.

    The other policy runs on a simulated cluster, and its decisions are the examples. Training arrivals never meet
    those of comparisons, and the same options give the same weights on one thread. See what it learned with
    `arena run --policy gnn:checkpoint=FOLDER`; serve it with policy.name = "gnn".
    """
    from slurm_energy.learning.imitation import ImitationSettings, Progress as Epoch  # noqa: PLC0415, I001  # torch
    from slurm_energy.learning.train import TrainingPlan, network_settings  # noqa: PLC0415  # likewise
    from slurm_energy.learning.train import train as run_training  # noqa: PLC0415  # likewise

    plan = TrainingPlan(
        world=world,
        teacher=teacher,
        hours=hours,
        runs=runs,
        every=every,
        version=version,
        network=network_settings(network),
        settings=ImitationSettings(epochs=epochs, seed=seed),
        threads=threads,
    )
    with _progress() as progress:
        watched = progress.add_task(f"{teacher} on {world}", total=runs, said="")
        learned = progress.add_task("epochs", total=epochs, said="")

        def shown(done: int, decisions: int) -> None:
            progress.update(watched, completed=done, said=f"{decisions} decisions")

        def told(epoch: Epoch) -> None:
            progress.update(learned, completed=epoch.epoch, said=f"agrees in {epoch.agreement:.1%}")

        metadata = run_training(plan, output, told=told, shown=shown)
    click.echo(f"checkpoint {output}: {metadata.name} {metadata.version}")
    for name, value in metadata.metrics.items():
        click.echo(f"  {name:<16} {value:g}")
    return 0


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
