"""`slurm-energy database`."""

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings
from slurm_energy.config import StoreConfig
from slurm_energy.errors import StoreError
from slurm_energy.forms import hide_password

DATABASE_OPTION = click.option("--database", metavar="URL", help="Another database than the configured one.")


@click.group(epilog="Example: slurm-energy database upgrade")
def database() -> None:
    """Create, upgrade or inspect the database."""


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

    Exit code 1 when they differ.
    """
    from slurm_energy.cli.records import sqlite_path  # noqa: PLC0415  # beside SQL, only when it is needed
    from slurm_energy.store.schema import code_revision, database_revision  # noqa: PLC0415
    from slurm_energy.store.session import open_engine  # noqa: PLC0415

    url = database or settings().store.url
    path = sqlite_path(url)
    if path is not None and not path.is_file():
        raise StoreError(f"database file {path} does not exist: slurm-energy database upgrade creates it")
    engine = open_engine(StoreConfig(url=url))
    try:
        found, needed = database_revision(engine), code_revision()
    finally:
        engine.dispose()
    if as_json:
        print_json({"url": hide_password(url), "revision": found, "needed": needed})
    else:
        click.echo(f"{hide_password(url)} has revision {found or 'none (empty)'}, this version needs {needed}.")
    if found == needed:
        return 0
    click.echo("Stop slurm-energyd, then bring it up as its user: slurm-energy database upgrade.", err=True)
    return 1
