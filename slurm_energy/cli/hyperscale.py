"""`slurm-energy hyperscale`."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, PROGRAM
from slurm_energy.reporting.visible import say, visible

if TYPE_CHECKING:
    from slurm_energy.hyperscale.plan import TrainPlan

_FOLDER = click.Path(path_type=Path, file_okay=False)
_PLANNED = click.Path(path_type=Path, file_okay=False, exists=True)
_POLL_SECONDS = 1.0
_LAST_LINES = 8


@click.group(epilog="Example: slurm-energy hyperscale plan papers.npz --output /shared/papers --model sage --gpus 4")
def hyperscale() -> None:
    """Train a graph network over unequal GPUs: plan it, run it."""


@hyperscale.command(
    epilog="Example: slurm-energy hyperscale plan papers.npz --output /shared/papers --model sage --gpus 4"
)
@click.argument("graph", type=click.Path(path_type=Path, exists=True))
@click.option("--output", type=_FOLDER, required=True, metavar="FOLDER", help="New folder that every node sees.")
@click.option("--format", "graph_format", metavar="NAME", help="Of the graph; without it by its name and content.")
@click.option("--model", type=click.Choice(["gcn", "sage", "gat"]), default="gcn", show_default=True, help="Network.")
@click.option("--hidden", "hidden_channels", type=int, default=64, show_default=True, help="Channels of a layer.")
@click.option("--layers", "num_layers", type=int, default=2, show_default=True, help="Number of layers.")
@click.option("--heads", type=int, default=8, show_default=True, help="Of attention (gat).")
@click.option("--dropout", type=float, default=0.5, show_default=True, help="Share of a layer's values left out.")
@click.option("--learning-rate", type=float, default=0.01, show_default=True, help="Of Adam.")
@click.option("--epochs", type=int, default=200, show_default=True, help="Passes over the graph.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, dropout and parts.")
@click.option("--stale-halos", is_flag=True, help="Compute with neighbours' values of the epoch before.")
@click.option("--gpus", type=click.IntRange(1, 1009), default=4, show_default=True, help="At most so many.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="Of these partitions alone.")
@click.option(
    "--parts-per-gpu", type=click.IntRange(1, 64), default=2, show_default=True, help="More move more finely."
)
@click.option(
    "--method",
    metavar="NAME",
    help="How to partition: metis, independent-sets, spectral or random; without it the best that is installed.",
)
@click.option("--cpus", type=click.IntRange(1, 256), default=4, show_default=True, help="CPUs of a task.")
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=N", help="Edges per second of a GPU type.")
@click.option("--measured", type=_PLANNED, metavar="FOLDER", help="Take speeds from the run of this plan.")
@JSON_OPTION
def plan(graph: Path, output: Path, as_json: bool, **options: Any) -> int:
    """Plan a training over the GPUs that are free now, and write its batch script.

    FOLDER gets the graph by parts, plan.json and job.sh. The job is heterogeneous, over several partitions, only where
    that saves a tenth of an epoch. The prediction says how far off it may be: without --measured speeds come from the
    GPU catalogue, and a tenth of the epochs, run first, make a better one.
    """
    from slurm_energy.hyperscale.graph import MASKS  # noqa: PLC0415  # needs torch
    from slurm_energy.hyperscale.ingestion import read_graph  # noqa: PLC0415  # likewise
    from slurm_energy.hyperscale.part_files import write_parts  # noqa: PLC0415  # likewise
    from slurm_energy.hyperscale.partitioning import partition  # noqa: PLC0415  # likewise
    from slurm_energy.hyperscale.parts import Device  # noqa: PLC0415  # likewise
    from slurm_energy.hyperscale.plan import (  # noqa: PLC0415  # likewise
        PARTS_FILE,
        SCRIPT_FILE,
        START_SECONDS,
        choose_devices,
        free_gpus,
        limit_minutes,
        make_plan,
        read_measured,
        write_plan,
    )
    from slurm_energy.hyperscale.training import TrainSettings  # noqa: PLC0415  # likewise
    from slurm_energy.reporting.templates import render  # noqa: PLC0415  # likewise

    names = ("model", "hidden_channels", "num_layers", "heads", "dropout", "learning_rate", "epochs", "seed")
    chosen = TrainSettings(**{name: options[name] for name in names}, stale_halos=options["stale_halos"])
    measured = read_measured(options["measured"]) if options["measured"] else None
    given = {**(dict(measured.speeds) if measured else {}), **_speeds(options["speeds"])}
    gpus = free_gpus(_snapshot(), options["partitions"], given)
    candidates = choose_devices(gpus, options["gpus"])
    found = read_graph(graph, options["graph_format"])
    for note in found.notes:
        say(note, PROGRAM)
    fastest = candidates[0]
    shares = options["parts_per_gpu"]
    devices = [
        Device(
            name=f"{one.partition}-{rank}-{share}",
            speed_edges_per_second=one.speed_edges_per_second / shares,
            memory_bytes=one.memory_bytes // shares,
        )
        for rank, one in enumerate(fastest)
        for share in range(shares)
    ]
    parts = partition(found, devices, options["method"], options["seed"])
    output.mkdir(parents=True, exist_ok=True)
    folder = output.resolve()
    tensors = {name: found.data[name] for name in ("x", "edge_index", "y", *MASKS)}
    sizes = write_parts(folder / PARTS_FILE, tensors, parts.part_of_vertex, found.num_classes)
    made = make_plan(
        sizes,
        chosen,
        candidates,
        start_seconds=measured.start_seconds if measured else START_SECONDS,
        is_measured=measured is not None and all(one.slurm_type in measured.speeds for one in fastest),
    )
    values = {"folder": folder, "components": made.components(), "cpus": options["cpus"]}
    script = render("sbatch/hyperscale.sbatch.j2", {**values, "minutes": limit_minutes(made.prediction)})
    (folder / SCRIPT_FILE).write_text(script, encoding="utf-8")
    write_plan(folder, made)
    if as_json:
        print_json(_document(made, folder))
    else:
        _print_plan(made, folder)
    return 0


def _speeds(words: Sequence[str]) -> dict[str, float]:
    found = {}
    for word in words:
        name, sign, text = word.partition("=")
        try:
            found[name] = float(text)
        except ValueError:
            sign = ""
        if not sign or not 0.0 < found[name] < float("inf"):
            raise click.BadParameter(
                f"{word[:80]!r} is not TYPE=EDGES_PER_SECOND, such as a100=2.5e9", param_hint="--speed"
            )
    return found


def _snapshot() -> Any:
    """Return the cluster as Slurm's commands show it to this user."""
    from slurm_energy.domain.cluster import ClusterSnapshot  # noqa: PLC0415  # keeps the help fast
    from slurm_energy.domain.ids import ClusterName  # noqa: PLC0415  # likewise
    from slurm_energy.slurm.json_client import CommandSettings, JsonReader  # noqa: PLC0415  # likewise

    reading = JsonReader(CommandSettings.of(settings())).read_cluster()
    return ClusterSnapshot(
        cluster=ClusterName("here"),
        taken_at_seconds=time.time(),
        partitions=reading.partitions,
        nodes=reading.nodes,
        jobs=reading.jobs,
    )


def _document(made: "TrainPlan", folder: Path) -> dict[str, Any]:
    expected = made.prediction
    return {
        "folder": str(folder),
        "components": [
            {"partition": gpu.partition, "gpu_type": gpu.slurm_type, "gpus": count, "speed_source": gpu.source}
            for gpu, count in made.components()
        ],
        "rank_of_part": made.rank_of_part,
        "epoch_seconds": expected.epoch_seconds,
        "seconds": expected.seconds,
        "joules": expected.joules,
        "doubt": expected.doubt,
    }


def _print_plan(made: "TrainPlan", folder: Path) -> None:
    for gpu, count in made.components():
        speed = f"{gpu.speed_edges_per_second / 1e6:.3g} million edges/s each ({gpu.source})"
        click.echo(
            f"{count} GPU{'s' if count > 1 else ''} {visible(gpu.slurm_type)} of {visible(gpu.partition)}: {speed}"
        )
    expected = made.prediction
    low, high = 1.0 / expected.doubt, expected.doubt
    click.echo(
        f"predicted: {expected.seconds:.0f} s ({expected.seconds * low:.0f} to {expected.seconds * high:.0f}), "
        f"{expected.epoch_seconds:.3g} s an epoch, {expected.joules / 1000:.3g} kJ "
        f"({expected.joules * low / 1000:.3g} to {expected.joules * high / 1000:.3g})"
    )
    click.echo(f"run it with: slurm-energy hyperscale run {folder}")


@hyperscale.command(epilog="Example: slurm-energy hyperscale run /shared/papers")
@click.argument("folder", type=_PLANNED)
@click.option("--detach", is_flag=True, help="Submit, and do not wait.")
@JSON_OPTION
def run(folder: Path, detach: bool, as_json: bool) -> int:
    """Submit a planned training through energy-sbatch, follow it, and compare it with its prediction.

    Ctrl-C stops to follow: the job runs on, and the same command follows no second job but submits one, which resumes.
    """
    from slurm_energy.hyperscale.plan import RESULT_FILE, SCRIPT_FILE, read_json, read_plan  # noqa: PLC0415  # torch

    folder = folder.resolve()
    made = read_plan(folder)
    (folder / RESULT_FILE).unlink(missing_ok=True)
    job_id = _submitted(folder / SCRIPT_FILE)
    say(f"job {job_id} submitted", PROGRAM)
    if detach:
        click.echo(job_id)
        return 0
    if not _followed(job_id, folder, made.settings.epochs):
        return EXIT_FAILED
    found = read_json(folder / RESULT_FILE)
    expected = made.prediction
    if as_json:
        print_json({"job": job_id, "predicted": _document(made, folder), "measured": found})
        return 0
    whole = found["start_seconds"] + (found["epoch_seconds"] or 0.0) * found["epochs"]
    click.echo(f"job {job_id}: {found['epochs']} epochs")
    click.echo(f"  time      {whole:.0f} s, predicted {expected.seconds:.0f} s ({whole / expected.seconds - 1:+.0%})")
    if found["joules"] is None:
        click.echo(f"  energy    not measured by the tasks, predicted {expected.joules / 1000:.3g} kJ")
    else:
        joules = found["joules"]
        click.echo(
            f"  energy    {joules / 1000:.3g} kJ, predicted {expected.joules / 1000:.3g} kJ "
            f"({joules / expected.joules - 1:+.0%})"
        )
    right = found["accuracy"]
    click.echo(f"  accuracy  {right['test_mask']:.1%} on test_mask, {right['val_mask']:.1%} on val_mask")
    click.echo(f"as accounted: slurm-energy explain {job_id}")
    return 0


def _submitted(script: Path) -> int:
    import subprocess  # noqa: PLC0415  # keeps the help fast

    from slurm_energy.errors import SlurmError  # noqa: PLC0415  # likewise

    command = [sys.executable, "-m", "slurm_energy.cli.energy_sbatch", "--parsable", str(script)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=script.parent)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode != 0 or not number.isdecimal():
        raise SlurmError(f"{script} was not submitted: see sbatch's message; plan again if the cluster has changed")
    return int(number)


def _followed(job_id: int, folder: Path, epochs: int) -> bool:
    """Wait for the end of a job behind a bar; return whether its training is complete."""
    from slurm_energy.cli.progress import step_bar  # noqa: PLC0415  # keeps the help fast
    from slurm_energy.hyperscale.plan import LOG_FILE, RESULT_FILE  # noqa: PLC0415  # needs torch

    with step_bar(24) as show:
        while (state := _state(job_id)) in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}:
            epoch, loss = _last_epoch(folder / LOG_FILE)
            show(f"loss {loss}" if loss and state == "RUNNING" else state.lower(), epoch, epochs)
            time.sleep(_POLL_SECONDS)
    if (folder / RESULT_FILE).exists():
        return True
    say(f"job {job_id} ended without a result ({state.lower() or 'no longer known'}); its last lines:", PROGRAM)
    for line in _last_lines(folder / f"job-{job_id}.out"):
        say(f"  {visible(line)}", PROGRAM)
    say(f"resume with: slurm-energy hyperscale run {folder}", PROGRAM)
    return False


def _state(job_id: int) -> str:
    """Return the state of a job, nothing where slurmctld no longer knows it; a component still pending decides."""
    from slurm_energy.errors import SlurmError  # noqa: PLC0415  # keeps the help fast
    from slurm_energy.slurm.command import run_command  # noqa: PLC0415  # likewise
    from slurm_energy.slurm.json_client import CommandSettings, command_environment  # noqa: PLC0415  # likewise

    commands = CommandSettings.of(settings())
    squeue = str(Path(commands.bin_directory) / "squeue") if commands.bin_directory else "squeue"
    pieces: list[bytes] = []
    try:
        run_command(
            [squeue, "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"],
            pieces.append,
            environment=command_environment(commands, os.environ),
            timeout_seconds=commands.timeout_seconds,
        )
    except SlurmError as error:
        return "" if "Invalid job id" in str(error) else "PENDING"
    states = b"".join(pieces).decode("ascii", "replace").split()
    return next((one for one in states if one not in {"COMPLETED"}), states[0] if states else "")


def _last_epoch(log: Path) -> tuple[int, str]:
    words = (_last_lines(log, 1) or [""])[0].split(",")
    return (int(words[0]), words[1][:10]) if len(words) > 1 and words[0].isdecimal() else (0, "")


def _last_lines(path: Path, count: int = _LAST_LINES) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


@hyperscale.command(epilog="Example: slurm-energy hyperscale train /shared/papers")
@click.argument("folder", type=_PLANNED)
@click.option("--epochs", type=click.IntRange(1), help="Other than planned: more continue a training.")
def train(folder: Path, epochs: int | None) -> int:
    """Train as planned: the tasks of the plan's job execute this under srun.

    A folder with a checkpoint is resumed. SIGTERM, which Slurm sends before the time limit, ends the training after an
    epoch, with exit code 130 and a checkpoint.
    """
    import warnings  # noqa: PLC0415  # keeps the help fast

    from slurm_energy.hyperscale.plan import read_plan  # noqa: PLC0415  # needs torch
    from slurm_energy.hyperscale.running import Watch, place_of, train_planned  # noqa: PLC0415  # likewise
    from slurm_energy.progress import StepMeter  # noqa: PLC0415  # opens NVML

    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
    folder = folder.resolve()
    made = read_plan(folder)
    if epochs is not None:
        made = replace(made, settings=replace(made.settings, epochs=epochs))
    place = place_of(os.environ, len(made.devices))
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    with StepMeter() as meter:
        meter.step()
        end = train_planned(
            folder,
            made,
            place,
            Watch(
                on_epoch=lambda _: meter.step(),
                on_move=lambda state, seconds: say(
                    f"parts move after epoch {state.epoch}: {-state.reward:.3g} s an epoch become {seconds:.3g}",
                    PROGRAM,
                ),
                should_stop=lambda: bool(stopped),
                joules=lambda: _joules(meter),
            ),
        )
    if not end.is_complete:
        if place.number == 0:
            say(f"stopped after epoch {end.epochs} of {made.settings.epochs}; submit the job again to resume", PROGRAM)
        return EXIT_INTERRUPTED
    if place.number == 0:
        click.echo(f"{end.epochs} epochs, {end.accuracy['test_mask']:.1%} right on test_mask: {end.checkpoint}")
    return 0


def _joules(meter: Any) -> float | None:
    found = meter.summary()
    return None if found.joules_per_step is None else found.joules_per_step * found.steps
