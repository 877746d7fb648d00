"""The plugin on a controller: what slurmctld does with it at its next start, and compiling it for this host's Slurm."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from slurm_energy.cli.installing.roles import JOB_SUBMIT_PLUGIN, LUA_SCRIPT
from slurm_energy.cli.installing.slurm_conf import is_taken_out, plugin_words, read_conf_files, rules_for_lua
from slurm_energy.cli.site import (
    SYSTEM_PATH,
    plugin_directory,
    read_slurm_conf,
    run_command,
    slurm_conf_path,
    under,
)
from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, SlurmError
from slurm_energy.resources import shared_directory
from slurm_energy.slurm.plugin_file import (
    PluginFile,
    Release,
    library_folders,
    machine_of,
    parse_release,
    read_plugin_file,
)

_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/run/systemd/system", "/etc/systemd/system")
_EXEC_START = re.compile(r"^\s*ExecStart\s*=\s*[-@:+!]*(/\S+)", re.MULTILINE)
_MORE_PLACES = ":/opt/slurm/sbin:/usr/local/slurm/sbin"
_REBUILD = (
    "slurm-energy install --build-plugin (needs make, gcc and this Slurm's headers), then restart slurmctld; "
    "where nothing can be compiled: slurm-energy install --role controller --job-submit lua"
)
BUILD_SECONDS = 300.0
_LUA_VALUE = re.compile(r"^local ([A-Z_]+) = (\S+)", re.MULTILINE)
_LUA_RULES = {
    "ENFORCES_ALL_LIMITS": "EnforcePartLimits=ALL",
    "HAS_JOB_DEFAULTS": "JobDefaults",
    "VALIDATES_PREFERENCES": "no ignore_prefer_validation in SchedulerParameters",
}
_LUA_FOLDERS = tuple(Path(name) for name in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"))
_LUA_SOCKET = ("lua/5.*/socket/core.so", "*/lua/5.*/socket/core.so")
_NUMBER = re.compile(r"^\s*#\s*define\s+SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})\b", re.MULTILINE)


class Standing(StrEnum):
    """What happens at slurmctld's next start."""

    RIGHT = "right"
    """The plugin is loaded and works."""
    IDLE = "idle"
    """The plugin is loaded and leaves every job as it is."""
    FATAL = "fatal"
    """Slurmctld stops."""
    NOT_LISTED = "not listed"
    """JobSubmitPlugins does not name the plugin."""
    LUA = "lua"
    """Our script in Slurm's own lua plugin asks in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCheck:
    """How the plugin stands on a controller.

    Attributes:
        standing: What happens at the next start.
        says: The same in words, with what it was judged by.
        fix: What to do; empty when nothing.
        release: Release of the installed slurmctld; None: it does not tell.
        places: Folders that slurmctld searches, in its order.
        file: The file that it would load, or the first one that it would try.
        problem: Why that file is not loaded or idle; empty when it works.
        loads: Whether slurmctld loads it, listed or not.
        taken_out: Whether `plugin check --before-start` has taken it out of JobSubmitPlugins.
    """

    standing: Standing
    says: str
    fix: str
    release: Release | None
    places: tuple[Path, ...]
    file: PluginFile | None
    problem: str
    loads: bool
    taken_out: bool

    @property
    def works(self) -> bool:
        """Whether slurmctld starts and asks, or is not meant to ask."""
        return self.standing in {Standing.RIGHT, Standing.NOT_LISTED} or (
            self.standing is Standing.LUA and not self.fix
        )


def check_plugin(
    config: Config,
    environment: Mapping[str, str],
    *,
    slurmctld: Path | None = None,
    conf: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> PluginCheck | None:
    """Return how the plugin stands for the installed slurmctld; None without one, or without a readable slurm.conf.

    Args:
        config: The settings.
        environment: The caller's.
        slurmctld: The program; None: found.
        conf: Keys of slurm.conf in lower case; None: read from the file, as slurmctld will.
        root: Folder that stands for `/`.
    """
    program = slurmctld or slurmctld_program(config, environment, root)
    if program is None:
        return None
    conf_path = slurm_conf_path(config, environment, root)
    conf = read_slurm_conf(conf_path, root) if conf is None else conf
    if not conf:
        return None
    release = parse_release(run_command([str(program), "-V"]).stdout)
    places = tuple(plugin_places(conf, program, root))
    file, problem, loads = _first_that_loads(places, release, machine_of(program.resolve()), root)
    taken_out = is_taken_out(conf_path, root)
    listed = plugin_words(conf.get("jobsubmitplugins", ""))
    if "energy" in listed:
        standing, says, fix = _judged(release, file, problem, loads)
    elif "lua" in listed and not taken_out and asks_by_lua(conf_path, root):
        standing = Standing.LUA
        says, fix = next(_lua_faults(config, conf_path, root), (_LUA_SAYS, ""))
    else:
        standing, says, fix = _unlisted(conf_path, problem, taken_out)
    return PluginCheck(
        standing=standing,
        says=says,
        fix=fix,
        release=release,
        places=places,
        file=file,
        problem=problem,
        loads=loads,
        taken_out=taken_out,
    )


_LUA_SAYS = f"{LUA_SCRIPT} asks, in Slurm's own lua plugin: clocks are set where nodes have node.fetch_decisions = true"


def asks_by_lua(slurm_conf: Path, root: Path = Path("/")) -> bool:
    """Return whether the script that Slurm's lua plugin reads loads ours, and ours is there."""
    try:
        text = under(root, slurm_conf.parent / LUA_SCRIPT.name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return str(LUA_SCRIPT) in text and under(root, LUA_SCRIPT).is_file()


def _lua_faults(config: Config, conf_path: Path, root: Path) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with our script in Slurm's lua plugin, each with its fix."""
    text = under(root, LUA_SCRIPT).read_text(encoding="utf-8", errors="replace")
    values = dict(_LUA_VALUE.findall(text))
    again = "slurm-energy install --role controller --job-submit lua, then restart slurmctld"
    asks, listens = values.get("SOCKET", "").strip('"'), config.daemon.plugin_socket_path
    if asks and asks != listens:
        yield f"{LUA_SCRIPT} asks at {asks}, the daemon listens at {listens}: jobs go through unchanged", again
    files = read_conf_files(conf_path, root)
    for name, is_strict in rules_for_lua(files).items() if files else ():
        if is_strict and values.get(name) == "false":
            says = f"{LUA_SCRIPT} is older than what slurm.conf says ({_LUA_RULES[name]})"
            yield f"{says}: Slurm may refuse a job as the script changes it", again
    places = [under(root, folder) for folder in _LUA_FOLDERS]
    if not any(found for place in places for pattern in _LUA_SOCKET for found in place.glob(pattern)):
        says = "lua-socket is in none of the usual folders: jobs go through unchanged without it"
        yield (
            says,
            "install lua-socket (Debian: lua-socket, RPM: lua-socket) for the Lua of Slurm, then restart slurmctld",
        )


def _unlisted(conf_path: Path, problem: str, taken_out: bool) -> tuple[Standing, str, str]:
    if not taken_out:
        return Standing.NOT_LISTED, f"JobSubmitPlugins in {conf_path} does not name energy: slurmctld does not ask", ""
    says = f"energy was removed from JobSubmitPlugins in {conf_path}, or slurmctld would not start"
    if problem:
        return Standing.NOT_LISTED, f"{says}: {problem}", _REBUILD
    return Standing.NOT_LISTED, f"{says}; it is put back when slurmctld starts again", "restart slurmctld"


def _judged(release: Release | None, file: PluginFile | None, problem: str, loads: bool) -> tuple[Standing, str, str]:
    this = f"slurmctld {release or 'of an unknown release'}"
    if file is None or not loads:
        return Standing.FATAL, f"{this} will not start: {problem}", _REBUILD
    if problem:
        return Standing.IDLE, f"jobs go through {this} unchanged: {problem}", _REBUILD
    says = f"{file.path}, built for Slurm {file.release}" + ("" if file.release == release else f", fits {this}")
    if not file.follows:
        next_time = "the next update of Slurm will stop slurmctld: an earlier slurm-energy built it"
        return Standing.RIGHT, f"{says}; {next_time}", _REBUILD
    return Standing.RIGHT, says, ""


def slurmctld_program(config: Config, environment: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """Return the slurmctld beside the configured commands, else that of the service, else of the usual folders."""
    if config.cluster.slurm_bin_directory:
        folder = Path(config.cluster.slurm_bin_directory)
        for place in (folder / "slurmctld", folder.parent / "sbin" / "slurmctld"):
            if under(root, place).is_file():
                return under(root, place)
    for text in reversed(list(_unit_texts(root))):
        for named in reversed(_EXEC_START.findall(text)):
            if Path(named).name == "slurmctld" and under(root, Path(named)).is_file():
                return under(root, Path(named))
    if root != Path("/"):
        folders = f"{SYSTEM_PATH}{_MORE_PLACES}".split(":")
        return next((place for folder in folders if (place := under(root, Path(folder) / "slurmctld")).is_file()), None)
    found = shutil.which("slurmctld", path=f"{environment.get('PATH', '')}:{SYSTEM_PATH}{_MORE_PLACES}")
    return None if found is None else Path(found)


def _unit_texts(root: Path) -> Iterator[str]:
    paths = [under(root, Path(folder) / "slurmctld.service") for folder in _UNIT_FOLDERS]
    for folder in _UNIT_FOLDERS:
        paths += sorted(under(root, Path(folder) / "slurmctld.service.d").glob("*.conf"))
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue


def plugin_places(conf: Mapping[str, str], program: Path, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders that slurmctld searches for plugins: PluginDir, else the one that it was built with."""
    named = [Path(part) for part in conf.get("plugindir", "").split(":") if part]
    if named:
        yield from named
        return
    real = program.resolve()
    folders = [folder for folder in library_folders(real) if under(root, folder).is_dir()]
    if not folders:
        prefix = real.parent.parent
        patterns = ("lib/*/slurm-wlm", "lib64/slurm", "lib/slurm", "lib/*/slurm")
        folders = [
            found for pattern in patterns for found in sorted(prefix.glob(pattern)) if any(found.glob("auth_*.so"))
        ]
    if not folders and str(real.parent.parent) in {"/", "/usr", "/usr/local"}:
        usual = plugin_directory(conf, root)
        folders = [] if usual is None else [usual]
    yield from folders[:1]


def _first_that_loads(
    places: tuple[Path, ...], release: Release | None, machine: int | None, root: Path
) -> tuple[PluginFile | None, str, bool]:
    """Return the file that slurmctld loads, what is wrong with it, and whether it loads at all."""
    first: tuple[PluginFile | None, str] | None = None
    for place in places:
        path = under(root, place / JOB_SUBMIT_PLUGIN)
        if not path.is_file():
            continue
        try:
            file = read_plugin_file(path)
        except SlurmError as error:
            first = first or (None, str(error))
            continue
        problem = _why_not(file, release, machine)
        if not problem:
            unlike = release is not None and file.release.series != release.series
            idle = f"{path} is built for Slurm {file.release}" if unlike else ""
            return file, idle, True
        first = first or (file, problem)
    if first is not None:
        return *first, False
    where = ", ".join(map(str, places)) or "any known plugin folder"
    return None, f"{JOB_SUBMIT_PLUGIN} is not in {where}", False


def _why_not(file: PluginFile, release: Release | None, machine: int | None) -> str:
    if machine is not None and file.machine != machine:
        return f"{file.path} is built for another processor architecture"
    if file.follows or release is None or file.release == release:
        return ""
    return f"{file.path} is built for Slurm {file.release}, by an earlier slurm-energy: Slurm requires the same release"


@contextmanager
def built_plugins(include: Path | None = None, seconds: float = BUILD_SECONDS) -> Iterator[Path]:
    """Yield a folder with freshly compiled plugins.

    Args:
        include: Folder that holds slurm/slurm.h; None: where the compiler finds it.
        seconds: How long it may take.

    Raises:
        ConfigError: they cannot be compiled here.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-energy-build-") as folder:
        argv = ["make", "--no-print-directory", "-C", str(shared_directory("plugin")), f"BUILD={folder}"]
        argv += [] if include is None else [f"SLURM_INCLUDE={include}"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"the plugins cannot be compiled: {error}; install make and gcc") from error
        if done.returncode != 0:
            raise ConfigError(f"the plugins cannot be compiled:\n{(done.stdout + done.stderr)[-2000:]}")
        yield Path(folder)


def headers_of(release: Release, program: Path) -> Path | None:
    """Return the folder with Slurm's headers of this release's series: beside the program, else the usual ones."""
    beside = program.resolve().parent.parent / "include"
    for folder in (beside, Path("/usr/include"), Path("/usr/local/include"), Path("/usr/include/slurm-wlm")):
        try:
            text = (folder / "slurm" / "slurm_version.h").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = _NUMBER.search(text)
        if match is not None and int(match[1], 16) >> 8 == release.year << 8 | release.month:
            return folder
    return None
