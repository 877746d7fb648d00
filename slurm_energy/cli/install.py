"""`slurm-energy install`."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import click

from slurm_energy.cli.context import settings_path
from slurm_energy.cli.file_changes import FileChange, file_change, write
from slurm_energy.cli.installation import (
    CONFIG_DIRECTORY,
    FRAGMENT_NAME,
    NODE_UNITS,
    ROLES,
    Installation,
    InstallOptions,
    with_site_facts,
)
from slurm_energy.cli.plugin_build import built_plugins
from slurm_energy.cli.site import detected_roles, read_slurm_conf, slurm_conf_path, under
from slurm_energy.config import Config, load_config

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command(epilog="Example: slurm-energy install --role controller --dry-run")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([*ROLES, "all"]),
    help="What this host is; found out when not given.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    help="Folder that stands for /, to prepare an image.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    default=Path(sys.executable),
    help="Interpreter for units and hooks; the one that runs now by default.",
)
@click.option(
    "--scheduler",
    type=click.Choice(["systemd", "cron"]),
    default="systemd",
    show_default=True,
    help="What runs the node's timers.",
)
@click.option("--build-plugin", is_flag=True, help="Compile the Slurm plugins for this host's Slurm and install them.")
@click.option("--plugin-dir", type=click.Path(path_type=Path), help="Slurm's plugin folder, where it is not found.")
@click.option(
    "--edit-slurm-conf", is_flag=True, help="Append the Include line to slurm.conf; otherwise it is only shown."
)
@click.option("--dry-run", is_flag=True, help="Show the differences and write nothing.")
@click.option("--yes", is_flag=True, help="Write without asking.")
def install(
    *,
    roles: tuple[str, ...],
    root: Path,
    python: Path,
    scheduler: str,
    build_plugin: bool,
    plugin_dir: Path | None,
    edit_slurm_conf: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Write configuration, units and hooks, after showing what would change.

    Settings that /etc/slurm-energy/slurm-energy.toml holds already are kept. Files that change are copied aside
    first. slurm.conf itself stays as it is, unless --edit-slurm-conf is given.
    """
    config = _present_settings(root)
    chosen = _roles(roles, config)
    click.echo(f"Role of this host: {', '.join(chosen)}", err=True)
    with built_plugins() if build_plugin else nullcontext() as plugins:
        options = InstallOptions(
            root=root,
            roles=chosen,
            python=python.absolute(),
            scheduler=scheduler,
            edit_slurm_conf=edit_slurm_conf,
            plugin_directory=plugin_dir,
            built_plugins=plugins,
        )
        installation = Installation(config, options, os.environ)
        changes = [file_change(root, planned) for planned in installation.files()]
    needed = [change for change in changes if change.needed]
    for line in _differences(needed):
        click.echo(line)
    click.echo(f"{len(needed)} of {len(changes)} files differ.", err=True)
    if dry_run:
        click.echo("Nothing was written.", err=True)
        return 0
    if needed and not yes:
        click.confirm("Write them?", abort=True, err=True)
    now = time.time()
    for change in needed:
        backup = write(change, now)
        click.echo(f"written: {change.planned.path}{'' if backup is None else f' (before: {backup})'}", err=True)
    for line in next_steps(installation, chosen, scheduler, edit_slurm_conf):
        click.echo(line, err=True)
    return 0


def _present_settings(root: Path) -> Config:
    """Return the settings that the host has, without this shell's environment; the defaults when it has none."""
    named = settings_path()
    path = named or under(root, CONFIG_DIRECTORY / "slurm-energy.toml")
    present = load_config(path, environment={}) if named or path.exists() else Config()
    return with_site_facts(present, read_slurm_conf(slurm_conf_path(present, os.environ, root), root))


def _roles(given: tuple[str, ...], config: Config) -> tuple[str, ...]:
    if "all" in given:
        return ROLES
    return tuple(dict.fromkeys(given)) or detected_roles(config)


def _differences(changes: Iterable[FileChange]) -> Iterator[str]:
    for change in changes:
        for line in change.difference():
            colour = _COLOURS.get(line[:1])
            yield click.style(line, fg=colour) if colour else line
        yield ""


def next_steps(installation: Installation, roles: tuple[str, ...], scheduler: str, edited: bool) -> Iterator[str]:
    """Yield what a person still has to do."""
    yield ""
    yield "Next:"
    if not edited:
        yield f"  put into {installation.slurm_conf}, on every host, as its last line:  Include {FRAGMENT_NAME}"
    for remark in installation.remarks:
        yield f"  {remark}"
    if "controller" in roles:
        yield "  systemctl daemon-reload && systemctl enable --now slurm-energyd"
        yield "                                               (makes the database at its first start)"
        yield "  systemctl restart slurmctld                  (loads the plugin; running jobs stay)"
    if "node" in roles:
        if scheduler == "systemd":
            yield f"  systemctl daemon-reload && systemctl enable --now {' '.join(NODE_UNITS)}"
        yield "  scontrol reconfigure                         (on the controller, when all nodes have their files)"
    yield "  slurm-energy doctor                          (checks all of it and says how to mend what is wrong)"
