"""`slurm-energy uninstall`."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from slurm_energy.cli.install import (
    carry_out,
    chosen_roles,
    host_options,
    installed_release,
    present_settings,
    takes_several_hooks,
)
from slurm_energy.cli.installing.files import FileChange, file_change, remove_empty_folder
from slurm_energy.cli.installing.plan import Installation
from slurm_energy.cli.installing.roles import (
    CONFIG_DIRECTORY,
    JOB_SUBMIT_PLUGIN,
    KEPT_PLUGIN,
    SETTINGS_PATH,
    UNIT_DIRECTORY,
    InstallOptions,
    is_packaged,
    unit_of_package,
)
from slurm_energy.cli.installing.slurm_conf import keeps_alloc
from slurm_energy.cli.site import run_command, under
from slurm_energy.config import CONFIG_PATH_VARIABLE, Config
from slurm_energy.errors import ConfigError, SlurmEnergyError
from slurm_energy.forms import hide_password
from slurm_energy.node.commands import make_context
from slurm_energy.node.context import HookContext
from slurm_energy.node.flush import run_flush
from slurm_energy.node.log import HookLog
from slurm_energy.node.repair import close_every_job, left_in, remove_spool
from slurm_energy.node.settings import load_settings


@click.command(epilog="Example: slurm-energy uninstall --role node --dry-run")
@host_options("Remove our lines from slurm.conf; otherwise they are only shown.")
@click.option("--node", help="Name of this node in Slurm, where the host's short name is another.")
@click.option(
    "--sbatch-options",
    is_flag=True,
    help="Remove the options of sbatch too: sbatch then refuses scripts with `#SBATCH --energy`.",
)
def uninstall(
    *,
    roles: tuple[str, ...],
    root: Path,
    node: str | None,
    plugin_dir: Path | None,
    edit_slurm_conf: bool,
    sbatch_options: bool,
    diff: bool,
    dry_run: bool,
    yes: bool,
    by_package: bool,
) -> int:
    """Remove what install wrote, after showing what would change.

    Nodes first, the controller last. On a node every clock that is still ours is put back, also under running jobs,
    and waiting reports are delivered. Settings, database and what could not be delivered stay and are named. sbatch
    keeps accepting the --energy options, without effect, until --sbatch-options removes them.
    """
    if root == Path("/") and os.geteuid() != 0 and not dry_run:
        raise ConfigError("only root may uninstall; --dry-run shows what would be removed")
    config = present_settings(root)
    chosen = chosen_roles(roles, config)
    click.echo(f"Role of this host: {', '.join(chosen)}", err=True)
    options = InstallOptions(
        root=root,
        roles=chosen,
        python=Path(sys.executable).absolute(),
        edit_slurm_conf=edit_slurm_conf,
        several_hooks=takes_several_hooks(installed_release(root)),
        plugin_directory=plugin_dir,
        by_package=by_package,
    )
    installation = Installation(config, options, os.environ)
    refusal = _refusal(installation, chosen, edit_slurm_conf or by_package)
    if refusal:
        raise ConfigError("\n".join(refusal))
    changes = [file_change(root, planned) for planned in installation.removals(with_sbatch_options=sbatch_options)]
    # Before the files go: a unit without its file cannot be disabled.
    units = [change.planned.path.name for change in changes if _is_unit(change) and _is_there(change, root)]
    if not carry_out(changes, diff=diff, dry_run=dry_run, yes=yes, before=lambda: _stop(root, units)):
        return 0
    _forget_units(root, units)
    _remove_empty_folders(root, changes)
    clean = True
    if "node" in chosen and root == Path("/"):
        clean = _leave_node(node)
    has_alloc = "controller" in chosen and keeps_alloc(installation.site.files())
    alloc = str(installation.site.path) if has_alloc else ""
    for line in _remaining(config, chosen, sbatch_options, alloc):
        click.echo(line, err=True)
    if by_package and "controller" in chosen and installation.site.asks_at_submission:
        for line in _after_package(installation):
            click.echo(line, err=True)
    return 0 if clean else 1


def _refusal(installation: Installation, roles: Sequence[str], edit_slurm_conf: bool) -> list[str]:
    """Return why nothing may be removed yet."""
    lines = installation.site.lines(add=False)
    if "controller" in roles and lines and not edit_slurm_conf and installation.site.asks_at_submission:
        return [
            f"slurm.conf still names {JOB_SUBMIT_PLUGIN}: without it slurmctld does not start. Nothing was changed.",
            *lines,
            "Change slurm.conf so and run this again, or use --edit-slurm-conf.",
        ]
    if "node" in roles and "controller" not in roles and installation.site.would_drain_without_files:
        return [
            f"{installation.site.path} has hooks that drain a node without our files. Nothing was changed.",
            *lines,
            "Change slurm.conf so on every host, `scontrol reconfigure`, then run this again.",
        ]
    return []


def _is_unit(change: FileChange) -> bool:
    return change.planned.path.parent == UNIT_DIRECTORY


def _is_there(change: FileChange, root: Path) -> bool:
    return bool(change.present) or unit_of_package(change.planned.path, root).exists()


def _after_package(installation: Installation) -> Iterator[str]:
    """Yield what stays because slurm.conf still names the plugin."""
    yield f"slurm.conf still names energy, and slurmctld does not start without {JOB_SUBMIT_PLUGIN}:"
    yield f"  {installation.plugins / JOB_SUBMIT_PLUGIN} stays, and leaves every job as it is. To remove it:"
    yield from (f"  {line}" for line in installation.site.lines(add=False))
    yield "  systemctl restart slurmctld, then remove the file"


def _systemd(root: Path) -> bool:
    return root == Path("/") and Path("/run/systemd/system").is_dir()


def _stop(root: Path, units: Sequence[str]) -> None:
    """Stop and disable our units.

    Raises:
        ConfigError: one of them could not be stopped.
    """
    if not _systemd(root):
        return
    for unit in units:
        done = run_command(["systemctl", "disable", "--now", unit])
        if not done.ok:
            raise ConfigError(f"systemctl disable --now {unit} failed: {done.complaint}")


def _forget_units(root: Path, units: Sequence[str]) -> None:
    if units and _systemd(root):
        run_command(["systemctl", "daemon-reload"])


def _remove_empty_folders(root: Path, changes: Sequence[FileChange]) -> None:
    folders = {change.target.parent for change in changes if change.planned.absent}
    ours, kept = under(root, CONFIG_DIRECTORY), under(root, KEPT_PLUGIN.parent)
    for folder in (*folders, ours / "prolog.d", ours / "epilog.d"):
        if folder.is_relative_to(ours) or folder == kept or folder.name == "slurmctld.service.d":
            remove_empty_folder(folder)


def _leave_node(node: str | None) -> bool:
    """Put clocks back, deliver reports, and remove the spool when nothing is left in it."""
    environment = dict(os.environ)
    if CONFIG_PATH_VARIABLE not in environment and SETTINGS_PATH.exists():
        environment[CONFIG_PATH_VARIABLE] = str(SETTINGS_PATH)
    settings = load_settings(environment, node)
    context = make_context(settings, HookLog("", "uninstall", _tell), _say_nothing)
    if not context.spool.root.is_dir() and not context.lock_records.read(context.boot_id, []):
        return True
    restored = _succeeds(close_every_job, context, "not every clock was put back")
    delivered = _succeeds(run_flush, context, "not every report was delivered")
    left = left_in(context)
    if not left:
        remove_spool(context)
        return restored and delivered
    _tell(f"{len(left)} files stay in {context.spool.root}:")
    for path in left[:20]:
        _tell(f"  {path}")
    _tell(f"when that is fixed: {Path(sys.executable).parent / 'slurm-energy'} uninstall --role node")
    return False


def _succeeds(action: Callable[[HookContext], bool], context: HookContext, complaint: str) -> bool:
    try:
        if action(context):
            return True
    except SlurmEnergyError as error:
        complaint = f"{complaint}: {error}"
    _tell(complaint)
    return False


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _say_nothing(text: str) -> None:
    """Ignore progress messages."""


def _remaining(config: Config, roles: Sequence[str], sbatch_options: bool, alloc: str) -> Iterator[str]:
    """Yield what is still there, and what a person still has to do; `alloc` is the slurm.conf that has our flag."""
    yield ""
    yield "Left on this host:"
    yield f"  {CONFIG_DIRECTORY}                       (settings; copies of what was changed lie beside the files)"
    if "controller" in roles:
        yield f"  {config.daemon.state_directory}          (the daemon's state)"
        yield f"  {hide_password(config.store.url)}    (the energy of all jobs)"
    if "node" in roles and config.node.log_path:
        yield f"  {config.node.log_path}"
    if alloc:
        yield f"  Alloc in PrologFlags, in {alloc}: nodes that still have it are drained by their next job when"
        yield "    slurmctld no longer has it. It does no harm; remove it only while no job starts (partitions DOWN)."
    if not sbatch_options:
        yield "  sbatch's options --energy..., without effect  (--sbatch-options removes them)"
    if is_packaged(Path(sys.executable).absolute()):
        packages = " ".join(f"slurm-energy-{role}" for role in roles)
        yield f"  the package                                  (remove it: apt-get remove {packages})"
    else:
        yield f"  {Path(sys.executable).parent.parent}                     (the package: remove the folder)"
    if "controller" in roles:
        yield "Next:"
        yield "  systemctl restart slurmctld"
        yield "  copy slurm.conf to all hosts, where they do not share it, then scontrol reconfigure"
