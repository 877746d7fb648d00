"""`slurm-energy train`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from slurm_energy.cli.main import EXIT_INTERRUPTED, PROGRAM
from slurm_energy.cli.progress import imitation_bars, round_lines
from slurm_energy.reporting.visible import say

IMITATION = "imitation"
ALGORITHMS = (IMITATION, "chsac", "policy-gradient", "prices")
_FOLDER = click.Path(path_type=Path)
_RECIPES = Path(__file__).resolve().parent.parent / "learning" / "recipes"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_ONLY_IMITATION = ("teacher", "runs", "every", "epochs", "network")
_ONLY_ROUNDS = ("rounds", "collectors", "resume", "start_from", "log_format", "distributed")


def _settings_file(_: click.Context, __: click.Parameter, value: str | None) -> Path | None:
    """Return the file that is named: one of the user's, or one that comes with the package."""
    if value is None or Path(value).is_file():
        return None if value is None else Path(value)
    own = {file.stem: file for file in _RECIPES.glob("*.toml")}
    if value not in own:
        raise click.BadParameter(f"{value[:200]} is neither a file nor one of the package's: {', '.join(sorted(own))}")
    return own[value]


@click.command(
    epilog="Example: slurm-energy train --world lab --algorithm chsac --config train.toml --rounds 200 --output first"
)
@click.option("--world", metavar="NAME|FILE", help="Cluster whose generator makes the jobs.")
@click.option("--algorithm", metavar="NAME", help=f"How to learn: {', '.join(ALGORITHMS)}. With --teacher: imitation.")
@click.option(
    "--config",
    callback=_settings_file,
    metavar="NAME|FILE",
    help="TOML with the tables [training], [network], [episodes] and [learner]; options go before it. `shipped` is how "
    "the policy of the package was made.",
)
@click.option("--seed", type=click.IntRange(0, 1_000_000), help="Of weights, arrivals and actions; 0 without it.")
@click.option(
    "--output", type=_FOLDER, metavar="FOLDER", help="New folder: of the training, or imitation's checkpoint."
)
@click.option(
    "--version", metavar="TEXT", help="What decisions are recorded under; in rounds, with the round behind it."
)
@click.option("--threads", type=click.IntRange(1, 256), help="CPU threads that learn; 1 without it.")
@click.option("--device", metavar="NAME", help="Where to learn: auto (a GPU if there is one), cpu, cuda or cuda:N.")
@click.option("--hours", type=click.FloatRange(0.01, 100_000.0), help="Simulated hours of an episode.")
@click.option("--rounds", type=click.IntRange(1), help="In rounds: how many; 100 without it.")
@click.option(
    "--collectors",
    type=click.IntRange(1, 1009),
    help="In rounds: episodes of each, one process for each; 1 without it.",
)
@click.option("--resume", type=_FOLDER, metavar="FOLDER", help="In rounds: resume the training in a folder.")
@click.option("--start-from", metavar="CHECKPOINT", help="In rounds: begin with the weights of a checkpoint.")
@click.option(
    "--log-format", type=click.Choice(["csv", "tensorboard"]), help="In rounds: of the figures; csv without it."
)
@click.option(
    "--distributed", is_flag=True, help="In rounds: train with all tasks of this `srun` step, gradients averaged."
)
@click.option("--teacher", metavar="POLICY", help="Imitation: policy to learn from, as `arena run` takes it.")
@click.option("--runs", type=click.IntRange(1, 1000), help="Imitation: runs of the teacher; 1 without it.")
@click.option("--every", type=click.IntRange(1, 100_000), help="Imitation: one decision in so many; 1 without it.")
@click.option("--epochs", type=click.IntRange(1, 10_000), help="Imitation: passes over the decisions; 10 without it.")
@click.option("--network", type=_FILE, metavar="FILE", help="Imitation: TOML with the keys of [network] alone.")
def train(*, config: Path | None, output: Path | None, algorithm: str | None, **options: Any) -> int:
    """Train a graph network to schedule on a simulated cluster.

    By imitation, another policy's decisions are the examples, and FOLDER becomes a checkpoint. The other algorithms
    learn in rounds: every collector runs an episode with the present weights, then the weights change. Their
    FOLDER holds settings, log, state and the checkpoints `best` and `last`; after Ctrl-C, SIGTERM or a crash, resume
    with --resume FOLDER. Episodes run on the CPU; the network learns on a GPU if there is one, else on the CPU.
    The same settings give the same weights on one CPU thread, not on a GPU. Training and comparisons use different
    arrivals. Evaluate the result with
    `arena run --policy gnn:checkpoint=FOLDER` or FOLDER/best; serve it with policy.name = "gnn".
    """
    found = _algorithm(algorithm, config, options)
    foreign = _ONLY_ROUNDS if found == IMITATION else _ONLY_IMITATION
    for name in foreign:
        if options[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} is no option of the algorithm {found}")
    if options["resume"] and output:
        raise click.UsageError("--resume continues in its own folder: leave --output out")
    if not options["resume"] and output is None:
        raise click.UsageError("--output with a new folder is missing")
    if found == IMITATION:
        assert output is not None
        return _imitate(config, output, options)
    return _train_in_rounds(config, output, found, options)


def _algorithm(algorithm: str | None, config: Path | None, options: dict[str, Any]) -> str | None:
    """Return what an option or the file says; None where the resumed folder says it."""
    from slurm_energy.settings import read_toml, table_of  # noqa: PLC0415  # keeps the help fast

    if algorithm is None and config is not None:
        algorithm = table_of(read_toml(config, "settings"), "training").get("algorithm")
    if algorithm is None and options["teacher"]:
        return IMITATION
    if algorithm is None and not options["resume"]:
        raise click.UsageError(f"--algorithm is missing: one of {', '.join(ALGORITHMS)}; or --teacher for imitation")
    return algorithm


def _imitate(config: Path | None, output: Path, options: dict[str, Any]) -> int:
    from slurm_energy.learning.imitation_training import imitation_plan, network_settings  # noqa: PLC0415  # needs torch
    from slurm_energy.learning.imitation_training import train as run_training  # noqa: PLC0415  # likewise
    from slurm_energy.learning.torch_device import torch_device  # noqa: PLC0415  # likewise

    plan = imitation_plan(
        config,
        {name: options[name] for name in ("world", "seed", "version", "threads", "device")},
        {name: options[name] for name in ("teacher", "hours", "runs", "every")},
        epochs=options["epochs"],
        network=network_settings(options["network"]) if options["network"] else None,
    )
    device = torch_device(plan.device)
    _say_where(device)
    with imitation_bars(f"{plan.teacher} on {plan.world}", plan.runs, plan.settings.epochs) as (
        report_run,
        report_epoch,
    ):
        metadata = run_training(plan, output, device=device, report_epoch=report_epoch, report_run=report_run)
    click.echo(f"checkpoint {output}: {metadata.name} {metadata.version}")
    for name, value in metadata.metrics.items():
        click.echo(f"  {name:<16} {value:g}")
    return 0


def _train_in_rounds(config: Path | None, output: Path | None, algorithm: str | None, options: dict[str, Any]) -> int:
    from slurm_energy.learning.ranks import joined  # noqa: PLC0415  # needs torch
    from slurm_energy.rendezvous import rendezvous  # noqa: PLC0415  # likewise

    if not options["distributed"]:
        return _rounds_of_rank(config, output, algorithm, options, None)
    with joined(rendezvous(os.environ)) as ranks:
        return _rounds_of_rank(config, output, algorithm, options, ranks)


def _rounds_of_rank(
    config: Path | None, output: Path | None, algorithm: str | None, options: dict[str, Any], ranks: Any
) -> int:
    from slurm_energy.learning.ranks import ALONE  # noqa: PLC0415  # needs torch
    from slurm_energy.learning.round_training import train_in_rounds  # noqa: PLC0415  # likewise
    from slurm_energy.learning.torch_device import torch_device  # noqa: PLC0415  # likewise
    from slurm_energy.learning.training_settings import resumed_settings, training_settings  # noqa: PLC0415  # likewise

    ranks = ranks or ALONE
    of_training = ("world", "seed", "version", "threads", "device", "rounds", "collectors", "start_from", "log_format")
    given = {"algorithm": algorithm, **{name: options[name] for name in of_training}}
    episodes = {"hours": options["hours"]}
    folder = options["resume"] or output
    assert isinstance(folder, Path)
    if options["resume"]:
        settings = resumed_settings(folder, config, given, episode_options=episodes, ranks=ranks.count)
    else:
        settings = training_settings(config, given, episode_options=episodes, ranks=ranks.count)
    run = settings.run
    device = torch_device(run.device, ranks.local)
    _say_where(device, f"rank {ranks.number} " if ranks.count > 1 else "")
    with round_lines(f"{run.algorithm} on {run.world}", run.rounds, is_shown=ranks.writes) as report:
        end = train_in_rounds(
            settings, folder, resumes=options["resume"] is not None, ranks=ranks, device=device, report=report
        )
    if not end.is_complete:
        if ranks.writes:
            say(
                f"stopped after round {end.rounds} of {run.rounds}; resume with: slurm-energy train --resume {folder}",
                PROGRAM,
            )
        return EXIT_INTERRUPTED
    if ranks.writes:
        click.echo(f"training {folder}: {end.rounds} rounds of {run.algorithm} on {run.world}")
        for link, metadata in end.checkpoints.items():
            click.echo(f"checkpoint {folder / link}: {metadata.name} {metadata.version}")
            for name, value in metadata.metrics.items():
                click.echo(f"  {name:<24} {value:g}")
        if "best" not in end.checkpoints:
            say(_without_best(end.checkpoints["last"].metrics), PROGRAM)
    return 0


def _without_best(figures: Mapping[str, float]) -> str:
    if figures.get("updates") == 0.0 and "replay" in figures:
        return (
            f"nothing was learned: the replay came to {figures['replay']:g} steps, fewer than "
            "learner.warm_up_transitions. So `last` is what the training began with, and there is no `best`: give it "
            "more hours, collectors or rounds"
        )
    return "no round had a score, so there is no checkpoint `best`"


def _say_where(device: Any, who: str = "") -> None:
    from slurm_energy.learning.torch_device import device_words  # noqa: PLC0415  # needs torch

    say(f"{who}learns on {device_words(device)}", PROGRAM)
