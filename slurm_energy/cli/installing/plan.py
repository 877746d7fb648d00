"""The files of each role on a host: pure planning, from settings, templates and what is there already.

`Installation.files` is the one list of them: `install` writes what it names, and `uninstall` removes the same.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

from slurm_energy.cli.config import section_tables
from slurm_energy.cli.installing.commands import command_files
from slurm_energy.cli.installing.files import PlannedFile
from slurm_energy.cli.installing.roles import (
    CONFIG_DIRECTORY,
    EARLIER_FILES,
    JOB_SUBMIT_PLUGIN,
    KEPT_PLUGIN,
    LUA_SCRIPT,
    OWN_PLUGSTACK,
    PLUGIN_CONF_NAME,
    ROLES,
    SCHEDULERS,
    SETTINGS_PATH,
    SPANK_PLUGIN,
    UNIT_DIRECTORY,
    InstallOptions,
    has_role,
    is_packaged,
    replaces_job_submit,
    without_packaged_unit,
)
from slurm_energy.cli.installing.site_conf import SiteConf, place_among
from slurm_energy.cli.installing.slurm_conf import (
    EARLIER_FRAGMENT,
    HOOK_PATH,
    rules_for_lua,
    site_hooks,
    without_energy,
)
from slurm_energy.cli.site import is_cache_of_slurmd, plugin_directory, slurm_conf_path, under
from slurm_energy.config import Config, PluginConfig
from slurm_energy.errors import ConfigError
from slurm_energy.node.main import CPU_JOBS_VARIABLE
from slurm_energy.reporting.templates import render
from slurm_energy.resources import shared_directory


class Installation:
    """Plans the files of one host."""

    def __init__(self, config: Config, options: InstallOptions, environment: Mapping[str, str]) -> None:
        self._config = config
        self._options = options
        self.remarks: list[str] = []
        self.site = SiteConf(slurm_conf_path(config, environment, options.root), options, self.remarks)

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
        if is_packaged(self._options.python):
            planned = [without_packaged_unit(file, self._options.root) for file in planned]
        return planned

    def removals(self, *, with_sbatch_options: bool) -> list[PlannedFile]:
        """Return the same files as they should be afterwards, in the order in which they are removed.

        The settings stay, for a later installation; so does what another role of this host needs, and so do the
        options of sbatch, unless they are to go as well.
        """
        root, roles = self._options.root, self._options.roles
        others = tuple(role for role in ROLES if role not in roles and has_role(role, root))
        gone: dict[Path, PlannedFile] = {}
        for scheduler in SCHEDULERS:
            for planned in self._for_roles(roles, scheduler).files():
                gone[planned.path] = replace(planned, absent=True)
        fragment = self.site.path.parent / EARLIER_FRAGMENT
        spank, job_submit = self.plugins / SPANK_PLUGIN, self.plugins / JOB_SUBMIT_PLUGIN
        handed_out = is_cache_of_slurmd(self.site.path, root)
        for path in EARLIER_FILES if handed_out else (*EARLIER_FILES, fragment):
            gone[path] = PlannedFile(path=path, absent=True)
        needed = (
            [planned.path for planned in self._for_roles(others, self._options.scheduler).files()] if others else []
        )
        of_sbatch = (OWN_PLUGSTACK, spank)
        for path in (SETTINGS_PATH, self.site.plugstack, *of_sbatch, *self.site.paths(), *needed):
            gone.pop(path, None)
        left = []
        if not others and not handed_out and not self._leaves_plugstack():
            left.append(self._plugstack("gone" if with_sbatch_options else "ignored"))
        if with_sbatch_options and not others:
            gone |= {path: PlannedFile(path=path, absent=True) for path in of_sbatch}
        if "controller" in roles:
            left += self.site.changes(without_energy(self.site.files()))
            for path in (job_submit, KEPT_PLUGIN, *([fragment] if self._options.edit_slurm_conf else [])):
                gone[path] = PlannedFile(path=path, absent=True)
            if self._options.by_package and self.site.asks_at_submission:
                # slurmctld would not start without it; without the daemon it leaves every job as it is.
                del gone[job_submit]
        return [*left, *gone.values()]

    def _for_roles(self, roles: tuple[str, ...], scheduler: str) -> "Installation":
        """Return the plan for other roles of this host, with nothing edited."""
        options = replace(self._options, roles=roles, scheduler=scheduler, edit_slurm_conf=False)
        return Installation(self._config, options, {"SLURM_CONF": str(self.site.path)})

    @property
    def plugins(self) -> Path:
        """Slurm's plugin folder.

        Raises:
            ConfigError: it is not found.
        """
        found = self._options.plugin_directory or plugin_directory(self.site.keys, self._options.root)
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
        if is_cache_of_slurmd(self.site.path, self._options.root):
            self.remarks.append(
                "slurmctld hands out Slurm's configuration here (configless): plugstack.conf is the controller's, and "
                "nothing is written to /run/slurm/conf"
            )
        elif self._leaves_plugstack():
            self.remarks.append(f"{self.site.plugstack} is this site's own and stays. Add:  include {OWN_PLUGSTACK}")
        else:
            yield self._plugstack("used")
        yield self._rendered("plugstack-own.conf.j2", OWN_PLUGSTACK, {"spank_plugin": str(self.plugins / SPANK_PLUGIN)})
        if self._options.built_plugins is not None:
            content = (self._options.built_plugins / SPANK_PLUGIN).read_bytes()
            yield PlannedFile(path=self.plugins / SPANK_PLUGIN, content=content)

    def _leaves_plugstack(self) -> bool:
        """Return whether plugstack.conf is the site's own, in which a package's scripts change nothing."""
        return self._options.by_package and bool(self._lines_of_site())

    def _lines_of_site(self) -> list[str]:
        """Return the lines of plugstack.conf that are not ours."""
        try:
            text = under(self._options.root, self.site.plugstack).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return []
        values: dict[str, object] = {"kept": [], "own": OWN_PLUGSTACK}
        ours = {
            line
            for state in ("used", "ignored")
            for line in render("plugstack.conf.j2", values | {"state": state}).splitlines()
            if line.startswith("#")
        }
        ours.add("# A host without that file submits all the same, without these options.")  # of an earlier version
        ours.add(
            "# Keep it optional: then a missing file costs these options, not the submission."
        )  # of an earlier version
        names = (SPANK_PLUGIN, str(OWN_PLUGSTACK))
        return [line for line in text.splitlines() if not any(name in line for name in names) and line not in ours]

    def _plugstack(self, sbatch_options: str) -> PlannedFile:
        """Return plugstack.conf with our options `used`, `ignored` (accepted without any effect), or `gone`."""
        path = self.site.plugstack
        values: dict[str, object] = {"kept": self._lines_of_site(), "own": OWN_PLUGSTACK, "state": sbatch_options}
        planned = self._rendered("plugstack.conf.j2", path, values)
        return planned if planned.content else replace(planned, absent=True)

    def _controller_files(self) -> Iterator[PlannedFile]:
        if self._options.job_submit == "lua":
            yield from self._lua_files()
        elif self._options.built_plugins is not None:
            yield from self._job_submit(self._options.built_plugins)
        yield self._rendered("energy-plugin.conf.j2", CONFIG_DIRECTORY / PLUGIN_CONF_NAME, self._plugin_values())
        yield self._rendered(
            "systemd/slurm-energyd.service.j2", UNIT_DIRECTORY / "slurm-energyd.service", self._unit_values()
        )
        yield from self._nightly_files()
        yield self._rendered(
            "systemd/slurmctld-energy.conf.j2",
            UNIT_DIRECTORY / "slurmctld.service.d" / "slurm-energy.conf",
            {"python": self._options.python},
        )
        yield from self.site.edited()  # last: what it names must be there

    def _nightly_files(self) -> Iterator[PlannedFile]:
        """Yield what makes a candidate policy every night; nothing of it runs before an administrator wants it to."""
        own = self._config.nightly.directory
        units = self._unit_values()
        writable = [*self._database_folders(), *([Path(own)] if own else [])]
        values = {**units, "retrain_writable": list(dict.fromkeys(writable))}
        yield self._rendered("sbatch/retrain.sbatch.j2", CONFIG_DIRECTORY / "retrain.sbatch", values, mode=0o755)
        if self._options.scheduler == "cron":
            yield self._rendered("cron/slurm-energy-retrain.j2", Path("/etc/cron.d/slurm-energy-retrain"), values)
            return
        for unit in ("slurm-energy-retrain.service", "slurm-energy-retrain.timer"):
            yield self._rendered(f"systemd/{unit}.j2", UNIT_DIRECTORY / unit, values)

    def _database_folders(self) -> Iterator[Path]:
        """Yield the folders beyond systemd's own into which a night writes."""
        state = Path(self._config.daemon.state_directory)
        if not _below(state, Path("/var/lib")):
            yield state
        database = _sqlite_folder(self._config.store.url)
        if database is not None and database != state and state not in database.parents:
            yield database

    def _job_submit(self, built: Path) -> Iterator[PlannedFile]:
        path = self.plugins / JOB_SUBMIT_PLUGIN
        release = self._options.slurm_release
        target = under(self._options.root, path)
        if self._options.packaged_plugins and not (built / JOB_SUBMIT_PLUGIN).exists():
            self.remarks.append(f"{JOB_SUBMIT_PLUGIN} is in the package slurm-energy-controller: install it")
            return
        if self._options.packaged_plugins and not replaces_job_submit(built, target, release):
            self.remarks.append(f"{path} was compiled here for another Slurm than the package's, and stays")
            return
        yield PlannedFile(path=path, content=(built / JOB_SUBMIT_PLUGIN).read_bytes())

    def _lua_files(self) -> Iterator[PlannedFile]:
        """Yield our script and, where the site has none, the one that Slurm reads.

        `uninstall` leaves both: slurmctld stops when JobSubmitPlugins names lua and there is no script, and ours leaves
        jobs as they are when the daemon is gone.
        """
        text = (shared_directory("plugin") / "lua" / "job_submit.lua").read_text(encoding="utf-8")
        seconds = self._config.plugin.deadline_milliseconds / 1000
        values = {
            "SOCKET": f'"{self._config.daemon.plugin_socket_path}"',
            "DEADLINE_SECONDS": f"{seconds:g}",
            **{name: str(holds).lower() for name, holds in rules_for_lua(self.site.files()).items()},
        }
        for name, value in values.items():
            text = re.sub(rf"^local {name} = \S+", f"local {name} = {value}", text, count=1, flags=re.MULTILINE)
        yield PlannedFile(path=LUA_SCRIPT, content=text.encode())
        path = self.site.path.parent / "job_submit.lua"
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
        if self._config.node.cpu_jobs:
            text = text.replace("\n", f"\nexport {CPU_JOBS_VARIABLE}=true\n", 1)
        content = text.replace("@PYTHON@", str(self._options.python)).encode()
        yield PlannedFile(path=HOOK_PATH, content=content, mode=0o755, is_generated=True)
        files = self.site.files()
        for key in ("Prolog", "Epilog"):
            for own in site_hooks(files, key):
                path = place_among(own, key)
                if path is not None and under(self._options.root, path.parent).is_dir():
                    yield PlannedFile(path=path, content=content, mode=0o755, is_generated=True)
                    yield from self._earlier_links(path.parent)

    def _earlier_links(self, folder: Path) -> Iterator[PlannedFile]:
        """Yield, to be removed, the links by which a folder of the site led to our hooks in an earlier version."""
        for entry in sorted(under(self._options.root, folder).iterdir()):
            if entry.is_symlink() and entry.readlink().is_relative_to(CONFIG_DIRECTORY):
                yield PlannedFile(path=folder / entry.name, link_to=entry.readlink(), absent=True)

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
