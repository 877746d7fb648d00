"""`slurm-energy bench`."""

from pathlib import Path

import click

_OUT = click.Path(dir_okay=False, path_type=Path)
SIZES = (16, 64, 256, 1024, 4096)


_RANDOM = "random"
"""Value of --checkpoint; a folder of that name is `./random`."""


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

    Needs no Slurm and no GPU. Missed goals are shown as missed; the exit code does not tell them.
    """
    from slurm_energy.cli.bench_output import BenchOutput, measure_decisions  # noqa: PLC0415  # heavy, when needed
    from slurm_energy.lab.bench.run import BenchPlan  # noqa: PLC0415  # likewise

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
