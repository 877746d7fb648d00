"""Roles of a host, the paths of their files, and what to install where."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_energy.cli.installing.slurm_conf import HOOK_PATH
from slurm_energy.config import Config
from slurm_energy.slurm.plugin_file import Release

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
