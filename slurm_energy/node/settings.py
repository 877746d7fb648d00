"""What the hooks need of the configuration: [node], the cluster's name, and nothing that another section can spoil."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config import CONFIG_PATH_VARIABLE, DEFAULT_CONFIG_PATH, NodeConfig, parse_config
from slurm_energy.domain.ids import ClusterName, NodeName
from slurm_energy.errors import ConfigError
from slurm_energy.slurm.hook_env import is_node_name

SHARE_OF_SLURMDS = 0.6
"""Of the time that slurmd gives a hook: the shell, Python's start and a busy node need some of it."""
MIN_LIMIT_SECONDS = 0.5
_TIMEOUT = re.compile(
    r'^[ \t]*((?:Prolog|Epilog|PrologEpilog)Timeout)[ \t]*=[ \t]*"?(\d+)', re.IGNORECASE | re.MULTILINE
)
NO_TIMEOUT = (0.0, 65534.0, 65535.0)

SLURM_CONF_PATHS = (
    "/etc/slurm/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
    "/usr/local/etc/slurm.conf",
)
_SECTIONS = ("node", "cluster")
_HEADER = r"\s*\[\s*([A-Za-z0-9_-]+)[^\]]*\]\s*(?:#.*)?\Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """Settings of one hook run; paths have the node's name in place of %n."""

    node: NodeConfig
    cluster: ClusterName
    node_name: NodeName
    spool_directory: Path
    log_path: str
    run_directory: Path | None = None
    """Where locked clocks are recorded a second time; None: nowhere."""
    slurm_bin_directory: str = ""
    slurm_conf: str = ""
    slurm_user: str = "slurm"
    problem: str | None = None
    """What is wrong with the rest of the file."""


def load_settings(environment: Mapping[str, str], node_name: str | None = None) -> HookSettings:
    """Return the settings.

    Args:
        environment: The hook's environment.
        node_name: The `--node` option; else SLURMD_NODENAME, else what slurm.conf calls this host, else its short name.

    Raises:
        ConfigError: file missing though named, not TOML, a bad value in [node] or [cluster], a bad node name.
    """
    path, named = _settings_path(environment)
    document, problem = _read(path, named)
    config = parse_config(
        {section: document[section] for section in _SECTIONS if section in document},
        source=str(path),
        environment=environment,
    )
    name = node_name or environment.get("SLURMD_NODENAME") or this_nodes_name(config.cluster.slurm_conf, environment)
    if not is_node_name(name):
        raise ConfigError(f"node name {name[:64]!r} has characters that are not allowed in a path")
    spool = Path(config.node.spool_directory.replace("%n", name))
    if not spool.is_absolute():
        raise ConfigError(f"{path}: node.spool_directory is {str(spool)!r}, an absolute path is needed")
    run = Path(config.node.run_directory.replace("%n", name)) if config.node.run_directory else None
    if run is not None and not run.is_absolute():
        raise ConfigError(f"{path}: node.run_directory is {str(run)!r}, an absolute path is needed")
    return HookSettings(
        node=config.node,
        cluster=ClusterName(config.cluster.name),
        node_name=NodeName(name),
        spool_directory=spool,
        log_path=config.node.log_path.replace("%n", name),
        run_directory=run,
        slurm_bin_directory=config.cluster.slurm_bin_directory,
        slurm_conf=config.cluster.slurm_conf or environment.get("SLURM_CONF", ""),
        slurm_user=config.cluster.slurm_user,
        problem=problem,
    )


def this_nodes_name(slurm_conf: str, environment: Mapping[str, str]) -> str:
    """Return what slurm.conf calls this host, its short name where nothing is found."""
    host_name = os.uname().nodename
    conf = conf_path(slurm_conf or environment.get("SLURM_CONF", ""))
    if conf is not None:
        from slurm_energy.slurm.conf_file import own_node_name  # noqa: PLC0415  # for timers: slurmd names a hook's node

        found = own_node_name(conf, host_name)
        if found is not None:
            return found
    return host_name.partition(".")[0]


def conf_path(slurm_conf: str = "") -> Path | None:
    """Return the slurm.conf that slurmd of this node reads, None when it is not found."""
    places = (slurm_conf,) if slurm_conf else SLURM_CONF_PATHS
    return next((Path(place) for place in places if Path(place).is_file()), None)


def slurmd_limit_seconds(slurm_conf: Path | None, verb: str) -> float | None:
    """Return after how long slurmd kills a hook and drains its node, None where slurm.conf itself sets no limit.

    Included files are not read: `slurm-energy doctor` compares with what slurmctld says.
    """
    if slurm_conf is None:
        return None
    try:
        text = slurm_conf.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = {name.lower(): float(seconds) for name, seconds in _TIMEOUT.findall(text)}
    seconds = found.get(f"{verb}timeout", found.get("prologepilogtimeout"))
    return None if seconds in {None, *NO_TIMEOUT} else seconds


def hook_limit_seconds(configured_seconds: float, slurmd_seconds: float | None) -> float:
    """Return how long a hook may take: as configured, and well within what slurmd gives it."""
    if slurmd_seconds is None:
        return configured_seconds
    return max(MIN_LIMIT_SECONDS, min(configured_seconds, SHARE_OF_SLURMDS * slurmd_seconds))


def _settings_path(environment: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the file, and whether it must exist: $SLURM_ENERGY_CONFIG, else beside slurm.conf, else the default."""
    if environment.get(CONFIG_PATH_VARIABLE):
        return Path(environment[CONFIG_PATH_VARIABLE]), True
    if environment.get("SLURM_CONF"):
        beside = Path(environment["SLURM_CONF"]).parent / DEFAULT_CONFIG_PATH.name
        if beside.is_file():
            return beside, True
    return DEFAULT_CONFIG_PATH, False


def _read(path: Path, named: bool) -> tuple[dict[str, object], str | None]:
    """Return the document, and what was wrong elsewhere in it: an epilog must still know where its spool is."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise ConfigError(f"configuration file {path} does not exist") from None
        return {}, None
    except (OSError, ValueError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error
    plain = plain_document(text)
    if plain is not None:
        return plain, None
    import tomllib  # noqa: PLC0415  # costs more than all the rest of this module

    try:
        return tomllib.loads(text), None
    except (ValueError, RecursionError) as error:
        problem = f"configuration file {path} cannot be read: {error}"
    try:
        document = tomllib.loads(_own_sections(text))
    except (ValueError, RecursionError):
        document = {}
    if "node" not in document:
        raise ConfigError(problem)
    return document, f"{problem}; continued with its [node] and [cluster]"


def plain_document(text: str) -> dict[str, object] | None:
    """Return what tomllib would of a file of plain lines; None when any line is more than that, or wrong.

    Plain are: nothing, a comment, `[section]`, and `key = value` with a text without escapes, a number, true or false.
    """
    document: dict[str, object] = {}
    section: dict[str, object] | None = None
    for line in text.replace("\r\n", "\n").split("\n"):
        line = line.strip(" \t")  # noqa: PLW2901  # what is left of it
        if not line.isprintable():
            return None
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            name = line[1:-1].strip(" \t")
            if line[-1] != "]" or not _is_bare(name) or name in document:
                return None
            section = {}
            document[name] = section
            continue
        key, separator, written = line.partition("=")
        key = key.strip(" \t")
        if len(key) > 2 and key[0] == key[-1] == '"':
            key = key[1:-1]
        value = _plain_value(written.strip(" \t"))
        if section is None or not separator or not _is_bare(key) or key in section or value is None:
            return None
        section[key] = value
    return document


def _plain_value(written: str) -> str | bool | int | float | None:
    if written[:1] == '"':
        value, quote, rest = written[1:].partition('"')
        rest = rest.strip(" \t")
        return value if quote and "\\" not in value and rest[:1] in {"", "#"} else None
    word = written.partition("#")[0].strip(" \t")
    if word in {"true", "false"}:
        return word == "true"
    whole, point, part = word.removeprefix("-").partition(".")
    if not _is_number(whole) or (whole[0] == "0" and whole != "0") or len(word) > 18:
        return None
    if not point:
        return int(word)
    return float(word) if _is_number(part) else None


def _is_bare(name: str) -> bool:
    return name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()


def _is_number(digits: str) -> bool:
    return digits.isascii() and digits.isdigit()


def _own_sections(text: str) -> str:
    """Return the lines of the hooks' own sections."""
    lines: list[str] = []
    ours = False
    for line in text.splitlines():
        if header := re.match(_HEADER, line):
            ours = header[1] in _SECTIONS
        elif line.lstrip().startswith("["):
            ours = False
        if ours:
            lines.append(line)
    return "\n".join(lines)
