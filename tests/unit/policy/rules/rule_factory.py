"""A small cluster as rules see it, for tests: its arithmetic is the published world's, its state is set by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.policy.jobs import PartnerOffer, Submission, WaitingJob
from slurm_energy.policy.placement import SIMULATED, Capabilities, OptionTable, PlaceInfo, PlaceNode

CLOCKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COUNTS = tuple(range(1, 9))


@dataclass
class Device:
    """Coefficients P = a f^3 + b f + g and T = (t + u / f + w n) / n, as in the published world."""

    name: str
    power: tuple[float, float, float]
    time: tuple[float, float, float]
    free_watts: float
    clocks: tuple[float, ...] = CLOCKS
    is_cpu: bool = False

    def watts(self, clock: float) -> float:
        cubic, linear, constant = self.power
        return cubic * clock**3 + linear * clock + constant

    def seconds(self, gpus: int, clock: float) -> float:
        fixed, compute, per_device = self.time
        single = fixed + compute / clock
        return single if gpus == 1 else (single + per_device * gpus) / gpus


H100 = Device("h100", (75.0, 80.0, 110.0), (0.0045, 0.032, 0.0012), 28.0)
L4 = Device("l4", (45.0, 20.0, 40.0), (0.0065, 0.060, 0.0022), 8.0)
A30 = Device("a30", (50.0, 35.0, 65.0), (0.0062, 0.050, 0.0019), 12.0)
A10 = Device("a10", (40.0, 25.0, 50.0), (0.0068, 0.055, 0.0023), 10.0)
TWO_CLOCKS = Device("old", (60.0, 30.0, 60.0), (0.006, 0.09, 0.002), 20.0, clocks=(0.6, 1.0))


@dataclass
class FakeJob:
    """A waiting job; also has the truth, which only a clairvoyant may read."""

    job_id: int = 1
    kind: str = "training"
    gpu_counts: tuple[int, ...] = COUNTS
    submitted_seconds: float = 0.0
    estimated_units: float = 50_000.0
    true_units: float = 50_000.0
    time_limit_seconds: float = inf
    deadline_seconds: float = inf
    max_slowdown: float = inf
    priority: float = 0.0
    user: str = "alice"
    account: str = "lab"
    name: str = "train"
    routed_place: int | None = None


@dataclass
class FakeRun:
    """A running or ended job."""

    job_id: int
    place: int = 0
    gpus: int = 8
    clock: int = 7
    started_seconds: float = 0.0
    watts: float = 0.0
    kind: str = "training"
    account: str = "lab"
    name: str = "train"
    run_seconds: float = 1.0
    energy_joules: float = 1.0
    state: str = "COMPLETED"
    units: float = 1.0
    ended_seconds: float = 0.0
    deadline_seconds: float = inf


def make_table(devices: Sequence[Device], gpu_counts: tuple[int, ...] = COUNTS) -> OptionTable:
    shape = (len(devices), len(gpu_counts), max(len(device.clocks) for device in devices))
    seconds, watts, free = np.full(shape, inf), np.full(shape, inf), np.zeros(shape)
    for place, device in enumerate(devices):
        for count, gpus in enumerate(gpu_counts):
            for index, clock in enumerate(device.clocks):
                seconds[place, count, index] = device.seconds(gpus, clock)
                watts[place, count, index] = gpus * device.watts(clock)
            free[place, count, :] = gpus * device.free_watts
    return OptionTable(
        gpu_counts=gpu_counts, seconds_per_unit=seconds, watts=watts, free_watts=free, joules_per_unit=seconds * watts
    )


@dataclass
class FakeView:
    """A cluster whose places have one big node each."""

    devices: Sequence[Device] = (H100, L4, A30)
    totals: Sequence[int] = (16, 128, 512)
    free_gpus: list[int] = field(default_factory=list)
    now_seconds: float = 0.0
    power_watts: float = 0.0
    coming_watts: float = 0.0
    power_budget_watts: float = inf
    num_waiting: int = 0
    running: list[FakeRun] = field(default_factory=list)
    wake: dict[int, float] = field(default_factory=dict)
    """Joules of a start by place."""
    forbidden: tuple[int, ...] = ()
    offers: list[PartnerOffer] = field(default_factory=list)
    capabilities: Capabilities = SIMULATED

    def __post_init__(self) -> None:
        self.free_gpus = self.free_gpus or list(self.totals)
        self.waiting_jobs = [0] * len(self.devices)
        self.tables: dict[tuple[int, ...], OptionTable] = {}
        self.places = [
            PlaceInfo(
                name=f"{device.name}-{index}",
                partition=device.name,
                device=device.name,
                total_gpus=total,
                gpus_per_node=total,
                relative_clocks=device.clocks,
                free_watts=device.free_watts,
                is_cpu=device.is_cpu,
            )
            for index, (device, total) in enumerate(zip(self.devices, self.totals, strict=True))
        ]

    def room(self, job: WaitingJob) -> list[int]:
        return [
            max((gpus for gpus in job.gpu_counts if gpus <= free), default=0)
            if place not in self.forbidden and job.routed_place in {None, place}
            else 0
            for place, free in enumerate(self.free_gpus)
        ]

    def allowed_places(self, job: WaitingJob) -> tuple[int, ...]:
        return tuple(place for place in range(len(self.devices)) if place not in self.forbidden)

    def options(self, job: WaitingJob) -> OptionTable:
        if job.gpu_counts not in self.tables:
            self.tables[job.gpu_counts] = make_table(self.devices, job.gpu_counts)
        return self.tables[job.gpu_counts]

    def partners(self, job: WaitingJob) -> list[PartnerOffer]:
        return self.offers

    def running_jobs(self) -> list[FakeRun]:
        return self.running

    def carbon_grams_per_kwh(self, place: int) -> float:
        return 0.0

    def price_per_kwh(self, place: int) -> float:
        return 0.0

    def wakeup_joules(self, place: int, gpus: int) -> float:
        return self.wake.get(place, 0.0)

    def opened_nodes(self, place: int, gpus: int) -> int:
        return int(self.free_gpus[place] == self.totals[place])

    def nodes(self, place: int) -> list[PlaceNode]:
        return [PlaceNode(0, self.free_gpus[place], is_awake=True, ends_seconds=())]

    def criticality(self, job: WaitingJob) -> float:
        return 1.0

    def snapshot_without(self, job: WaitingJob) -> ClusterSnapshot:
        raise AssertionError("no rule without a network reads a snapshot")

    def submission(self, job: WaitingJob) -> Submission:
        raise AssertionError("no rule without a network reads a request")


def make_view(**changes: Any) -> FakeView:
    return FakeView(**changes)


def make_job(**changes: Any) -> FakeJob:
    return FakeJob(**changes)
