"""`slurm-energy report`, `explain` and `decisions`: what is recorded of jobs."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

import click
from rich.console import Console

from slurm_energy.cli.calendar import calendar_bounds
from slurm_energy.cli.context import JSON_OPTION, job_number, moment, optional_job_number, settings
from slurm_energy.cli.database import DATABASE_OPTION
from slurm_energy.cli.records import Filter, energy_report, explanation, open_report, recent_decisions, slowdown_report
from slurm_energy.domain.report import CalendarStep, EnergyReport, ReportKind
from slurm_energy.errors import StoreError
from slurm_energy.reporting.bounds_table import render_open, render_slowdown
from slurm_energy.reporting.energy_table import render_table
from slurm_energy.reporting.explanation import render_decisions, render_explain
from slurm_energy.reporting.machine import render_csv, render_explain_json, render_json
from slurm_energy.reporting.summary import advice_lines, summary_lines

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dimension:
    """A noun of `report`."""

    kind: ReportKind
    rows: str
    """What its rows are of."""
    field: str | None = None
    """Which field of the filter its argument names."""
    old_name: str | None = None


DIMENSIONS = {
    "users": _Dimension(kind="user", rows="user", field="user_name", old_name="user"),
    "accounts": _Dimension(kind="account", rows="account", field="account"),
    "partitions": _Dimension(
        kind="partition", rows="partition in which jobs ran", field="partition", old_name="partition"
    ),
    "qos": _Dimension(kind="qos", rows="QOS", field="qos"),
    "names": _Dimension(kind="name", rows="job name", field="name"),
    "nodes": _Dimension(kind="node", rows="node", field="node"),
    "cluster": _Dimension(kind="cluster", rows="period, for the whole cluster"),
}


@click.group(epilog="Example: slurm-energy report accounts --since 2026-03-01 --until 2026-04-01 --by week")
def report() -> None:
    """Report the energy of jobs, users, accounts, partitions, nodes or periods.

    Users see their own jobs, coordinators those of their accounts, root and SlurmUser all. Unknown energy is shown as
    unknown, never as 0. What a job used is counted when the attempt ended: a period that is over stays as it is.
    """


def _format_options(command: _Command) -> _Command:
    as_csv = click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with the unit in each column's name.")
    as_html = click.option("--html", "as_html", is_flag=True, help="Print a page with plots, for browser or printer.")
    return DATABASE_OPTION(as_csv(as_html(JSON_OPTION(command))))


def _filter_options(command: _Command) -> _Command:
    until = click.option("--until", metavar="TIME", callback=moment, help="What ended before; as --since.")
    since = click.option(
        "--since", metavar="TIME", callback=moment, help="What ended since: 2026-03-05, 2026-03-05T14:30, 24h, 7d."
    )
    for word, field, thing in reversed(_FILTERS):
        command = click.option(f"--{word}", field, metavar="NAME", help=f"Only {thing}.")(command)
    return since(until(command))


_FILTERS = (
    ("user", "user_name", "jobs of this user"),
    ("account", "account", "jobs of this account"),
    ("partition", "partition", "what ran in this partition"),
    ("qos", "qos", "jobs of this QOS"),
    ("name", "name", "jobs of this name"),
    ("node", "node", "what ran on this node"),
)


@report.command(epilog="Example: slurm-energy report job 4242 --json")
@click.argument("job_id", metavar="JOB", callback=job_number)
@_format_options
def job(job_id: int, *, as_json: bool, as_csv: bool, as_html: bool, database: str | None) -> int:
    """Report one job's energy; an array's own number gives all its tasks."""
    found = _found("report-job", Filter(job_id=job_id), database)
    if not found.jobs:
        raise StoreError(f"job {job_id} is not in the database of cluster {found.cluster}")
    return _print(found, as_json=as_json, as_csv=as_csv, as_html=as_html)


@report.command(epilog="Example: slurm-energy report jobs --account physics --since 7d")
@_filter_options
@_format_options
def jobs(  # each is one option
    *,
    since: float | None,
    until: float | None,
    as_json: bool,
    as_csv: bool,
    as_html: bool,
    database: str | None,
    **names: str | None,
) -> int:
    """Report each job of a period, the youngest first."""
    where = replace(Filter(since_seconds=since, until_seconds=until), **names)  # type: ignore[arg-type]  # all are names
    return _print(_found("report-job", where, database), as_json=as_json, as_csv=as_csv, as_html=as_html)


@report.command(epilog="Example: slurm-energy report slowdown --since 7d --json")
@_filter_options
@JSON_OPTION
@DATABASE_OPTION
def slowdown(
    *, since: float | None, until: float | None, as_json: bool, database: str | None, **names: str | None
) -> int:
    """Report by user how much longer completed jobs ran, and the share of them beyond their bound.

    Against where Slurm would have started each job, at the default clock, and each job's own bound: measured where the
    job tried its clock beside the default one, else predicted, which is said.
    """
    found = slowdown_report(settings(), _period(since, until, names), database)
    if as_json:
        click.echo(render_json(found))
    else:
        render_slowdown(found, terminal())
    return 0


@report.command("open", epilog="Example: slurm-energy report open --since 7d")
@_filter_options
@JSON_OPTION
@DATABASE_OPTION
def open_partitions(
    *, since: float | None, until: float | None, as_json: bool, database: str | None, **names: str | None
) -> int:
    """Report by user what jobs that named a partition could have saved had they left it open (--energy-open)."""
    found = open_report(settings(), _period(since, until, names), database)
    if as_json:
        click.echo(render_json(found))
    else:
        render_open(found, terminal())
    return 0


def _period(since: float | None, until: float | None, names: dict[str, str | None]) -> Filter:
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    return replace(Filter(since_seconds=since, until_seconds=until), **names)  # type: ignore[arg-type]  # all are names


def _dimension_command(noun: str, dimension: _Dimension) -> click.Command:
    @_filter_options
    @click.option(
        "--by",
        metavar="STEP[,DIMENSION...]",
        callback=_steps,
        help="Rows for each day, week or month of this machine's calendar, and for further dimensions: month,account.",
    )
    @_format_options
    def command(  # each is one option
        *,
        since: float | None,
        until: float | None,
        by: tuple[CalendarStep | None, tuple[ReportKind, ...]],
        as_json: bool,
        as_csv: bool,
        as_html: bool,
        database: str | None,
        one: str | None = None,
        **names: str | None,
    ) -> int:
        if one is not None and dimension.field is not None:
            names[dimension.field] = one
        step, also = by
        bounds: tuple[float, ...] = ()
        if step is not None:
            bounds = calendar_bounds(step, since, until, time.time())
            since, until = bounds[0], bounds[-1]
        where = replace(
            Filter(since_seconds=since, until_seconds=until, also=also, bounds_seconds=bounds),
            **names,  # type: ignore[arg-type]  # all are names
        )
        found = _found(f"report-{dimension.kind}", where, database)
        return _print(found, as_json=as_json, as_csv=as_csv, as_html=as_html)

    command.__doc__ = f"Report energy for each {dimension.rows}" + (", or of one." if dimension.field else ".")
    example = f"slurm-energy report {noun} --since 2026-03-01 --until 2026-04-01 --by week"
    made = click.command(noun, epilog=f"Example: {example}")(command)
    if dimension.field is not None:
        made.params.insert(0, click.Argument(["one"], required=False, metavar=f"[{dimension.kind.upper()}]"))
    return made


def _steps(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[CalendarStep | None, tuple[ReportKind, ...]]:
    step: CalendarStep | None = None
    also: list[ReportKind] = []
    for word in filter(None, (text or "").split(",")):
        found = next((one for one in get_args(CalendarStep) if one == word), None)
        dimension = DIMENSIONS.get(word) or DIMENSIONS.get(f"{word}s")
        if found is not None and step is None:
            step = found
        elif dimension is not None and dimension.kind != "cluster":
            also.append(dimension.kind)
        else:
            raise click.BadParameter(
                f"{word[:40]!r} is not day, week or month (one of them), nor user, account, partition, qos, name, node",
                context,
                parameter,
            )
    return step, tuple(also)


for _noun, _dimension in DIMENSIONS.items():
    report.add_command(_dimension_command(_noun, _dimension))
    if _dimension.old_name is not None:
        _old = _dimension_command(_dimension.old_name, _dimension)
        _old.hidden = True
        report.add_command(_old)


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
        from slurm_energy.reporting.templates import render_html  # noqa: PLC0415  # jinja2 only when it is needed

        click.echo(render_html(found))
    else:
        render_table(found, terminal())
    return 0


@click.command(epilog="Example: slurm-energy explain 4242")
@click.argument("job_id", metavar="JOB", callback=job_number)
@JSON_OPTION
@DATABASE_OPTION
def explain(job_id: int, as_json: bool, database: str | None) -> int:
    """Show everything recorded of a job, from the request to the measured energy.

    What was asked, what was decided and why, what was applied and observed, and what was predicted
    against what was measured. Works while the daemon is away if the database can be read.
    """
    record = explanation(settings(), job_id, database)
    if as_json:
        click.echo(render_explain_json(record))
    else:
        render_explain(record, terminal())
    return 0


@click.command(epilog="Example: slurm-energy summary 4242")
@click.argument("job_id", metavar="JOB", callback=job_number)
@DATABASE_OPTION
def summary(job_id: int, database: str | None) -> int:
    """Show in a few lines what a job used, what that cost and what can be done about what was wasted."""
    config = settings()
    story = explanation(config, job_id, database)
    for line in summary_lines(story, energy_report(config, "report-job", Filter(job_id=job_id), database)):
        click.echo(line)
    for line in advice_lines(story):
        click.echo(f"  Advice      {line}")
    return 0


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
    machine's. `slurm-energy explain JOB` shows one in full.
    """
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    where = Filter(
        job_id=job_id, user_name=user, partition=partition, since_seconds=since, until_seconds=until, limit=limit
    )
    found = recent_decisions(settings(), where, database)
    if as_json:
        click.echo(render_json(found))
        return 0
    if not found:
        any_filter = any(value is not None for value in (job_id, user, partition, since, until))
        click.echo("No decision matches." if any_filter else "No decision has been made yet.", err=True)
        return 0
    render_decisions(found, terminal())
    return 0


def terminal() -> Console:
    """Return a console on stdout; into a pipe or file lines are as long as they need."""
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=False)
