"""Worlds and workloads by chance, with every feature of the simulated cluster that can be switched on."""

from dataclasses import dataclass
from random import Random
from typing import Literal

from hypothesis import strategies as st
from small_worlds import make_device, make_job, make_load, make_pool, make_world, steps_of

from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import FailureRates, Outage, Partition, Pool, SuspendSettings, World
from slurm_energy.twin.world.device_model import PairSpeed, Scaling, Thermal
from slurm_energy.twin.world.devices import MEMORY_EIGHTHS, mig_slice


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a random world has."""

    seed: int
    suspends: bool = False
    fails: bool = False
    shares: bool = False
    heats: bool = False
    """With air that changes."""
    changes: bool = False
    """Congestion, prices, budget."""
    routes: bool = False
    controls: bool = False
    slices: bool = False
    """Some devices are MIG slices, without heat and neighbours."""
    backfill: Literal["none", "easy"] = "easy"
    order: Literal["fifo", "sjf"] = "fifo"


features = st.builds(
    Features,
    seed=st.integers(0, 2**32),
    suspends=st.booleans(),
    fails=st.booleans(),
    shares=st.booleans(),
    heats=st.booleans(),
    changes=st.booleans(),
    routes=st.booleans(),
    controls=st.booleans(),
    slices=st.booleans(),
    backfill=st.sampled_from(("none", "easy")),
    order=st.sampled_from(("fifo", "sjf")),
)


def random_world(features: Features) -> World:
    """Return a cluster of up to three pools and three partitions over them."""
    random = Random(features.seed)
    pools = tuple(_pool(f"pool{number}", random, features) for number in range(random.randint(1, 3)))
    names = [pool.name for pool in pools]
    partitions = [Partition(name="all", pools=tuple(names), is_default=random.random() < 0.5)]
    partitions += [
        Partition(name=f"some{number}", pools=(random.choice(names),), max_gpus_per_job=random.choice((2, 99)))
        for number in range(random.randint(0, 2))
    ]
    load = make_load(
        scaling=Scaling(efficiency_by_count={4: 0.8}, traffic_gigabytes_per_unit=random.choice((0.0, 0.5)))
    )
    light = make_load(watts=(40.0, 60.0, 110.0), seconds_per_unit=(5.0, 3.0, 2.5))
    pairs = {("training", "light"): PairSpeed(speed=0.8, partner_speed=0.7, watts=230.0)} if features.shares else {}
    thermal = Thermal(resistance_kelvin_per_watt=0.4, time_constant_seconds=40.0) if features.heats else None
    devices = [
        make_device(loads={"training": load, "light": light}, pairs=pairs, thermal=thermal),
        make_device("other", loads={"training": light}, free_watts=25.0, thermal=thermal),
    ]
    if features.slices:
        sliced = random.choice(((0,), (1,), (0, 1)))
        for number in sliced:
            devices[number] = mig_slice(devices[number], random.choice(tuple(MEMORY_EIGHTHS)))
    return make_world(
        *pools,
        devices=devices,
        partitions=tuple(partitions),
        discipline=Discipline(order=features.order, backfill=features.backfill),
        backfill_interval_seconds=random.choice((0.0, 0.0, 30.0)),
        requeue=random.random() < 0.8,
        launch_seconds=random.choice((0.0, 3.0)),
        ingresses=("door",) if features.routes else (),
        latency_seconds={("door", "north"): 0.5, ("door", "south"): 7.0},
        **_disturbances(names, random, features),
    )


def _pool(name: str, random: Random, features: Features) -> Pool:
    settings = SuspendSettings(
        idle_seconds=random.choice((0.0, 20.0)),
        resume_seconds=random.choice((0.0, 15.0)),
        suspended_watts=4.0,
        resume_watts=120.0,
    )
    host = random.choice((0.0, 60.0))
    return make_pool(
        name,
        device=random.choice(("gpu", "gpu", "other")),
        nodes=random.randint(1, 3),
        gpus_per_node=random.randint(1, 4),
        cpus_per_node=random.choice((0, 8)),
        memory_gib_per_node=random.choice((float("inf"), 50.0)),
        host_idle_watts=host,
        host_busy_watts=host * random.choice((1.0, 1.5)),
        link_gigabytes_per_second=10.0,
        link_joules_per_gigabyte=2.0,
        suspend=settings if features.suspends and random.random() < 0.8 else None,
        jobs_per_gpu=2 if features.shares else 1,
        region=random.choice(("north", "south")),
    )


def _disturbances(names: list[str], random: Random, features: Features) -> dict[str, object]:
    found: dict[str, object] = {}
    if features.fails:
        found["failures"] = FailureRates(node_mtbf_seconds=600.0, gpu_mtbf_seconds=900.0, mean_repair_seconds=60.0)
        found["outages"] = tuple(
            Outage(
                pool=random.choice(names),
                at_seconds=random.choice((0.0, 33.0, 120.0)),
                until_seconds=random.choice((150.0, 400.0)),
                nodes=random.randint(0, 2),
                gpus=random.randint(0, 2),
            )
            for _ in range(2)
        )
    if features.changes:
        found["congestion"] = steps_of(1.0, 0.3, 0.8, every=40.0)
        found["power_budget_watts"] = steps_of(900.0, 300.0, every=70.0)
        found["price_per_kwh"] = {"north": steps_of(0.1, 0.4, every=55.0), "": steps_of(0.2, every=1.0)}
        found["carbon_grams_per_kwh"] = {"south": steps_of(300.0, 100.0, every=35.0)}
    if features.heats:
        found["ambient_celsius"] = steps_of(25.0, 45.0, 20.0, every=90.0)
    return found


def random_jobs(features: Features, world: World, count: int) -> list[Job]:
    """Return jobs with every kind of request."""
    random = Random(features.seed + 1)
    times = sorted(random.choice((0.0, 10.0, round(random.uniform(0.0, 200.0), 2))) for _ in range(count))
    return [_job(number, time, random, world) for number, time in enumerate(times)]


def _job(number: int, submitted: float, random: Random, world: World) -> Job:
    earlier = list(range(max(0, number - 5), number + 1))
    least = random.randint(1, 3)
    return make_job(
        number,
        submitted=submitted,
        units=random.choice((0.0, 1.0, round(random.uniform(1.0, 150.0), 3))),
        gpus=random.choice(((least,), (least,), tuple(range(least, least + 3)))),
        kind=random.choice(("training", "training", "light")),
        time_limit_seconds=random.choice((float("inf"), 20.0, 120.0)),
        priority=random.choice((0.0, 0.0, 1.0)),
        partitions=random.choice(((), (), (random.choice(world.partitions).name,))),
        cpus=random.choice((0, 1, 4)),
        memory_gib=random.choice((0.0, 0.1, 13.7)),
        exclusive=random.random() < 0.1,
        spread=random.random() < 0.2,
        shareable=random.random() < 0.7,
        after_ok=(random.choice(earlier),) if random.random() < 0.1 else (),
        after_any=(random.choice(earlier),) if random.random() < 0.1 else (),
        input_gigabytes=random.choice((0.0, 0.0, 20.0)),
        array_id=random.choice((None, None, 1)),
        array_limit=2,
        requeue=random.random() < 0.9,
        fails_after_units=random.choice((float("inf"), float("inf"), float("inf"), 5.0)),
        checkpoint_units=random.choice((float("inf"), 4.0)),
        deadline_seconds=random.choice((float("inf"), 300.0)),
        max_slowdown=random.choice((float("inf"), 0.5)),
    )
