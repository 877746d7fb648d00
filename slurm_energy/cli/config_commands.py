"""`slurm-energy config`."""

import os
from pathlib import Path

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings, settings_path
from slurm_energy.cli.settings_table import SettingRow, section_tables
from slurm_energy.config import config_path, load_config
from slurm_energy.forms import hide_password
from slurm_energy.policy.site_check import check_site, site_notes
from slurm_energy.reporting.visible import visible


@click.group(epilog="Example: slurm-energy config show")
def config() -> None:
    """Show or check the settings."""


@config.command(epilog="Example: slurm-energy config show node --json")
@click.argument("section", required=False)
@JSON_OPTION
def show(section: str | None, as_json: bool) -> int:
    """Show each setting's value and where it came from.

    Order: environment variable SLURM_ENERGY_SECTION_KEY, then the file, then the default.
    """
    tables = list(section_tables(settings()))
    names = [table.name for table in tables]
    if section is not None and section not in names:
        raise click.UsageError(f"section {section[:40]!r} does not exist; known: {', '.join(names)}")
    rows = [row for table in tables if section in (None, table.name) for row in table.settings]
    if as_json:
        print_json({row.name: {"value": _shown(row), "origin": row.origin, "default": row.default} for row in rows})
        return 0
    path = settings_path() or config_path(os.environ)
    click.echo(f"# file: {path}{'' if path.exists() else ' (does not exist)'}")
    width = max((len(f"{row.name} = {_text(row)}") for row in rows), default=0)
    for row in rows:
        click.echo(f"{f'{row.name} = {_text(row)}':<{min(width, 72)}}  # {visible(row.origin)}")
    return 0


def _shown(row: SettingRow) -> object:
    return hide_password(row.value) if row.name == "store.url" else row.value


def _text(row: SettingRow) -> str:
    return visible(row.as_toml(_shown(row)))


@config.command(epilog="Example: slurm-energy config check /etc/slurm-energy/slurm-energy.toml")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def check(file: Path) -> int:
    """Check a configuration file as the daemon does: keys, types, bounds, policy, GPU types, clocks, URL, addresses.

    The environment is left out; exit code 1 when the file cannot be used.
    """
    config = load_config(file, environment={})
    check_site(config)
    for note in site_notes(config):
        click.echo(note, err=True)
    click.echo(f"{file} is good.")
    return 0
