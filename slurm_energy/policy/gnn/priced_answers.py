"""The answers of a network of prices at one moment: plain values, so that they can be given in another process.

Torch works out the prices of a moment; what is left for a job is the rule of the least total cost at those prices, the
same that the simulated cluster runs and trains. The answering process does it itself, and a job waits for no other
process (daemon/remote_policy.py).
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import inf, nan
from random import Random
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import PolicyAnswer
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import EnergyMode
from slurm_energy.errors import PolicyError
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.job_features import LIMIT_SHARE
from slurm_energy.graph.partitions import ClusterFacts
from slurm_energy.policy.base import Case
from slurm_energy.policy.gnn.start_options import job_columns
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable, PlaceInfo
from slurm_energy.policy.prices import (
    BALANCED_PRICES,
    JOB_PRICES,
    MODE_PRICES,
    ModePrices,
    price_factors,
    relative_joules,
)
from slurm_energy.policy.rules.cost_table import CostTable, Explanation, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.policy.rules.tables import Prepared
from slurm_energy.policy.rules.total_cost import TotalCostRule
from slurm_energy.policy.submission.adapter import SubmissionAdapter

REFRESH_SECONDS = 600.0
"""Between two looks at the cluster's state."""
_prepared: list[tuple[Sequence[PlaceInfo], Prepared[CostTable]]] = []
"""Tables of the places that were seen last: each look at the cluster makes another policy, of the same places."""
_served: "list[tuple[PricedAnswers, SubmissionAdapter, PricedRule]]" = []
"""What gave the last answers: the next job's rule begins as that one did."""
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


class JobPrices(Protocol):
    """Raw prices at one state of the cluster."""

    @property
    def device_raw(self) -> _Array:
        """Raw price of devices by partition."""
        ...

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job."""
        ...


class Look(NamedTuple):
    """What prices of jobs are worked out from, all of the same moment."""

    prices: JobPrices
    cluster_facts: ClusterFacts
    mean_joules: float | None = None
    """Of the jobs that wait or run; NaN when no length is known, None leaves it to the rule, which saw them arrive."""


class PriceSource(Protocol):
    """A network that follows one cluster."""

    @property
    def graph(self) -> ClusterGraph:
        """The cluster as it sees it."""
        ...

    @property
    def look(self) -> Look | None:
        """What it said of the last snapshot; None before the first."""
        ...

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Look at the cluster."""
        ...


class _Factors(NamedTuple):
    """By what the network multiplies prices."""

    job: Mapping[str, float]
    """By price."""
    devices: FloatArray
    """By place."""


class _Terms(NamedTuple):
    """What a job pays now in places of one view, without the network and with it."""

    base: Prices
    factors: _Factors


@dataclass(slots=True)
class _AtPlaces:
    """What of a look does not depend on the job, for the places of a view."""

    places: Sequence[PlaceInfo] = ()
    look: Look | None = None
    partition_of_place: list[int] = field(default_factory=list)
    device_raw: _Array | None = None
    """What `devices` was worked out from."""
    devices: FloatArray | None = None


class PricedRule(TotalCostRule):
    """Pays what `total-cost` pays, times what a network says; an untrained network changes nothing.

    It is one class for simulated clusters, training and submissions to Slurm, and decides alike in all of them. Two
    things are set, wherever it is: what is paid without the network, and how the network sees the cluster. Paid is by
    settings, with a price of scarcity that follows every arrival, or by the job's mode, with scarcity as the present
    queue says; limits of time are then the guard's. Looks at the cluster are taken now and then, or one is given.
    """

    weighs_counts = False
    """What a network says of the cluster's prices it has not learned for other numbers of GPUs."""

    def __init__(
        self,
        look: Look | Callable[[], PriceSource],
        base: TotalCostSettings | EnergyMode | None = None,
        *,
        name: str = "gnn",
        version: str = "1",
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Take a network.

        Args:
            look: At the cluster, or what makes a network that follows it, once for each run.
            base: What is paid without the network: by settings, or by a job's mode, the given one if it has none. None
                for the settings' defaults. By mode, looks must have the mean of the jobs' energy (`ServedPrices`).
            name: As it is shown.
            version: Of the network.
            refresh_seconds: Between two looks.
        """
        is_by_mode = isinstance(base, EnergyMode)
        super().__init__(None if isinstance(base, EnergyMode) else base)
        self.name, self.version = name, version
        self.routes = not is_by_mode
        self._is_still = is_by_mode and isinstance(look, Look)
        """Whether nothing moves what a job pays."""
        self._mode = base if isinstance(base, EnergyMode) else None
        self._given = look
        self._source: PriceSource | None = None
        self._refresh_seconds = refresh_seconds
        self._next_look = -inf
        self._look = look if isinstance(look, Look) else None
        self._at_places = _AtPlaces()
        """Shared by the rules of one look."""
        self._last_terms: tuple[WaitingJob, ClusterView, _Terms] | None = None
        """Of the question before, which is often of the same room; by mode alone, where nothing moves in between."""
        self._factors: dict[float, _Factors] = {}
        """By the job's energy, on which they depend; kept where the rule is made for one job, asked several times."""

    def for_one_job(self) -> "PricedRule":
        """Return the rule as it began, for another job; by mode and at a given look nothing goes from job to job."""
        rule = copy(self)
        rule._factors, rule._last_terms = {}, None
        return rule

    def begin(self, view: ClusterView, random: Random) -> None:
        """Begin with an empty graph; a look that is given stays."""
        if self._mode is None:  # by mode nothing is kept from one job to the next
            super().begin(view, random)
        if not isinstance(self._given, Look):
            self._source, self._next_look, self._look = self._given(), -inf, None

    def prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:
        """Return what a job pays now.

        Raises:
            PolicyError: the network's prices are not finite.
        """
        base, factors = self._terms(job, view, options)
        if self._mode is None:  # what follows what arrivals would take at it is left alone: at another they would not
            own = self.place_watts(view)
            device_watts = (base.device_watts - own) * factors.devices + own
        else:
            device_watts = base.device_watts * factors.devices
        by_price = factors.job
        return base._replace(
            device_watts=device_watts,
            time_watts=base.time_watts * by_price["time_watts"],
            slowdown_joules=base.slowdown_joules * by_price["slowdown_joules"],
            share=base.share * by_price["share"],
            opened_nodes=base.opened_nodes * by_price["opened_nodes"],
            waking=base.waking * by_price["waking"],
        )

    def _terms(self, job: WaitingJob, view: ClusterView, options: CostTable) -> _Terms:
        last = self._last_terms
        if last is not None and last[0] is job and _is_priced_alike(last[1], view, job):
            return last[2]
        look = self.present_look(job, view)
        min_joules = self._min_joules(job, view, options)
        base = self._base(job, view, min_joules)
        found = _Terms(base, self._factors_of(job, view, options, look, min_joules))
        if self._is_still:
            self._last_terms = job, view, found
        return found

    def base_prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:
        """Return what the job would pay without the network."""
        return self._base(job, view, self._min_joules(job, view, options))

    def _base(self, job: WaitingJob, view: ClusterView, min_joules: float) -> Prices:
        if self._mode is None:
            return self._rule_prices(job, view)
        base = self._of_mode(job, view)
        return Prices(
            time_watts=base.time_watts,
            slowdown_joules=base.slowdown * min_joules,
            share=base.share,
            opened_nodes=base.opened_nodes,
            waking=base.waking,
            power=0.0,
            device_watts=base.scarcity * _scarce_watts(job, view),
        )

    def raw_prices(
        self,
        job: WaitingJob,  # noqa: ARG002  # for who explores
        job_x: Floats,
        look: Look,
    ) -> tuple[_Array, _Array]:
        """Return the raw prices of the job and of the partitions' devices."""
        return look.prices.job_raw(job_x), look.prices.device_raw

    def present_look(self, job: WaitingJob, view: ClusterView) -> Look:
        """Return the look that counts now, a new one where it is time for it."""
        source = self._source
        if source is not None and view.now_seconds >= self._next_look:
            source.follow(view.snapshot_without(job))
            self._look = source.look
            self._next_look = view.now_seconds + self._refresh_seconds
        assert self._look is not None
        known = self._at_places
        if known.look is not self._look or known.places is not view.places:
            index = self._look.cluster_facts.partition_index
            numbers = [index.get(PartitionName(place.partition), -1) for place in view.places]
            known.places, known.look, known.partition_of_place = view.places, self._look, numbers
            known.device_raw = known.devices = None
        return self._look

    def explained(self, job: WaitingJob, view: ClusterView) -> Explanation:
        """Return the costs of the places with room, and the factors of the prices that count for the cheapest."""
        costs = super().explained(job, view).costs
        if not costs:
            return Explanation((), {})
        options = self._options(job, view)
        base, factors = self._terms(job, view, options)
        parts, place = costs[0].parts, costs[0].place
        priced = {
            "time": base.time_watts > 0.0,
            "slowdown": base.slowdown_joules > 0.0,
            "share": parts["share"] > 0.0,
            "opened_nodes": parts["opened_nodes"] > 0.0,
            "waking": parts["waking"] > 0.0,
        }
        named = zip(priced.items(), JOB_PRICES, strict=True)
        shown = {name: factors.job[price] for (name, counts), price in named if counts}
        if parts["scarcity"] > 0.0:
            shown["scarcity"] = float(factors.devices[place])
        return Explanation(costs, shown)

    def explaining(self, job: WaitingJob, view: ClusterView) -> Callable[[], Explanation]:
        """Return what works out the costs at the prices of now."""
        if self._is_still:
            return lambda: self.explained(job, view)
        found = self.explained(job, view)
        return lambda: found

    def _priced(self, job: WaitingJob, view: ClusterView) -> PricedJob:
        if self._mode is None:
            return super()._priced(job, view)
        return PricedJob(units=job.estimated_units, bounds=None, spare_watts=inf)

    def _options(self, job: WaitingJob, view: ClusterView) -> CostTable:
        if self._mode is None:
            return super()._options(job, view)
        return _options(view.places, view.options(job))

    def _of_mode(self, job: WaitingJob, view: ClusterView) -> ModePrices:
        assert self._mode is not None
        return MODE_PRICES.get(view.submission(job).request.options.mode or self._mode, BALANCED_PRICES)

    def _min_joules(self, job: WaitingJob, view: ClusterView, options: CostTable) -> float:
        """Return the job's least energy: of all its options, or at a submission of those with room."""
        per_unit = options.min_joules if self._mode is None else options.min_joules_in(view.room(job))
        return per_unit * job.estimated_units

    def _factors_of(
        self, job: WaitingJob, view: ClusterView, options: CostTable, look: Look | None, min_joules: float
    ) -> _Factors:
        assert look is not None
        found = self._factors.get(min_joules)
        if found is not None:
            return found
        job_raw, device_raw = self.raw_prices(job, self._columns(job, view, options, look, min_joules), look)
        own = price_factors(job_raw)
        devices = self._device_factors(device_raw)
        if not (np.isfinite(own).all() and np.isfinite(devices).all()):
            raise PolicyError("the network's prices are not finite")
        factors = _Factors(dict(zip(JOB_PRICES, own.astype(np.float64).tolist(), strict=True)), devices)
        if self._source is None:
            self._factors[min_joules] = factors
        return factors

    def _device_factors(self, device_raw: _Array) -> FloatArray:
        known = self._at_places
        if known.devices is None or known.device_raw is not device_raw:
            # A partition that is newer than the look has no price of its own.
            by_partition = np.append(price_factors(device_raw), np.float32(1.0))
            known.device_raw, known.devices = device_raw, by_partition[known.partition_of_place].astype(np.float64)
        return known.devices

    def _columns(self, job: WaitingJob, view: ClusterView, options: CostTable, look: Look, min_joules: float) -> Floats:
        """Return the columns that the prices of a job depend on, [PRICED_JOB]."""
        watts = self.settings.time_watts if self._mode is None else self._of_mode(job, view).time_watts
        time_weight = watts / (watts + options.min_watts) if watts > 0.0 else 0.0
        own = job_columns(job, view, look.cluster_facts.facts, (time_weight, 1.0 - time_weight))
        relative = self._relative_joules(job, view, look, min_joules)
        return np.concatenate((own, np.array((view.criticality(job), relative), dtype=np.float32)))

    def _relative_joules(self, job: WaitingJob, view: ClusterView, look: Look, min_joules: float) -> float:
        if look.mean_joules is None:
            return relative_joules(min_joules, self.mean_job_joules)
        shown = view.submission(job)
        limit = shown.request.time_limit_minutes
        estimate = nan if limit is None else LIMIT_SHARE * 60.0 * limit
        # The mean job's length is a share of its limit where nothing else is known: so is this one's here.
        seconds = estimate if shown.runtime is None else shown.runtime.seconds
        return relative_joules(min_joules / max(job.estimated_units, 1e-9) * seconds, look.mean_joules)


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
        if not _served or _served[0][0] is not self:
            rule = PricedRule(self.look, self.default_mode, version=self.version)
            _served[:] = [(self, SubmissionAdapter(self.configured), rule)]
        _, adapter, rule = _served[0]
        return adapter.answer(rule.for_one_job(), case)


def _is_priced_alike(one: ClusterView, other: ClusterView, job: WaitingJob) -> bool:
    """Return whether a job pays the same in two views of one submission: the same options, open places and room."""
    return (
        one.now_seconds == other.now_seconds
        and one.free_gpus is other.free_gpus
        and one.options(job) is other.options(job)
        and one.allowed_places(job) == other.allowed_places(job)
        and one.room(job) == other.room(job)
    )


def _options(places: Sequence[PlaceInfo], table: OptionTable) -> CostTable:
    if not _prepared or _prepared[0][0] is not places:
        costs = PlaceCosts.of(places)
        _prepared[:] = [(places, Prepared(lambda one: CostTable(one, costs)))]
    return _prepared[0][1].of(table)


def _scarce_watts(job: WaitingJob, view: ClusterView) -> FloatArray:
    """Return by place what a GPU draws at its highest clock where free GPUs do not suffice for all that wait, else 0.

    They must suffice for what waits in the partition and for the job, less what was promised since the snapshot.
    """
    free: dict[str, int] = {}
    for place, gpus in zip(view.places, view.free_gpus, strict=True):
        free[place.partition] = free.get(place.partition, 0) + gpus
    watts: FloatArray = np.zeros(len(view.places))
    gpus, waiting, table = job.gpu_counts[0], view.snapshot_without(job).waiting_gpus_by_partition, view.options(job)
    for index in view.allowed_places(job):
        name = view.places[index].partition
        if free[name] - gpus < waiting.get(PartitionName(name), 0.0):
            finite = table.watts[index, 0][np.isfinite(table.seconds_per_unit[index, 0])]
            watts[index] = finite[-1] / gpus if finite.size else 0.0
    return watts
