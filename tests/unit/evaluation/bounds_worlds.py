"""Small worlds for the bounds' tests, and what a mixture costs there, worked out from the world itself."""

from dataclasses import dataclass
from math import ceil, inf
from random import Random

from slurm_energy.twin.world import Partition, Pool, SuspendSettings, World
from slurm_energy.twin.world.device_model import DeviceModel, Load, PairSpeed, Scaling


def make_device(
    name: str = "gpu",
    *,
    watts: tuple[float, ...] = (100.0, 300.0),
    seconds: tuple[float, ...] = (2.0, 1.0),
    free_watts: float = 20.0,
    kinds: tuple[str, ...] = ("training",),
    pairs: dict[tuple[str, str], PairSpeed] | None = None,
    scaling: Scaling | None = None,
) -> DeviceModel:
    load = Load(watts=watts, seconds_per_unit=seconds, scaling=scaling or Scaling())
    return DeviceModel(
        name=name,
        relative_clocks=tuple((index + 1) / len(watts) for index in range(len(watts))),
        loads=dict.fromkeys(kinds, load),
        free_watts=free_watts,
        context_watts=free_watts,
        pairs=pairs or {},
    )


def make_pool(
    name: str = "pool",
    *,
    device: str = "gpu",
    nodes: int = 1,
    gpus_per_node: int = 4,
    host: tuple[float, float] = (0.0, 0.0),
    suspended_watts: float | None = None,
    jobs_per_gpu: int = 1,
) -> Pool:
    """`host` is idle and busy power; `suspended_watts` of a node, None where nodes are never suspended."""
    suspend = None
    if suspended_watts is not None:
        suspend = SuspendSettings(
            idle_seconds=60.0, resume_seconds=30.0, suspended_watts=suspended_watts, resume_watts=500.0
        )
    return Pool(
        name=name,
        device=device,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        host_idle_watts=host[0],
        host_busy_watts=host[1],
        suspend=suspend,
        jobs_per_gpu=jobs_per_gpu,
    )


def make_world(*pools: Pool, devices: tuple[DeviceModel, ...] = (), max_gpus: int = 8) -> World:
    pools = pools or (make_pool(),)
    devices = devices or (make_device(),)
    return World(
        name="small",
        devices={device.name: device for device in devices},
        pools=pools,
        partitions=tuple(Partition(name=pool.name, pools=(pool.name,), max_gpus_per_job=max_gpus) for pool in pools),
    )


def random_world(random: Random) -> World:
    """Return one to three pools of as many device types, with or without hosts and suspension, for kinds a and b."""
    devices, pools = [], []
    for index in range(random.randint(1, 3)):
        clocks = random.randint(1, 4)
        loads = {
            kind: Load(
                watts=tuple(sorted(random.uniform(20.0, 300.0) for _ in range(clocks))),
                seconds_per_unit=tuple(sorted((random.uniform(0.01, 0.1) for _ in range(clocks)), reverse=True)),
                scaling=Scaling(
                    seconds_per_device=random.choice((0.0, 0.003)),
                    efficiency_by_count=random.choice(({}, {2: random.uniform(0.5, 1.2), 4: 0.5})),
                ),
            )
            for kind in ("a", "b")
            if index == 0 or random.random() < 0.8
        }
        free = random.uniform(5.0, 60.0)
        devices.append(
            DeviceModel(
                name=f"gpu{index}",
                relative_clocks=tuple((clock + 1) / clocks for clock in range(clocks)),
                loads=loads,
                free_watts=free,
                context_watts=free * random.uniform(0.8, 2.0),
                pairs={
                    (kind, partner): PairSpeed(
                        speed=random.uniform(0.3, 1.2),
                        partner_speed=random.uniform(0.3, 1.2),
                        watts=random.uniform(50.0, 350.0),
                    )
                    for kind in loads
                    for partner in loads
                    if kind <= partner and random.random() < 0.7
                },
            )
        )
        host = random.choice((0.0, random.uniform(0.0, 200.0)))
        pools.append(
            make_pool(
                f"pool{index}",
                device=f"gpu{index}",
                nodes=random.randint(1, 3),
                gpus_per_node=random.randint(1, 4),
                host=(host, host + random.choice((0.0, 100.0))),
                suspended_watts=random.choice((None, random.uniform(0.0, 30.0))),
                jobs_per_gpu=random.choice((1, 2)),
            )
        )
    return make_world(*pools, devices=tuple(devices), max_gpus=random.choice((1, 4, 100)))


@dataclass
class Instant:
    """Power and work rates of a cluster while nothing changes."""

    watts: float
    units_per_second: dict[str, float]


def random_instant(world: World, random: Random) -> Instant:
    """Return some state that the cluster can be in, packed onto as few nodes as can be, the others asleep."""
    watts, rates = 0.0, {"a": 0.0, "b": 0.0}
    for pool in world.pools:
        device = world.devices[pool.device]
        total = pool.nodes * pool.gpus_per_node
        busy = 0
        while device.loads and busy < total and random.random() < 0.8:
            kind = random.choice(sorted(device.loads))
            gpus = random.randint(1, min(total - busy, world.partitions[0].max_gpus_per_job))
            clock = random.randrange(len(device.relative_clocks))
            load = device.loads[kind]
            pair = device.pair(kind, kind) if pool.jobs_per_gpu == 2 and gpus == 1 else None
            if pair is not None and random.random() < 0.5:
                watts += pair.watts * load.watts[clock] / load.watts[-1]
                rates[kind] += (pair.speed + pair.partner_speed) / load.seconds_per_unit[clock]
            else:
                watts += gpus * load.watts[clock]
                rates[kind] += 1.0 / load.scaling.seconds(load.seconds_per_unit[clock], gpus)
            busy += gpus
        awake = pool.nodes if pool.suspend is None else ceil(busy / pool.gpus_per_node)
        watts += awake * pool.host_idle_watts + (awake * pool.gpus_per_node - busy) * device.free_watts
        watts += (pool.host_busy_watts - pool.host_idle_watts) * busy / pool.gpus_per_node
        if pool.suspend is not None:
            watts += (pool.nodes - awake) * pool.suspend.suspended_watts
    return Instant(watts, rates)


def brute_force_watts(world: World, load: float) -> float:
    """Return the least power of kind a on one pool without hosts: over all pairs of options, idle among them."""
    (pool,), (device,) = world.pools, world.devices.values()
    total = pool.nodes * pool.gpus_per_node
    points = [(0.0, device.free_watts)]
    for gpus in range(1, min(total, world.partitions[0].max_gpus_per_job) + 1):
        for watts, seconds in zip(device.loads["a"].watts, device.loads["a"].seconds_per_unit, strict=True):
            points.append((1.0 / (gpus * device.loads["a"].scaling.seconds(seconds, gpus)), watts))
    best = inf
    need = load / total
    for slow_rate, slow_watts in points:
        for fast_rate, fast_watts in points:
            if slow_rate <= need <= fast_rate and slow_rate < fast_rate:
                share = (need - slow_rate) / (fast_rate - slow_rate)
                best = min(best, slow_watts + share * (fast_watts - slow_watts))
    return best * total
