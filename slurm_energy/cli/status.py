"""`slurm-energy status` and `slurm-energy decisions`."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slurm_energy.cli.context import JSON_OPTION, moment, optional_job_number, print_json, settings
from slurm_energy.cli.daemon_line import asked, json_document
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.plugin_check import check_plugin
from slurm_energy.cli.record_filter import Filter
from slurm_energy.cli.records import decisions as latest_decisions
from slurm_energy.cli.report import terminal
from slurm_energy.reporting.explanation import render_decisions
from slurm_energy.reporting.machine import render_json
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


@click.command(epilog="Example: slurm-energy decisions --user alice --since 24h")
@click.option("--job", "job_id", metavar="JOB", callback=optional_job_number, help="Of one job, array or component.")
@click.option("--user", metavar="NAME", help="Of one user's submissions.")
@click.option("--partition", metavar="NAME", help="Of jobs that run, ran or wait in one partition.")
@click.option("--since", metavar="TIME", callback=moment, help="Made since: 2026-03-05, 2026-03-05T14:30, 24h, 7d.")
@click.option("--until", metavar="TIME", callback=moment, help="Made before; as --since.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Show at most so many.")
@DATABASE_OPTION
@JSON_OPTION
def decisions(
    *,
    job_id: int | None,
    user: str | None,
    partition: str | None,
    since: float | None,
    until: float | None,
    limit: int,
    database: str | None,
    as_json: bool,
) -> int:
    """List the latest decisions, newest first.

    A decision without a job is one whose submission Slurm refused, or whose job has not been seen yet. Times are this
    machine's. `slurm-energy explain JOB` tells one in full.
    """
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    where = Filter(
        job_id=job_id, user_name=user, partition=partition, since_seconds=since, until_seconds=until, limit=limit
    )
    found = latest_decisions(settings(), where, database)
    if as_json:
        click.echo(render_json(found))
        return 0
    if not found:
        any_filter = any(value is not None for value in (job_id, user, partition, since, until))
        click.echo("No decision matches." if any_filter else "No decision has been made yet.", err=True)
        return 0
    render_decisions(found, terminal())
    return 0
