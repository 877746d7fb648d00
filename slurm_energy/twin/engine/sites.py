"""What starts and ends in one place need, gathered once."""

from math import inf
from typing import TYPE_CHECKING

from slurm_energy.twin.engine.places import Place
from slurm_energy.twin.engine.waiting import Waiting
from slurm_energy.twin.world import World

if TYPE_CHECKING:
    from slurm_energy.twin.engine.execution import Execution


class Site:
    """A place with its pool, its ledger and its device."""

    __slots__ = (
        "device",
        "free_watts",
        "index",
        "ledger",
        "max_time_seconds",
        "plain",
        "plain_without_limit",
        "pool",
        "pool_index",
        "queues",
        "siblings",
    )

    def __init__(self, execution: "Execution", place: Place, waiting: Waiting) -> None:
        self.index = place.index
        self.pool_index = place.pool_index
        self.pool = execution.pools[place.pool_index]
        self.device = place.device
        self.free_watts = place.device.free_watts
        self.ledger = execution.ledger_of_pool[place.pool_index]
        self.max_time_seconds = place.partition.max_time_seconds
        self.queues = waiting.together[place.index]
        """Those with jobs that its devices can help."""
        self.siblings = execution.places_of_pool[place.pool_index]
        self.plain = not (
            self.pool.by_node
            or place.device.thermal is not None
            or place.pool.host_busy_watts > place.pool.host_idle_watts
            or execution.world.launch_seconds > 0.0
            or execution.expected_ends is not None
        )
        """Whether a start is no more than devices taken and power changed."""
        self.plain_without_limit = self.plain and self.max_time_seconds == inf


def needs_nodes(world: World, index: int) -> bool:
    """Return whether nodes of a pool must be told apart."""
    pool = world.pools[index]
    return (
        pool.nodes > 1
        or pool.suspend is not None
        or pool.jobs_per_gpu > 1
        or pool.cpus_per_node > 0
        or pool.memory_gib_per_node < inf
        or world.failures.node_mtbf_seconds < inf
        or world.failures.gpu_mtbf_seconds < inf
        or any(outage.pool == pool.name for outage in world.outages)
    )
