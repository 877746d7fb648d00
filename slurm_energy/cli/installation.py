"""What `install` would write on a host: pure planning, from settings, templates and what is there already."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from slurm_energy.cli.rendering import render
from slurm_energy.cli.settings_table import section_tables
from slurm_energy.cli.site import plugin_directory, read_slurm_conf, slurm_conf_path, under
from slurm_energy.config import Config, PluginConfig
from slurm_energy.errors import ConfigError
from slurm_energy.resources import shared_directory

ROLES = ("controller", "node", "login")
CONFIG_DIRECTORY = Path("/etc/slurm-energy")
UNIT_DIRECTORY = Path("/etc/systemd/system")
NODE_UNITS = ("slurm-energy-flush.timer", "slurm-energy-repair.timer", "slurm-energy-repair.service")
"""Units of a node that are enabled: the timers, and the repair before slurmd starts."""
FRAGMENT_NAME = "slurm-energy.conf"
PLUGIN_CONF_NAME = "energy-plugin.conf"
SPANK_PLUGIN = "spank_energy.so"
JOB_SUBMIT_PLUGIN = "job_submit_energy.so"
HOOK_FOLDERS = ("prolog.d", "epilog.d")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """One file as it should be."""

    path: Path
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """What to install where.

    Attributes:
        root: Folder that stands for `/`, to prepare an image.
        roles: Any of `controller`, `node`, `login`.
        python: Interpreter that units and hooks use.
        scheduler: `systemd` or `cron` for the node's timers.
        edit_slurm_conf: Whether the Include line goes into slurm.conf.
        plugin_directory: Slurm's plugin folder; None: found.
        built_plugins: Folder with freshly built plugins; None: none are installed.
    """

    root: Path = Path("/")
    roles: tuple[str, ...] = ROLES
    python: Path = Path(sys.executable)
    scheduler: str = "systemd"
    edit_slurm_conf: bool = False
    plugin_directory: Path | None = None
    built_plugins: Path | None = None


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
    controller = re.match(r"[\w.-]+", conf.get("slurmctldhost", ""))
    if not node.daemon_address and controller is not None:
        node = replace(node, daemon_address=f"{controller.group()}:{config.daemon.report_port}")
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
        planned = [self._settings_file(), *self._slurm_files()]
        if "controller" in self._options.roles:
            planned += self._controller_files()
        if "node" in self._options.roles:
            planned += self._node_files()
        if "login" in self._options.roles:
            for name in ("example.sh", "train.sbatch"):
                planned.append(self._rendered(f"sbatch/{name}.j2", CONFIG_DIRECTORY / name, {}, mode=0o755))
        return planned

    @property
    def fragment_path(self) -> Path:
        """Our lines for slurm.conf: beside it, so that a configless Slurm hands them on."""
        return self.slurm_conf.parent / FRAGMENT_NAME

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
        return self._rendered("slurm-energy.toml.j2", CONFIG_DIRECTORY / "slurm-energy.toml", values)

    def _slurm_files(self) -> Iterator[PlannedFile]:
        yield self._rendered("slurm.conf.j2", self.fragment_path, self._fragment_values())
        if self._options.edit_slurm_conf:
            yield from self._edited_slurm_conf()
        named = self.conf.get("plugstackconfig")
        stack = Path(named) if named else self.slurm_conf.parent / "plugstack.conf"
        yield self._plugstack(stack)
        if self._options.built_plugins is not None:
            for name in (JOB_SUBMIT_PLUGIN, SPANK_PLUGIN):
                content = (self._options.built_plugins / name).read_bytes()
                yield PlannedFile(path=self.plugins / name, content=content)

    def _fragment_values(self) -> dict[str, object]:
        submit = [name for name in re.split(r"[\s,]+", self.conf.get("jobsubmitplugins", "")) if name]
        flags = [name for name in re.split(r"[\s,]+", self.conf.get("prologflags", "")) if name]
        if "energy" not in submit:
            submit.append("energy")
        if "alloc" not in {flag.lower() for flag in flags}:
            flags.append("Alloc")
        hooks = {name: self._hook_line(name) for name in ("prolog", "epilog")}
        return {
            "fragment_name": FRAGMENT_NAME,
            "remarks": list(self.remarks),
            "job_submit_plugins": ",".join(submit),
            "prolog_flags": ",".join(flags),
            **hooks,
        }

    def _hook_line(self, name: str) -> str:
        """Return our pattern, or nothing when the site has hooks of its own, which must go on running."""
        ours = f"{CONFIG_DIRECTORY}/{name}.d/*"
        present = self.conf.get(name, "")
        if present in {"", ours}:
            return ours
        script = f"{CONFIG_DIRECTORY}/{name}.d/{self._hook_script(name)}"
        how = (
            f"link it there: ln -s {script} {Path(present).parent}/"
            if present.endswith("*")
            else f"call {script} at its {'start' if name == 'epilog' else 'end'}, and let it exit 0"
        )
        self.remarks.append(f"{name.capitalize()}={present} is this site's own and stays. {how[0].upper()}{how[1:]}.")
        return ""

    def _hook_script(self, name: str) -> str:
        scripts = sorted((shared_directory("plugin") / f"{name}.d").glob("*"))
        return scripts[0].name if scripts else "*"

    def _edited_slurm_conf(self) -> Iterator[PlannedFile]:
        path = under(self._options.root, self.slurm_conf)
        try:
            text = path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise ConfigError(f"{path} cannot be edited: {error.strerror}") from error
        if not re.search(rf"^\s*include\s+(?:\S*/)?{re.escape(FRAGMENT_NAME)}\s*$", text, re.IGNORECASE | re.MULTILINE):
            joined = text if text.endswith("\n") or not text else text + "\n"
            text = f"{joined}Include {FRAGMENT_NAME}\n"
        content = text.encode("utf-8", "surrogateescape")
        yield PlannedFile(path=self.slurm_conf, content=content, mode=path.stat().st_mode & 0o777)

    def _plugstack(self, path: Path) -> PlannedFile:
        try:
            present = under(self._options.root, path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            present = []
        ours = set(render("plugstack.conf.j2", {"kept": [], "spank_plugin": ""}).splitlines()[:-1])
        kept = [line for line in present if SPANK_PLUGIN not in line and line not in ours]
        return self._rendered(
            "plugstack.conf.j2", path, {"kept": kept, "spank_plugin": str(self.plugins / SPANK_PLUGIN)}
        )

    def _controller_files(self) -> Iterator[PlannedFile]:
        yield self._rendered("energy-plugin.conf.j2", CONFIG_DIRECTORY / PLUGIN_CONF_NAME, self._plugin_values())
        yield self._rendered(
            "systemd/slurm-energyd.service.j2", UNIT_DIRECTORY / "slurm-energyd.service", self._unit_values()
        )

    def _plugin_values(self) -> dict[str, object]:
        words = {True: "yes", False: "no"}
        rows = [{"help": "The daemon's unix socket.", "key": "socket", "value": self._config.daemon.socket_path}]
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
            "config_path": CONFIG_DIRECTORY / "slurm-energy.toml",
            "config_directory": CONFIG_DIRECTORY,
            "python": self._options.python,
            "python_in_home": self._python_in_home(),
            "slurm_user": self._config.cluster.slurm_user,
            "state_name": state_name,
            "runtime_name": runtime_name,
            "writable": writable,
        }

    def _node_files(self) -> Iterator[PlannedFile]:
        for folder in HOOK_FOLDERS:
            yield from self._hooks(folder)
        log = Path(self._config.node.log_path)
        spool = Path(self._config.node.spool_directory.split("%n", 1)[0])
        values = {
            "config_path": CONFIG_DIRECTORY / "slurm-energy.toml",
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

    def _hooks(self, folder: str) -> Iterator[PlannedFile]:
        source = shared_directory("plugin") / folder
        for script in sorted(path for path in source.glob("*") if path.is_file()):
            text = script.read_text(encoding="utf-8").replace("@PYTHON@", str(self._options.python))
            yield PlannedFile(path=CONFIG_DIRECTORY / folder / script.name, content=text.encode(), mode=0o755)

    def _python_in_home(self) -> bool:
        return str(self._options.python).startswith(("/home/", "/root/", "/run/user/"))

    def _rendered(self, template: str, path: Path, values: Mapping[str, object], mode: int = 0o644) -> PlannedFile:
        content = render(template, values).encode("utf-8", "surrogateescape")
        return PlannedFile(path=path, content=content, mode=mode)


def _below(path: Path, parent: Path) -> str:
    """Return the path's part below a folder that systemd creates in; empty when it lies elsewhere."""
    return str(path.relative_to(parent)) if path != parent and path.is_relative_to(parent) else ""


def _sqlite_folder(url: str) -> Path | None:
    if not url.startswith("sqlite") or ":///" not in url:
        return None
    return Path(url.partition(":///")[2].partition("?")[0]).parent
