"""Roles of a host, the paths of their files, what to install where, and what a distribution's package has of it."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.slurm_conf import HOOK_PATH
from slurm_energy.cli.site import under
from slurm_energy.config import Config
from slurm_energy.errors import SlurmError
from slurm_energy.resources import PACKAGE_FOLDER
from slurm_energy.slurm.plugin_file import Release, read_plugin_file

ROLES = ("controller", "node", "login")
CONFIG_DIRECTORY = Path("/etc/slurm-energy")
UNIT_DIRECTORY = Path("/etc/systemd/system")
NODE_UNITS = ("slurm-energy-flush.timer", "slurm-energy-repair.timer", "slurm-energy-repair.service")
"""Units of a node that are enabled: the timers, and the repair before slurmd starts."""
PLUGIN_CONF_NAME = "energy-plugin.conf"
SPANK_PLUGIN = "spank_energy.so"
JOB_SUBMIT_PLUGIN = "job_submit_energy.so"
KEPT_PLUGIN = Path("/usr/local/lib/slurm-energy") / JOB_SUBMIT_PLUGIN
"""A copy that no update of Slurm touches; `plugin check --before-start` makes and uses it."""
OWN_PLUGSTACK = CONFIG_DIRECTORY / "plugstack.conf"
"""Included by Slurm's plugstack.conf, which hosts share: one without this file has no options and no error."""
LUA_SCRIPT = CONFIG_DIRECTORY / "job_submit.lua"
SETTINGS_PATH = CONFIG_DIRECTORY / "slurm-energy.toml"
SCHEDULERS = ("systemd", "cron")
SIGN_OF_ROLE = {
    "controller": UNIT_DIRECTORY / "slurm-energyd.service",
    "node": HOOK_PATH,
    "login": CONFIG_DIRECTORY / "train.sbatch",
}
"""The file by which `uninstall` knows that a host has a role."""
EARLIER_FILES = (
    CONFIG_DIRECTORY / "prolog.d" / "50-slurm-energy.sh",
    CONFIG_DIRECTORY / "epilog.d" / "50-slurm-energy.sh",
)
"""What an earlier version had written; `uninstall` removes it."""
PACKAGE_UNITS = Path("/usr/lib/systemd/system")
"""Units as they are with the default settings; what `install` writes to /etc has precedence over them."""
PACKAGE_PLUGINS = PACKAGE_FOLDER / "plugins"
"""Slurm's plugins, compiled for the Slurm that the packages were built with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """What to install where.

    Attributes:
        root: Folder that stands for `/`, to prepare an image.
        roles: Any of `controller`, `node`, `login`.
        python: Interpreter that units and hooks use.
        scheduler: `systemd` or `cron` for the node's timers.
        edit_slurm_conf: Whether slurm.conf is edited; else its lines are only shown.
        several_hooks: Whether Slurm takes several lines of Prolog and of Epilog (24.05 and newer).
        plugin_directory: Slurm's plugin folder; None: found.
        built_plugins: Folder with freshly built plugins; None: none are installed.
        job_submit: What asks in slurmctld: our plugin, `c`, or Slurm's own for Lua scripts, `lua`.
        by_package: Whether a package's scripts ask for it: files of the site's own stay as they are.
        packaged_plugins: Whether `built_plugins` came with a package, not from a compiler on this host.
        slurm_release: The installed Slurm; None: not known.
    """

    root: Path = Path("/")
    roles: tuple[str, ...] = ROLES
    python: Path = Path(sys.executable)
    scheduler: str = "systemd"
    edit_slurm_conf: bool = False
    several_hooks: bool = False
    plugin_directory: Path | None = None
    built_plugins: Path | None = None
    job_submit: str = "c"
    by_package: bool = False
    packaged_plugins: bool = False
    slurm_release: Release | None = None


def with_site_facts(config: Config, conf: Mapping[str, str]) -> Config:
    """Return the settings with what slurm.conf tells, where they still are at their defaults."""
    plain = Config()
    cluster, node = config.cluster, config.node
    if cluster.name == plain.cluster.name and conf.get("clustername"):
        cluster = replace(cluster, name=conf["clustername"])
    if cluster.slurm_user == plain.cluster.slurm_user and conf.get("slurmuser"):
        cluster = replace(cluster, slurm_user=conf["slurmuser"].partition("(")[0])
    if not cluster.accounting and "slurmdbd" in conf.get("accountingstoragetype", ""):
        cluster = replace(cluster, accounting=True)
    named = re.findall(r"(?:^|,)\s*([\w.-]+)\s*(?:\(([^)]*)\))?", conf.get("slurmctldhost", ""))
    # Slurm itself goes to the address where there is one: the name need not be known to the nodes.
    controllers = [(address or name).strip() for name, address in named]
    if not node.daemon_address and controllers:
        hosts = (f"[{host}]" if ":" in host else host for host in controllers)
        node = replace(node, daemon_address=",".join(f"{host}:{config.daemon.report_port}" for host in hosts))
    return replace(config, cluster=cluster, node=node)


def is_packaged(python: Path) -> bool:
    """Return whether an interpreter belongs to a package."""
    return python.is_relative_to(PACKAGE_FOLDER)


def unit_of_package(path: Path, root: Path) -> Path:
    """Return where a package has the unit, or the drop-in, that `install` would write to `path`."""
    return under(root, PACKAGE_UNITS / path.relative_to(UNIT_DIRECTORY))


def has_role(role: str, root: Path) -> bool:
    """Return whether a host has a role, by the file that shows it."""
    sign = SIGN_OF_ROLE[role]
    places = [under(root, sign)]
    if sign.is_relative_to(UNIT_DIRECTORY):
        places.append(unit_of_package(sign, root))
    return any(place.exists() for place in places)


def without_packaged_unit(planned: PlannedFile, root: Path) -> PlannedFile:
    """Return a planned unit as one that should not be in /etc where the package has exactly the same."""
    if not planned.path.is_relative_to(UNIT_DIRECTORY):
        return planned
    try:
        same = unit_of_package(planned.path, root).read_bytes() == planned.content
    except OSError:
        return planned
    return replace(planned, absent=True, is_generated=True) if same else planned


def replaces_job_submit(built: Path, target: Path, slurmctld: Release | None) -> bool:
    """Return whether a package's job_submit plugin is better than the file that stands there.

    One that the site compiled for its own Slurm stays: with one for another release slurmctld leaves every job as it
    is.
    """
    try:
        ours, present = read_plugin_file(built / JOB_SUBMIT_PLUGIN), read_plugin_file(target)
    except SlurmError:
        return True
    if slurmctld is None or ours.release.series == present.release.series:
        return True
    return ours.release.series == slurmctld.series
