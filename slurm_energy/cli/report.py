"""`slurm-energy report`."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import Console

from slurm_energy.cli.context import JSON_OPTION, job_number, moment, settings
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.record_filter import Filter
from slurm_energy.cli.records import energy_report
from slurm_energy.domain.report import EnergyReport
from slurm_energy.errors import StoreError
from slurm_energy.reporting.machine import render_csv, render_json
from slurm_energy.reporting.tables import render_table

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group(epilog="Example: slurm-energy report job 4242")
def report() -> None:
    """Report the energy of jobs, users or partitions.

    Everybody sees his own jobs; root and Slurm's user see all. Unknown energy is shown as unknown, never as 0.
    """


def _format_options(command: _Command) -> _Command:
    as_csv = click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with the unit in each column's name.")
    as_html = click.option("--html", "as_html", is_flag=True, help="Print a page for the browser.")
    return DATABASE_OPTION(as_csv(as_html(JSON_OPTION(command))))


def _period_options(command: _Command) -> _Command:
    until = click.option("--until", metavar="TIME", callback=moment, help="Jobs that ended before; as --since.")
    since = click.option(
        "--since", metavar="TIME", callback=moment, help="Jobs that ended since: 2026-03-05, 2026-03-05T14:30, 24h, 7d."
    )
    return since(until(command))


@report.command(epilog="Example: slurm-energy report job 4242 --json")
@click.argument("job_id", metavar="JOB", callback=job_number)
@_format_options
def job(job_id: int, *, as_json: bool, as_csv: bool, as_html: bool, database: str | None) -> int:
    """Report one job's energy; an array's own number gives all its tasks."""
    found = _found("report-job", Filter(job_id=job_id), database)
    if not found.jobs:
        raise StoreError(f"job {job_id} is not in the database of cluster {found.cluster}")
    return _print(found, as_json=as_json, as_csv=as_csv, as_html=as_html)


@report.command(epilog="Example: slurm-energy report user alice --since 7d --csv")
@click.argument("name", required=False)
@_period_options
@_format_options
def user(
    *,
    name: str | None,
    since: float | None,
    until: float | None,
    as_json: bool,
    as_csv: bool,
    as_html: bool,
    database: str | None,
) -> int:
    """Report energy per user, or of one."""
    where = Filter(user_name=name, since_seconds=since, until_seconds=until)
    return _print(_found("report-user", where, database), as_json=as_json, as_csv=as_csv, as_html=as_html)


@report.command(epilog="Example: slurm-energy report partition --since 2026-03-01 --until 2026-04-01")
@click.argument("name", required=False)
@_period_options
@_format_options
def partition(
    *,
    name: str | None,
    since: float | None,
    until: float | None,
    as_json: bool,
    as_csv: bool,
    as_html: bool,
    database: str | None,
) -> int:
    """Report energy per partition, or of one."""
    where = Filter(partition=name, since_seconds=since, until_seconds=until)
    return _print(_found("report-partition", where, database), as_json=as_json, as_csv=as_csv, as_html=as_html)


def _found(subject: str, where: Filter, database: str | None) -> EnergyReport:
    if (
        where.since_seconds is not None
        and where.until_seconds is not None
        and where.since_seconds >= where.until_seconds
    ):
        raise click.UsageError("--since is not before --until")
    return energy_report(settings(), subject, where, database)


def _print(found: EnergyReport, *, as_json: bool, as_csv: bool, as_html: bool) -> int:
    if as_json + as_csv + as_html > 1:
        raise click.UsageError("--json, --csv and --html exclude each other")
    if as_json:
        click.echo(render_json(found))
    elif as_csv:
        click.echo(render_csv(found), nl=False)
    elif as_html:
        from slurm_energy.reporting.html import render_html  # noqa: PLC0415  # jinja2 only when it is needed

        click.echo(render_html(found))
    else:
        render_table(found, terminal())
    return 0


def terminal() -> Console:
    """Return a console on stdout; into a pipe or file lines are as long as they need."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=False)
