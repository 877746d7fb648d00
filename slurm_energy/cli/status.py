"""`slurm-energy status` and `slurm-energy metrics`: what the daemon says of itself, to people and Prometheus."""

import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.daemon_line import asked, json_document
from slurm_energy.cli.installing.plugin_check import check_plugin
from slurm_energy.cli.records import where_to_run
from slurm_energy.errors import ConfigError, DaemonUnavailable
from slurm_energy.reporting.visible import visible
from slurm_energy.resources import install_command, shared_directory
from slurm_energy.wire.codec import Message

STATUS_SECONDS = 35.0
MAX_CHARACTERS = 400
"""Of one value."""
DASHBOARD = "grafana/slurm-energy.json"
RULES = "prometheus/slurm-energy.rules.yml"


@click.command(epilog="Example: slurm-energy status --json")
@JSON_OPTION
def status(as_json: bool) -> int:
    """Show whether the daemon answers, its state and its counters.

    Exit code 1 when it does not answer.
    """
    config = settings()
    try:
        reply = asked(config.daemon.socket_path, Message("query", {"what": "status"}), STATUS_SECONDS)
    except DaemonUnavailable as error:
        raise DaemonUnavailable(where_to_run(config) or str(error)) from error
    document = json_document(reply)
    found = check_plugin(config, os.environ)
    if found is not None:
        document = {**document, "plugin_at_next_start_of_slurmctld": found.says}
    if as_json:
        print_json(document)
        return 0
    for line in status_lines(document, width=shutil.get_terminal_size((0, 0)).columns):
        click.echo(line)
    return 0


def status_lines(document: Mapping[str, Any], indent: str = "", width: int = 0) -> Iterator[str]:
    """Yield a nested document as `name: value` lines.

    Args:
        document: What the daemon answered.
        indent: In front of each line.
        width: Of the terminal; 0 leaves long lines as they are.
    """
    for key, value in document.items():
        name = visible(str(key)).replace("_", " ")
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from status_lines(value, indent + "  ", width)
            continue
        shown = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        line = f"{indent}{name}: {visible(shown, MAX_CHARACTERS)}"
        if width and len(line) > width:
            yield from textwrap.wrap(
                line, width, subsequent_indent=f"{indent}    ", break_long_words=False, break_on_hyphens=False
            )
        else:
            yield line


@click.group(epilog="Example: slurm-energy metrics show")
def metrics() -> None:
    """Show the daemon's metrics, print dashboard and alert rules."""


@metrics.command(epilog="Example: slurm-energy metrics show | grep spool")
def show() -> int:
    """Print what a scrape would get now, in Prometheus's format; metrics.host need not be set.

    For root and the daemon's user on the daemon's host.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415  # an extra

        from slurm_energy.daemon.metrics.families import DaemonCollector  # noqa: PLC0415  # the same
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: {install_command('metrics')}") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DaemonCollector(settings()))
    click.echo(generate_latest(registry).decode(), nl=False)
    return 0


@metrics.command(epilog="Example: slurm-energy metrics dashboard > slurm-energy.json")
def dashboard() -> int:
    """Print the Grafana dashboard, to be imported."""
    return _print(DASHBOARD)


@metrics.command(epilog="Example: slurm-energy metrics rules > /etc/prometheus/rules/slurm-energy.yml")
def rules() -> int:
    """Print the alert rules for Prometheus."""
    return _print(RULES)


def _print(name: str) -> int:
    click.echo((shared_directory("templates") / name).read_text(encoding="utf-8"), nl=False)
    return 0
