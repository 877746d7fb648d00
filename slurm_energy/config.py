"""Settings: TOML into frozen dataclasses. Order: option, environment (SLURM_ENERGY_SECTION_KEY), file, default.

Every field carries a sentence in its metadata, shown by `slurm-energy config show` and in the reference.
Imports are few on purpose: the node hooks read this at every job.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown

DEFAULT_CONFIG_PATH = Path("/etc/slurm-energy/slurm-energy.toml")
CONFIG_PATH_VARIABLE = "SLURM_ENERGY_CONFIG"
ENVIRONMENT_PREFIX = "SLURM_ENERGY_"
_MAX_BITS = 63
"""Of a whole number, beside its sign, as TOML has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingBound:
    """Smallest and largest allowed value of a number."""

    low: float
    high: float


def _setting(default: Any, help_text: str, low: float | None = None, high: float | None = None) -> Any:
    metadata = {"help": help_text, "bound": None if low is None or high is None else SettingBound(low=low, high=high)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The Slurm cluster."""

    name: str = _setting("cluster", "Slurm's ClusterName; part of every energy row's key.")
    slurm_bin_directory: str = _setting(
        "", "Folder of squeue, sinfo, scontrol, sacct and sbatch; empty: found through PATH."
    )
    slurm_conf: str = _setting("", "Path of slurm.conf for Slurm's commands; empty: Slurm's own default.")
    slurm_user: str = _setting("slurm", "User that runs slurmctld; may ask for decisions, as root may.")
    accounting: bool = _setting(False, "Whether sacct answers (slurmdbd runs).")
    reader: Literal["commands", "pyslurm"] = _setting(
        "commands", "How queue and nodes are read: Slurm's own commands, or pyslurm where it was built for this Slurm."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """slurm-energyd."""

    socket_path: str = _setting(
        "/run/slurm-energy/energyd.sock",
        "Unix socket for people; with .ctl behind it, the one for Slurm's plugin, open to SlurmUser and root alone.",
    )
    socket_mode: int = _setting(0o666, "Mode of the socket; who may do what is decided by the caller's uid.", 0, 0o777)
    report_host: str = _setting("0.0.0.0", "Address that takes the nodes' reports; empty: none.")  # noqa: S104  # nodes are other hosts
    report_port: int = _setting(8470, "TCP port that takes the nodes' reports.", 1, 65535)
    state_directory: str = _setting(
        "/var/lib/slurm-energy", "Journal of decisions and reports not yet in the database."
    )
    journal_days: float = _setting(
        14.0,
        "How long the journal keeps what is in the database, for one that is restored from a backup (1 GiB at most).",
        0.0,
        3650.0,
    )
    snapshot_interval_seconds: float = _setting(5.0, "Time between two reads of queue and nodes.", 0.1, 3600.0)
    snapshot_max_age_seconds: float = _setting(
        60.0, "An older snapshot is not used: jobs then go through unchanged.", 1.0, 86400.0
    )
    command_timeout_seconds: float = _setting(30.0, "Limit of one Slurm command.", 0.1, 600.0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting("INFO", "Least severe message that is logged.")

    @property
    def plugin_socket_path(self) -> str:
        """Unix socket for slurmctld alone, at which no other user can connect, nor stand in its way."""
        return f"{self.socket_path}.ctl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The database."""

    url: str = _setting(
        "sqlite:////var/lib/slurm-energy/energy.sqlite",
        "SQLAlchemy URL: sqlite, postgresql+psycopg or mariadb+pymysql.",
    )
    busy_timeout_seconds: float = _setting(30.0, "How long SQLite waits for another writer.", 0.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The live policy."""

    name: str = _setting(
        "auto",
        "auto, slurm-default, fixed-clock, oracle, gnn or a placement rule with its settings, such as total-cost:V=20; "
        "auto: gnn where torch is installed, else policy.baseline.",
    )
    default_mode: Literal["off", "observe", "balanced", "saver"] = _setting(
        "balanced", "Mode of jobs that give no --energy option."
    )
    max_slowdown: float = _setting(0.05, "Slowdown bound of balanced jobs (ratio to the default clock).", 0.0, 2.0)
    saver_max_slowdown: float = _setting(0.20, "Slowdown bound of saver jobs.", 0.0, 2.0)
    balanced_time_weight: float = _setting(
        0.5,
        "What time is worth to balanced jobs beside energy (which is worth the rest of 1), for networks that choose "
        "among options.",
        0.0,
        1.0,
    )
    saver_time_weight: float = _setting(0.2, "The same of saver jobs.", 0.0, 1.0)
    fixed_clocks_mhz: dict[str, int] = _setting({}, "Clock of each GPU type under fixed-clock.")
    checkpoint: str = _setting(
        "shipped", "Folder of the learned policy's checkpoint; shipped: the one that comes with the package."
    )
    timeout_milliseconds: int = _setting(
        20, "Time that the daemon waits for the learned policy before the baseline answers.", 1, 200
    )
    baseline: Literal["oracle", "fixed-clock", "slurm-default"] = _setting(
        "oracle",
        "Policy that answers while the learned one loads, fails or is late, and under auto where there is none.",
    )
    threads: int = _setting(1, "CPU threads of the learned policy's process.", 1, 64)
    learn_from_runs: bool = _setting(
        True, "Whether measured runs of a job's name say how its work compares between GPU types."
    )
    clocks: Literal["oracle", "learned"] = _setting(
        "oracle", "Who chooses the clock under gnn: the exact oracle where the job lands, or the network too."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Limits that no policy can pass."""

    unknown_runtime_share: float = _setting(
        0.8, "Share of its time limit that a job without history is taken to need at the default clock.", 0.0, 1.0
    )
    time_limit_margin: float = _setting(
        0.02, "Share of the time limit that stays free after the predicted end.", 0.0, 0.9
    )
    min_energy_saving: float = _setting(0.02, "A clock that saves less stays at the default.", 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """Whether the policy may choose partitions, and name nodes to use first."""

    open: bool = _setting(False, "Jobs that name no partition may be sent to others than the default one.")
    partitions: tuple[str, ...] = _setting((), "Partitions open for routing; empty: all the user may use.")
    less_gpu_memory: bool = _setting(
        False, "Whether that may be to GPUs of less memory, on which no run of the job's name has run through yet."
    )
    node_hints: bool = _setting(
        False,
        "Whether a learned policy may add a soft --prefer feature; never a hard constraint. "
        "Needs SchedulerParameters=ignore_prefer_validation in slurm.conf.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Hooks on compute nodes."""

    spool_directory: str = _setting(
        "/var/spool/slurm-energy", "Active jobs' saved settings and reports not yet delivered; must survive a reboot."
    )
    run_directory: str = _setting(
        "/run/slurm-energy-node",
        "Which clocks are locked, a second time outside the spool; a boot must clear it. Empty: not kept. "
        "With %n where the spool has it.",
    )
    log_path: str = _setting("/var/log/slurm-energy-hook.log", "Log of the hooks; empty: none.")
    daemon_address: str = _setting(
        "",
        "HOST:PORT of the daemon's report port, several with commas between: each is tried in order; empty: reports "
        "stay in the spool.",
    )
    authentication: Literal["munge", "hmac"] = _setting(
        "munge", "How reports are authenticated: munge's tools, or a shared key."
    )
    hmac_key_path: str = _setting(
        "/etc/slurm-energy/report.key", "Key of at least 32 bytes for hmac; only root and the daemon may read it."
    )
    time_limit_seconds: float = _setting(5.0, "A hook gives up after this time and exits 0.", 0.5, 60.0)
    sampler: Literal["always", "needed", "off"] = _setting(
        "always",
        "Background power samples during jobs: for GPUs without counter, for cross-checks, heartbeats and rescue.",
    )
    sample_interval_seconds: float = _setting(1.0, "Time between two samples.", 0.05, 60.0)
    rescue_share: float = _setting(
        0.90, "Share of the time limit after which a slowed job gets its default clock back; 1: never.", 0.1, 1.0
    )
    nvml_library: str = _setting("", "Path of libnvidia-ml.so.1; empty: the system's.")
    gpu_numbering: Literal["auto", "gres-conf", "minor", "index"] = _setting(
        "auto",
        "Which GPU a number in SLURM_JOB_GPUS is: auto: as `slurmd -G` counts, else unknown; or on the site's own word "
        "that it is the position in gres.conf, the /dev/nvidia minor number, or the driver's index.",
    )
    site_locked_clocks_mhz: dict[str, int] = _setting(
        {},
        "Clock a site has locked for a GPU type (catalogue name or GRES type), put back after a job; NVML cannot tell.",
    )
    set_clocks: bool = _setting(True, "False: measure only, never touch a clock on this node.")
    time_scale: float = _setting(
        1.0, "Device seconds per wall second: 1 on real hardware, above it in the laboratory.", 0.001, 100000.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """The plugin in slurmctld; `slurm-energy install` writes these to its own small file."""

    deadline_milliseconds: int = _setting(50, "Time for the whole exchange with the daemon.", 1, 500)
    message: bool = _setting(
        True, "Whether sbatch, srun and salloc show a line about the decision where stderr is a terminal."
    )
    breaker_failures: int = _setting(3, "Failures in a row after which the plugin stops asking for a while.", 1, 1000)
    breaker_seconds: float = _setting(5.0, "How long it then does not ask.", 0.1, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """What energy-sbatch reads of a job's script, as the submitting user and on the host where it is submitted."""

    read: Literal["off", "script", "programs", "all"] = _setting(
        "programs",
        "off: nothing, and the daemon takes nothing; script: the batch script alone; programs: the Python programs and "
        "shell scripts that it names too; all: configuration files (YAML, JSON, TOML) on their command lines too.",
    )
    time_limit_milliseconds: int = _setting(
        50, "Time that a submission waits for it at most; what was read by then is sent.", 1, 1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of one installation."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    daemon: DaemonConfig = field(default_factory=DaemonConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
    script: ScriptConfig = field(default_factory=ScriptConfig)
    gpu_types: dict[str, str] = _setting({}, "Catalogue name of each GRES type, where the two differ.")
    gpu_power_limits_watts: dict[str, float] = _setting(
        {}, "Power limit in W of each GPU type's boards, where it is not the catalogue's.", 10.0, 3000.0
    )
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where each value that is not the default came from, by `section.key`."""


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the configuration file: $SLURM_ENERGY_CONFIG, else the default."""
    return Path(environment.get(CONFIG_PATH_VARIABLE) or DEFAULT_CONFIG_PATH)


def load_config(path: Path | None = None, environment: Mapping[str, str] = os.environ) -> Config:
    """Return the settings; without a path, the default file may be missing.

    Raises:
        ConfigError: file missing or not TOML, unknown section or key, wrong type, value outside its bound.
    """
    import tomllib  # noqa: PLC0415  # 5 ms that a hook, which reads plain files itself, does not pay

    named = path is not None or bool(environment.get(CONFIG_PATH_VARIABLE))
    file = path or config_path(environment)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigError(
                f"configuration file {file} does not exist: name another with --config or ${CONFIG_PATH_VARIABLE}"
            ) from None
        document = {}
    except IsADirectoryError as error:
        raise ConfigError(f"configuration file {file} is a folder: name a file") from error
    except PermissionError as error:
        raise ConfigError(
            f"configuration file {file} cannot be read: {error.strerror}; run this as root, or chmod 644 it "
            "(755 for the folders above)"
        ) from error
    except OSError as error:
        raise ConfigError(f"configuration file {file} cannot be read: {error.strerror}; check its path") from error
    except (ValueError, RecursionError) as error:  # a whole number of 4,301 digits is a plain ValueError
        raise ConfigError(
            f"configuration file {file} is no TOML: {error}; slurm-energy config check FILE shows when it is"
        ) from error
    return parse_config(document, source=str(file), environment=environment)


def parse_config(document: Mapping[str, Any], source: str, environment: Mapping[str, str]) -> Config:
    """Return settings from a parsed document and the environment; `source` names the document in messages."""
    origins: dict[str, str] = {}
    sections: dict[str, Any] = {}
    known = {item.name: item for item in fields(Config) if item.name != "origins"}
    for name in document:
        if name not in known:
            raise ConfigError(f"{source}: unknown section [{name}]; known: {', '.join(sorted(known))}")
    for name, item in known.items():
        given = document.get(name, {})
        if not isinstance(given, dict):
            raise ConfigError(f"{source}: {name} is {shown(given)}, a section [{name}] is needed")
        if get_origin(item.type) is dict:
            sections[name] = _typed(given, item.type, item.metadata["bound"], f"{source}: {name}")
            origins.update({name: source} if given else {})
            continue
        sections[name] = _section(item.default_factory, name, given, source, environment, origins)  # type: ignore[arg-type]  # every section has a factory
    return Config(**sections, origins=origins)


def _section(
    kind: type[Any],
    name: str,
    given: dict[str, Any],
    source: str,
    environment: Mapping[str, str],
    origins: dict[str, str],
) -> Any:
    known = {item.name: item for item in fields(kind)}
    for key in given:
        if key not in known:
            raise ConfigError(f"{source}: unknown key {name}.{key}; known: {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for key, item in known.items():
        variable = f"{ENVIRONMENT_PREFIX}{name}_{key}".upper()
        bound = item.metadata["bound"]
        if variable in environment:
            values[key] = _typed(_from_text(environment[variable], item.type), item.type, bound, f"{variable}")
            origins[f"{name}.{key}"] = f"${variable}"
        elif key in given:
            values[key] = _typed(given[key], item.type, bound, f"{source}: {name}.{key}")
            origins[f"{name}.{key}"] = source
    return kind(**values)


def _from_text(text: str, kind: Any) -> Any:
    if kind is str or get_origin(kind) is Literal:
        return text
    if get_origin(kind) is tuple:
        return [part for part in text.split(",") if part]
    import tomllib  # noqa: PLC0415  # as in load_config

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _typed(value: Any, kind: Any, bound: SettingBound | None, thing: str) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{thing} is {shown(value)}, allowed: {', '.join(map(str, get_args(kind)))}")
        return value
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{thing} is {shown(value)}, a table is needed")
        item_bound = bound or (SettingBound(low=1, high=10_000) if get_args(kind)[1] is int else None)
        return {key: _typed(item, get_args(kind)[1], item_bound, f"{thing}.{key}") for key, item in value.items()}
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{thing} is {shown(value)}, a list of texts is needed")
        return tuple(value)
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    return _scalar(value, kind, bound, thing)


def _scalar(value: Any, kind: type, bound: SettingBound | None, thing: str) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise ConfigError(f"{thing} is a whole number of {value.bit_length()} bits, TOML has {_MAX_BITS} and a sign")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{thing} is {shown(value)}, {kind.__name__} is needed")
    if bound is not None and isinstance(value, int | float) and not _inside(value, bound):
        raise ConfigError(f"{thing} is {value}, it must be between {bound.low:g} and {bound.high:g}")
    if isinstance(value, str) and ("\x00" in value or "\n" in value):
        raise ConfigError(f"{thing} is {shown(value)}: line breaks and NUL are not allowed")
    return value


def _inside(value: float, bound: SettingBound) -> bool:
    return math.isfinite(value) and bound.low <= value <= bound.high


def default_of(item: Any) -> Any:
    """Return the default value of a dataclass field."""
    return item.default if item.default is not MISSING else item.default_factory()
