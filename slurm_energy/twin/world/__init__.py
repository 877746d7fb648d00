"""A world: everything of a simulated cluster that does not come from the workload, the policy or the seed.

Units: s, W, J, MHz, GB/s, degrees Celsius. Time runs from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import Literal

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.world.device_model import DeviceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendSettings:
    """When Slurm powers idle nodes down, and what waking them costs (SuspendTime, ResumeTimeout, ...)."""

    idle_seconds: float
    """A node that has been idle so long is suspended."""
    resume_seconds: float
    suspended_watts: float
    """Of the whole node: its management controller."""
    resume_watts: float
    """Of the whole node while it boots; devices included."""

    def __post_init__(self) -> None:
        for name in ("idle_seconds", "resume_seconds", "suspended_watts", "resume_watts"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueRangeError(f"suspend setting {name}={getattr(self, name)} is not a finite number from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes of one kind. Partitions refer to pools; a pool may be in several partitions."""

    name: str
    device: str
    """Name of a device model."""
    nodes: int
    gpus_per_node: int
    """Devices: GPUs, or sockets of a CPU node."""
    cpus_per_node: int = 0
    """0 does not count CPUs."""
    memory_gib_per_node: float = inf
    host_idle_watts: float = 0.0
    """The node without its devices, awake and with nothing allocated."""
    host_busy_watts: float = 0.0
    """The same with every device allocated; in between it rises linearly with the share allocated."""
    link_gigabytes_per_second: float = inf
    """Of one node to the others."""
    link_joules_per_gigabyte: float = 0.0
    suspend: SuspendSettings | None = None
    jobs_per_gpu: int = 1
    """2 lets two jobs share a GPU where their kinds allow it."""
    region: str = ""
    """Key of carbon and price series, and of the links to ingresses."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueRangeError(
                f"pool {self.name}: {self.nodes} nodes with {self.gpus_per_node} devices: at least 1 of each is needed"
            )
        if not 0.0 <= self.host_idle_watts <= self.host_busy_watts < inf:
            raise ValueRangeError(
                f"pool {self.name}: host powers {self.host_idle_watts} and {self.host_busy_watts} W are not "
                "0 <= idle <= busy"
            )
        if self.jobs_per_gpu not in (1, 2):
            raise ValueRangeError(f"pool {self.name}: {self.jobs_per_gpu} jobs per GPU; 1 or 2 are modelled")
        if not self.link_gigabytes_per_second > 0.0 or not 0.0 <= self.link_joules_per_gigabyte < inf:
            raise ValueRangeError(f"pool {self.name}: its link has no speed above 0 or no energy from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A Slurm partition: limits over some pools."""

    name: str
    pools: tuple[str, ...]
    max_time_seconds: float = inf
    max_gpus_per_job: int = 1_000_000
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A quantity that is constant between given times; the first value holds before the first time."""

    times_seconds: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_seconds or len(self.times_seconds) != len(self.values):
            raise ValueRangeError(f"a series has {len(self.times_seconds)} times and {len(self.values)} values")
        if list(self.times_seconds) != sorted(set(self.times_seconds)):
            raise ValueRangeError("the times of a series are not ascending")
        if not all(map(isfinite, self.times_seconds)) or any(map(isnan, self.values)):
            raise ValueRangeError("a series has a time that is not finite or a value that is not a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Random failures, exponential between failures and of exponential length; a node's GPUs fail with it."""

    node_mtbf_seconds: float = inf
    """Mean time between failures of one node."""
    gpu_mtbf_seconds: float = inf
    """Mean time between failures of one GPU: its job dies, the rest of the node stays."""
    mean_repair_seconds: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("node_mtbf_seconds", "gpu_mtbf_seconds", "mean_repair_seconds"):
            if not getattr(self, name) > 0.0:
                raise ValueRangeError(f"failure rate {name}={getattr(self, name)} is not a number above 0")
        if self.mean_repair_seconds == inf:
            raise ValueRangeError("mean_repair_seconds=inf: what fails at random is repaired after a finite time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A planned failure: so many nodes or GPUs of a pool go down at a time, and come back."""

    pool: str
    at_seconds: float
    until_seconds: float = inf
    nodes: int = 0
    gpus: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.at_seconds < self.until_seconds:
            raise ValueRangeError(
                f"outage of pool {self.pool}: from {self.at_seconds} s until {self.until_seconds} s is not a time "
                "from 0 up and a later one"
            )
        if self.nodes < 0 or self.gpus < 0:
            raise ValueRangeError(f"outage of pool {self.pool}: {self.nodes} nodes and {self.gpus} GPUs: from 0 up")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateErrors:
    """How wrong the tables are that policies and scheduler see, while jobs run by the true ones.

    Each pair of device type and kind of work has one factor on its watts and one on its seconds, log-normal with median
    1, drawn by the run's seed: the same for every policy. The truth shows only in jobs that have ended.
    """

    watts_sigma: float = 0.0
    """Standard deviation of the factor's logarithm."""
    seconds_sigma: float = 0.0

    def __post_init__(self) -> None:
        for name in ("watts_sigma", "seconds_sigma"):
            if not 0.0 <= getattr(self, name) <= 3.0:
                raise ValueRangeError(f"estimate error {name}={getattr(self, name)} is not a number from 0 to 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A simulated cluster."""

    name: str
    devices: Mapping[str, DeviceModel]
    pools: tuple[Pool, ...]
    partitions: tuple[Partition, ...]
    discipline: Discipline = field(default_factory=Discipline)
    backfill_interval_seconds: float = 0.0
    """0 backfills at every event, as an ideal Slurm would; Slurm's bf_interval is 30 s."""
    backfill_depth: int = 500
    """Jobs of the queue that backfill looks at (bf_max_job_test)."""
    backfill_reserves_nodes: bool = False
    """Whether the nodes that the first waiting job will take are closed to later jobs which run longer: Slurm keeps
    nodes, not GPUs. False is the textbook: free devices beyond its own may be used."""
    requeue: bool = True
    """Whether jobs of failed nodes go back into the queue (JobRequeue); else they end NODE_FAIL."""
    launch_seconds: float = 0.0
    """From the start of an allocation to the first instruction (prolog, step launch); devices draw as free ones."""
    latency_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """From an ingress to a region."""
    ingresses: tuple[str, ...] = ()
    failures: FailureRates = field(default_factory=FailureRates)
    outages: tuple[Outage, ...] = ()
    estimate_errors: EstimateErrors | None = None
    """None tells policies the true tables."""
    knowledge: Literal["truth", "site"] = "truth"
    """What policies know of jobs: everything, or what a site knows. With `site` they get a job's user, name,
    script's features, request and time limit, tables that are means over kinds of work, and what ended runs measured;
    kind, length and own curves are hidden from all but the yardsticks that say so in their name."""
    congestion: Series | None = None
    """Factor (0, 1] on the links between nodes."""
    ambient_celsius: Series | None = None
    """Replaces every thermal model's ambient temperature (cooling limit)."""
    power_budget_watts: Series | None = None
    carbon_grams_per_kwh: Mapping[str, Series] = field(default_factory=dict)
    price_per_kwh: Mapping[str, Series] = field(default_factory=dict)
    horizon_seconds: float | None = None
    """The end that the world's own numbers speak of; None runs until the workload is done."""
    workload: str = ""
    """Name of the workload that belongs to the world, with its settings; see `twin/workloads`."""
    workload_settings: Mapping[str, float | int | str] = field(default_factory=dict)
    published_log_seconds: float | None = None
    """Interval of the log in whose metric a published table speaks; None where there is none."""
    source: str = ""

    def __post_init__(self) -> None:  # noqa: PLR0912  # one check per sentence
        pools = [pool.name for pool in self.pools]
        if not pools or len(set(pools)) != len(pools):
            raise ValueRangeError(f"world {self.name}: pools {pools[:8]} are none or not unique")
        for pool in self.pools:
            if pool.device not in self.devices:
                raise ValueRangeError(f"world {self.name}: pool {pool.name} has unknown device {pool.device!r}")
        if not self.partitions:
            raise ValueRangeError(f"world {self.name} has no partition")
        for partition in self.partitions:
            unknown = [name for name in partition.pools if name not in pools]
            if unknown or not partition.pools:
                raise ValueRangeError(f"world {self.name}: partition {partition.name} has unknown pools {unknown}")
        for outage in self.outages:
            if outage.pool not in pools:
                raise ValueRangeError(f"world {self.name}: an outage names unknown pool {outage.pool!r}")
        if self.knowledge not in {"truth", "site"}:
            raise ValueRangeError(f"world {self.name}: knowledge {self.knowledge[:64]!r} is neither truth nor site")
        if not self.backfill_depth >= 1:
            raise ValueRangeError(f"world {self.name}: backfill depth {self.backfill_depth} is not 1 or more")
        for name in ("launch_seconds", "backfill_interval_seconds"):
            if not 0.0 <= getattr(self, name) < inf:
                raise ValueRangeError(
                    f"world {self.name}: {name}={getattr(self, name)} is not a finite number from 0 up"
                )
        for way, seconds in self.latency_seconds.items():
            if not 0.0 <= seconds < inf:
                raise ValueRangeError(
                    f"world {self.name}: latency {seconds} s of {way} is not a finite number from 0 up"
                )
        if self.congestion is not None and not all(0.0 < value <= 1.0 for value in self.congestion.values):
            raise ValueRangeError(f"world {self.name}: congestion factors are not all in (0, 1]")
