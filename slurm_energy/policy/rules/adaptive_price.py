"""A price on time and a price on devices, the second found by dual ascent on the capacity limit."""

from math import exp
from random import Random

import numpy as np

from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    EndedJob,
    FloatArray,
    OptionTable,
    Placement,
    PlacementRule,
    WaitingJob,
)
from slurm_energy.policy.rules.bounds import Bounds, bounds_of
from slurm_energy.policy.rules.priced import PricedOptions
from slurm_energy.policy.rules.sharing import Prices, with_partner
from slurm_energy.policy.rules.tables import Prepared, active_joules, cost

_FARTHEST = 5.0
"""Run times beyond so many times the wanted one count as that: sizes have long tails."""
_LEAST_WATTS, _MOST_WATTS = 0.01, 1e5
_STEP = 0.02


class AdaptivePriceRule(PlacementRule):
    """Least n T (P - free) + V T + mu n T; at every arrival mu += k (occupancy - threshold), never below 0.

    mu is the dual variable of the capacity limit: 0 while devices are left over, and as high as it takes for jobs to
    leave devices to others when they are scarce, by fewer devices and higher clocks. V is given, or is the dual
    variable of a limit on the mean run time: it rises while jobs run longer than that and falls while they run shorter.
    """

    name = "adaptive-price"
    routes = True
    """Only to see every arrival: no job is sent anywhere."""

    def __init__(  # noqa: PLR0913  # each is one setting of the rule
        self,
        *,
        v: float = 20.0,
        k: float = 2.0,
        threshold: float = 0.95,
        ceiling: float = 1000.0,
        by_place: bool = False,
        wake: bool = True,
        share: bool = False,
        run: float = 0.0,
        kv: float = 0.005,
    ) -> None:
        """Store the settings.

        Args:
            v: Price of time in W.
            k: Step of the price in W for one arrival at an occupancy 1 above the threshold.
            threshold: Share of devices in use above which the price rises.
            ceiling: Most that the price may reach, in W: it must be able to come down again when jobs stop coming.
            by_place: Whether every place has a price of its own, from its own occupancy.
            wake: Whether the energy of waking suspended nodes counts.
            share: Whether a job may share a GPU with a running one.
            run: Mean run time in s that jobs shall have; 0 keeps V.
            kv: Step of the logarithm of V for one ended job whose run time is twice `run`.
        """
        self._watts, self._step, self._threshold = v, k, threshold
        self._ceiling, self._by_place, self._wake = ceiling, by_place, wake
        self._share = share
        self._first_watts, self._run_seconds, self._time_step = v, run, kv
        self._prepared_watts = v
        self.observes_ends = run > 0.0
        self._prices: FloatArray = np.zeros(0)
        self._priced: list[int] = []
        self._totals: list[int] = []
        self._mu: list[float] = []
        self._options = Prepared(self.priced_options)

    @property
    def uses(self) -> Capabilities:
        """A partner on the same GPU with `share`, and ends of jobs with `run`."""
        found = {Capability.SHARED_GPU} if self._share else set()
        return super().uses | found | ({Capability.ENDED_JOBS} if self.observes_ends else set())

    @property
    def prices_watts(self) -> tuple[float, ...]:
        """The present price of one device by place."""
        return tuple(self._prices.tolist())

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Start with no price; it speaks of GPUs, or of CPU sockets where there is no GPU."""
        gpu_places = [index for index, place in enumerate(view.places) if not place.is_cpu]
        self._priced = gpu_places or list(range(len(view.places)))
        self._totals = [view.places[index].total_gpus for index in self._priced]
        self._mu = [0.0] * (len(self._priced) if self._by_place else 1)
        self._prices = np.zeros(len(view.places))
        self._watts = self._prepared_watts = self._first_watts
        self._options.forget()

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:  # noqa: ARG002  # the hook's form
        """Move the price at an arrival; the job waits in the common queue."""
        occupancies = self._occupancies(view)
        self._mu = [
            min(self._ceiling, max(0.0, mu + self._step * (occupancy - self._threshold)))
            for mu, occupancy in zip(self._mu, occupancies, strict=True)
        ]
        self._prices[self._priced] = self._mu
        return None

    def ended(self, job: EndedJob) -> None:
        """Move the price of time with the run time of a job that completed; tables follow in steps of 2 %."""
        if job.state != "COMPLETED":
            return
        error = min(job.run_seconds / self._run_seconds, _FARTHEST) - 1.0
        self._watts = min(max(self._watts * exp(self._time_step * error), _LEAST_WATTS), _MOST_WATTS)
        if abs(self._watts / self._prepared_watts - 1.0) > _STEP:
            self._prepared_watts = self._watts
            self._options.forget()

    def _occupancies(self, view: ClusterView) -> list[float]:
        """Return the occupancy behind each price; a queue counts as full, whatever holds its jobs back."""
        if view.num_waiting:
            return [1.0] * len(self._mu)
        free = [view.free_gpus[index] for index in self._priced]
        if self._by_place:
            return [1.0 - left / total for left, total in zip(free, self._totals, strict=True)]
        return [1.0 - sum(free) / sum(self._totals)]

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option with the least price."""
        options = self._options.of(view.options(job))
        room, bounds = view.room(job), self.bounds(job, view.now_seconds)
        wake_units = self.units(job) if self._wake else 0.0
        if any(self._mu):
            own = options.choose(self._prices, room, view, bounds, wake_units)
        else:
            own = options.free.choose(room, view, bounds, wake_units)
        if not self._share:
            return own
        return with_partner(job, view, own, Prices(self._watts, self._prices.tolist()), bounds)

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return what the job's bounds leave if it starts now."""
        return bounds_of(job, now_seconds)

    def units(self, job: WaitingJob) -> float:
        """Return the job's work as far as the rule knows it."""
        return job.estimated_units

    def priced_options(self, table: OptionTable) -> PricedOptions:
        """Return a table's options by what they cost while devices are free."""
        return PricedOptions(table, active_joules(table) + cost(table, self._prepared_watts))
