"""What this host's Slurm looks like: commands, plugin folder, and the lines of slurm.conf that matter here."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.domain.ids import expand_hostlist
from slurm_energy.errors import ValueRangeError
from slurm_energy.node.processes import read_slurmd
from slurm_energy.slurm.conf_file import ConfFiles, included_path, line_pairs

COMMAND_SECONDS = 10.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CONF_LINE = re.compile(r"^\s*([A-Za-z]+)\s*=\s*(.*?)\s*(?:#.*)?$")
_KNOWN_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_PLUGIN_PLACES = ("/usr/lib/*/slurm-wlm", "/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm")
MAX_INCLUDES = 32


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command said; `ok` is False also when it is missing or too slow."""

    ok: bool
    stdout: str
    complaint: str = ""


def run_command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command without a shell and without input, with a limit of time."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
            env=dict(environment) if environment is not None else None,
        )
    except FileNotFoundError:
        return CommandResult(False, "", f"{argv[0]} is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return CommandResult(False, "", f"{argv[0]} failed: {error}")
    complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
    stdout = done.stdout.decode("utf-8", "replace")
    return CommandResult(done.returncode == 0, stdout, complaint[-1][:300] if complaint else "")


def slurm_command(config: Config, *words: str) -> CommandResult:
    """Run one of Slurm's commands from the configured folder."""
    name = words[0]
    path = f"{config.cluster.slurm_bin_directory}/{name}" if config.cluster.slurm_bin_directory else name
    environment = dict(os.environ)
    if config.cluster.slurm_conf:
        environment["SLURM_CONF"] = config.cluster.slurm_conf
    return run_command([path, *words[1:]], environment)


def slurm_conf_path(config: Config, environment: Mapping[str, str], root: Path = Path("/")) -> Path:
    """Return the path of slurm.conf: configured, $SLURM_CONF, the first usual place that exists, else /etc/slurm."""
    for named in (config.cluster.slurm_conf, environment.get("SLURM_CONF", "")):
        if named:
            return Path(named)
    for place in _KNOWN_PLACES:
        if under(root, Path(place)).is_file():
            return Path(place)
    return Path(_KNOWN_PLACES[0])


def is_cache_of_slurmd(path: Path, root: Path = Path("/")) -> bool:
    """Return whether a slurm.conf came from slurmctld ("configless"): slurmd and sackd rewrite it as they like."""
    places = {str(path), str(under(root, path).resolve())}
    return any(place.startswith("/run/slurm/") or "/conf-cache/" in place for place in places)


def read_slurm_conf(path: Path, root: Path = Path("/")) -> dict[str, str]:
    """Return the keys of slurm.conf in lower case with their last value, Include files read in place.

    Of SlurmctldHost every line counts, the first controller first: they are joined with commas.

    A file that cannot be read gives nothing: the caller reports what is missing.
    """
    found: dict[str, str] = {}
    _read_into(found, path, root, path.parent, {"left": MAX_INCLUDES})
    return found


def _read_into(found: dict[str, str], path: Path, root: Path, folder: Path, budget: dict[str, int]) -> None:
    budget["left"] -= 1
    if budget["left"] < 0:
        return
    try:
        text = under(root, path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.replace("\\\n", " ").splitlines():
        included = included_path(line, folder, found.get("clustername", "").lower())
        if included is not None:
            _read_into(found, included, root, folder, budget)
            continue
        match = _CONF_LINE.match(line)
        if match is not None and match.group(1).lower() not in {"nodename", "partitionname"}:
            key, value = match.group(1).lower(), match.group(2).strip('"')
            found[key] = f"{found[key]},{value}" if key == "slurmctldhost" and key in found else value


def plugin_directory(conf: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """Return the folder for our plugins: the last of PluginDir, else the usual place that exists."""
    for folder in reversed(conf.get("plugindir", "").split(":")):
        if folder:
            return Path(folder)
    for pattern in _PLUGIN_PLACES:
        for place in sorted(root.glob(pattern.lstrip("/"))):
            if place.is_dir():
                return Path("/") / place.relative_to(root)
    return None


def under(root: Path, path: Path) -> Path:
    """Return the path below another root."""
    return root / str(path).lstrip("/")


def controller_hosts(conf: Mapping[str, str]) -> list[str]:
    """Return the names in SlurmctldHost, in order, without addresses."""
    return [name for name in re.split(r"[\s,]+", re.sub(r"\([^)]*\)", "", conf.get("slurmctldhost", ""))) if name]


def _is_named_as_node(slurm_conf: Path) -> bool:
    """Return whether a NodeName line of slurm.conf is this host's."""
    for line in ConfFiles(folder=slurm_conf.parent).lines(slurm_conf, missing_ok=True):
        pairs = dict(line_pairs(line))
        if "nodename" not in pairs:
            continue
        for key in ("nodename", "nodehostname", "nodeaddr"):
            with suppress(ValueRangeError):
                if any(map(is_this_host, expand_hostlist(pairs.get(key, "")))):
                    return True
    return False


def _runs_slurmd() -> bool:
    return read_slurmd(os.uname().nodename.partition(".")[0]) is not None


def is_this_host(name: str) -> bool:
    """Return whether a name of slurm.conf is this host's: Slurm takes a host's short name and its long one."""
    short = name.partition(".")[0]
    return short in {os.uname().nodename.partition(".")[0], "localhost"}


def detected_roles(config: Config, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return what this host is: `controller` and `node` by the daemons installed or named, else `login`.

    slurmd's program alone makes no node: Debian's package brings it to every host. A controller is a node only if
    slurm.conf names it as one; another host also if slurmd runs there, or where nodes may come that slurm.conf does not
    name.
    """
    path = environment.get("PATH", "") + ":" + SYSTEM_PATH
    conf_path = slurm_conf_path(config, environment)
    conf = read_slurm_conf(conf_path)
    controllers = [name.partition(".")[0] for name in controller_hosts(conf)]
    has_slurmctld = shutil.which("slurmctld", path=path) is not None
    roles = []
    if os.uname().nodename.partition(".")[0] in controllers or (
        has_slurmctld and ("localhost" in controllers or not controllers)
    ):
        roles.append("controller")
    if shutil.which("slurmd", path=path) and (
        not conf or _is_named_as_node(conf_path) or (not roles and ("maxnodecount" in conf or _runs_slurmd()))
    ):
        roles.append("node")
    return tuple(roles) or ("login",)
