"""The GPUs of one type in one partition: how many there are, and what of them is free."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from slurm_energy.domain.ids import PartitionName

if TYPE_CHECKING:  # a snapshot of the cluster gives them
    from slurm_energy.domain.cluster import NodeState


class GpuPlace(NamedTuple):
    """The GPUs of one type in one partition."""

    partition: PartitionName
    slurm_type: str | None
    total: int
    """Nodes that are down included."""
    gpus_per_node: int
    """The most of one node."""
    can_sleep: bool
    """Whether a node of it is suspended or says how long it takes to wake."""
    wake_seconds: float


class PlaceRoom(NamedTuple):
    """What of a place is free now; its nodes that are available alone."""

    free: int
    """Suspended nodes' GPUs too."""
    whole_nodes: int
    """Nodes that are awake and hold no job."""
    asleep_nodes: int
    parts: frozenset[int]
    """Free GPUs of the nodes that are awake and hold a job, each number once."""


def gpu_place(name: PartitionName, slurm_type: str | None, nodes: "Iterable[NodeState]") -> tuple[GpuPlace, PlaceRoom]:
    """Return the GPUs of one type in one partition, and what of them is free now.

    Args:
        name: The partition.
        slurm_type: GRES type; None stands for untyped GPUs.
        nodes: Of the partition.
    """
    total = per_node = free = whole = asleep = 0
    wake_seconds, can_sleep, parts = 0.0, False, set[int]()
    for node in nodes:
        count = idle = 0
        for gpus in node.gpus:
            if gpus.slurm_type == slurm_type:
                count += gpus.count
                idle += gpus.idle
        if not count:
            continue
        total, per_node = total + count, max(per_node, count)
        can_sleep = can_sleep or node.wake_seconds is not None or node.is_suspended
        wake_seconds = max(wake_seconds, node.wake_seconds or 0.0)
        if not node.available:
            continue
        free += idle
        if node.is_suspended:
            asleep += 1
        elif idle == count:
            whole += 1
        elif idle:
            parts.add(idle)
    return (
        GpuPlace(name, slurm_type, total, per_node, can_sleep, wake_seconds),
        PlaceRoom(free, whole, asleep, frozenset(parts)),
    )
