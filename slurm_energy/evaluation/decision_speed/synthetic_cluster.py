"""A cluster of any size with jobs on it, made from a seed: for measurements of speed and memory.

Four GPU types in equal parts, six partitions, leaf switches of 32 nodes under one core. About 70 % of the GPUs are held
by running jobs; `h100` is full and has the longest queue, the other types have room. Jobs wait in `h100`, in the
default partition `gpu` and in `cpu`, some for other jobs. A changing cluster moves: one node or one job is different
at each step, all others are the same objects.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from slurm_energy.domain.cluster import (
    ClusterSnapshot,
    JobDependency,
    JobState,
    NodeGpus,
    NodeState,
    PartitionState,
    SwitchState,
)
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.errors import EvaluationError

GPU_TYPES = ("a100", "a40", "v100", "h100")
FULL_TYPE = "h100"
CATALOGUE_NAMES = {"a100": "a100-sxm4-80gb", "a40": "a40", "v100": "v100-sxm2-32gb", "h100": "h100-sxm5-80gb"}
CPU, DEFAULT = PartitionName("cpu"), PartitionName("gpu")
CORE_SWITCH = "core"
NODES_A_SWITCH = 32
CPUS_A_GPU, MEMORY_A_GPU_MIB = 8, 32_768.0
USERS = 24
FIRST_JOB = 1000
NEAR = 50
"""Jobs depend on one of so many before them."""

_HELD_SHARES = (0.5, 0.8, 0.35, 0.75)
"""Of the GPUs of one node after another; with the full type's, 70 % in all."""
_JOB_GPUS = (1, 1, 2, 4)
_DEPENDING_SHARE = 0.15
_MINUTES = (30.0, 240.0, 1440.0, 4320.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """What a synthetic cluster is made of."""

    nodes: int
    """With GPUs; one more in 32, at least one, has none."""
    gpus_per_node: int
    pending: int
    """Jobs that wait."""

    def __post_init__(self) -> None:
        bounds = (("nodes", self.nodes, 4, 16_384), ("gpus_per_node", self.gpus_per_node, 1, 16))
        for name, value, low, high in (*bounds, ("pending", self.pending, 0, 100_000)):
            if not low <= value <= high:
                raise EvaluationError(f"synthetic cluster with {name} = {value}: it must be between {low} and {high}")

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node


def synthetic_cluster(size: ClusterSize, seed: int, now_seconds: float) -> ClusterSnapshot:
    """Return the cluster at a moment, in Unix time; the same arguments give the same cluster."""
    random, numbers = Random(seed), count(FIRST_JOB)  # noqa: S311  # a sample, guards nothing
    running: list[JobState] = []
    nodes: list[NodeState] = []
    for index in range(size.nodes):
        jobs = list(_jobs_on(index, size, random, numbers, now_seconds))
        running += jobs
        nodes.append(_gpu_node(index, size, jobs))
    for index in range(max(1, size.nodes // 32)):
        job = cpu_job(JobId(next(numbers)), node_name(CPU, index), random, now_seconds)
        running.append(job)
        nodes.append(_cpu_node(size.nodes + index, job))
    waiting = [JobId(next(numbers)) for _ in range(size.pending)]
    pending = [
        pending_job(number, waiting[max(0, place - NEAR) : place], random, now_seconds)
        for place, number in enumerate(waiting)
    ]
    return ClusterSnapshot(
        cluster=ClusterName("bench"),
        taken_at_seconds=now_seconds,
        partitions=_partitions(),
        nodes=tuple(nodes),
        jobs=(*running, *pending),
        switches=_switches(len(nodes)),
    )


def default_gpus_per_node(nodes: int) -> int:
    """Return six up to the paper's 256 nodes with over 1,500 GPUs, eight beyond."""
    return 6 if nodes <= 256 else 8


def node_name(kind: str, index: int) -> NodeName:
    """Return the name of a node."""
    return NodeName(f"{kind}n{index:05d}")


def pending_job(number: JobId, before: list[JobId], random: Random, now_seconds: float) -> JobState:
    """Return a job that waits; with some share for others of those before it."""
    partition = PartitionName(random.choices((FULL_TYPE, DEFAULT, CPU), (7, 2, 1))[0])
    per_node = 0 if partition == CPU else random.choice(_JOB_GPUS)
    nodes = random.choice((1, 1, 1, 2))
    depends = before and random.random() < _DEPENDING_SHARE
    earlier = sorted(random.sample(before[-NEAR:], min(len(before), random.choice((1, 2))))) if depends else []
    return replace(
        _asked(number, random),
        partitions=(partition,),
        submitted_at_seconds=now_seconds - float(random.randrange(60, 86_400)),
        node_count=nodes,
        gpu_count=per_node * nodes,
        cpus=max(1, CPUS_A_GPU * per_node) * nodes,
        memory_per_node_mib=MEMORY_A_GPU_MIB * max(1, per_node),
        gpu_types=(FULL_TYPE,) if partition == FULL_TYPE else (),
        dependencies=tuple(JobDependency(job_id=one, needs_success=one % 4 != 0) for one in earlier),
        waits_for_room=not earlier,
    )


def running_job(
    number: JobId, node: NodeName, devices: tuple[int, ...], random: Random, now_seconds: float
) -> JobState:
    """Return a job on some devices of one node."""
    kind = node.partition("n")[0]
    started = now_seconds - float(random.randrange(60, 20_000))
    return replace(
        _asked(number, random),
        state="RUNNING",
        partitions=(PartitionName(kind),),
        submitted_at_seconds=started - float(random.randrange(1, 7_200)),
        started_at_seconds=started,
        nodes=node,
        node_count=1,
        gpu_count=len(devices),
        cpus=CPUS_A_GPU * len(devices),
        memory_per_node_mib=MEMORY_A_GPU_MIB * len(devices),
        gpu_types=(kind,),
        gpu_positions=((node, devices),),
    )


def cpu_job(number: JobId, node: NodeName, random: Random, now_seconds: float) -> JobState:
    """Return a job without GPUs on a node without GPUs."""
    started = now_seconds - float(random.randrange(60, 20_000))
    return replace(
        _asked(number, random),
        state="RUNNING",
        partitions=(CPU,),
        submitted_at_seconds=started - 60.0,
        started_at_seconds=started,
        nodes=node,
        node_count=1,
        gpu_count=0,
        cpus=32,
        memory_per_node_mib=MEMORY_A_GPU_MIB,
    )


def with_held(node: NodeState, held: int) -> NodeState:
    """Return a GPU node of which so many GPUs are held, with the CPUs and the memory that go with them."""
    gpus = node.gpus[0]
    return replace(
        node,
        states=("IDLE",) if held == 0 else ("ALLOCATED",) if held == gpus.count else ("MIXED",),
        cpus_allocated=CPUS_A_GPU * held,
        memory_allocated_mib=MEMORY_A_GPU_MIB * held,
        gpus=(replace(gpus, allocated=held),),
    )


def _jobs_on(
    index: int, size: ClusterSize, random: Random, numbers: Iterator[int], now_seconds: float
) -> Iterator[JobState]:
    """Yield the jobs of one GPU node, its devices in order."""
    kind = _kind(index, size)
    share = 1.0 if kind == FULL_TYPE else _HELD_SHARES[index % len(_HELD_SHARES)]
    first, held = 0, round(share * size.gpus_per_node)
    while first < held:
        gpus = min(random.choice(_JOB_GPUS), held - first)
        devices = tuple(range(first, first + gpus))
        yield running_job(JobId(next(numbers)), node_name(kind, index), devices, random, now_seconds)
        first += gpus


def _asked(number: JobId, random: Random) -> JobState:
    """Return what all jobs have, as one that waits."""
    user = random.randrange(USERS)
    return JobState(
        job_id=number,
        user_name=f"user{user:02d}",
        user_id=2000 + user,
        name=f"train-{random.randrange(100):02d}",
        state="PENDING",
        partitions=(),
        submitted_at_seconds=0.0,
        account=f"group{user % 6}",
        qos="normal",
        time_limit_minutes=random.choice(_MINUTES),
        priority=random.randrange(1, 100_000),
    )


def _kind(index: int, size: ClusterSize) -> str:
    return GPU_TYPES[index * len(GPU_TYPES) // size.nodes]


def _gpu_node(index: int, size: ClusterSize, jobs: list[JobState]) -> NodeState:
    kind = _kind(index, size)
    own = PartitionName(kind)
    node = NodeState(
        name=node_name(kind, index),
        partitions=(own,) if kind == FULL_TYPE else (own, DEFAULT),
        states=("IDLE",),
        available=True,
        cpus=16 + CPUS_A_GPU * size.gpus_per_node,
        cpus_allocated=0,
        memory_mib=65_536.0 + MEMORY_A_GPU_MIB * size.gpus_per_node,
        gpus=(NodeGpus(slurm_type=kind, count=size.gpus_per_node),),
        features=(kind, "ib"),
        switch=_leaf(index),
    )
    return with_held(node, sum(job.gpu_count or 0 for job in jobs))


def _cpu_node(index: int, job: JobState) -> NodeState:
    return NodeState(
        name=NodeName(job.nodes),
        partitions=(CPU,),
        states=("MIXED",),
        available=True,
        cpus=128,
        cpus_allocated=job.cpus or 0,
        memory_mib=524_288.0,
        memory_allocated_mib=job.memory_per_node_mib,
        features=("ib",),
        switch=_leaf(index),
    )


def _partitions() -> tuple[PartitionState, ...]:
    names = (DEFAULT, *map(PartitionName, GPU_TYPES), CPU)
    return tuple(
        PartitionState(name=name, is_default=name == DEFAULT, up=True, max_time_minutes=10_080.0) for name in names
    )


def _leaf(index: int) -> str:
    return f"leaf{index // NODES_A_SWITCH:03d}"


def _switches(nodes: int) -> tuple[SwitchState, ...]:
    leaves = dict.fromkeys(_leaf(index) for index in range(nodes))
    return (*(SwitchState(name=leaf, parent=CORE_SWITCH) for leaf in leaves), SwitchState(name=CORE_SWITCH))


class ChangingCluster:
    """Jobs end, start, come and leave; sums stay as they are, and the full partition stays full.

    A step is what one reading of Slurm may show: a job that has ended while its node does not tell yet is one.
    """

    def __init__(self, snapshot: ClusterSnapshot, seed: int) -> None:
        self.snapshot = snapshot
        """As of the last step."""
        self._random = Random(seed)  # noqa: S311  # a sample, guards nothing
        self._jobs: dict[JobId, JobState] = {job.job_id: job for job in snapshot.jobs}
        self._nodes: dict[NodeName, NodeState] = {node.name: node for node in snapshot.nodes}
        self._next = 1 + max(self._jobs, default=0)
        self._may_end = [job.job_id for job in snapshot.jobs if job.gpu_positions and FULL_TYPE not in job.gpu_types]
        self._pending = [job.job_id for job in snapshot.jobs if job.state == "PENDING"]
        self._steps = self._rounds()

    def step(self, seconds: float = 0.0) -> ClusterSnapshot:
        """Return the cluster after one more change and so many seconds."""
        self._now = self.snapshot.taken_at_seconds + seconds
        next(self._steps)
        self.snapshot = replace(
            self.snapshot,
            taken_at_seconds=self._now,
            nodes=tuple(self._nodes.values()),
            jobs=tuple(self._jobs.values()),
        )
        return self.snapshot

    def _rounds(self) -> Iterator[None]:
        while True:
            yield from self._one_job_follows_another()
            yield from self._queue_moves()

    def _one_job_follows_another(self) -> Iterator[None]:
        """A job ends and its node follows; another takes its devices and the node follows."""
        ended = self._jobs.pop(self._may_end.pop(self._random.randrange(len(self._may_end))))
        name, devices = ended.gpu_positions[0]
        yield
        held = self._nodes[name].gpus[0].allocated
        self._nodes[name] = with_held(self._nodes[name], held - len(devices))
        yield
        started = replace(
            running_job(self._number(), name, devices, self._random, self._now),
            submitted_at_seconds=float(int(self._now)),
            started_at_seconds=float(int(self._now)),
        )
        self._jobs[started.job_id] = started
        self._may_end.append(started.job_id)
        yield
        self._nodes[name] = with_held(self._nodes[name], held)
        yield

    def _queue_moves(self) -> Iterator[None]:
        """A job comes, one leaves, one gets another priority."""
        arrived = pending_job(self._number(), self._pending, self._random, float(int(self._now)))
        self._jobs[arrived.job_id] = arrived
        self._pending.append(arrived.job_id)
        yield
        del self._jobs[self._pending.pop(self._random.randrange(len(self._pending)))]
        yield
        if self._pending:
            job_id = self._random.choice(self._pending)
            self._jobs[job_id] = replace(self._jobs[job_id], priority=self._random.randrange(1, 100_000))
            yield

    def _number(self) -> JobId:
        self._next += 1
        return JobId(self._next - 1)
