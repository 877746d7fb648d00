"""Settings: TOML into frozen dataclasses. Order: option, environment (SLURM_ENERGY_SECTION_KEY), file, default.

Every field carries a sentence in its metadata, shown by `slurm-energy config show` and in the reference.
Imports are few on purpose: the node hooks read this at every job.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_origin

from slurm_energy.errors import ConfigError
from slurm_energy.forms import shown
from slurm_energy.settings import (
    check_names,
    checked_table,
    converted,
    default_of,
    filled,
    from_text,
    read_toml,
    setting,
)

DEFAULT_CONFIG_PATH = Path("/etc/slurm-energy/slurm-energy.toml")
CONFIG_PATH_VARIABLE = "SLURM_ENERGY_CONFIG"
ENVIRONMENT_PREFIX = "SLURM_ENERGY_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The Slurm cluster."""

    name: str = setting("cluster", "Slurm's ClusterName; part of every energy row's key.")
    slurm_bin_directory: str = setting(
        "", "Folder of squeue, sinfo, scontrol, sacct and sbatch; empty: found through PATH."
    )
    slurm_conf: str = setting("", "Path of slurm.conf for Slurm's commands; empty: Slurm's own default.")
    slurm_user: str = setting("slurm", "User that runs slurmctld; may ask for decisions, as root may.")
    accounting: bool = setting(False, "Whether sacct answers (slurmdbd runs).")
    reader: Literal["auto", "commands", "slurmrestd", "pyslurm"] = setting(
        "auto",
        "How queue and nodes are read; auto: pyslurm where one made for this Slurm is installed, else slurmrestd where "
        "its address is set, else Slurm's commands. Where another than the commands fails, the commands are read.",
    )
    slurmrestd_url: str = setting("", "Where slurmrestd listens: unix:/PATH, http://HOST:PORT or https://HOST:PORT.")
    slurmrestd_token_path: str = setting(
        "", "File with the JSON web token for slurmrestd, mode 600, of root or the daemon's user; empty: auth/local."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """slurm-energyd."""

    socket_path: str = setting(
        "/run/slurm-energy/energyd.sock",
        "Unix socket for people; with .ctl behind it, the one for Slurm's plugin, open to SlurmUser and root alone.",
    )
    socket_mode: int = setting(0o666, "Mode of the socket; who may do what is decided by the caller's uid.", 0, 0o777)
    report_host: str = setting("0.0.0.0", "Address that takes the nodes' reports; empty: none.")  # noqa: S104  # nodes are other hosts
    report_port: int = setting(8470, "TCP port that takes the nodes' reports.", 1, 65535)
    state_directory: str = setting("/var/lib/slurm-energy", "Journal of decisions and reports not yet in the database.")
    journal_days: float = setting(
        14.0,
        "How long the journal keeps what is in the database, for one that is restored from a backup (1 GiB at most).",
        0.0,
        3650.0,
    )
    snapshot_interval_seconds: float = setting(5.0, "Time between two reads of queue and nodes.", 0.1, 3600.0)
    snapshot_max_age_seconds: float = setting(
        60.0, "An older snapshot is not used: jobs then go through unchanged.", 1.0, 86400.0
    )
    command_timeout_seconds: float = setting(30.0, "Limit of one Slurm command.", 0.1, 600.0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = setting("INFO", "Least severe message that is logged.")

    @property
    def plugin_socket_path(self) -> str:
        """Unix socket for slurmctld alone, at which no other user can connect, nor stand in its way."""
        return f"{self.socket_path}.ctl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The database."""

    url: str = setting(
        "sqlite:////var/lib/slurm-energy/energy.sqlite",
        "SQLAlchemy URL: sqlite, postgresql+psycopg or mariadb+pymysql.",
    )
    busy_timeout_seconds: float = setting(30.0, "How long SQLite waits for another writer.", 0.0, 600.0)
    keep_days: float = setting(
        0.0,
        "Jobs that ended longer ago are removed with their energy, a few hundred a minute; 0: none is. Estimates learn "
        "from the last 90 days: fewer make them less sure.",
        0.0,
        36500.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The live policy."""

    name: str = setting(
        "auto",
        "auto, slurm-default, fixed-clock, oracle, gnn or a placement rule with its settings, such as total-cost:V=20; "
        "auto: gnn where torch is installed, else policy.baseline.",
    )
    default_mode: Literal["off", "observe", "balanced", "saver"] = setting(
        "balanced", "Mode of jobs that give no --energy option."
    )
    max_slowdown: float = setting(0.05, "Slowdown bound of balanced jobs (ratio to the default clock).", 0.0, 2.0)
    saver_max_slowdown: float = setting(0.20, "Slowdown bound of saver jobs.", 0.0, 2.0)
    slowdown_bound: Literal["each-job", "mean"] = setting(
        "each-job",
        "What these bounds hold for: each-job: the slowest of all measured programs keeps them; mean: the site's jobs "
        "do in the mean, as is expected of them, and some take up to twice as much longer. A user's own "
        "--energy-max-slowdown is always that of his job.",
    )
    min_saving_per_slowdown: float = setting(
        2.0,
        "Energy in per cent that a clock must save for each per cent of time, as a mean over programs; else a faster "
        "one is taken. 0: the bound alone decides.",
        0.0,
        100.0,
    )
    price_per_gpu_hour: float = setting(
        0.0,
        "What an hour of a GPU costs; with policy.price_per_kwh in the same money, the cheapest clock inside the bound "
        "is taken in the place of min_saving_per_slowdown. 0: not stated.",
        0.0,
        1e6,
    )
    price_per_kwh: float = setting(0.0, "What a kWh costs; facility.pue is added. 0: not stated.", 0.0, 1e6)
    assumed_curves: bool = setting(
        False,
        "Whether a GPU type of which no clock curve is known takes the A100's, in proportion to its own clocks and "
        "power limit; such clocks are marked as assumed, and no saving is promised.",
    )
    balanced_time_weight: float = setting(
        0.5,
        "What time is worth to balanced jobs beside energy (which is worth the rest of 1), for networks that choose "
        "among options.",
        0.0,
        1.0,
    )
    saver_time_weight: float = setting(0.2, "The same of saver jobs.", 0.0, 1.0)
    fixed_clocks_mhz: dict[str, int] = setting({}, "Clock of each GPU type under fixed-clock.", 1, 10_000)
    checkpoint: str = setting(
        "shipped", "Folder of the learned policy's checkpoint; shipped: the one that comes with the package."
    )
    timeout_milliseconds: int = setting(
        20, "Time that the daemon waits for the learned policy before the baseline answers.", 1, 200
    )
    baseline: Literal["oracle", "fixed-clock", "slurm-default"] = setting(
        "oracle",
        "Policy that answers while the learned one loads, fails or is late, and under auto where there is none.",
    )
    threads: int = setting(1, "CPU threads of the learned policy's process.", 1, 64)
    learn_from_runs: bool = setting(
        True, "Whether measured runs of a job's name say how its work compares between GPU types."
    )
    curves_file: str = setting(
        "",
        "File of clock curves measured on the site's own boards (slurm-energy calibrate); read when a process starts; "
        "empty: the package's alone.",
    )
    clock_trials: Literal["off", "asked", "on"] = setting(
        "off",
        "Whether lower clocks are tried for a minute each in running jobs, and the next run of the name begins with "
        "what was found: off: never; asked: for jobs with --energy-trials=on; on: for all without --energy-trials=off.",
    )
    clock_predictions: Literal["tables", "network"] = setting(
        "tables",
        "What lower clocks are taken to do to a job whose own were not tried: tables: what measured programs did; "
        "network: what a graph network expects from the site's ended runs; each job's bound, a user's own and "
        "deadlines are still held by the slowest measured program; needs numpy.",
    )
    gpu_count: Literal["on", "rule", "off"] = setting(
        "on",
        "Whether jobs that name several numbers of GPUs (--energy-gpus) are given one of them: on: the policy weighs "
        "them where it can and runs tell how the job scales, else a rule chooses; rule: the rule alone; off: their "
        "own.",
    )
    unmeasured_gpu_count: int = setting(
        4,
        "Most GPUs that such a job is given while its name has no runs with two numbers of GPUs; never more than it "
        "asks for.",
        1,
        4096,
    )
    clocks: Literal["oracle", "learned"] = setting(
        "oracle", "Who chooses the clock under gnn: the exact optimum where the job lands, or the network too."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Limits that no policy can pass."""

    unknown_runtime_share: float = setting(
        0.8, "Share of its time limit that a job without history is taken to need at the default clock.", 0.0, 1.0
    )
    time_limit_margin: float = setting(
        0.02, "Share of the time limit that stays free after the predicted end.", 0.0, 0.9
    )
    max_added_timeouts: float = setting(
        0.01,
        "Where policy.slowdown_bound is mean: how much more likely a lower clock may make it that a job reaches its "
        "time limit, by its name's runs, or without any by how near to their limits the site's jobs end. Under "
        "each-job all but one in twenty end inside it.",
        0.0,
        0.2,
    )
    min_energy_saving: float = setting(0.02, "A clock that saves less stays at the default.", 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """Whether the policy may choose partitions, and name nodes to use first."""

    open: bool = setting(False, "Jobs that name no partition may be sent to others than the default one.")
    partitions: tuple[str, ...] = setting((), "Partitions open for routing; empty: all the user may use.")
    open_by_default: bool = setting(
        False,
        "Where routing is open: a partition that a user names is a preference among those that he may use, unless he "
        "says --energy-open=off. False: only where he says --energy-open.",
    )
    invite: bool = setting(
        True,
        "Where routing is open: who names a partition reads what --energy-open would have saved, and where GPUs are "
        "free now; `report open` sums it up by user.",
    )
    max_type_slowdown: float = setting(
        0.05,
        "Most that a job may be slower, at default clocks, on the GPU type of another partition than where Slurm would "
        "have started it (ratio); a user's own --energy-max-slowdown is of type and clock together.",
        0.0,
        10.0,
    )
    less_gpu_memory: bool = setting(
        False, "Whether that may be to GPUs of less memory, on which no run of the job's name has run through yet."
    )
    node_hints: bool = setting(
        False,
        "Whether a learned policy may add a soft --prefer feature; never a hard constraint. "
        "Needs SchedulerParameters=ignore_prefer_validation in slurm.conf.",
    )
    redecide: Literal["off", "clock", "on"] = setting(
        "off",
        "Whether jobs that wait are decided again: clock: their clocks alone, which their nodes fetch at the start; "
        "on: also partitions and number of GPUs where their users left them open, by `scontrol --uid=USER update`, "
        "for which the daemon must run as SlurmUser or root.",
    )
    redecide_seconds: float = setting(
        60.0, "A waiting job is decided again at most so often, and only after a new snapshot.", 1.0, 86_400.0
    )
    redecide_per_minute: int = setting(600, "Most waiting jobs that are changed in Slurm in a minute.", 1, 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Hooks on compute nodes."""

    spool_directory: str = setting(
        "/var/spool/slurm-energy", "Active jobs' saved settings and reports not yet delivered; must survive a reboot."
    )
    run_directory: str = setting(
        "/run/slurm-energy-node",
        "Which clocks are locked, a second time outside the spool; a boot must clear it. Empty: not kept. "
        "With %n where the spool has it.",
    )
    log_path: str = setting("/var/log/slurm-energy-hook.log", "Log of the hooks; empty: none.")
    daemon_address: str = setting(
        "",
        "HOST:PORT of the daemon's report port, several with commas between: each is tried in order; empty: reports "
        "stay in the spool.",
    )
    authentication: Literal["munge", "hmac"] = setting(
        "munge", "How reports are authenticated: munge's tools, or a shared key."
    )
    hmac_key_path: str = setting(
        "/etc/slurm-energy/report.key", "Key of at least 32 bytes for hmac; only root and the daemon may read it."
    )
    time_limit_seconds: float = setting(5.0, "A hook gives up after this time and exits 0.", 0.5, 60.0)
    sampler: Literal["always", "needed", "off"] = setting(
        "always",
        "Background power samples during jobs: for GPUs without counter, for cross-checks, heartbeats and rescue.",
    )
    sample_interval_seconds: float = setting(1.0, "Time between two samples.", 0.05, 60.0)
    host_power: Literal["rapl", "auto", "hwmon", "ipmi", "redfish"] = setting(
        "rapl",
        "Where host energy comes from: counters of the processors; or power of the node less its GPUs, read by "
        "samplers; auto: the first of these that the node has.",
    )
    power_interval_seconds: float = setting(10.0, "Time between two readings of such a power.", 1.0, 300.0)
    ipmi_tool: str = setting("/usr/bin/ipmitool", "Program that is asked for `dcmi power reading`.")
    redfish_url: str = setting("", "Resource with the node's power, https://BMC/redfish/v1/Chassis/ID/Power.")
    redfish_credentials_path: str = setting(
        "/etc/slurm-energy/redfish", "File of root's alone with USER:PASSWORD for it; empty: none."
    )
    redfish_ca_path: str = setting("", "Certificates that the controller's is held against; empty: the system's.")
    cpu_jobs: bool = setting(
        False,
        "Whether prolog and epilog read the processors' counters for jobs without GPUs too, which are not touched "
        "otherwise.",
    )
    rescue_share: float = setting(
        0.90, "Share of the time limit after which a slowed job gets its default clock back; 1: never.", 0.1, 1.0
    )
    trial_window_seconds: float = setting(
        60.0, "How long each clock is measured when clocks are tried in a running job.", 5.0, 600.0
    )
    progress_directory: str = setting(
        "/dev/shm",  # noqa: S108  # a folder of root's with the sticky bit
        "Where jobs' programs count their steps, in a file slurm-energy-progress.JOB of the user; empty: not read.",
    )
    nvml_library: str = setting("", "Path of libnvidia-ml.so.1; empty: the system's.")
    gpu_numbering: Literal["auto", "gres-conf", "minor", "index"] = setting(
        "auto",
        "Which GPU a number in SLURM_JOB_GPUS is: auto: as `slurmd -G` counts, else unknown; or on the site's own word "
        "that it is the position in gres.conf, the /dev/nvidia minor number, or the driver's index.",
    )
    site_locked_clocks_mhz: dict[str, int] = setting(
        {},
        "Clock a site has locked for a GPU type (catalogue name or GRES type), put back after a job; NVML cannot tell.",
        1,
        10_000,
    )
    set_clocks: bool = setting(True, "False: measure only, never touch a clock on this node.")
    fetch_decisions: bool = setting(
        False,
        "Prologs ask the daemon for the decision on their job, and take no other: for sites without the compiled "
        "plugin, whose jobs carry none (job_submit/lua).",
    )
    follow_power_budget: bool = setting(
        False,
        "Whether the samplers of jobs state their power to the daemon and lower the clock while the cluster's power "
        "budget is exceeded; needs node.daemon_address and node.sampler = always.",
    )
    time_scale: float = setting(
        1.0, "Device seconds per wall second: 1 on real hardware, above it in the laboratory.", 0.001, 100000.0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """The plugin in slurmctld; `slurm-energy install` writes these to its own small file."""

    deadline_milliseconds: int = setting(50, "Time for the whole exchange with the daemon.", 1, 500)
    message: bool = setting(
        True, "Whether sbatch, srun and salloc show a line about the decision where stderr is a terminal."
    )
    breaker_failures: int = setting(3, "Failures in a row after which the plugin stops asking for a while.", 1, 1000)
    breaker_seconds: float = setting(5.0, "How long it then does not ask.", 0.1, 3600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """What energy-sbatch reads of a job's script, as the submitting user and on the host where it is submitted."""

    read: Literal["off", "script", "programs", "all"] = setting(
        "programs",
        "off: nothing, and the daemon takes nothing; script: the batch script alone; programs: the Python programs and "
        "shell scripts that it names too; all: configuration files (YAML, JSON, TOML) on their command lines too.",
    )
    time_limit_milliseconds: int = setting(
        50, "Time that a submission waits for it at most; what was read by then is sent.", 1, 1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersConfig:
    """Several clusters under one slurmdbd, among which energy-sbatch chooses: docs/how-to/several-clusters.md."""

    addresses: dict[str, str] = setting(
        {}, "HOST:PORT of the daemon's report port of each cluster by its name, several with commas between."
    )
    names: tuple[str, ...] = setting(
        (), "Clusters asked for each job that says neither --energy-clusters nor --clusters; empty: none is."
    )
    deadline_seconds: float = setting(
        2.0, "Time that all clusters have together; one without an answer by then is left out.", 0.1, 30.0
    )
    cost: Literal["energy", "price", "carbon"] = setting(
        "energy", "What is compared beside time: joules, or what they cost or emit by each site's own series."
    )
    waiting_watts: float = setting(
        100.0, "What a second until the job's end is worth, in W for each of its GPUs.", 0.0, 100_000.0
    )
    wan_joules_per_gb: float = setting(
        6750.0,
        "Energy of carrying a GB between clusters. 0.06 kWh/GB in 2015, halved every two years (Aslan and others 2018, "
        "Journal of Industrial Ecology 22), to 2025: 0.0019 kWh.",
        0.0,
        1e7,
    )
    wan_price_per_gb: float = setting(
        0.0, "What carrying a GB costs, in the tariffs' currency; 0: the site's own network.", 0.0, 1e4
    )
    wan_gbit_per_second: float = setting(10.0, "Bandwidth between clusters that one job's data gets.", 0.001, 1e5)


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilityConfig:
    """What reports add to measured joules. How the two files look: docs/how-to/report-a-month.md."""

    pue: float = setting(1.0, "Energy of the whole building over that of its computers.", 1.0, 10.0)
    tariff_file: str = setting("", "CSV file with starts_at and a price such as EUR_per_kwh; empty: no money.")
    intensity_file: str = setting("", "CSV file with starts_at and grams_per_kwh of CO2; empty: no CO2.")
    later_starts: Literal["off", "price", "carbon"] = setting(
        "off",
        "Whether jobs with --energy-start-before begin later, at the lowest price of tariff_file or the least CO2 of "
        "intensity_file until then.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig:
    """A power budget that the clocks of running jobs give way to: docs/how-to/power-budget.md."""

    budget_watts: float = setting(
        0.0,
        "What the GPUs of running jobs and power.other_watts may draw together; 0: no budget. It holds on nodes with "
        "node.follow_power_budget.",
        0.0,
        1e9,
    )
    budget_series: str = setting(
        "",
        "CSV file, or http or https address of one, with starts_at and watts: the budget by time, in the place of "
        "budget_watts. A file is read when it changes, an address once a minute; what could be read last stays.",
    )
    other_watts: float = setting(
        0.0, "What the budget holds beside the GPUs of running jobs: hosts, idle GPUs, switches, cooling.", 0.0, 1e9
    )
    margin: float = setting(0.01, "Share of the budget that is kept free for what readings do not show.", 0.0, 0.5)
    ask_seconds: float = setting(
        4.0, "How often a node asks for each of its jobs, wall time; less often beyond 200 jobs.", 0.5, 60.0
    )
    lease_seconds: float = setting(
        30.0,
        "How long a lowered clock holds without an answer of the daemon; then the job's own comes back.",
        2.0,
        900.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyConfig:
    """Candidate policies from the site's own history, and their way to the live policy (slurm-energy retrain)."""

    directory: str = setting("", "Folder of candidates; empty: candidates below daemon.state_directory.")
    min_jobs: int = setting(200, "Ended jobs with GPUs below which nothing is learned.", 20, 1_000_000)
    max_minutes: float = setting(25.0, "Time that a run may take; what is left out then is said.", 0.1, 1440.0)
    max_memory_gib: float = setting(3.0, "Memory of each of its processes.", 0.25, 1024.0)
    workers: int = setting(2, "Processes that replay jobs.", 1, 256)
    replayed_jobs: int = setting(1500, "Most jobs of one replay, before the split and after it.", 20, 1_000_000)
    promote: Literal["off", "approved", "automatic"] = setting(
        "approved",
        "How a candidate that passed the gate gets on: off: by policy promote alone; approved: by itself into shadow, "
        "farther only after policy approve; automatic: by itself on sequential tests.",
    )
    canary_share: float = setting(0.2, "Share of the users whose jobs a candidate in canary decides.", 0.01, 0.9)
    canary_period_hours: float = setting(
        24.0, "Time for which a user's jobs stay with one policy; which one is drawn again afterwards.", 0.001, 720.0
    )
    shadow_decisions: int = setting(200, "Decisions beside the live policy before a canary.", 1, 1_000_000)
    max_stage_days: float = setting(28.0, "Time in shadow or canary after which a candidate is given up.", 0.001, 366.0)
    late_milliseconds: float = setting(
        20.0, "A decision that takes more processor time counts against its policy.", 0.1, 1000.0
    )
    preferences: dict[str, float] = setting(
        {},
        'How many times as much one stage of the gate counts as another: {"twin/impact" = 3}; pairs that are left out '
        "follow from the others.",
        1.0 / 9.0,
        9.0,
    )
    person_for_different: bool = setting(
        False, "Whether a candidate that changes more than 30 % of the decisions waits for policy approve."
    )
    keep: int = setting(30, "Newest candidates whose folders are kept, beside those in use.", 1, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Figures for Prometheus. What there is: docs/how-to/monitor.md."""

    host: str = setting("", "Address that serves /metrics, best 127.0.0.1: no caller is asked who it is; empty: none.")
    port: int = setting(9471, "TCP port of it.", 1, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailConfig:
    """slurm-energy-mail, which slurm.conf names as MailProg: docs/how-to/mail.md."""

    program: str = setting("/usr/bin/mail", "Mail program that sends; it is given Slurm's arguments and the text.")
    wait_seconds: float = setting(30.0, "How long a mail waits for the nodes' reports.", 0.0, 900.0)
    advice_days: float = setting(
        1.0, "A user is advised at most once in so many days; 0: never, mails have the figures alone.", 0.0, 365.0
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
    clusters: ClustersConfig = field(default_factory=ClustersConfig)
    facility: FacilityConfig = field(default_factory=FacilityConfig)
    power: PowerConfig = field(default_factory=PowerConfig)
    nightly: NightlyConfig = field(default_factory=NightlyConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    mail: MailConfig = field(default_factory=MailConfig)
    gpu_types: dict[str, str] = setting({}, "Catalogue name of each GRES type, where the two differ.")
    gpu_power_limits_watts: dict[str, float] = setting(
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
    file = path or config_path(environment)
    document = read_toml(
        file,
        "configuration file",
        missing_ok=path is None and not environment.get(CONFIG_PATH_VARIABLE),
        if_missing=f"name another with --config or ${CONFIG_PATH_VARIABLE}",
        if_wrong="slurm-energy config check FILE shows when it is",
    )
    return parse_config(document, source=str(file), environment=environment)


def parse_config(document: Mapping[str, Any], source: str, environment: Mapping[str, str]) -> Config:
    """Return settings from a parsed document and the environment; `source` names the document in messages."""
    origins: dict[str, str] = {}
    sections: dict[str, Any] = {}
    known = {item.name: item for item in fields(Config) if item.name != "origins"}
    check_names(document, list(known), f"{source}:")
    for name, item in known.items():
        given = document.get(name, {})
        if get_origin(item.type) is dict:
            sections[name] = converted(given, item.type, f"{source}: {name}", item.metadata["bound"])
            origins.update({name: source} if given else {})
        else:
            sections[name] = _section(default_of(item), name, given, source, environment, origins)
    return Config(**sections, origins=origins)


def _section(
    default: Any, name: str, table: object, source: str, environment: Mapping[str, str], origins: dict[str, str]
) -> Any:
    kinds = {item.name: item.type for item in fields(default)}
    given = dict(checked_table(table, f"{source}: [{name}]"))
    things = {key: f"{source}: {name}.{key}" for key in kinds}
    origins.update({f"{name}.{key}": source for key in given if key in kinds})
    for key, kind in kinds.items():
        variable = f"{ENVIRONMENT_PREFIX}{name}_{key}".upper()
        if variable in environment:
            given[key] = from_text(environment[variable], kind)
            things[key] = variable
            origins[f"{name}.{key}"] = f"${variable}"
    section = filled(type(default), given, name, where=f"{source}: [{name}]", thing_of=things.__getitem__)
    for key in given:
        value = getattr(section, key)
        if isinstance(value, str) and ("\x00" in value or "\n" in value):
            raise ConfigError(f"{things[key]} is {shown(value)}: line breaks and NUL are not allowed")
    return section
