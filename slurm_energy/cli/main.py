"""slurm-energy: the command line for people. Sub-commands are imported when they are called, so help is fast."""

import contextlib
import importlib
import io
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from slurm_energy import __version__
from slurm_energy.errors import plain_words
from slurm_energy.reporting.visible import say
from slurm_energy.resources import install_command

PROGRAM = "slurm-energy"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


EXTRA_OF_PACKAGE = {
    **dict.fromkeys(("gymnasium", "matplotlib", "numpy", "scipy", "sortedcontainers"), "twin"),
    **dict.fromkeys(("safetensors", "torch", "torch_geometric"), "train"),
    "z3": "gate",
}
"""What to install for packages that a node or a login host does without."""


class Noun(NamedTuple):
    """Where a sub-command is, and its line in the list."""

    module: str
    attribute: str
    summary: str


NOUNS: dict[str, Noun] = {
    "arena": Noun("arena", "arena", "Compare policies on a simulated cluster."),
    "billing": Noun(
        "billing", "billing", "Print the billing weight of each partition's GPUs by their measured power, or set it."
    ),
    "bench": Noun("bench", "bench", "Measure how fast decisions are and what memory they need."),
    "calibrate": Noun(
        "calibrate", "calibrate", "Show how each GPU type's clock curves are known; measure your own boards."
    ),
    "config": Noun("config", "config", "Show or check the settings."),
    "database": Noun("database", "database", "Create, upgrade, inspect, copy or prune the database."),
    "decisions": Noun("report", "decisions", "List the latest decisions, newest first."),
    "doctor": Noun("doctor.command", "doctor", "Check the installation and say how to fix what is wrong."),
    "explain": Noun("report", "explain", "Show everything recorded of a job, from the request to the measured energy."),
    "hyperscale": Noun("hyperscale", "hyperscale", "Train a graph network over unequal GPUs: plan it, run it."),
    "install": Noun(
        "install", "install", "Write configuration, units, hooks and commands, after showing what would change."
    ),
    "lab": Noun("lab", "lab", "Run a real Slurm cluster with simulated GPUs on this machine."),
    "plugin": Noun("plugin", "plugin", "Check the plugin in slurmctld, and repair it before slurmctld starts."),
    "policy": Noun("policy", "policy", "List, compare, promote or take back policies."),
    "report": Noun("report", "report", "Report the energy of jobs, users, accounts, partitions, nodes or periods."),
    "retrain": Noun("retrain", "retrain", "Make a candidate policy of this cluster's own history."),
    "status": Noun("status", "status", "Show whether the daemon answers, its state and its counters."),
    "train": Noun("train", "train", "Train a graph network to schedule on a simulated cluster."),
    "uninstall": Noun("uninstall", "uninstall", "Remove what install wrote, after showing what would change."),
    "metrics": Noun("status", "metrics", "Show the daemon's metrics, print dashboard and alert rules."),
    "summary": Noun(
        "report",
        "summary",
        "Show in a few lines what a job used, what that cost and what can be done about what was wasted.",
    ),
    "twin": Noun("twin", "twin", "Replay a site's history on a simulated cluster, or write jobs for one."),
}


class LazyGroup(click.Group):
    """A group that knows its sub-commands by name and imports one only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names."""
        return sorted(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import and return a sub-command."""
        noun = NOUNS.get(cmd_name)
        if noun is None:
            return None
        module = importlib.import_module(f"slurm_energy.cli.{noun.module}")
        command: click.Command = getattr(module, noun.attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so, without importing anything."""
        words = [
            CompletionItem(name, help=noun.summary)
            for name, noun in sorted(NOUNS.items())
            if name.startswith(incomplete)
        ]
        return words + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the list without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.summary) for name, noun in sorted(NOUNS.items())])


@click.group(
    name=PROGRAM,
    cls=LazyGroup,
    epilog="Example: slurm-energy report user --since 7d",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file; without it $SLURM_ENERGY_CONFIG, then /etc/slurm-energy/slurm-energy.toml.",
)
@click.option("--traceback", is_flag=True, help="Show where an error was raised, for a bug report.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def cli(context: click.Context, config_path: Path | None, traceback: bool) -> None:
    """Report the energy of Slurm jobs, explain decisions, install and check slurm-energy.

    Exit codes: 0 done, 1 refused or failed, 2 wrong usage.
    """
    context.obj = {"config_path": config_path, "traceback": traceback}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code; no error leaves a traceback unless it is wanted.

    Whatever a command raises ends here: errors of this package as their own words, those of Python and other packages
    as `plain_words` has them.
    """
    arguments = sys.argv[1:] if argv is None else argv
    _make_printable()
    try:
        result: Any = cli.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return _flushed(leaving.exit_code)
    except click.ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    except (click.Abort, KeyboardInterrupt) as ending:
        if isinstance(ending.__context__, EOFError):
            say("the question was not answered: use --yes to continue without asking", PROGRAM)
            return EXIT_FAILED
        say("interrupted", PROGRAM)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_FAILED
    except (
        Exception
    ) as error:  # the command line's outermost call: a person gets a message, and a traceback with --traceback
        if "--traceback" in arguments:
            raise
        return _explained(error)
    return result if isinstance(result, int) else 0


def _explained(error: Exception) -> int:
    """Say what went wrong."""
    if isinstance(error, ModuleNotFoundError):
        extra = EXTRA_OF_PACKAGE.get((error.name or "").split(".")[0])
        if extra is not None:
            say(f"the Python package {error.name} is missing: {install_command(extra)}", PROGRAM)
            return EXIT_FAILED
    _discard_output()
    for line in plain_words(error).splitlines() or [type(error).__name__]:
        say(line, PROGRAM)
    return EXIT_FAILED


def _flushed(exit_code: int) -> int:
    """Return the exit code, or that of a failure when what was printed cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return EXIT_FAILED
    except OSError as error:
        return _explained(error)
    return exit_code


def _make_printable() -> None:
    """Let every text be printed: what a terminal's character set lacks as an escape, and nowhere what has no place."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the end
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Send what is still to be written nowhere: the interpreter's last flush would fail once more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
