"""The twin as a `ClusterSnapshot`, which is what the daemon's policies see of a real Slurm."""

from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus, NodeState, PartitionState
from slurm_energy.domain.ids import ClusterName, NodeName, PartitionName
from slurm_energy.twin.places import Place
from slurm_energy.twin.pool_state import AWAKE, DOWN, SUSPENDED, WAKING, PoolState
from slurm_energy.twin.view import TwinView
from slurm_energy.twin.world import World

_STATES = {AWAKE: (), DOWN: ("DOWN",), SUSPENDED: ("IDLE", "POWERED_DOWN"), WAKING: ("IDLE", "POWERING_UP")}
_MEBIBYTES_PER_GIBIBYTE = 1024.0


def snapshot_of(view: TwinView, taken_at_seconds: float) -> ClusterSnapshot:
    """Return partitions and nodes as they stand; CPU pools are nodes without GPUs."""
    return ClusterSnapshot(
        cluster=ClusterName("twin"),
        taken_at_seconds=taken_at_seconds,
        partitions=_partitions(view.world),
        nodes=tuple(node for index in range(len(view.world.pools)) for node in _nodes(view, index)),
    )


def _partitions(world: World) -> tuple[PartitionState, ...]:
    has_default = any(partition.is_default for partition in world.partitions)
    return tuple(
        PartitionState(
            name=PartitionName(partition.name),
            is_default=partition.is_default or (not has_default and index == 0),
            up=True,
            max_time_minutes=_minutes(partition.max_time_seconds),
        )
        for index, partition in enumerate(world.partitions)
    )


def _minutes(seconds: float) -> float | None:
    return None if seconds == float("inf") else seconds / 60.0


def _nodes(view: TwinView, index: int) -> list[NodeState]:
    pool: PoolState = view.pools[index]
    places: list[Place] = [place for place in view.twin_places if place.pool_index == index]
    partitions = tuple(dict.fromkeys(PartitionName(place.partition.name) for place in places))
    settings, device = pool.pool, view.world.devices[pool.pool.device]
    found = []
    for node in range(settings.nodes):
        free = pool.free[node] if pool.by_node else pool.free_total
        power = pool.power[node] if pool.by_node else AWAKE
        broken = pool.broken[node] if pool.by_node else 0
        count = settings.gpus_per_node - broken
        cpus = settings.cpus_per_node or 4 * settings.gpus_per_node
        used_cpus = cpus - pool.cpus_free[node] if pool.by_node and settings.cpus_per_node else 0
        gpus = () if device.is_cpu else (NodeGpus(slurm_type=device.name, count=count, allocated=count - free),)
        memory = settings.memory_gib_per_node
        found.append(
            NodeState(
                name=NodeName(f"{settings.name}-{node}"),
                partitions=partitions,
                states=_STATES[power] or (("IDLE",) if free == count else ("MIXED",) if free else ("ALLOCATED",)),
                available=power != DOWN,
                cpus=cpus,
                cpus_allocated=used_cpus,
                memory_mib=None if memory == float("inf") else memory * _MEBIBYTES_PER_GIBIBYTE,
                memory_allocated_mib=None
                if memory == float("inf") or not pool.by_node
                else (memory - pool.memory_free[node]) * _MEBIBYTES_PER_GIBIBYTE,
                gpus=gpus,
            )
        )
    return found
