"""What a cluster draws however cleverly it is run: sleeping hosts, free devices, and what a busy device adds."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from slurm_energy.errors import ValueRangeError
from slurm_energy.twin.world import Pool, World
from slurm_energy.twin.world.device_model import DeviceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """What was out of order during one run, by pool: nodes and devices that are down draw nothing."""

    node_seconds: Mapping[str, float]
    gpu_seconds: Mapping[str, float]
    """Devices that were down while their node was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFloor:
    """Least power of one pool, split so that the split is linear in the devices that are busy."""

    pool: str
    devices: int
    base_watts: float
    """Of the whole pool with nothing running: nodes asleep where the world suspends them, else awake and free."""
    busy_extra_watts: float
    """Add this to the power of a busy device to get what it puts on top of `base_watts`: its own free power is taken
    off; its share of the host, and of the node being awake at all, is in it."""


def pool_floors(
    world: World, kinds: Collection[str], *, horizon_seconds: float | None = None, downtime: Downtime | None = None
) -> tuple[PoolFloor, ...]:
    """Return the floor of every pool, in the world's order.

    A node with k of its g devices busy draws at least asleep + k (awake - asleep) / g beside what its jobs add, since
    k <= g: a straight line below the step from asleep to awake. Nothing is charged for waking, nor for the idle time
    before a node is suspended. What may be down counts as drawing nothing for as long as it may be down.

    Args:
        world: Gives pools, devices, failures and outages.
        kinds: Kinds of work that run: a device that draws less while it runs one of them than while it is free has that
            as its floor, so that no option costs less than nothing.
        horizon_seconds: Length of the run; planned outages count for their part of it, without it for all time.
        downtime: What really was down; without it, a world with random failures has no floor at all.
    """
    return tuple(_pool_floor(world, pool, kinds, horizon_seconds, downtime) for pool in world.pools)


def _pool_floor(
    world: World, pool: Pool, kinds: Collection[str], horizon_seconds: float | None, downtime: Downtime | None
) -> PoolFloor:
    device_watts = _device_floor_watts(pool, world.devices[pool.device], kinds)
    awake = pool.host_idle_watts + pool.gpus_per_node * device_watts
    asleep = awake
    if pool.suspend is not None:
        asleep = min(awake, pool.suspend.suspended_watts, pool.suspend.resume_watts)
    nodes_down, gpus_down = _mean_down(world, pool, horizon_seconds, downtime)
    gpu_loss_watts = max(device_watts, asleep / pool.gpus_per_node)
    base = asleep * (pool.nodes - nodes_down) - gpu_loss_watts * gpus_down
    if base <= 0.0:
        # All may be down: then nothing is owed for what is free, and nothing is taken off for what is busy.
        base, asleep, device_watts, awake = 0.0, 0.0, 0.0, pool.host_idle_watts
    host_slope = (pool.host_busy_watts - pool.host_idle_watts) / pool.gpus_per_node
    return PoolFloor(
        pool=pool.name,
        devices=pool.nodes * pool.gpus_per_node,
        base_watts=base,
        busy_extra_watts=host_slope - device_watts + (awake - asleep) / pool.gpus_per_node,
    )


def _device_floor_watts(pool: Pool, device: DeviceModel, kinds: Collection[str]) -> float:
    """Return the least that one device of an awake node ever draws: free, allocated without computing, or computing."""
    watts = [device.free_watts, device.context_watts]
    watts += [min(load.watts) for kind, load in device.loads.items() if kind in kinds]
    pairs = device.pairs if pool.jobs_per_gpu > 1 else {}
    for (kind, partner), pair in pairs.items():
        if {kind, partner} <= set(kinds) and {kind, partner} <= set(device.loads):
            loads = device.loads[kind].watts, device.loads[partner].watts
            watts.append(pair.watts * sum(min(load) for load in loads) / sum(load[-1] for load in loads))
    return min(watts)


def _mean_down(
    world: World, pool: Pool, horizon_seconds: float | None, downtime: Downtime | None
) -> tuple[float, float]:
    """Return the mean number of nodes and of single devices that are down, at most all of them."""
    total_gpus = pool.nodes * pool.gpus_per_node
    if downtime is not None:
        if horizon_seconds is None:
            raise ValueRangeError("downtime is given without the length of the run that it belongs to")
        nodes = _checked(downtime.node_seconds, pool.name) / horizon_seconds
        gpus = _checked(downtime.gpu_seconds, pool.name) / horizon_seconds
        return min(float(pool.nodes), nodes), min(float(total_gpus), gpus)
    nodes = gpus = 0.0
    for outage in world.outages:
        if outage.pool == pool.name:
            share = 1.0
            if horizon_seconds is not None:
                length = min(outage.until_seconds, horizon_seconds) - outage.at_seconds
                share = min(1.0, max(0.0, length / horizon_seconds))
            nodes += share * outage.nodes
            gpus += share * outage.gpus
    if world.failures.node_mtbf_seconds < inf:
        nodes = pool.nodes
    if world.failures.gpu_mtbf_seconds < inf:
        gpus = total_gpus
    return min(float(pool.nodes), nodes), min(float(total_gpus), gpus)


def _checked(seconds_by_pool: Mapping[str, float], pool: str) -> float:
    seconds = seconds_by_pool.get(pool, 0.0)
    if not 0.0 <= seconds < inf:
        raise ValueRangeError(f"downtime {seconds} s of pool {pool} is not a finite number from 0 up")
    return seconds
