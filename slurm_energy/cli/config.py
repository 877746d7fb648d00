"""`slurm-energy config`, and the settings as rows: for templates and reference pages too."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from slurm_energy.cli.context import JSON_OPTION, print_json, settings, settings_path
from slurm_energy.config import Config, config_path, load_config
from slurm_energy.forms import hide_password
from slurm_energy.policy.site.check import check_site, site_notes
from slurm_energy.reporting.visible import visible
from slurm_energy.settings import default_of, toml_value

_FREE_KEYS = {"gpu_types": "GPU type of GRES type", "gpu_power_limits_watts": "Power limit in W of the boards of"}
_TYPE_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting."""

    section: str
    key: str
    help: str
    type_name: str
    low: float | None
    high: float | None
    default: Any
    value: Any
    origin: str
    """`default`, a file, or `$VARIABLE`."""

    @property
    def toml(self) -> str:
        """The value in force as TOML; modes of files in octal, as people know them."""
        return self.as_toml(self.value)

    @property
    def default_toml(self) -> str:
        """The default as TOML."""
        return self.as_toml(self.default)

    @property
    def is_set(self) -> bool:
        """Whether the value differs from the default."""
        return bool(self.value != self.default)

    @property
    def name(self) -> str:
        """`section.key`."""
        return f"{self.section}.{self.key}" if self.key else self.section

    @property
    def bounds(self) -> str:
        """`LOW to HIGH`, empty where there is no bound."""
        return "" if self.low is None or self.high is None else f"{self._number(self.low)} to {self._number(self.high)}"

    def _number(self, value: float) -> str:
        return self.as_toml(int(value)) if float(value).is_integer() else f"{value:g}"

    def as_toml(self, value: Any) -> str:
        """Return a value of this setting as TOML."""
        if self.key.endswith("_mode") and isinstance(value, int) and not isinstance(value, bool):
            return f"0o{value:o}"
        return toml_value(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTable:
    """One section with its settings; in `gpu_types` and `gpu_power_limits_watts` the keys are free."""

    name: str
    help: str
    settings: tuple[SettingRow, ...]


def section_tables(config: Config) -> Iterator[SectionTable]:
    """Yield every section in the order of the configuration."""
    for item in fields(Config):
        if item.name == "origins":
            continue
        current = getattr(config, item.name)
        if get_origin(item.type) is dict:
            yield SectionTable(name=item.name, help=item.metadata["help"], settings=tuple(_free_rows(config, item)))
            continue
        rows = tuple(
            _row(item.name, setting, getattr(current, setting.name), config.origins) for setting in fields(current)
        )
        yield SectionTable(name=item.name, help=(type(current).__doc__ or "").strip().splitlines()[0], settings=rows)


def _row(section: str, setting: Any, value: Any, origins: Any) -> SettingRow:
    bound = setting.metadata["bound"]
    return SettingRow(
        section=section,
        key=setting.name,
        help=setting.metadata["help"],
        type_name=_type_name(setting.type),
        low=None if bound is None else bound.low,
        high=None if bound is None else bound.high,
        default=default_of(setting),
        value=value,
        origin=origins.get(f"{section}.{setting.name}", "default"),
    )


def _free_rows(config: Config, section: Any) -> Iterator[SettingRow]:
    bound, kind = section.metadata["bound"], get_args(section.type)[1]
    for key, value in getattr(config, section.name).items():
        yield SettingRow(
            section=section.name,
            key=toml_value(key),
            help=f"{_FREE_KEYS[section.name]} {key}.",
            type_name=_type_name(kind),
            low=None if bound is None else bound.low,
            high=None if bound is None else bound.high,
            default=kind(),
            value=value,
            origin=config.origins.get(section.name, "default"),
        )


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is dict:
        return f"table of {_type_name(get_args(kind)[1])}s"
    if get_origin(kind) is tuple:
        return "list of texts"
    return _TYPE_NAMES[kind]


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
