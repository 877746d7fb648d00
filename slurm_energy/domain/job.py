"""A job as its user asked for it."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil

from slurm_energy.domain.gpu_count import GpuCountOption
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ValueRangeError

MAX_SLOWDOWN_BOUND = 2.0


class EnergyMode(StrEnum):
    """What a user lets the policy do with a job."""

    OFF = "off"
    """Nothing is decided and nothing is changed."""
    OBSERVE = "observe"
    """Decide and record, change nothing."""
    BALANCED = "balanced"
    """Save energy inside the site's slowdown bound."""
    SAVER = "saver"
    """Save energy inside the site's larger slowdown bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyOptions:
    """The `--energy…` options of one job; None leaves the choice to the site's default."""

    mode: EnergyMode | None = None
    max_slowdown: float | None = None
    """Ratio: 0.05 lets the job take 5 % longer than at the default clock."""
    deadline_seconds: float | None = None
    """Unix time by which the job should have ended."""
    start_before_seconds: float | None = None
    """Unix time by which the job is to begin, where it may wait for cheaper energy."""
    quiet: bool = False
    trials: bool | None = None
    """Whether lower clocks may be tried while the job runs."""
    open: bool | None = None
    """Whether a partition that the user named is a preference among those that he may use, and no condition."""
    gpu_counts: tuple[int, ...] = ()
    """Numbers of GPUs that the job may run with, ascending; empty where it names one alone."""

    def __post_init__(self) -> None:
        if self.max_slowdown is not None and not 0.0 <= self.max_slowdown <= MAX_SLOWDOWN_BOUND:
            raise ValueRangeError(f"maximum slowdown {self.max_slowdown} is not between 0 and {MAX_SLOWDOWN_BOUND}")
        if self.deadline_seconds is not None and not 0 < self.deadline_seconds < 1e11:
            raise ValueRangeError(f"deadline {self.deadline_seconds} is not a Unix time in seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """GPUs that a job asks for, over the whole job."""

    count: int
    slurm_type: str | None = None
    """The type as written in Slurm's GRES, None for any."""
    max_count: int | None = None
    """Upper end of a malleable request; None means exactly `count`."""

    def __post_init__(self) -> None:
        if not 0 <= self.count <= 1_000_000:
            raise ValueRangeError(f"GPU count {self.count} is not between 0 and 1000000")
        if self.max_count is not None and self.max_count < self.count:
            raise ValueRangeError(f"GPU range {self.count}-{self.max_count} is reversed")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job at the moment of submission, before Slurm gave it a number.

    Counts are totals over the job. `partitions` is empty when the user named none.
    """

    user_id: int
    name: str = ""
    user_name: str | None = None
    account: str | None = None
    qos: str | None = None
    partitions: tuple[PartitionName, ...] = ()
    time_limit_minutes: float | None = None
    nodes_min: int = 1
    nodes_max: int | None = None
    tasks: int | None = None
    cpus_per_task: int | None = None
    memory_per_node_mib: float | None = None
    gpus: tuple[GpuDemand, ...] = ()
    features: str | None = None
    """The constraint that the user set, as Slurm writes it."""
    prefer: str | None = None
    """The user's own --prefer."""
    reservation: str | None = None
    array: str | None = None
    exclusive: bool = False
    tied: bool = False
    """The user said something that ties the job to its partitions in their order: nodes, a time range and the like."""
    starts_later: bool = False
    """It is held, depends on others or has a time to begin: it takes no room now."""
    gpu_frequency_given: bool = False
    """The user set --gpu-freq: his clock wins."""
    options: EnergyOptions = field(default_factory=EnergyOptions)
    submitted_at_seconds: float = 0.0
    """Unix time."""
    script: ScriptFeatures | None = None
    """What the submitting command read of the job's script; None where it read none."""
    count_options: tuple[GpuCountOption, ...] = ()
    """Numbers of GPUs that Slurm's side can give the job, its own among them; empty where its own stays."""
    count_refusal: str = ""
    """Why Slurm's side keeps the job's own number, though its user named others."""

    def with_count(self, option: GpuCountOption) -> "JobRequest":
        """Return the job with another number of GPUs of its one type: as Slurm's side will submit it."""
        asked, (demand, *_) = self.gpu_count, self.gpus
        return replace(
            self,
            gpus=(GpuDemand(count=option.gpus, slurm_type=demand.slurm_type),),
            nodes_min=option.nodes or self.nodes_min,
            nodes_max=self.nodes_max and (option.nodes or self.nodes_max),
            tasks=self._tasks_with(option),
            memory_per_node_mib=option.memory_per_node_mib or self.memory_per_node_mib,
            time_limit_minutes=scaled_limit(self.time_limit_minutes, asked, option.gpus),
        )

    def _tasks_with(self, option: GpuCountOption) -> int | None:
        """Return the number of tasks with another number of GPUs. CPUs tell it unless they follow the GPUs."""
        own = next((one for one in self.count_options if one.gpus == self.gpu_count), None)
        if own is None or not option.cpus_per_node:
            return self.tasks
        if self.tasks is None:
            return max(1, option.nodes)
        if self._tasks_of_cpus(own) == self.tasks:
            return self._tasks_of_cpus(option)
        if self.tasks == own.nodes:
            return max(1, option.nodes)
        per_gpu, rest = divmod(self.tasks, self.gpu_count)
        return self.tasks if rest else per_gpu * option.gpus

    def _tasks_of_cpus(self, option: GpuCountOption) -> int:
        return max(1, option.cpus_per_node * max(1, option.nodes) // (self.cpus_per_task or 1))

    @property
    def gpu_count(self) -> int:
        """GPUs over the whole job; the lower end of a range."""
        return sum(demand.count for demand in self.gpus)

    @property
    def gpu_types(self) -> frozenset[str]:
        """GRES types that were asked for by name; empty when any will do."""
        return frozenset(demand.slurm_type for demand in self.gpus if demand.slurm_type is not None)


def scaled_limit(minutes: float | None, asked: int, gpus: int) -> float | None:
    """Return the time limit of a job with another number of GPUs: longer for fewer, as long for more."""
    return minutes if minutes is None or gpus >= asked else float(ceil(minutes * asked / gpus))
