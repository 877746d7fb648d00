"""`slurm-energy retrain`."""

import getpass
import os
import time
from importlib.util import find_spec

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.main import PROGRAM
from slurm_energy.errors import ConfigError, SlurmEnergyError
from slurm_energy.reporting.visible import say
from slurm_energy.resources import install_command


@click.command(epilog="Example: sudo -u slurm slurm-energy retrain")
@click.option("--seed", type=click.IntRange(0, 999_999), help="Of the search; drawn without it, and noted.")
@click.option(
    "--judge/--no-judge",
    "is_judged",
    default=True,
    help="Whether the gate judges the candidate at once; one that passes goes into shadow (nightly.promote).",
)
@JSON_OPTION
def retrain(seed: int | None, is_judged: bool, as_json: bool) -> int:
    """Make a candidate policy of this cluster's own history.

    Reads the last 90 days of the database, fits what runs of each name say of clocks, builds the cluster's twin and
    tunes the prices of total-cost on its own jobs. Writes a folder below nightly.directory and notes it in the
    database; where neither prices nor clocks are better than the live policy's, it says so and makes none. Only one run
    works at a time, and one that was stopped is resumed by the next. When anything fails the exit code is 1 with the
    reason, and the live policy stays. See `slurm-energy policy list`.
    """
    if is_judged and find_spec("z3") is None:
        raise ConfigError(f"the gate needs the Python package z3: {install_command('gate')}; or use --no-judge")
    from slurm_energy.learning.nightly import night  # noqa: PLC0415  # numpy only when needed
    from slurm_energy.learning.nightly.administration import candidate_desk  # noqa: PLC0415  # SQL only when needed

    config, begun = settings(), time.monotonic()

    def report(text: str) -> None:
        say(f"{time.monotonic() - begun:6.0f} s  {text}", PROGRAM)

    passed: bool | None = None
    with night.undisturbed(config):
        made = night.retrain(config, say=report, actor=actor_name(), seed=seed)
        if is_judged:
            from slurm_energy.learning.nightly import judgement  # noqa: PLC0415  # the gate's packages, only with it

            left = 60.0 * config.nightly.max_minutes - (time.monotonic() - begun)
            passed = judgement.judge_night(made, config, report, left)
        night.clear_work(config)
        try:
            with candidate_desk(config) as desk:
                for packed in desk.archive(()):
                    report(f"packed away: {packed}")
        except SlurmEnergyError as error:
            report(f"old folders are not packed away: {error}")
    candidate = made.candidate
    if candidate is None:
        if as_json:
            print_json({"candidate": None, "notes": list(made.notes)})
        else:
            click.echo("no candidate: nothing would be gained by one, the live policy stays")
            for note in made.notes:
                click.echo(f"  {note}")
        return 0
    if as_json:
        print_json(
            {
                "candidate": candidate.candidate_id,
                "folder": str(candidate.folder),
                "parts": list(candidate.parts),
                "figures": dict(candidate.figures),
                "passed": passed,
            }
        )
    else:
        click.echo(f"candidate {candidate.candidate_id} is in {candidate.folder}")
        click.echo(f"show it with: slurm-energy policy show {candidate.candidate_id}")
    return 0


def actor_name() -> str:
    """Return who runs a command, for the history: the user behind sudo where there is one."""
    behind = os.environ.get("SUDO_USER", "")
    if behind and behind.isprintable():
        return behind[:64]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
