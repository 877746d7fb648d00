"""`slurm-energy database`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_energy.cli.context import JSON_OPTION, moment, print_json, settings
from slurm_energy.config import StoreConfig
from slurm_energy.domain.ids import ClusterName
from slurm_energy.errors import StoreError
from slurm_energy.forms import hide_password

if TYPE_CHECKING:
    from slurm_energy.store.session import Engine

SUMS_TEXT = "jobs into sums by hour"
FORGET_TEXT = "hours of sums removed"
DATABASE_OPTION = click.option("--database", metavar="URL", help="Another database than the configured one.")


@click.group(epilog="Example: slurm-energy database upgrade")
def database() -> None:
    """Create, upgrade, inspect, copy or prune the database."""


@database.command(epilog="Example: sudo -u slurm slurm-energy database upgrade")
@DATABASE_OPTION
def upgrade(database: str | None) -> int:
    """Create the tables, or bring them to this version's schema.

    A database of a newer version is refused and stays as it is. Stop the daemon first.
    """
    from slurm_energy.store.schema import upgrade as upgrade_schema  # noqa: PLC0415  # SQL only when it is needed

    url = database or settings().store.url
    revision = upgrade_schema(url)
    click.echo(f"{hide_password(url)} has revision {revision}.")
    return 0


@database.command(epilog="Example: slurm-energy database status")
@DATABASE_OPTION
@JSON_OPTION
def status(database: str | None, as_json: bool) -> int:
    """Show which schema the database has and which one this version needs.

    Exit code 1 when they differ, or when an upgrade was stopped before the sums of all older reports were made.
    """
    from slurm_energy.cli.records import sqlite_path  # noqa: PLC0415  # beside SQL, only when it is needed
    from slurm_energy.store.rollups import waiting_jobs  # noqa: PLC0415
    from slurm_energy.store.schema import code_revision, database_revision, has_all_sums  # noqa: PLC0415
    from slurm_energy.store.session import open_engine, store_session  # noqa: PLC0415

    url = database or settings().store.url
    path = sqlite_path(url)
    if path is not None and not path.is_file():
        raise StoreError(f"database file {path} does not exist: slurm-energy database upgrade creates it")
    engine = open_engine(StoreConfig(url=url))
    try:
        found, needed = database_revision(engine), code_revision()
        finished = found == needed and has_all_sums(engine)
        waiting = 0
        if found == needed:
            with store_session(engine, read_only=True) as session:
                waiting = waiting_jobs(session, ClusterName(settings().cluster.name), time.time())
    finally:
        engine.dispose()
    if as_json:
        print_json(
            {
                "url": hide_password(url),
                "revision": found,
                "needed": needed,
                "finished": finished,
                "waiting_jobs": waiting,
            }
        )
    else:
        click.echo(f"{hide_password(url)} has revision {found or 'none (empty)'}, this version needs {needed}.")
        if waiting:
            click.echo(
                f"{waiting} ended jobs are not in the sums by hour and day yet: reports read their rows until they are."
            )
    if finished:
        return 0
    if found == needed:
        click.echo(
            "An upgrade was stopped on the way: energy of older jobs is counted as unknown until slurm-energyd starts, "
            "or slurm-energy database upgrade ends.",
            err=True,
        )
        return 1
    click.echo("Stop slurm-energyd, then bring it up as its user: slurm-energy database upgrade.", err=True)
    return 1


@database.command(epilog="Example: sudo -u slurm slurm-energy database backup /backup/energy-2026-03-01.sqlite")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@DATABASE_OPTION
def backup(file: Path, database: str | None) -> int:
    """Copy an SQLite database into a new FILE, while the daemon writes to it.

    The copy is whole, as of one moment, and checked. What is recorded after that moment is in the daemon's journal
    (daemon.journal_days): a database put back from FILE is given it again. PostgreSQL and MariaDB are copied with
    pg_dump and mariadb-dump.
    """
    from slurm_energy.store.upkeep import backup as copy  # noqa: PLC0415  # SQL only when it is needed

    with opened(database) as engine:
        size = copy(engine, file)
    click.echo(f"{file} has {size} bytes.")
    return 0


@database.command(epilog="Example: sudo -u slurm slurm-energy database optimize")
@click.option("--vacuum", is_flag=True, help="Also give space back; recording waits, and as much room again is needed.")
@click.option("--rebuild-sums", is_flag=True, help="Also make the sums of the whole history again, 0.4 ms a job.")
@DATABASE_OPTION
def optimize(vacuum: bool, rebuild_sums: bool, database: str | None) -> int:
    """Let the database count its rows again and bring jobs that wait into the sums by hour and day.

    The daemon counts once a day and keeps the sums up by itself; after an upgrade this makes them at once. The daemon
    may run.
    """
    from slurm_energy.cli.progress import step_bar  # noqa: PLC0415  # only when it is needed
    from slurm_energy.store.rollups import forget_rollups, roll_up_waiting  # noqa: PLC0415  # SQL only when needed
    from slurm_energy.store.upkeep import optimize as count  # noqa: PLC0415  # the same

    with opened(database) as engine:
        with step_bar(max(len(SUMS_TEXT), len(FORGET_TEXT))) as tell:
            if rebuild_sums:
                forget_rollups(engine, lambda done, of: tell(FORGET_TEXT, done, of))
            jobs = roll_up_waiting(engine, time.time(), lambda done, of: tell(SUMS_TEXT, done, of))
        click.echo(f"{jobs} jobs were brought into the sums by hour and day.")
        count(engine, give_back_space=vacuum)
    click.echo("Done.")
    return 0


@database.command(epilog="Example: sudo -u slurm slurm-energy database export march.parquet --since 2026-03-01")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--since", metavar="TIME", callback=moment, help="What is counted since: 2026-03-01, 30d.")
@click.option("--until", metavar="TIME", callback=moment, help="What is counted before; as --since.")
@DATABASE_OPTION
def export(file: Path, since: float | None, until: float | None, database: str | None) -> int:
    """Write every reading of a GPU with its job into a new Parquet FILE.

    For pandas, DuckDB, Spark and the like; what a reading's time is, is that of reports. Nothing is removed.
    """
    from slurm_energy.store.export import write_parquet  # noqa: PLC0415  # SQL only when it is needed

    cluster = ClusterName(settings().cluster.name)
    with opened(database) as engine:
        rows = write_parquet(engine, cluster, file, since or 0.0, time.time() if until is None else until)
    click.echo(f"{file} has {rows} rows.")
    return 0


@database.command(epilog="Example: sudo -u slurm slurm-energy database prune --before 730d")
@click.option(
    "--before",
    metavar="TIME",
    required=True,
    callback=moment,
    help="Remove jobs that were over by then: 2024-01-01, 730d.",
)
@click.option("--dry-run", is_flag=True, help="Only say how much that is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@DATABASE_OPTION
def prune(before: float, dry_run: bool, yes: bool, database: str | None) -> int:
    """Remove old jobs with their energy, attempts and decisions; reports no longer know that time.

    Nor do estimates of run time and energy, which learn from the last 90 days: remove none of these.
    It may be done while the daemon runs. With store.keep_days the daemon does it by itself. Make a backup first.
    """
    from slurm_energy.store.past_runs import HISTORY_DAYS  # noqa: PLC0415  # SQL only when it is needed
    from slurm_energy.store.session import store_session  # noqa: PLC0415
    from slurm_energy.store.upkeep import count_old  # noqa: PLC0415
    from slurm_energy.store.upkeep import prune as remove  # noqa: PLC0415

    cluster = ClusterName(settings().cluster.name)
    with opened(database) as engine:
        with store_session(engine, read_only=True) as session:
            old = count_old(session, cluster, before)
        moment_of = datetime.fromtimestamp(before).astimezone().isoformat(sep=" ", timespec="seconds")
        click.echo(
            f"Cluster {cluster}: {old.jobs} jobs were over before {moment_of}; {old.decisions} decisions belong to no "
            "other job."
        )
        if old.jobs and before > time.time() - HISTORY_DAYS * 86_400.0:
            click.echo(
                f"Warning: estimates of run time and energy learn from the last {HISTORY_DAYS:g} days, also from jobs "
                "that would be removed.",
                err=True,
            )
        if dry_run or not (old.jobs or old.decisions):
            return 0
        if not yes and not click.confirm("Remove them, from reports and estimates?"):
            return 1
        remove(engine, cluster, before)
    click.echo("Removed. slurm-energy database optimize --vacuum gives the space back.")
    return 0


@contextmanager
def opened(url: str | None) -> Iterator["Engine"]:
    """Yield a database that has this version's schema.

    Raises:
        StoreError: it does not exist, cannot be reached or has another schema.
    """
    from slurm_energy.cli.records import sqlite_path  # noqa: PLC0415  # beside SQL, only when it is needed
    from slurm_energy.store.schema import check_version  # noqa: PLC0415
    from slurm_energy.store.session import open_engine  # noqa: PLC0415

    configured = settings().store
    store = StoreConfig(url=url or configured.url, busy_timeout_seconds=configured.busy_timeout_seconds)
    path = sqlite_path(store.url)
    if path is not None and not path.is_file():
        raise StoreError(f"database file {path} does not exist: slurm-energy database upgrade creates it")
    engine = open_engine(store)
    try:
        check_version(engine)
        yield engine
    finally:
        engine.dispose()
