"""Learned prices in the twin: the rule `total-cost` with prices that a network moves by the cluster's state."""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.ids import PartitionName
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView
from slurm_energy.policy.prices import JOB_PRICES, price_factors, relative_joules
from slurm_energy.policy.rules.cost_table import CostTable, Prices
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.policy.rules.total_cost import TotalCostRule
from slurm_energy.twin.adapters.learned import Situation

REFRESH_SECONDS = 600.0
"""Between two looks at the cluster's state; the price of scarcity follows every arrival all the same."""
_Array = NDArray[np.float32]


class PriceSource(Protocol):
    """A network that follows one cluster."""

    @property
    def graph(self) -> ClusterGraph:
        """The cluster as it sees it."""
        ...

    @property
    def device_raw(self) -> _Array:
        """Raw price of devices by partition."""
        ...

    def follow(self, snapshot: ClusterSnapshot) -> None:
        """Look at the cluster."""
        ...

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job."""
        ...


class LearnedPriceRule(TotalCostRule):
    """Pays what the rule pays, times what the network says; an untrained network changes nothing."""

    name = "learned-price"

    def __init__(
        self,
        create: Callable[[], PriceSource],
        settings: TotalCostSettings | None = None,
        *,
        version: str = "1",
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        super().__init__(settings)
        self.version = version
        self._create = create
        self._refresh_seconds = refresh_seconds
        self._source: PriceSource | None = None
        self._situation = Situation()
        self._next_look = -inf
        self._partition_of_place: list[int] = []

    def begin(self, view: ClusterView, random: Random) -> None:
        """Begin with an empty graph."""
        super().begin(view, random)
        self._source = self._create()
        self._situation = Situation()
        self._next_look = -inf

    def prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:
        """Return what a job pays now."""
        source = self._source
        assert source is not None
        if view.now_seconds >= self._next_look:
            self._look(job, view, source)
        job_raw, device_raw = self.raw_prices(job, self._columns(job, view, options, source), source)
        base = self.rule_prices(job, view, options)
        own = self.place_watts(view)  # follows what arrivals would take at it: at another price they would not
        factors = zip(JOB_PRICES, price_factors(job_raw).tolist(), strict=True)
        return base._replace(
            device_watts=(base.device_watts - own) * price_factors(device_raw)[self._partition_of_place] + own,
            **{name: getattr(base, name) * factor for name, factor in factors},
        )

    def rule_prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:
        """Return what the job would pay without the network."""
        return super().prices(job, view, options)

    def raw_prices(
        self,
        job: WaitingJob,  # noqa: ARG002  # for who explores
        job_x: Floats,
        source: PriceSource,
    ) -> tuple[_Array, _Array]:
        """Return the raw prices of the job and of the partitions' devices."""
        return source.job_raw(job_x), source.device_raw

    def _look(self, job: WaitingJob, view: ClusterView, source: PriceSource) -> None:
        source.follow(self._situation.snapshot(job, view))
        index = source.graph.partition_index
        self._partition_of_place = [index[PartitionName(place.partition)] for place in view.places]
        self._next_look = view.now_seconds + self._refresh_seconds

    def _columns(self, job: WaitingJob, view: ClusterView, options: CostTable, source: PriceSource) -> Floats:
        """Return the job's columns, [PRICED_JOB] of the network."""
        watts = self.settings.time_watts
        time_weight = watts / (watts + options.min_watts) if watts > 0.0 else 0.0
        own = self._situation.job_vector(job, view, source.graph, (time_weight, 1.0 - time_weight))
        relative = relative_joules(job.estimated_units * options.min_joules, self.mean_job_joules)
        return np.append(own, np.array([view.criticality(job), relative], dtype=np.float32))
