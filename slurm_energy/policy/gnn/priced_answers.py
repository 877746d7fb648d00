"""The answers of a network of prices at one moment: plain values, so that they can be given in another process.

Torch works out the prices of a moment; what is left for a job is the rule of the least total cost at those prices, the
same that the simulated cluster runs and trains. The answering process does it itself, and a job waits for no other
process (daemon/remote_policy.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.job_features import LIMIT_SHARE, JobWishes, submitted_vector
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import (
    ClusterView,
    Explanation,
    FloatArray,
    OptionTable,
    PlaceInfo,
    Placement,
    PlacementRule,
)
from slurm_energy.policy.prices import (
    BALANCED_PRICES,
    JOB_PRICES,
    MODE_PRICES,
    ModePrices,
    price_factors,
    relative_joules,
)
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.tables import Prepared
from slurm_energy.policy.submission.adapter import SubmissionAdapter
from slurm_energy.policy.submission.view import SnapshotView, SubmittedJob

_CRITICALITY = 1.0
"""No job waits for one that is only being submitted: its whole delay reaches its own end."""
_prepared: list[tuple[Sequence[PlaceInfo], Prepared[CostTable]]] = []
"""Tables of the places that were seen last: each look at the cluster makes another policy, of the same places."""
_Array = NDArray[np.float32]
SLOPE = 0.1
"""Of the head's units below 0. With 0, a few rounds of noisy bills push every unit below it in all states, where it has
no gradient: what is left of the network then is the bias of its last layer, the same price in every state."""


class PublishedPrices(NamedTuple):
    """What a network's head of prices and its look at the cluster come down to; the formula is `PriceHead`'s."""

    state: _Array
    """What the state adds to the first layer, [hidden]."""
    device_raw: _Array
    """Raw price of devices by partition, [partitions]."""
    job: _Array
    """Weights of the job's columns, [hidden, PRICED_JOB]."""
    between: _Array
    """[hidden, hidden]."""
    between_bias: _Array
    last: _Array
    """[prices, hidden]."""
    last_bias: _Array

    @property
    def is_finite(self) -> bool:
        """Whether the state's part of the prices is."""
        return bool(np.isfinite(self.state).all() and np.isfinite(self.device_raw).all())

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job, [prices].

        Args:
            job_x: Its columns with what is known beside them, [PRICED_JOB].
        """
        first = _leaky(self.state + self.job @ job_x)
        raw: _Array = self.last @ _leaky(self.between @ first + self.between_bias) + self.last_bias
        return raw


def _leaky(x: _Array) -> _Array:
    found: _Array = np.maximum(x, np.float32(SLOPE) * x)
    return found


class Look(NamedTuple):
    """What prices of jobs are worked out from, all of the same moment."""

    prices: PublishedPrices
    cluster_facts: ClusterFacts
    mean_joules: float
    """Of the jobs that wait or run; NaN when no length is known."""


class _Asked(NamedTuple):
    """What a job pays, and by what the network multiplied it."""

    prices: Prices
    job: Mapping[str, float]
    """Factors by price."""
    devices: FloatArray
    """Factors by place."""
    base: ModePrices


class PricedRule(PlacementRule):
    """Least total cost: energy as it is, the rest at the prices of the job's mode times the network's factors.

    It is made for one job, which asks it several times: what the network says of the job and the places is kept.
    """

    name = "gnn"

    def __init__(self, version: str, default_mode: EnergyMode, look: Look) -> None:
        self.version = version
        self._default_mode = default_mode
        self._look = look
        self._job_factors: dict[float, FloatArray] = {}
        """By the job's energy, on which they depend."""
        self._device_factors: FloatArray | None = None
        """By place."""

    def begin(self, view: ClusterView, random: Random) -> None:
        """Keep nothing: all that is known is the look."""

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option of the least cost; limits of time are the guard's.

        Raises:
            PolicyError: the network's prices are not finite.
        """
        options = _options(view.places, view.options(job))
        return options.choose(_priced(job), self._asked(job, view, options).prices, view.room(job), view)

    def explained(self, job: WaitingJob, view: ClusterView) -> Explanation:
        """Return the costs of the places with room, and the factors of the prices that count for the cheapest."""
        options = _options(view.places, view.options(job))
        asked = self._asked(job, view, options)
        costs = options.place_costs(_priced(job), asked.prices, view.room(job), view)
        if not costs:
            return Explanation((), {})
        parts, place = costs[0].parts, costs[0].place
        priced = {
            "time": asked.base.time_watts > 0.0,
            "slowdown": asked.base.slowdown > 0.0,
            "share": parts["share"] > 0.0,
            "opened_nodes": parts["opened_nodes"] > 0.0,
            "waking": parts["waking"] > 0.0,
        }
        named = zip(priced.items(), JOB_PRICES, strict=True)
        factors = {name: asked.job[price] for (name, counts), price in named if counts}
        if parts["scarcity"] > 0.0:
            factors["scarcity"] = float(asked.devices[place])
        return Explanation(costs, factors)

    def _asked(self, job: WaitingJob, view: ClusterView, options: CostTable) -> _Asked:
        assert isinstance(job, SubmittedJob)
        assert isinstance(view, SnapshotView)
        assert job.request is not None
        base = MODE_PRICES.get(job.request.options.mode or self._default_mode, BALANCED_PRICES)
        own_joules = options.min_joules_in(view.room(job)) * job.estimated_units
        own, devices = self._job_factors.get(own_joules), self._device_factors
        if own is None or devices is None:
            columns = _job_columns(job, self._look, base.time_watts, own_joules, view.now_seconds)
            own = price_factors(self._look.prices.job_raw(columns)).astype(np.float64)
            devices = _device_factors(self._look, view.places)
            if not (np.isfinite(own).all() and np.isfinite(devices).all()):
                raise PolicyError("the network's prices are not finite")
            self._job_factors[own_joules], self._device_factors = own, devices
        factors = dict(zip(JOB_PRICES, own.tolist(), strict=True))
        prices = Prices(
            time_watts=base.time_watts * factors["time_watts"],
            slowdown_joules=base.slowdown * own_joules * factors["slowdown_joules"],
            share=base.share * factors["share"],
            opened_nodes=base.opened_nodes * factors["opened_nodes"],
            waking=base.waking * factors["waking"],
            power=0.0,
            device_watts=base.scarcity * devices * _scarce_watts(job, view),
        )
        return _Asked(prices, factors, devices, base)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedAnswers:
    """A policy that stays at one moment of the cluster: partition and clock of the least cost at its prices."""

    version: str
    default_mode: EnergyMode
    look: Look
    configured: Mapping[str, str] = field(default_factory=dict)
    """[gpu_types]."""
    name: str = "gnn"

    def decide(self, case: Case) -> PolicyAnswer:
        """Return the partition of the least cost, a clock for each GPU type there, and what it costs.

        Raises:
            PolicyError: the network's prices are not finite.
        """
        rule = PricedRule(self.version, self.default_mode, self.look)
        return SubmissionAdapter(self.configured).answer(rule, case)


def _device_factors(look: Look, places: Sequence[PlaceInfo]) -> FloatArray:
    """Return the factor on the price of devices by place; a partition that is newer than the look has none."""
    index, raw = look.cluster_facts.partition_index, look.prices.device_raw
    known = [index.get(PartitionName(place.partition), -1) for place in places]
    factors: FloatArray = np.append(price_factors(raw), np.float32(1.0))[known].astype(np.float64)
    return factors


def _priced(job: WaitingJob) -> PricedJob:
    return PricedJob(units=job.estimated_units, bounds=None, spare_watts=inf)


def _options(places: Sequence[PlaceInfo], table: OptionTable) -> CostTable:
    if not _prepared or _prepared[0][0] is not places:
        costs = PlaceCosts.of(places)
        _prepared[:] = [(places, Prepared(lambda one: CostTable(one, costs)))]
    return _prepared[0][1].of(table)


def _scarce_watts(job: SubmittedJob, view: SnapshotView) -> FloatArray:
    """Return by place what a GPU draws at its highest clock where free GPUs do not suffice for all that wait, else 0.

    They must suffice for what waits in the partition and for the job, less what was promised since the snapshot.
    """
    free: dict[str, int] = {}
    for place, gpus in zip(view.places, view.free_gpus, strict=True):
        free[place.partition] = free.get(place.partition, 0) + gpus
    watts: FloatArray = np.zeros(len(view.places))
    gpus, waiting = job.gpu_counts[0], view.snapshot.waiting_gpus_by_partition
    for index in view.open_places:
        name = view.places[index].partition
        if free[name] - gpus < waiting.get(PartitionName(name), 0.0):
            finite = view.table.watts[index, 0][np.isfinite(view.table.seconds_per_unit[index, 0])]
            watts[index] = finite[-1] / gpus if finite.size else 0.0
    return watts


def _job_columns(job: SubmittedJob, look: Look, time_watts: float, own_joules: float, now_seconds: float) -> Floats:
    """Return the columns that the prices of a job depend on, [PRICED_JOB].

    Args:
        job: The job.
        look: At the cluster.
        time_watts: Base price of its time.
        own_joules: Its least energy.
        now_seconds: Unix time.
    """
    request, runtime = job.request, job.runtime
    assert request is not None
    draws = own_joules / (job.gpu_counts[0] * max(job.estimated_units, 1e-9))
    time_weight = time_watts / (time_watts + draws) if time_watts > 0.0 else 0.0
    wishes = JobWishes(max_slowdown=job.max_slowdown, time_weight=time_weight, energy_weight=1.0 - time_weight)
    own = submitted_vector(request, now_seconds, look.cluster_facts.facts, runtime=runtime, wishes=wishes)
    limit = request.time_limit_minutes
    estimate = nan if limit is None else LIMIT_SHARE * 60.0 * limit
    # The mean job's length is a share of its limit where nothing else is known: so is this one's here.
    seconds = estimate if runtime is None else runtime.seconds
    relative = relative_joules(own_joules / max(job.estimated_units, 1e-9) * seconds, look.mean_joules)
    return np.append(own, np.array([_CRITICALITY, relative], dtype=np.float32))
