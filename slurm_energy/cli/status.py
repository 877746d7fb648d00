"""`slurm-energy status`."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.cli.daemon_line import asked, json_document
from slurm_energy.cli.installing.plugin_check import check_plugin
from slurm_energy.reporting.visible import visible
from slurm_energy.wire.codec import Message

STATUS_SECONDS = 35.0


@click.command(epilog="Example: slurm-energy status --json")
@JSON_OPTION
def status(as_json: bool) -> int:
    """Show whether the daemon answers and what it has done.

    Exit code 1 when it does not answer.
    """
    config = settings()
    document = json_document(asked(config.daemon.socket_path, Message("query", {"what": "status"}), STATUS_SECONDS))
    found = check_plugin(config, os.environ)
    if found is not None:
        document = {**document, "plugin_at_next_start_of_slurmctld": found.says}
    if as_json:
        print_json(document)
        return 0
    for line in status_lines(document):
        click.echo(line)
    return 0


def status_lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield a nested document as `name: value` lines."""
    for key, value in document.items():
        name = visible(str(key)).replace("_", " ")
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from status_lines(value, indent + "  ")
        elif value is None:
            yield f"{indent}{name}: none"
        else:
            yield f"{indent}{name}: {visible(f'{value:g}' if isinstance(value, float) else str(value), 200)}"
