"""Small clusters, jobs and simple rules for the tests of the simulated cluster; every number can be followed by hand.

One device computes 1 unit in 1 s at its highest clock and draws 200 W, free 10 W, with a context that waits for data
30 W; n devices of one node are n times as fast.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import numpy as np

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, Postponement
from slurm_energy.twin.engine.events import WorkloadArrivals
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.loop import Answer, Engine
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world import Partition, Pool, Series, World
from slurm_energy.twin.world.device_model import DeviceModel, Load

BUSY_WATTS, FREE_WATTS, CONTEXT_WATTS = 200.0, 10.0, 30.0
CLOCKS = (0.25, 0.5, 1.0)
WATTS = (60.0, 100.0, BUSY_WATTS)
SECONDS = (4.0, 2.0, 1.0)


def make_load(**changes: Any) -> Load:
    """Return a load of 200 W and 1 s per unit at the highest clock, 100 W and 2 s at half, 60 W and 4 s at 0.25."""
    return Load(**{"watts": WATTS, "seconds_per_unit": SECONDS, **changes})


def make_device(name: str = "gpu", **changes: Any) -> DeviceModel:
    """Return a device that runs the kind `training`."""
    values: dict[str, Any] = {
        "relative_clocks": CLOCKS,
        "loads": {"training": make_load()},
        "free_watts": FREE_WATTS,
        "context_watts": CONTEXT_WATTS,
    }
    return DeviceModel(name=name, **{**values, **changes})


def make_pool(name: str = "pool", **changes: Any) -> Pool:
    """Return a pool of one node with four devices."""
    return Pool(name=name, **{"device": "gpu", "nodes": 1, "gpus_per_node": 4, **changes})


def make_world(*pools: Pool, devices: Iterable[DeviceModel] = (), **changes: Any) -> World:
    """Return a world of these pools, each a partition of its own unless partitions are given."""
    pools = pools or (make_pool(),)
    partitions = tuple(Partition(name=pool.name, pools=(pool.name,)) for pool in pools)
    known = {device.name: device for device in (tuple(devices) or (make_device(),))}
    return World(**{"name": "small", "devices": known, "pools": pools, "partitions": partitions, **changes})


def make_job(
    job_id: int, submitted: float = 0.0, units: float = 100.0, gpus: int | tuple[int, ...] = 1, **changes: Any
) -> Job:
    """Return a job; a tuple of device counts makes it malleable."""
    counts = (gpus,) if isinstance(gpus, int) else gpus
    return Job(job_id=job_id, submitted_seconds=submitted, true_units=units, gpu_counts=counts, **changes)


def steps_of(*values: float, every: float) -> Series:
    """Return a series with a new value at each multiple of a time."""
    return Series(times_seconds=tuple(every * index for index in range(len(values))), values=values)


class FirstFit(PlacementRule):
    """Starts a job in its first place with room, with as many devices as fit, at one clock."""

    name = "first-fit"

    def __init__(self, clock: int = -1) -> None:
        self.clock = clock

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        for place, gpus in enumerate(view.room(job)):
            if gpus:
                return Placement(place, gpus, self.clock)
        return None


class Answers(PlacementRule):
    """Answers by functions of job and view; what is not given stays with first fit."""

    name = "answers"

    def __init__(
        self,
        place: Callable[[WaitingJob, ClusterView], Placement | Postponement | None] | None = None,
        route: Callable[[WaitingJob, ClusterView], int | tuple[int, ...] | None] | None = None,
        control: Callable[[ClusterView], dict[int, int]] | None = None,
        control_interval_seconds: float | None = None,
    ) -> None:
        self._place: Callable[[WaitingJob, ClusterView], Placement | Postponement | None] = place or FirstFit().place
        self._route = route
        self._control = control
        self.routes = route is not None
        self.control_interval_seconds = control_interval_seconds

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        return self._place(job, view)

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | None:
        return None if self._route is None else self._route(job, view)

    def control(self, view: ClusterView) -> dict[int, int]:
        return {} if self._control is None else self._control(view)


class Beside(FirstFit):
    """Shares a GPU with the first running job of place 0 whenever the guard lets it; else first fit."""

    name = "beside"

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        alone = super().place(job, view)
        if alone is not None:
            return alone
        running = view.running_jobs()
        return Placement(running[0].place, 1, self.clock, partner=running[0].job_id) if running else None


class RandomRule(PlacementRule):
    """Answers by chance, sometimes with what cannot be."""

    name = "random"

    def __init__(
        self, *, routes: bool = False, shares: bool = False, control_interval_seconds: float | None = None
    ) -> None:
        self.routes = routes
        self.shares = shares
        self.control_interval_seconds = control_interval_seconds
        self._random = Random(0)

    def begin(self, view: ClusterView, random: Random) -> None:
        self._random = random

    def route(self, job: WaitingJob, view: ClusterView) -> int | tuple[int, ...] | None:
        return self._random.choice((*view.allowed_places(job), None, (0, 2)))

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        random = self._random
        running = view.running_jobs()
        if self.shares and running and random.random() < 0.7:
            partner = random.choice(running)
            return Placement(partner.place, 1, -1, partner=partner.job_id)
        open_places = [place for place, gpus in enumerate(view.room(job)) if gpus]
        if not open_places:
            return None
        return Placement(random.choice(open_places), random.choice((*job.gpu_counts, 99)), random.randint(-1, 3))

    def control(self, view: ClusterView) -> dict[int, int]:
        return {job.job_id: self._random.randint(-1, 3) for job in view.running_jobs()}


def run_jobs(world: World, jobs: Iterable[Job], rule: PlacementRule | None = None, **options: Any) -> Outcome:
    """Return what a rule, first fit by default, makes of jobs."""
    return run(world, Workload(name="small", jobs=tuple(jobs)), rule or FirstFit(), **options)


def make_engine(
    world: World, jobs: Iterable[Job], rule: PlacementRule, *, seed: int = 0, horizon: float | None = None
) -> Engine:
    """Return an engine to be driven step by step."""
    engine = Engine(
        world,
        WorkloadArrivals(tuple(jobs)),
        seed=seed,
        discipline=rule.discipline,
        routes=rule.routes,
        control_interval_seconds=rule.control_interval_seconds,
        horizon_seconds=horizon,
    )
    rule.begin(engine.view, Random(seed))
    return engine


def drive(engine: Engine, rule: PlacementRule, look: Callable[[Engine], None]) -> None:
    """Let a rule answer to the end, looking at the engine before every answer."""
    steps = engine.steps()
    answer: Answer = None
    try:
        job = next(steps)
        while True:
            look(engine)
            if job is None:
                engine.change_clocks(rule.control(engine.view))
                answer = None
            elif engine.deciding == "route":
                answer = rule.route(job, engine.view)
            else:
                answer = rule.place(job, engine.view)
            job = steps.send(answer)
    except StopIteration:
        look(engine)


def started(outcome: Outcome) -> dict[int, float]:
    """Return each job's first start, by id."""
    return dict(zip(outcome.job_id.tolist(), outcome.started_seconds.tolist(), strict=True))


def ended(outcome: Outcome) -> dict[int, float]:
    """Return each job's end, by id."""
    return dict(zip(outcome.job_id.tolist(), outcome.ended_seconds.tolist(), strict=True))


def states(outcome: Outcome) -> dict[int, str]:
    """Return each job's state, by id."""
    return dict(zip(outcome.job_id.tolist(), outcome.state, strict=True))


def joules(outcome: Outcome) -> dict[int, float]:
    """Return each job's energy, by id."""
    return dict(zip(outcome.job_id.tolist(), outcome.energy_joules.tolist(), strict=True))


def same(first: Outcome, second: Outcome) -> bool:
    """Return whether two outcomes are equal in everything but the time that decisions took."""
    for name in Outcome.__dataclass_fields__:
        if name == "decision_seconds":
            continue
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, np.ndarray):
            if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
                return False
        elif one != other:
            return False
    return True
