"""A cluster on which the best choice for every job is known: two kinds of work, each cheaper on another device type."""

from math import inf
from random import Random

import numpy as np
from small_worlds import make_device, make_job, make_load, make_pool, make_world

from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import option_table
from slurm_energy.twin.world import Partition

OLD = make_device(
    "old",
    loads={
        "training": make_load(watts=(60.0, 90.0, 150.0)),
        "matrix": make_load(watts=(120.0, 200.0, 330.0), seconds_per_unit=(6.0, 3.0, 1.5)),
    },
)
NEW = make_device(
    "new",
    loads={
        "training": make_load(watts=(160.0, 240.0, 300.0), seconds_per_unit=(2.8, 1.6, 0.8)),
        "matrix": make_load(watts=(80.0, 120.0, 180.0), seconds_per_unit=(3.0, 1.4, 0.7)),
    },
)
TOY = make_world(
    make_pool("old", device="old", nodes=2),
    make_pool("new", device="new", nodes=2),
    devices=(OLD, NEW),
    partitions=(Partition(name="old", pools=("old",), is_default=True), Partition(name="new", pools=("new",))),
)


def toy_jobs(seed: int, count: int = 200, *, rate_per_second: float = 0.002) -> Workload:
    """Return malleable jobs; at the default rate there is room everywhere: the optimum is each job's own."""
    random, now, found = Random(seed), 0.0, []
    for number in range(count):
        now += random.expovariate(rate_per_second)
        kind = random.choice(["training", "matrix"])
        units = random.uniform(30.0, 150.0)
        found.append(
            make_job(number + 1, submitted=now, units=units, gpus=(1, 2, 4), kind=kind, partitions=("old", "new"))
        )
    return Workload(name="jobs", jobs=tuple(found))


def least_active_joules(workload: Workload) -> float:
    """Return the least energy beyond being free that any choice of place, count and clock can give these jobs."""
    total = 0.0
    for job in workload.jobs:
        table = option_table(TOY, job.kind, job.gpu_counts)
        known = np.isfinite(table.seconds_per_unit)
        active = np.where(known, (table.watts - table.free_watts) * np.where(known, table.seconds_per_unit, 0.0), inf)
        total += job.true_units * float(active.min())
    return total


def active_joules(outcome: Outcome) -> float:
    """Return what the jobs drew beyond what the same devices draw while they are free."""
    free = [OLD.free_watts, NEW.free_watts]
    return float(
        sum(
            energy - gpus * free[place] * seconds
            for energy, gpus, place, seconds in zip(
                outcome.energy_joules, outcome.gpus, outcome.place, outcome.run_seconds, strict=True
            )
        )
    )
