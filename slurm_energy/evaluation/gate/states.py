"""Generated clusters and jobs, half of them plain, half at the edges of what can happen: the same for every policy."""

from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import NamedTuple

from slurm_energy.domain.cluster import ClusterSnapshot, JobState, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import ClusterName, JobId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest
from slurm_energy.policy.candidate import CandidatePolicy

NOW_SECONDS = 1_800_000_000.0
_TYPES = ("a100", "h100", "v100", "a40", "l40s", "p100", "tesla_t4", "mi300", None)
_MEASURED = ("a100", "h100", "v100", "a40")
_JOBS_PER_CLUSTER = 50
_MAX_NAMES = 2_000


class EdgeState(NamedTuple):
    """One job on one cluster."""

    job: JobRequest
    snapshot: ClusterSnapshot
    runtime: RuntimeEstimate | None


def edge_states(count: int, seed: int = 0) -> Iterator[EdgeState]:
    """Yield so many states; those of a seed are the same everywhere, and more of them begin like fewer."""
    random = Random(seed)  # noqa: S311  # not for secrets
    snapshot = _snapshot(random)
    for number in range(count):
        if number and number % _JOBS_PER_CLUSTER == 0:
            snapshot = _snapshot(random) if number // _JOBS_PER_CLUSTER % 2 else _plain_snapshot(random)
        job = _job(random, snapshot) if number % 2 else _plain_job(random, snapshot)
        yield EdgeState(job, snapshot, _runtime(random))


def probe_states(candidate: CandidatePolicy, count: int, seed: int = 0) -> Iterator[EdgeState]:
    """Yield the states of a seed, then one for each clock that a candidate has of a name."""
    yield from edge_states(count, seed)
    for (user_id, name), clocks in islice(candidate.clocks_by_name().items(), _MAX_NAMES):
        for gpu_type in clocks:
            yield idle_state(user_id=int(user_id), name=name, gpu_type=gpu_type, gpus=1, now_seconds=NOW_SECONDS)


def idle_state(*, user_id: int, name: str, gpu_type: str, gpus: int, now_seconds: float) -> EdgeState:
    """Return a job on a cluster of idle GPUs of one type: there its clock is all that is decided."""
    where = PartitionName("here")
    node = NodeState(
        name=NodeName("here-1"),
        partitions=(where,),
        states=("IDLE",),
        available=True,
        cpus=1024,
        cpus_allocated=0,
        gpus=(NodeGpus(slurm_type=gpu_type, count=gpus),),
    )
    partition = PartitionState(name=where, is_default=True, up=True)
    snapshot = ClusterSnapshot(
        cluster=ClusterName("here"), taken_at_seconds=now_seconds, partitions=(partition,), nodes=(node,)
    )
    job = JobRequest(user_id=user_id, name=name, partitions=(where,), gpus=(GpuDemand(count=gpus),))
    return EdgeState(job, snapshot, None)


def _snapshot(random: Random) -> ClusterSnapshot:
    names = [PartitionName(f"p{number}") for number in range(random.choice((1, 1, 2, 3, 5)))]
    partitions = tuple(
        PartitionState(
            name=name,
            is_default=name == names[0] and random.random() < 0.9,
            up=random.random() < 0.95,
            max_time_minutes=random.choice((None, 0.0, 1.0, 60.0, 1440.0, 1e9)),
            default_time_minutes=random.choice((None, None, 30.0)),
            max_nodes=random.choice((None, None, 1)),
            allow_accounts=random.choice(((), (), ("physics",))),
            deny_qos=random.choice(((), (), ("long",))),
            allow_groups=random.choice(((), (), ("staff",))),
            root_only=random.random() < 0.02,
            min_nodes=random.choice((0, 0, 2)),
            priority_tier=random.choice((1, 1, 2)),
        )
        for name in names
    )
    nodes = tuple(_node(random, number, names) for number in range(random.choice((0, 1, 2, 4, 9, 20))))
    jobs = tuple(
        JobState(
            job_id=JobId(number),
            user_name="ann",
            user_id=1001,
            name="train",
            state=random.choice(("PENDING", "RUNNING")),
            partitions=(random.choice(names),),
            submitted_at_seconds=NOW_SECONDS - random.choice((0.0, 60.0, 1e6)),
            gpu_count=random.choice((None, 1, 4, 64)),
        )
        for number in range(random.choice((0, 0, 1, 10)))
    )
    return ClusterSnapshot(
        cluster=ClusterName("edges"),
        taken_at_seconds=NOW_SECONDS - random.choice((0.0, 2.0, 29.0)),
        partitions=partitions,
        nodes=nodes,
        jobs=jobs,
    )


def _plain_snapshot(random: Random) -> ClusterSnapshot:
    types = random.sample(_MEASURED, random.choice((1, 2, 3)))
    names = [PartitionName(slurm_type) for slurm_type in types]
    return ClusterSnapshot(
        cluster=ClusterName("plain"),
        taken_at_seconds=NOW_SECONDS - 2.0,
        partitions=tuple(
            PartitionState(name=name, is_default=name == names[0], up=True, max_time_minutes=2880.0) for name in names
        ),
        nodes=tuple(
            NodeState(
                name=NodeName(f"{name}-{number}"),
                partitions=(name,),
                states=("IDLE",),
                available=True,
                cpus=64,
                cpus_allocated=0,
                memory_mib=512_000.0,
                memory_allocated_mib=0.0,
                gpus=(NodeGpus(slurm_type=str(name), count=4, allocated=random.choice((0, 1, 4))),),
                wake_seconds=random.choice((None, 120.0)),
            )
            for name in names
            for number in range(4)
        ),
    )


def _plain_job(random: Random, snapshot: ClusterSnapshot) -> JobRequest:
    names = [partition.name for partition in snapshot.partitions]
    return JobRequest(
        user_id=1000,
        name="train",
        partitions=tuple(random.sample(names, random.choice((0, 1, len(names))))),
        time_limit_minutes=random.choice((60.0, 600.0, 1440.0)),
        gpus=(GpuDemand(count=random.choice((1, 1, 1, 2, 4))),),
        options=EnergyOptions(
            mode=random.choice((None, EnergyMode.BALANCED, EnergyMode.SAVER)),
            max_slowdown=random.choice((None, None, None, 0.1)),
        ),
        submitted_at_seconds=NOW_SECONDS,
    )


def _node(random: Random, number: int, names: list[PartitionName]) -> NodeState:
    count = random.choice((0, 1, 4, 8, 16))
    available = random.random() < 0.85
    return NodeState(
        name=NodeName(f"n{number}"),
        partitions=tuple(random.sample(names, random.choice((1, 1, len(names))))),
        states=("IDLE",) if available else (random.choice(("DOWN", "DRAIN", "POWERED_DOWN", "UNKNOWN")),),
        available=available,
        cpus=random.choice((1, 16, 128)),
        cpus_allocated=random.choice((0, 1, 128)),
        memory_mib=random.choice((None, 1.0, 256_000.0)),
        memory_allocated_mib=random.choice((None, 0.0, 256_000.0)),
        gpus=(NodeGpus(slurm_type=random.choice(_TYPES), count=count, allocated=random.choice((0, count // 2, count))),)
        if count
        else (),
        wake_seconds=random.choice((None, None, 0.0, 600.0)),
        power_watts=random.choice((None, 0.0, 1e6)),
    )


def _job(random: Random, snapshot: ClusterSnapshot) -> JobRequest:
    names = [partition.name for partition in snapshot.partitions]
    deadline = random.choice((None, None, None, 1.0, NOW_SECONDS + 60.0, NOW_SECONDS + 1e5, 9.9e10))
    return JobRequest(
        user_id=random.choice((0, 1000, 2**31)),
        name=random.choice(("", "train", "ä" * 300)),
        account=random.choice((None, "physics")),
        qos=random.choice((None, "long")),
        partitions=tuple(random.sample(names, random.randint(0, len(names)))),
        time_limit_minutes=random.choice((None, 0.0, 1.0, 60.0, 600.0, 1e9)),
        nodes_min=random.choice((1, 1, 1, 2, 100)),
        tasks=random.choice((None, 1, 64)),
        cpus_per_task=random.choice((None, 1, 32)),
        memory_per_node_mib=random.choice((None, 0.0, 1e6)),
        gpus=(GpuDemand(count=random.choice((0, 1, 1, 2, 8, 4096)), slurm_type=random.choice((None, None, *_TYPES))),),
        features=random.choice((None, None, "ib")),
        array=random.choice((None, None, None, "0-9")),
        exclusive=random.random() < 0.1,
        gpu_frequency_given=random.random() < 0.05,
        options=EnergyOptions(
            mode=random.choice((None, *EnergyMode)),
            max_slowdown=random.choice((None, None, 0.0, 0.01, 0.2, 2.0)),
            deadline_seconds=deadline,
        ),
        submitted_at_seconds=NOW_SECONDS,
    )


def _runtime(random: Random) -> RuntimeEstimate | None:
    seconds = random.choice((None, None, 0.0, 1.0, 3600.0, 1e7))
    if seconds is None:
        return None
    upper = seconds * random.choice((1.0, 2.0, 100.0))
    return RuntimeEstimate(seconds=seconds, upper_seconds=upper, source=random.choice(("history", "user")), runs=3)
