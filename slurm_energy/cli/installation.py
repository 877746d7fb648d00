"""The files of each role on a host: pure planning, from settings, templates and what is there already.

`Installation.files` is the one list of them: `install` writes what it names, and `uninstall` takes the same away.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path

from slurm_energy.cli.command_files import command_files
from slurm_energy.cli.file_changes import PlannedFile
from slurm_energy.cli.rendering import render
from slurm_energy.cli.settings_table import section_tables
from slurm_energy.cli.site import is_cache_of_slurmd, plugin_directory, read_slurm_conf, slurm_conf_path, under
from slurm_energy.cli.slurm_conf_lines import (
    EARLIER_FRAGMENT,
    EARLIER_HOOK_PATTERNS,
    HOOK_PATH,
    ConfFile,
    describe_changes,
    has_pattern,
    hook_values,
    names_energy,
    read_conf_files,
    rules_for_lua,
    site_hooks,
    with_energy,
    without_energy,
)
from slurm_energy.config import Config, PluginConfig
from slurm_energy.errors import ConfigError
from slurm_energy.resources import shared_directory

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
_SITE_HOOK_NAMES = {
    # slurmd runs them from Z to A: ours is the last prolog and the first epilog.
    "prolog": ("00-slurm-energy.sh", "00-slurm-energy", "slurm-energy.sh", "slurm-energy"),
    "epilog": ("zz-slurm-energy.sh", "zz-slurm-energy", "99-slurm-energy.sh", "99-slurm-energy", "slurm-energy.sh"),
}
_SIGN_OF_ROLE = {
    "controller": UNIT_DIRECTORY / "slurm-energyd.service",
    "node": HOOK_PATH,
    "login": CONFIG_DIRECTORY / "train.sbatch",
}
"""The file by which `uninstall` knows that a host has a role."""
_EARLIER_FILES = (
    CONFIG_DIRECTORY / "prolog.d" / "50-slurm-energy.sh",
    CONFIG_DIRECTORY / "epilog.d" / "50-slurm-energy.sh",
)
"""What an earlier version had written; `uninstall` takes it away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """What to install where.

    Attributes:
        root: Folder that stands for `/`, to prepare an image.
        roles: Any of `controller`, `node`, `login`.
        python: Interpreter that units and hooks use.
        scheduler: `systemd` or `cron` for the node's timers.
        edit_slurm_conf: Whether slurm.conf is edited; else its lines are only told.
        several_hooks: Whether Slurm takes several lines of Prolog and of Epilog (24.05 and newer).
        plugin_directory: Slurm's plugin folder; None: found.
        built_plugins: Folder with freshly built plugins; None: none are installed.
        job_submit: What asks in slurmctld: our plugin, `c`, or Slurm's own for Lua scripts, `lua`.
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
    controllers = re.findall(r"(?:^|,)\s*([\w.-]+)", conf.get("slurmctldhost", ""))
    if not node.daemon_address and controllers:
        node = replace(node, daemon_address=",".join(f"{host}:{config.daemon.report_port}" for host in controllers))
    return replace(config, cluster=cluster, node=node)


class Installation:
    """Plans the files of one host."""

    def __init__(self, config: Config, options: InstallOptions, environment: Mapping[str, str]) -> None:
        self._config = config
        self._options = options
        self.slurm_conf = slurm_conf_path(config, environment, options.root)
        self.conf = read_slurm_conf(self.slurm_conf, options.root)
        self.remarks: list[str] = []

    def files(self) -> list[PlannedFile]:
        """Return every file for the roles, in the order in which they are written.

        Raises:
            ConfigError: Slurm's plugin folder is not found, or a template does not fit.
        """
        roles = self._options.roles
        planned = [self._settings_file(), *self._options_of_sbatch()]
        if "node" in roles:
            planned += self._node_files()
        if "login" in roles:
            for name in ("example.sh", "train.sbatch"):
                planned.append(self._rendered(f"sbatch/{name}.j2", CONFIG_DIRECTORY / name, {}, mode=0o755))
        planned += command_files(roles, self._options.python, self._options.root, self.remarks)
        if "controller" in roles:
            planned += self._controller_files()
        return planned

    def removals(self, *, with_sbatch_options: bool) -> list[PlannedFile]:
        """Return the same files as they should be afterwards, in the order in which they are taken away.

        The settings stay, for whoever installs again; so does what another role of this host needs, and so do the
        options of sbatch, unless they are to go as well.
        """
        root, roles = self._options.root, self._options.roles
        others = tuple(role for role in ROLES if role not in roles and under(root, _SIGN_OF_ROLE[role]).exists())
        gone: dict[Path, PlannedFile] = {}
        for scheduler in SCHEDULERS:
            for planned in self._for_roles(roles, scheduler).files():
                gone[planned.path] = replace(planned, absent=True)
        fragment = self.slurm_conf.parent / EARLIER_FRAGMENT
        spank, job_submit = self.plugins / SPANK_PLUGIN, self.plugins / JOB_SUBMIT_PLUGIN
        handed_out = is_cache_of_slurmd(self.slurm_conf, root)
        for path in _EARLIER_FILES if handed_out else (*_EARLIER_FILES, fragment):
            gone[path] = PlannedFile(path=path, absent=True)
        needed = (
            [planned.path for planned in self._for_roles(others, self._options.scheduler).files()] if others else []
        )
        of_sbatch = (OWN_PLUGSTACK, spank)
        for path in (SETTINGS_PATH, self.plugstack, *of_sbatch, *self._conf_paths(), *needed):
            gone.pop(path, None)
        left = []
        if not others and not handed_out:
            left.append(self._plugstack("gone" if with_sbatch_options else "ignored"))
        if with_sbatch_options and not others:
            gone |= {path: PlannedFile(path=path, absent=True) for path in of_sbatch}
        if "controller" in roles:
            left += self._conf_changes(without_energy(read_conf_files(self.slurm_conf, root)))
            for path in (job_submit, KEPT_PLUGIN, *([fragment] if self._options.edit_slurm_conf else [])):
                gone[path] = PlannedFile(path=path, absent=True)
        return [*left, *gone.values()]

    def _for_roles(self, roles: tuple[str, ...], scheduler: str) -> "Installation":
        """Return the plan for other roles of this host, with nothing edited."""
        options = replace(self._options, roles=roles, scheduler=scheduler, edit_slurm_conf=False)
        return Installation(self._config, options, {"SLURM_CONF": str(self.slurm_conf)})

    @property
    def would_drain_without_files(self) -> bool:
        """Whether slurm.conf has the pattern of an earlier version, which does not match on a node without files."""
        return any(
            value in EARLIER_HOOK_PATTERNS
            for key in ("Prolog", "Epilog")
            for value in hook_values(read_conf_files(self.slurm_conf, self._options.root), key)
        )

    @property
    def asks_at_submission(self) -> bool:
        """Whether slurm.conf still names the plugin: slurmctld does not start without its file then."""
        return names_energy(read_conf_files(self.slurm_conf, self._options.root))

    def slurm_conf_lines(self, *, add: bool) -> list[str]:
        """Return what a person has to change in slurm.conf where no program does."""
        files = read_conf_files(self.slurm_conf, self._options.root)
        if not files:
            return []
        after = self._with_energy(files) if add else without_energy(files)
        return list(describe_changes({file.path: file.text for file in files}, after))

    @property
    def plugstack(self) -> Path:
        """The file that names SPANK plugins."""
        named = self.conf.get("plugstackconfig")
        return Path(named) if named else self.slurm_conf.parent / "plugstack.conf"

    @property
    def plugins(self) -> Path:
        """Slurm's plugin folder.

        Raises:
            ConfigError: it is not found.
        """
        found = self._options.plugin_directory or plugin_directory(self.conf, self._options.root)
        if found is None:
            raise ConfigError("Slurm's plugin folder is not found: name it with --plugin-dir")
        return found

    def _settings_file(self) -> PlannedFile:
        values = {"sections": list(section_tables(self._config))}
        present = under(self._options.root, SETTINGS_PATH)
        mode = present.stat().st_mode & 0o777 if present.is_file() else 0o644  # it may hold a database's password
        return self._rendered("slurm-energy.toml.j2", SETTINGS_PATH, values, mode=mode)

    def _options_of_sbatch(self) -> Iterator[PlannedFile]:
        """Yield the SPANK plugin and its line: every host where people or jobs submit has them."""
        if is_cache_of_slurmd(self.slurm_conf, self._options.root):
            self.remarks.append(
                "slurmctld hands out Slurm's configuration here (configless): plugstack.conf is the controller's, and "
                "nothing is written to /run/slurm/conf"
            )
        else:
            yield self._plugstack("used")
        yield self._rendered("plugstack-own.conf.j2", OWN_PLUGSTACK, {"spank_plugin": str(self.plugins / SPANK_PLUGIN)})
        if self._options.built_plugins is not None:
            content = (self._options.built_plugins / SPANK_PLUGIN).read_bytes()
            yield PlannedFile(path=self.plugins / SPANK_PLUGIN, content=content)

    def _conf_paths(self) -> list[Path]:
        return [file.path for file in read_conf_files(self.slurm_conf, self._options.root)]

    def _conf_changes(self, after: tuple[ConfFile, ...]) -> list[PlannedFile]:
        """Return slurm.conf and what it includes, where they change and may be edited."""
        if not self._options.edit_slurm_conf:
            return []
        before = {file.path: file.text for file in read_conf_files(self.slurm_conf, self._options.root)}
        return [
            PlannedFile(
                path=file.path,
                content=file.text.encode("utf-8", "surrogateescape"),
                mode=under(self._options.root, file.path).stat().st_mode & 0o777,
            )
            for file in after
            if before[file.path] != file.text
        ]

    def _edited_slurm_conf(self) -> list[PlannedFile]:
        files = read_conf_files(self.slurm_conf, self._options.root)
        if not files:
            if self._options.edit_slurm_conf:
                raise ConfigError(f"{under(self._options.root, self.slurm_conf)} cannot be read, so it is not edited")
            return []
        self._tell_of_site_hooks(files)
        return self._conf_changes(self._with_energy(files))

    def _with_energy(self, files: tuple[ConfFile, ...]) -> tuple[ConfFile, ...]:
        word = "lua" if self._options.job_submit == "lua" else "energy"
        return with_energy(files, several_hooks=self._has_own_line(files), job_submit=word)

    def _has_own_line(self, files: tuple[ConfFile, ...]) -> bool:
        """Return whether ours may stand in lines beside the site's own scripts: not where one of them calls ours."""
        if not self._options.several_hooks:
            return False
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                try:
                    text = under(self._options.root, Path(own)).read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue
                if str(HOOK_PATH) in text:
                    return False
        return True

    def _tell_of_site_hooks(self, files: tuple[ConfFile, ...]) -> None:
        """Say how ours join the site's own hooks, which go on running."""
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                if _place_among(own, _SITE_HOOK_NAMES[key.lower()]) is not None:
                    self.remarks.append(
                        f"{key}={own} is this site's own and stays: install on the nodes adds ours there"
                    )
                    continue
                if self._has_own_line(files) and not has_pattern(own):
                    continue
                where = "end" if key == "Prolog" else "start"
                self.remarks.append(
                    f"{key}={own} is this site's own and stays. Put at its {where}:  "
                    f"[ ! -x {HOOK_PATH} ] || {HOOK_PATH}"
                )

    def _plugstack(self, sbatch_options: str) -> PlannedFile:
        """Return plugstack.conf with our options `used`, `ignored` (accepted without any effect), or `gone`."""
        path = self.plugstack
        try:
            present = under(self._options.root, path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            present = []
        values: dict[str, object] = {"kept": [], "own": OWN_PLUGSTACK}
        ours = {
            line
            for state in ("used", "ignored")
            for line in render("plugstack.conf.j2", values | {"state": state}).splitlines()
            if line.startswith("#")
        }
        old = (SPANK_PLUGIN, str(OWN_PLUGSTACK))
        ours.add(
            "# Keep it optional: then a missing file costs these options, not the submission."
        )  # of an earlier version
        kept = [line for line in present if not any(name in line for name in old) and line not in ours]
        values = {"kept": kept, "own": OWN_PLUGSTACK, "state": sbatch_options}
        planned = self._rendered("plugstack.conf.j2", path, values)
        return planned if planned.content else replace(planned, absent=True)

    def _controller_files(self) -> Iterator[PlannedFile]:
        if self._options.job_submit == "lua":
            yield from self._lua_files()
        elif self._options.built_plugins is not None:
            content = (self._options.built_plugins / JOB_SUBMIT_PLUGIN).read_bytes()
            yield PlannedFile(path=self.plugins / JOB_SUBMIT_PLUGIN, content=content)
        yield self._rendered("energy-plugin.conf.j2", CONFIG_DIRECTORY / PLUGIN_CONF_NAME, self._plugin_values())
        yield self._rendered(
            "systemd/slurm-energyd.service.j2", UNIT_DIRECTORY / "slurm-energyd.service", self._unit_values()
        )
        yield self._rendered(
            "systemd/slurmctld-energy.conf.j2",
            UNIT_DIRECTORY / "slurmctld.service.d" / "slurm-energy.conf",
            {"python": self._options.python},
        )
        yield from self._edited_slurm_conf()  # last: what it names must be there

    def _lua_files(self) -> Iterator[PlannedFile]:
        """Yield our script and, where the site has none, the one that Slurm reads.

        `uninstall` leaves both: slurmctld stops when JobSubmitPlugins names lua and there is no script, and ours leaves
        jobs as they are when the daemon is gone.
        """
        text = (shared_directory("plugin") / "lua" / "job_submit.lua").read_text(encoding="utf-8")
        seconds = self._config.plugin.deadline_milliseconds / 1000
        files = read_conf_files(self.slurm_conf, self._options.root)
        values = {
            "SOCKET": f'"{self._config.daemon.plugin_socket_path}"',
            "DEADLINE_SECONDS": f"{seconds:g}",
            **{name: str(holds).lower() for name, holds in rules_for_lua(files).items()},
        }
        for name, value in values.items():
            text = re.sub(rf"^local {name} = \S+", f"local {name} = {value}", text, count=1, flags=re.MULTILINE)
        yield PlannedFile(path=LUA_SCRIPT, content=text.encode())
        path = self.slurm_conf.parent / "job_submit.lua"
        first = self._rendered("job_submit.lua.j2", path, {"path": LUA_SCRIPT})
        present = under(self._options.root, path)
        if not present.exists() or present.read_bytes() == first.content:
            yield first
        else:
            self.remarks.append(
                f"{path} is this site's own and stays: docs/how-to/update-slurm.md has the lines for its end that call "
                f"{LUA_SCRIPT}"
            )
        self.remarks.append("lua-socket for the Lua of Slurm must be installed; without it jobs go through unchanged")
        self.remarks.append(
            f"{LUA_SCRIPT} has what slurm.conf says of EnforcePartLimits, JobDefaults and ignore_prefer_validation: "
            "install again after a change of them"
        )

    def _plugin_values(self) -> dict[str, object]:
        words = {True: "yes", False: "no"}
        path = self._config.daemon.plugin_socket_path
        rows = [{"help": "The daemon's unix socket for slurmctld.", "key": "socket", "value": path}]
        for item in fields(PluginConfig):
            value = getattr(self._config.plugin, item.name)
            shown = words[value] if isinstance(value, bool) else f"{value:g}"
            rows.append({"help": item.metadata["help"], "key": item.name, "value": shown})
        return {"settings": rows}

    def _unit_values(self) -> dict[str, object]:
        state = Path(self._config.daemon.state_directory)
        socket_folder = Path(self._config.daemon.socket_path).parent
        state_name = _below(state, Path("/var/lib"))
        runtime_name = _below(socket_folder, Path("/run"))
        writable = [] if state_name else [state]
        writable += [] if runtime_name else [socket_folder]
        database = _sqlite_folder(self._config.store.url)
        if database is not None and database != state and state not in database.parents:
            writable.append(database)
        return {
            "config_path": SETTINGS_PATH,
            "config_directory": CONFIG_DIRECTORY,
            "python": self._options.python,
            "python_in_home": self._python_in_home(),
            "slurm_user": self._config.cluster.slurm_user,
            "state_name": state_name,
            "runtime_name": runtime_name,
            "writable": writable,
        }

    def _node_files(self) -> Iterator[PlannedFile]:
        yield from self._hooks()
        log = Path(self._config.node.log_path)
        spool = Path(self._config.node.spool_directory.split("%n", 1)[0])
        values = {
            "config_path": SETTINGS_PATH,
            "python": self._options.python,
            "python_in_home": self._python_in_home(),
            "node_writable": [spool, *([log.parent] if self._config.node.log_path else []), *self._run_directory()],
        }
        if self._options.scheduler == "cron":
            yield self._rendered("cron/slurm-energy.j2", Path("/etc/cron.d/slurm-energy"), values)
            return
        for name in ("slurm-energy-flush", "slurm-energy-repair"):
            for unit in (f"{name}.service", f"{name}.timer"):
                yield self._rendered(f"systemd/{unit}.j2", UNIT_DIRECTORY / unit, values)

    def _run_directory(self) -> list[Path]:
        """Return where hooks note locked clocks, which repair removes."""
        run = self._config.node.run_directory
        return [Path(run.split("%n", 1)[0])] if run else []

    def _hooks(self) -> Iterator[PlannedFile]:
        """Yield the hook where our pattern finds it, and where a pattern of the site's own does."""
        text = (shared_directory("plugin") / "hook" / "slurm-energy.sh").read_text(encoding="utf-8")
        content = text.replace("@PYTHON@", str(self._options.python)).encode()
        yield PlannedFile(path=HOOK_PATH, content=content, mode=0o755, is_generated=True)
        files = read_conf_files(self.slurm_conf, self._options.root)
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                path = _place_among(own, _SITE_HOOK_NAMES[key.lower()])
                if path is not None and under(self._options.root, path.parent).is_dir():
                    yield PlannedFile(path=path, content=content, mode=0o755, is_generated=True)
                    yield from self._earlier_links(path.parent)

    def _earlier_links(self, folder: Path) -> Iterator[PlannedFile]:
        """Yield, to be taken away, the links by which a folder of the site led to our hooks in an earlier version."""
        for entry in sorted(under(self._options.root, folder).iterdir()):
            if entry.is_symlink() and entry.readlink().is_relative_to(CONFIG_DIRECTORY):
                yield PlannedFile(path=folder / entry.name, link_to=entry.readlink(), absent=True)

    def _python_in_home(self) -> bool:
        return str(self._options.python).startswith(("/home/", "/root/", "/run/user/"))

    def _rendered(self, template: str, path: Path, values: Mapping[str, object], mode: int = 0o644) -> PlannedFile:
        content = render(template, values).encode("utf-8", "surrogateescape")
        return PlannedFile(path=path, content=content, mode=mode)


def _place_among(pattern: str, names: Iterable[str]) -> Path | None:
    """Return where a hook of ours is found by the site's own pattern; None when it names one script."""
    folder, name = Path(pattern).parent, Path(pattern).name
    if not has_pattern(pattern) or any(letter in str(folder) for letter in "*?["):
        return None
    candidates = (*names, name.replace("*", "slurm-energy"))
    return next((folder / ours for ours in candidates if fnmatchcase(ours, name) and not has_pattern(ours)), None)


def _below(path: Path, parent: Path) -> str:
    """Return the path's part below a folder that systemd creates in; empty when it lies elsewhere."""
    return str(path.relative_to(parent)) if path != parent and path.is_relative_to(parent) else ""


def _sqlite_folder(url: str) -> Path | None:
    if not url.startswith("sqlite") or ":///" not in url:
        return None
    return Path(url.partition(":///")[2].partition("?")[0]).parent
