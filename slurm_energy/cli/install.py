"""`slurm-energy install`."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from slurm_energy.cli.context import settings_path
from slurm_energy.cli.installing.files import FileChange, file_change, write
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.plugin_check import built_plugins
from slurm_energy.cli.installing.roles import (
    NODE_UNITS,
    PACKAGE_PLUGINS,
    ROLES,
    SCHEDULERS,
    SETTINGS_PATH,
    InstallOptions,
    is_packaged,
    with_site_facts,
)
from slurm_energy.cli.site import detected_roles, read_slurm_conf, run_command, slurm_conf_path, under
from slurm_energy.config import Config, load_config
from slurm_energy.slurm.plugin_file import Release, parse_release

_FIRST_RELEASE_WITH_SEVERAL_HOOKS = (24, 5)
_Command = TypeVar("_Command", bound=Callable[..., Any])
_SHARED_FILES = Path("/usr/local/share")
_DIFF_HEAD = 2
"""Lines with the file's names in a unified diff."""
_MAX_LINES_OF_A_FILE = 40
_WHOLE = " --diff shows every line."
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def host_options(edit_help: str) -> Callable[[_Command], _Command]:
    """Return what adds the options that install and uninstall share.

    Args:
        edit_help: What --edit-slurm-conf does.
    """
    options = (
        click.option(
            "--role",
            "roles",
            multiple=True,
            type=click.Choice([*ROLES, "all"]),
            help="What this host is; found out when not given.",
        ),
        click.option(
            "--root",
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            default=Path("/"),
            help="Folder that stands for /, for an image.",
        ),
        click.option(
            "--plugin-dir", type=click.Path(path_type=Path), help="Slurm's plugin folder, where it is not found."
        ),
        click.option("--edit-slurm-conf", is_flag=True, help=edit_help),
        click.option("--diff", is_flag=True, help="Show every line that changes; without it one line for each file."),
        click.option("--dry-run", is_flag=True, help="Show what would change and change nothing."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option(
            "--by-package",
            is_flag=True,
            help="For the scripts of a distribution's package: leave every file of the site's own as it is.",
        ),
    )

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command(epilog="Example: slurm-energy install --role controller --dry-run")
@host_options("Put the lines into slurm.conf; otherwise they are only shown.")
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
@click.option(
    "--job-submit",
    type=click.Choice(["c", "lua"]),
    default="c",
    show_default=True,
    help="What asks in slurmctld: our plugin, or a script for Slurm's own lua plugin.",
)
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
    diff: bool,
    dry_run: bool,
    yes: bool,
    by_package: bool,
) -> int:
    """Write configuration, units, hooks and commands, after showing what would change.

    Settings that /etc/slurm-energy/slurm-energy.toml holds already are kept. Files that change are copied aside
    first. slurm.conf stays as it is, unless --edit-slurm-conf is given with the role of the controller.
    `slurm-energy uninstall` removes all of it.
    """
    config = present_settings(root)
    chosen = chosen_roles(roles, config)
    click.echo(f"Role of this host: {', '.join(chosen)}", err=True)
    release = installed_release(root)
    packaged = is_packaged(python.absolute()) and not build_plugin
    with built_plugins() if build_plugin else nullcontext(PACKAGE_PLUGINS if packaged else None) as plugins:
        options = InstallOptions(
            root=root,
            roles=chosen,
            python=python.absolute(),
            scheduler=scheduler,
            edit_slurm_conf=edit_slurm_conf,
            several_hooks=takes_several_hooks(release),
            plugin_directory=plugin_dir,
            built_plugins=plugins,
            job_submit=job_submit,
            by_package=by_package,
            packaged_plugins=packaged,
            slurm_release=release,
        )
        installation = Installation(config, options, os.environ)
        changes = [file_change(root, planned) for planned in installation.files()]
    # The lines that a person has to write, as they are before this run writes anything.
    lines = [] if edit_slurm_conf or "controller" not in chosen else installation.site.lines(add=True)
    if not carry_out(changes, diff=diff, dry_run=dry_run, yes=yes):
        return 0
    for line in next_steps(installation, chosen, scheduler, lines):
        click.echo(line, err=True)
    return 0


def carry_out(
    changes: Sequence[FileChange],
    *,
    diff: bool,
    dry_run: bool,
    yes: bool,
    before: Callable[[], None] | None = None,
) -> bool:
    """Show what would change, ask, and write; return False when nothing was to be written.

    Args:
        changes: What is planned.
        diff: Show every line that changes.
        dry_run: Only show.
        yes: Do not ask.
        before: What is to be done once it is sure that something will be written.
    """
    needed = [change for change in changes if change.needed]
    for line in _every_line(needed) if diff else _summary(needed):
        click.echo(line)
    click.echo(f"{len(needed)} of {len(changes)} files differ.{'' if diff else _WHOLE}", err=True)
    if dry_run:
        click.echo("Nothing was written.", err=True)
        return False
    if needed and not yes:
        click.confirm("Write them?", abort=True, err=True)
    if before is not None:
        before()
    now = time.time()
    backups = []
    for change in needed:
        backup = write(change, now)
        if backup is not None:
            backups.append(f"copy of {change.planned.path} as it was: {backup}")
    for line in backups:
        click.echo(line, err=True)
    removed = sum(change.planned.absent for change in needed)
    click.echo(f"{len(needed) - removed} files written, {removed} removed.", err=True)
    return True


def _every_line(changes: Iterable[FileChange]) -> Iterator[str]:
    for change in changes:
        yield from map(_coloured, change.difference())
        yield ""


def _summary(changes: Iterable[FileChange]) -> Iterator[str]:
    """Yield a line for each file, manual pages and completions as one; of the site's own files what changes in them."""
    shared: Counter[str] = Counter()
    for change in changes:
        if change.planned.path.is_relative_to(_SHARED_FILES):
            shared[change.verb] += 1
            continue
        lines = list(change.difference())
        added, removed = change.line_counts
        yield f"  {change.verb:<8}{change.planned.path}{f'  +{added} -{removed}' if added or removed else ''}"
        if change.present is not None and not change.planned.absent and not change.planned.is_generated:
            yield from (f"      {_coloured(line)}" for line in lines[_DIFF_HEAD : _DIFF_HEAD + _MAX_LINES_OF_A_FILE])
            if len(lines) > _DIFF_HEAD + _MAX_LINES_OF_A_FILE:
                yield f"      ... {len(lines) - _DIFF_HEAD - _MAX_LINES_OF_A_FILE} more lines"
    for verb, count in shared.items():
        yield f"  {verb:<8}{count} manual pages and shell completions below {_SHARED_FILES}"


def _coloured(line: str) -> str:
    colour = _COLOURS.get(line[:1])
    return click.style(line, fg=colour) if colour else line


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


def installed_release(root: Path) -> Release | None:
    """Return the release of this host's Slurm; None where none is installed, or for an image."""
    if root != Path("/"):
        return None
    for program in ("slurmctld", "slurmd", "sinfo"):
        said = run_command([program, "-V"])
        release = parse_release(said.stdout) if said.ok else None
        if release is not None:
            return release
    return None


def takes_several_hooks(release: Release | None) -> bool:
    """Return whether a Slurm is known to take several lines of Prolog."""
    return release is not None and release.series >= _FIRST_RELEASE_WITH_SEVERAL_HOOKS


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
        yield "  scontrol reconfigure                         (the nodes read slurm.conf)"
    yield "  slurm-energy doctor                          (checks all of it and says how to fix what is wrong)"
