"""The cluster at one moment, immutable and dated: partitions, nodes, GPUs, readings, links and switches.

None stands for what no source reports.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from slurm_energy.domain.gpu_places import GpuPlace, PlaceRoom, gpu_place
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName

_SUSPENDED = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_SAVING"})
_WORKED_OUT = (
    "partition_by_name",
    "nodes_by_partition",
    "nodes_with_idle_gpus",
    "idle_gpus_by_partition",
    "slurm_gpu_types_by_partition",
    "waiting_gpus_by_partition",
    "gpu_places",
    "num_waiting",
)
"""Properties of a snapshot that decisions read."""
_WAKING = frozenset({"POWERING_UP", "POWER_UP"})
"""POWER_UP is the wish to wake a node that is still POWERED_DOWN; POWER_DOWN alone is a wish too, and jobs run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU of a node as it stands."""

    index: int
    """Place among the node's devices, in the order of its GRES, from 0."""
    slurm_type: str | None = None
    utilisation: float | None = None
    """0 to 1."""
    memory_used_gib: float | None = None
    memory_gib: float | None = None
    sm_clock_mhz: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    efficiency_change: float | None = None
    """History: measured joules of jobs here over the model's, less 1."""
    is_slowed: bool = False
    """Whether a clock below the default is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Readings and limits of one cluster; in a world of several sites, of one site."""

    name: ClusterName
    power_watts: float | None = None
    power_budget_watts: float | None = None
    cooling_watts: float | None = None
    """Heat that the cooling can carry away."""
    heat_watts: float | None = None
    carbon_grams_per_kwh: float | None = None
    price_per_kwh: float | None = None
    quality_violations: float | None = None
    """Share of the recent jobs that missed a deadline or a goal for the wait, 0 to 1."""
    quality_goal: float | None = None
    """The share that the site puts up with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """What joins the GPUs of a node: islands of `island_gpus` devices by `kind`, PCIe between islands."""

    kind: Literal["nvlink", "pcie"]
    bandwidth_gb_per_second: float | None = None
    """Of one device to another, one way."""
    latency_microseconds: float | None = None
    island_gpus: int | None = None
    """None: all devices of the node are one island."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchState:
    """One switch of the network between nodes; a root has no parent."""

    name: str
    parent: str | None = None
    capacity_gb_per_second: float | None = None
    """Of all its downward links together."""
    congestion: float | None = None
    """Share of the capacity in use, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of one type in a node; `slurm_type` is None for an untyped GRES."""

    slurm_type: str | None
    count: int
    allocated: int = 0

    @property
    def idle(self) -> int:
        """GPUs that no job holds."""
        return max(0, self.count - self.allocated)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One node. `available` is False when Slurm would start nothing there (down, drain, fail, maint, ...)."""

    name: NodeName
    partitions: tuple[PartitionName, ...]
    states: tuple[str, ...]
    available: bool
    cpus: int
    cpus_allocated: int
    memory_mib: float | None = None
    memory_allocated_mib: float | None = None
    gpus: tuple[NodeGpus, ...] = ()
    features: tuple[str, ...] = ()
    gpu_readings: tuple[GpuReading, ...] = ()
    """In the order of `gpus`; may be shorter than the node has devices."""
    gpu_link: GpuLink | None = None
    switch: str | None = None
    """Leaf switch that the node hangs on."""
    uplink_gb_per_second: float | None = None
    uplink_congestion: float | None = None
    """Share of the uplink's capacity in use, 0 to 1."""
    uplink_latency_microseconds: float | None = None
    power_watts: float | None = None
    """Of the whole node."""
    wake_seconds: float | None = None
    """From suspended to ready for a job."""

    @property
    def gpu_count(self) -> int:
        """GPUs of all types."""
        return sum(gpus.count for gpus in self.gpus)

    @property
    def gpus_idle(self) -> int:
        """GPUs of all types that no job holds."""
        return sum(gpus.idle for gpus in self.gpus)

    @property
    def is_suspended(self) -> bool:
        """Whether the node is powered down, or on its way there, and nothing wakes it."""
        return not _SUSPENDED.isdisjoint(self.states) and _WAKING.isdisjoint(self.states)

    @property
    def is_waking(self) -> bool:
        """Whether the node is on its way up from suspension."""
        return not _WAKING.isdisjoint(self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """What jobs share of a node, as Slurm counts it."""

    name: NodeName
    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition; None means no limit, an empty tuple of names means every user."""

    name: PartitionName
    is_default: bool
    up: bool
    max_time_minutes: float | None = None
    default_time_minutes: float | None = None
    max_nodes: int | None = None
    allow_groups: tuple[str, ...] = ()
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    root_only: bool = False
    needs_reservation: bool = False
    priority_tier: int = 1
    priority_job_factor: int = 1
    min_nodes: int = 0
    max_cpus_per_node: int | None = None
    max_memory_per_node_mib: float | None = None
    list_terms: tuple[str, ...] = ()
    """Settings in which all partitions of a list must agree, if Slurm is to take the list in any order."""
    default_terms: tuple[str, ...] = ()
    """Settings that a job takes from the first partition of its list."""
    placing_terms: tuple[str, ...] = ()
    """Settings by which jobs are placed and stopped, as a user expects them of his own partition."""
    cluster: ClusterName | None = None
    """None: the snapshot's own."""
    carbon_grams_per_kwh: float | None = None
    price_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDependency:
    """A job that another waits for; `needs_success` when it must end well (afterok), not only end."""

    job_id: JobId
    needs_success: bool
    data_gib: float | None = None
    """What it hands over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job that Slurm knows. Times are Unix seconds, None when not yet known."""

    job_id: JobId
    user_name: str
    user_id: int
    name: str
    state: str
    """Slurm's base state in capitals: PENDING, RUNNING, COMPLETED, ..."""
    partitions: tuple[PartitionName, ...]
    submitted_at_seconds: float
    started_at_seconds: float | None = None
    ended_at_seconds: float | None = None
    account: str | None = None
    qos: str | None = None
    array_job_id: JobId | None = None
    array_task: str | None = None
    """Task number of an array's task, or the pending set such as `3-1000%500`."""
    het_job_id: JobId | None = None
    restart_count: int = 0
    time_limit_minutes: float | None = None
    suspended_seconds: float = 0.0
    nodes: str = ""
    node_count: int = 0
    gpu_count: int | None = None
    """GPUs held or asked for; None when Slurm's answer does not say."""
    cpus: int | None = None
    priority: int | None = None
    exit_code: int | None = None
    admin_comment: str = ""
    energy_joules: float | None = None
    """Slurm's own figure, None when it has none; never NO_VAL."""
    dependencies: tuple[JobDependency, ...] = ()
    """Jobs that it still waits for."""
    deadline_seconds: float | None = None
    """Unix time by which it should have ended."""
    memory_per_node_mib: float | None = None
    gpu_types: tuple[str, ...] = ()
    """GRES types held or asked for; empty when it takes any."""
    gpu_max_count: int | None = None
    """Most GPUs that it can use, where it may have more than `gpu_count`."""
    exclusive: bool = False
    """Whether it keeps others from its nodes."""
    estimated_seconds: float | None = None
    """Expected run time at the default clock."""
    gpu_positions: tuple[tuple[NodeName, tuple[int, ...]], ...] = ()
    """Which devices of each node it holds, in the order of the node's GRES, where Slurm tells."""
    kind: str = ""
    """Key of its workload in the energy model, where that is known."""
    expected_start_seconds: float | None = None
    """Unix time at which Slurm plans to start a pending job; None where it has no plan."""
    blocked_by_limit: bool = False
    """Whether a pending job does not start for its own size: no end of other jobs would let it start."""
    waits_for_room: bool = True
    """Whether a pending job would start if there were room: not while it is held, depends on others or is for later."""


def waiting_gpus(jobs: Iterable[JobState]) -> dict[PartitionName, float]:
    """Return the GPUs that jobs wait for in each partition; infinite where one does not say how many.

    Jobs that would not start if there were room take it from no other job.
    """
    waiting: dict[PartitionName, float] = {}
    for job in jobs:
        if job.state == "PENDING" and job.waits_for_room:
            several = job.array_task is not None and not job.array_task.isdecimal()
            gpus = float("inf") if job.gpu_count is None or several else float(job.gpu_count)
            for name in job.partitions:
                waiting[name] = waiting.get(name, 0.0) + gpus
    return waiting


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """What a policy may know of the cluster; `taken_at_seconds` is Unix time."""

    cluster: ClusterName
    taken_at_seconds: float
    partitions: tuple[PartitionState, ...] = ()
    nodes: tuple[NodeState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    switches: tuple[SwitchState, ...] = ()
    """Empty where the topology is not known."""
    clusters: tuple[ClusterState, ...] = ()
    """Budgets and readings of each cluster; several where jobs are routed between them."""

    @cached_property
    def partition_by_name(self) -> dict[PartitionName, PartitionState]:
        """Partitions by name."""
        return {partition.name: partition for partition in self.partitions}

    @cached_property
    def nodes_by_partition(self) -> dict[PartitionName, tuple[NodeState, ...]]:
        """Nodes of each partition, in the snapshot's order."""
        members: dict[PartitionName, list[NodeState]] = {partition.name: [] for partition in self.partitions}
        for node in self.nodes:
            for name in node.partitions:
                members.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in members.items()}

    @cached_property
    def slurm_gpu_types_by_partition(self) -> dict[PartitionName, tuple[str | None, ...]]:
        """GRES types of the GPUs in each partition, down nodes included; None stands for untyped GPUs."""
        types: dict[PartitionName, dict[str | None, None]] = {}
        for node in self.nodes:
            for name in node.partitions:
                types.setdefault(name, {}).update((gpus.slurm_type, None) for gpus in node.gpus if gpus.count > 0)
        return {name: tuple(found) for name, found in types.items()}

    @cached_property
    def nodes_with_idle_gpus(self) -> dict[PartitionName, tuple[NodeState, ...]]:
        """Available nodes of each partition with a GPU that no job holds, in the snapshot's order."""
        return {
            name: tuple(node for node in nodes if node.available and any(gpus.idle for gpus in node.gpus))
            for name, nodes in self.nodes_by_partition.items()
        }

    @cached_property
    def idle_gpus_by_partition(self) -> dict[PartitionName, int]:
        """GPUs of available nodes that no job holds, in each partition."""
        return {name: sum(node.gpus_idle for node in nodes) for name, nodes in self.nodes_with_idle_gpus.items()}

    @cached_property
    def waiting_gpus_by_partition(self) -> Mapping[PartitionName, float]:
        """GPUs that jobs wait for in each partition; infinite where one does not say how many."""
        return waiting_gpus(self.jobs)

    @cached_property
    def gpu_places(self) -> tuple[tuple[GpuPlace, PlaceRoom], ...]:
        """Each GPU type of each partition, in the snapshot's order, with what is free of it."""
        found = []
        for name, nodes in self.nodes_by_partition.items():
            for slurm_type in self.slurm_gpu_types_by_partition.get(name, ()):
                found.append(gpu_place(name, slurm_type, nodes))
        return tuple(found)

    @cached_property
    def num_waiting(self) -> int:
        """Jobs that would start if there were room."""
        return sum(job.state == "PENDING" and job.waits_for_room and not job.dependencies for job in self.jobs)

    def work_out(self, waiting: Mapping[PartitionName, float] | None = None) -> Iterator[None]:
        """Work out in short steps what the first decision would otherwise wait for.

        Args:
            waiting: `waiting_gpus` of the jobs, where the caller has counted them.
        """
        if waiting is not None:
            self.__dict__["waiting_gpus_by_partition"] = waiting
        for name in _WORKED_OUT:
            getattr(self, name)
            yield

    @property
    def default_partition(self) -> PartitionState | None:
        """The partition of jobs that name none."""
        return next((partition for partition in self.partitions if partition.is_default), None)
