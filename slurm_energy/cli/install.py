"""`slurm-energy install`."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from slurm_energy.cli.context import settings_path
from slurm_energy.cli.file_changes import FileChange, file_change, write
from slurm_energy.cli.installation import (
    NODE_UNITS,
    ROLES,
    SCHEDULERS,
    SETTINGS_PATH,
    Installation,
    InstallOptions,
    with_site_facts,
)
from slurm_energy.cli.plugin_build import built_plugins
from slurm_energy.cli.site import detected_roles, read_slurm_conf, run_command, slurm_conf_path, under
from slurm_energy.config import Config, load_config

_FIRST_RELEASE_WITH_SEVERAL_HOOKS = (24, 5)
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
    type=click.Choice(SCHEDULERS),
    default="systemd",
    show_default=True,
    help="What runs the node's timers.",
)
@click.option("--build-plugin", is_flag=True, help="Compile the Slurm plugins for this host's Slurm and install them.")
@click.option("--plugin-dir", type=click.Path(path_type=Path), help="Slurm's plugin folder, where it is not found.")
@click.option(
    "--job-submit",
    type=click.Choice(["c", "lua"]),
    default="c",
    show_default=True,
    help="What asks in slurmctld: our plugin, or a script for Slurm's own lua plugin, which sets no clocks.",
)
@click.option("--edit-slurm-conf", is_flag=True, help="Put the lines into slurm.conf; otherwise they are only shown.")
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
    job_submit: str,
    edit_slurm_conf: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Write configuration, units, hooks and commands, after showing what would change.

    Settings that /etc/slurm-energy/slurm-energy.toml holds already are kept. Files that change are copied aside
    first. slurm.conf stays as it is, unless --edit-slurm-conf is given with the role of the controller.
    `slurm-energy uninstall` takes all of it away again.
    """
    config = present_settings(root)
    chosen = chosen_roles(roles, config)
    click.echo(f"Role of this host: {', '.join(chosen)}", err=True)
    with built_plugins() if build_plugin else nullcontext() as plugins:
        options = InstallOptions(
            root=root,
            roles=chosen,
            python=python.absolute(),
            scheduler=scheduler,
            edit_slurm_conf=edit_slurm_conf,
            several_hooks=takes_several_hooks(root),
            plugin_directory=plugin_dir,
            built_plugins=plugins,
            job_submit=job_submit,
        )
        installation = Installation(config, options, os.environ)
        changes = [file_change(root, planned) for planned in installation.files()]
    # What a person has to write is told as it was before this run wrote anything.
    lines = [] if edit_slurm_conf or "controller" not in chosen else installation.slurm_conf_lines(add=True)
    if not carry_out(changes, dry_run=dry_run, yes=yes):
        return 0
    for line in next_steps(installation, chosen, scheduler, lines):
        click.echo(line, err=True)
    return 0


def carry_out(
    changes: Sequence[FileChange], *, dry_run: bool, yes: bool, before: Callable[[], None] | None = None
) -> bool:
    """Show the differences, ask, and write; return False when nothing was to be written.

    Args:
        changes: What is planned.
        dry_run: Only show.
        yes: Do not ask.
        before: What is to be done once it is sure that something will be written.
    """
    needed = [change for change in changes if change.needed]
    for line in _differences(needed):
        click.echo(line)
    click.echo(f"{len(needed)} of {len(changes)} files differ.", err=True)
    if dry_run:
        click.echo("Nothing was written.", err=True)
        return False
    if needed and not yes:
        click.confirm("Write them?", abort=True, err=True)
    if before is not None:
        before()
    now = time.time()
    for change in needed:
        backup = write(change, now)
        done = "removed" if change.planned.absent else "written"
        click.echo(f"{done}: {change.planned.path}{'' if backup is None else f' (before: {backup})'}", err=True)
    return True


def present_settings(root: Path) -> Config:
    """Return the settings that the host has, without this shell's environment; the defaults when it has none."""
    named = settings_path()
    path = named or under(root, SETTINGS_PATH)
    present = load_config(path, environment={}) if named or path.exists() else Config()
    return with_site_facts(present, read_slurm_conf(slurm_conf_path(present, os.environ, root), root))


def chosen_roles(given: tuple[str, ...], config: Config) -> tuple[str, ...]:
    """Return the roles that were named, else those that are found out."""
    if "all" in given:
        return ROLES
    return tuple(dict.fromkeys(given)) or detected_roles(config)


def takes_several_hooks(root: Path) -> bool:
    """Return whether this host's Slurm is known to take several lines of Prolog."""
    if root != Path("/"):
        return False
    for program in ("slurmctld", "slurmd", "sinfo"):
        said = run_command([program, "-V"])
        match = re.search(r"\b(\d{2})\.(\d{2})\b", said.stdout) if said.ok else None
        if match is not None:
            return (int(match[1]), int(match[2])) >= _FIRST_RELEASE_WITH_SEVERAL_HOOKS
    return False


def _differences(changes: Iterable[FileChange]) -> Iterator[str]:
    for change in changes:
        for line in change.difference():
            colour = _COLOURS.get(line[:1])
            yield click.style(line, fg=colour) if colour else line
        yield ""


def next_steps(
    installation: Installation, roles: tuple[str, ...], scheduler: str, conf_lines: Sequence[str]
) -> Iterator[str]:
    """Yield what a person still has to do."""
    yield ""
    yield "Next:"
    for remark in dict.fromkeys(installation.remarks):
        yield f"  {remark}"
    if "node" in roles and scheduler == "systemd":
        yield f"  systemctl daemon-reload && systemctl enable --now {' '.join(NODE_UNITS)}"
    if "controller" in roles:
        yield "  systemctl daemon-reload && systemctl enable --now slurm-energyd"
        yield "                                               (makes the database at its first start)"
        for line in conf_lines:
            yield f"  {line}"
        # In this order: a slurmd that has Alloc in PrologFlags before slurmctld has it drains its node.
        yield "  systemctl restart slurmctld                  (loads the plugin; running jobs stay)"
        yield "  copy slurm.conf to all hosts, where they do not share it"
        yield "  scontrol reconfigure                         (tells the nodes)"
    yield "  slurm-energy doctor                          (checks all of it and says how to fix what is wrong)"
