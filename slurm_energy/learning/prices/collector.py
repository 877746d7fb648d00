"""Episodes of exploring prices: what each job was priced at, and what it really cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.job import EnergyMode
from slurm_energy.graph.blocks import Floats
from slurm_energy.learning.experience import Weights
from slurm_energy.learning.prices.settings import PriceEpisodeSettings
from slurm_energy.policy.gnn.cache import whole_blocks
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import Blocks, HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.priced_answers import Look, PricedRule
from slurm_energy.policy.gnn.serving import NetworkPrices, ServedPrices
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import (
    ClusterView,
    PlaceInfo,
    Placement,
    Postponement,
)
from slurm_energy.policy.prices import JOB_PRICES
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Allocation, Job, JobRun
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.workloads.registry import create_workload
from slurm_energy.twin.world import World
from slurm_energy.twin.world.file import find_world

_Array = NDArray[np.float32]
_WAIT_SECONDS = 3600.0
"""What waiting within about that time after a decision can be blamed on it."""
_MIN_SHARE = 1e-6
_Node = tuple[int, int]
"""Pool and number of the node."""


class PricedStep(NamedTuple):
    """One job's prices and its bill."""

    state: int
    """Index of the look at the cluster."""
    job_x: Floats
    """[PRICED_JOB]."""
    job_raw: _Array
    """What was tried, [prices]."""
    device_raw: _Array
    """[partitions]."""
    job_mean: _Array
    """What the network said."""
    device_mean: _Array
    cost: float
    """What the job really cost over what its cheapest option promised."""
    waiting: float
    """What jobs waited soon after, in the same terms."""
    weight: float = 1.0
    """What its cheapest option promised over the episode's mean: costs are shares of it, and what counts is joules."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedEpisode:
    """All jobs of an episode that ran to their end."""

    states: tuple[Blocks, ...]
    steps: tuple[PricedStep, ...]
    cost_per_job: float
    """What all these jobs cost over what their cheapest options promised: the figure to make small."""


class _Open(NamedTuple):
    """A job that runs."""

    step: PricedStep
    promised: float
    """Cost of the cheapest option at the rule's prices, J."""
    time_watts: float
    slowdown_joules: float
    default_seconds: float
    """Run time expected at the default clock of the same devices."""
    wake_joules: float
    free_watts: float
    busy_watts: float
    device_watts: float
    """What one more device was worth to all others at that time: the rule's price of devices."""


class ExploringPriceRule(PricedRule):
    """Tries prices around those of the network, and writes every job's bill.

    A job's bill is its devices' energy beyond being free, its share of the nodes that it kept awake (`NodeShares`),
    waking, its devices at the rule's price of them, which is what others would have saved with them, and its time and
    slowdown at what they are worth. So what a price does is known from the job itself, up to sharing nodes; what it
    does to others, waiting, is the discounted wait of all jobs after it.
    """

    def __init__(self, network: HierarchicalNetwork, settings: PriceEpisodeSettings, generator: Random) -> None:
        super().__init__(
            partial(ServedPrices if settings.by_mode else NetworkPrices, network),
            EnergyMode.BALANCED
            if settings.by_mode
            else TotalCostSettings(time_watts=settings.time_watts, slowdown=settings.slowdown),
            refresh_seconds=settings.refresh_seconds,
        )
        self._episode = settings
        self._generator = generator
        self.states: list[Blocks] = []
        self.closed: list[tuple[float, PricedStep]] = []
        """Time of the start, and the step."""
        self._step: PricedStep | None = None
        """Of the job that was priced last."""
        self._shares = NodeShares(())
        self._open: dict[int, _Open] = {}
        self._started: dict[int, float] = {}
        self._waits: list[tuple[float, int]] = []
        """Time, and number of jobs that wait from then on."""

    def begin(self, view: ClusterView, random: Random) -> None:
        """Begin a run."""
        super().begin(view, random)
        self._shares = NodeShares(view.places)

    def raw_prices(self, job: WaitingJob, job_x: Floats, look: Look) -> tuple[_Array, _Array]:
        """Return prices around those of the network."""
        job_mean, device_mean = super().raw_prices(job, job_x, look)
        draw, noise = self._generator.gauss, self._episode.noise
        explored = [0.0 if name in self._episode.fixed else draw(0.0, noise) for name in JOB_PRICES]
        job_raw = job_mean + np.array(explored, dtype=np.float32)
        device_raw = device_mean + np.array([draw(0.0, noise) for _ in device_mean], dtype=np.float32)
        self._step = PricedStep(
            len(self.states) - 1, job_x, job_raw, device_raw, job_mean, device_mean, cost=0.0, waiting=0.0
        )
        return job_raw, device_raw

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:
        """Count who waits."""
        self._waits.append((view.now_seconds, view.num_waiting))
        return super().route(job, view)

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Start a job, and open its bill."""
        placement = super().place(job, view)
        self._waits.append((view.now_seconds, view.num_waiting))
        if isinstance(placement, Placement):
            self._open_bill(job, view, placement)
        return placement

    def ended(self, job: EndedJob) -> None:
        """Close a job's bill."""
        super().ended(job)
        assert isinstance(job, JobRun)
        self._shares.end(job.job_id, job.ended_seconds)
        bill = self._open.get(job.job_id)
        if bill is not None and job.state in {"COMPLETED", "TIMEOUT"}:
            self._started[job.job_id] = job.first_started_seconds
            spent = job.energy_joules
            spent += (bill.busy_watts + bill.device_watts - bill.free_watts) * job.gpu_seconds
            slowdown = (job.run_seconds + job.first_started_seconds - job.eligible_seconds) / bill.default_seconds
            spent += bill.wake_joules + bill.time_watts * job.run_seconds + bill.slowdown_joules * slowdown
            if job.state == "TIMEOUT" or job.ended_seconds > job.job.deadline_seconds:
                spent += self._episode.miss * bill.promised
            self._open[job.job_id] = bill._replace(step=bill.step._replace(cost=spent))
        else:
            self._open.pop(job.job_id, None)

    def steps(self, end_seconds: float) -> tuple[list[PricedStep], float]:
        """Return the bills of all jobs that ended, and what they cost together over what was promised."""
        self._shares.close(end_seconds)
        waiting = _discounted(self._waits, end_seconds)
        found, total, promised = [], 0.0, 0.0
        for job_id, started in self._started.items():
            bill = self._open.get(job_id)
            if bill is None:
                continue
            spent = bill.step.cost + self._shares.joules.get(job_id, 0.0)
            total, promised = total + spent, promised + bill.promised
            wait = bill.time_watts * waiting(started)
            step = bill.step._replace(cost=spent / bill.promised, waiting=wait / bill.promised, weight=bill.promised)
            found.append(step)
        mean = promised / len(found) if found else 1.0
        return [step._replace(weight=step.weight / mean) for step in found], total / promised if promised > 0.0 else 0.0

    def present_look(self, job: WaitingJob, view: ClusterView) -> Look:
        """Return the look that counts now; keep the cluster of each new one."""
        before, look = self._look, super().present_look(job, view)
        if look is not before:
            assert self._source is not None
            self.states.append(whole_blocks(self._source.graph))
        return look

    def _open_bill(self, job: WaitingJob, view: ClusterView, placement: Placement) -> None:
        assert isinstance(view, TwinView)
        assert isinstance(job, Job)
        assert self._step is not None
        info = view.places[placement.place]
        pool_index = view.twin_places[placement.place].pool_index
        pool = view.pools[pool_index]
        table = view.options(job)
        column = table.count_index(placement.gpus)
        seconds = table.seconds_per_unit[placement.place, column]
        options = self._options(job, view)
        base = self.base_prices(job, view, options)
        least = options.min_cost(job.estimated_units, base)
        self._open[job.job_id] = _Open(
            step=self._step,
            promised=max(least, _MIN_SHARE),
            time_watts=base.time_watts,
            slowdown_joules=base.slowdown_joules,
            default_seconds=max(1.0, job.estimated_units * float(seconds[np.isfinite(seconds)][-1])),
            wake_joules=view.wakeup_joules(placement.place, placement.gpus),
            free_watts=info.free_watts,
            busy_watts=info.busy_watts,
            device_watts=float(base.device_watts[placement.place]),
        )
        self._started.pop(job.job_id, None)
        allocation = pool.find(job, placement.gpus, wish=placement.node)
        self._shares.end(job.job_id, view.now_seconds)
        if allocation:
            self._shares.start(job.job_id, placement.place, pool_index, allocation, view.now_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceCollector:
    """Runs episodes with a network's prices."""

    config: NetworkConfig
    settings: PriceEpisodeSettings

    def __call__(self, weights: Weights, *, seed: int) -> Sequence[PricedEpisode]:
        """Return one episode; its world follows from the seed."""
        network = create_network(self.config, seed=0)
        network.load_state_dict(dict(weights))
        return [price_episode(network.eval(), self.settings, seed)]


def price_episode(network: HierarchicalNetwork, settings: PriceEpisodeSettings, seed: int) -> PricedEpisode:
    """Return one episode of exploring prices."""
    generator = Random(seed)  # noqa: S311  # a simulation
    settings = settings.in_turn(seed)
    world = find_world(settings.world)
    load = generator.uniform(settings.load_from, settings.load_to)
    workload = create_workload(world.workload, _generator_settings(world, settings.hours, load), seed)
    rule = ExploringPriceRule(network, settings, generator)
    outcome = run(world, workload, rule, seed=seed, horizon_seconds=settings.hours * 3600.0)
    steps, cost = rule.steps(outcome.end_seconds)
    kept = np.linspace(0, len(steps) - 1, min(len(steps), settings.max_jobs)).astype(int).tolist()
    return PricedEpisode(states=tuple(rule.states), steps=tuple(steps[index] for index in kept), cost_per_job=cost)


def _generator_settings(world: World, hours: float, load: float) -> dict[str, float | int | str]:
    settings = {**world.workload_settings, "hours": hours}
    if load != 1.0 and isinstance(settings.get("rate_per_second"), int | float):
        settings["rate_per_second"] = float(settings["rate_per_second"]) * load
    return settings


class _DiscountedWait:
    """Discounted job-seconds of waiting from a time on."""

    def __init__(self, seconds: NDArray[np.float64], after: NDArray[np.float64]) -> None:
        self._seconds, self._after = seconds, after

    def __call__(self, time: float) -> float:
        index = int(np.searchsorted(self._seconds, time, side="right")) - 1
        return float(self._after[index]) if index >= 0 else 0.0


def _discounted(waits: Sequence[tuple[float, int]], end_seconds: float) -> _DiscountedWait:
    """Return the wait after each time, discounted over `_WAIT_SECONDS`: sum of count x tau (1 - exp(-dt / tau))."""
    seconds = np.array([time for time, _ in waits] + [end_seconds])
    counts = np.array([float(count) for _, count in waits] + [0.0])
    after = np.zeros(len(seconds))
    for index in range(len(seconds) - 2, -1, -1):
        decay = exp(-(seconds[index + 1] - seconds[index]) / _WAIT_SECONDS)
        after[index] = counts[index] * _WAIT_SECONDS * (1.0 - decay) + decay * after[index + 1]
    return _DiscountedWait(seconds, after)


class _Occupied:
    """One node's jobs and since when they are these."""

    __slots__ = ("gpus", "last_job", "since")

    def __init__(self) -> None:
        self.gpus: dict[int, int] = {}
        self.since = 0.0
        self.last_job = -1


class NodeShares:
    """Charges what a node draws beyond a suspended one to its jobs by their devices.

    The time until it is suspended is charged to the last job that left it. All charges together are what awake nodes
    drew, but for waking.
    """

    def __init__(self, places: Sequence[PlaceInfo]) -> None:
        self._places = places
        self._nodes: dict[_Node, _Occupied] = {}
        self._of_job: dict[int, tuple[int, list[_Node]]] = {}
        self.joules: dict[int, float] = {}
        """By job."""

    def start(self, job_id: int, place: int, pool: int, allocation: Allocation, now: float) -> None:
        """Let a job take its devices."""
        if self._places[place].node_watts <= 0.0:
            return
        nodes = []
        for number, gpus, _ in allocation:
            node = pool, number
            occupied = self._nodes.setdefault(node, _Occupied())
            self._charge(occupied, place, now)
            occupied.gpus[job_id] = gpus
            nodes.append(node)
        self._of_job[job_id] = place, nodes

    def end(self, job_id: int, now: float) -> None:
        """Let a job give its devices back."""
        place, nodes = self._of_job.pop(job_id, (-1, []))
        for node in nodes:
            occupied = self._nodes[node]
            self._charge(occupied, place, now)
            del occupied.gpus[job_id]
            occupied.last_job = job_id

    def close(self, now: float) -> None:
        """Charge everything until the end of the run."""
        for job_id in list(self._of_job):
            self.end(job_id, now)

    def _charge(self, occupied: _Occupied, place: int, now: float) -> None:
        """Charge a node since its last change."""
        info, passed = self._places[place], now - occupied.since
        occupied.since = now
        if occupied.gpus:
            total = sum(occupied.gpus.values())
            for job_id, gpus in occupied.gpus.items():
                self._add(job_id, info.node_watts * passed * gpus / total)
        elif occupied.last_job >= 0:
            self._add(occupied.last_job, info.node_watts * min(passed, info.idle_seconds))
            occupied.last_job = -1

    def _add(self, job_id: int, joules: float) -> None:
        self.joules[job_id] = self.joules.get(job_id, 0.0) + joules
