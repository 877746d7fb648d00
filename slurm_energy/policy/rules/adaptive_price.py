"""A price on time and a price on devices, the second found by dual ascent on the capacity limit."""

from collections.abc import Sequence
from math import exp, inf
from random import Random
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    FloatArray,
    OptionTable,
    Placement,
    PlacementRule,
)
from slurm_energy.policy.rules.scored import Ranking, SharingPrices, with_partner
from slurm_energy.policy.rules.tables import (
    Bounds,
    Prepared,
    active_joules,
    bounds_of,
    cheapest_by_speed,
    cost,
    slowdowns,
)

_FARTHEST = 5.0
"""Run times beyond so many times the wanted one count as that: sizes have long tails."""
_MIN_WATTS, _MAX_WATTS = 0.01, 1e5
_RETABLE_STEP = 0.02


class PricedOptions:
    """Least score + sum over places of price x device-seconds, all per unit of work.

    Options are flat and pruned: at the same place and count an option that is no faster and no cheaper than another is
    left out, since it can win at no price from 0 up and under no bound.
    """

    __slots__ = ("_device_seconds", "_gpus", "_place", "_placements", "_score", "_seconds", "_slowdown", "free")

    def __init__(self, table: OptionTable, score: FloatArray) -> None:
        """Prepare a table for a score without the prices, [places, counts, clocks]."""
        where = cheapest_by_speed(table.seconds_per_unit, score)
        place, count, clock = where
        gpus = np.asarray(table.gpu_counts)[count]
        self.free = Ranking(table, score)
        """The same options while all prices are 0."""
        self._place = place
        self._gpus = gpus
        self._score = score[where]
        self._seconds = table.seconds_per_unit[where]
        self._slowdown = slowdowns(table)[where]
        self._device_seconds = gpus * self._seconds
        self._placements = [Placement(*row) for row in np.stack([place, gpus, clock], axis=1).tolist()]

    def choose(
        self, prices: FloatArray, room: Sequence[int], view: ClusterView, bounds: Bounds | None, wake_units: float
    ) -> Placement | None:
        """Return the best option with room; arguments and the order in which bounds give way are those of `Ranking`.

        Args:
            prices: Watts of one device by place, [places].
            room: By place, the most devices that the job could start with.
            view: The cluster.
            bounds: Of the job.
            wake_units: Work over which the energy of waking nodes is spread; 0 leaves that energy out.
        """
        fits = np.asarray(room)[self._place] >= self._gpus
        if bounds is not None:
            fits = self._within(fits, bounds)
        total = np.where(fits, self._score + prices[self._place] * self._device_seconds, inf)
        if not total.size:
            return None
        best = int(total.argmin())
        if total[best] == inf:
            return self.free.fastest(room, view)
        if wake_units > 0.0:
            best = self._with_waking(total, best, view, wake_units)
        return self._placements[best]

    def _within(self, fits: NDArray[np.bool_], bounds: Bounds) -> NDArray[np.bool_]:
        fits = fits & (self._slowdown <= bounds.slowdown)
        in_time = fits & (self._seconds <= bounds.deadline_seconds_per_unit)
        if not in_time.any():
            in_time = fits & (self._seconds <= bounds.limit_seconds_per_unit)
        return in_time

    def _with_waking(self, total: FloatArray, best: int, view: ClusterView, units: float) -> int:
        """Return the best option when waking counts; the view is asked only for options that come first."""
        charged: set[tuple[int, int]] = set()
        while True:
            place, gpus = self._placements[best][:2]
            if (place, gpus) in charged:
                return best
            joules = view.wakeup_joules(place, gpus)
            if joules <= 0.0:
                return best
            charged.add((place, gpus))
            total[(self._place == place) & (self._gpus == gpus)] += joules / units
            best = int(total.argmin())


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
            run: Mean run time in s that jobs are to have; 0 keeps V.
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
        return super().uses | found | ({Capability.RUN_TIMES} if self.observes_ends else set())

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
        self._watts = min(max(self._watts * exp(self._time_step * error), _MIN_WATTS), _MAX_WATTS)
        if abs(self._watts / self._prepared_watts - 1.0) > _RETABLE_STEP:
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
        return with_partner(job, view, own, SharingPrices(self._watts, self._prices.tolist()), bounds)

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return what the job's bounds leave if it starts now."""
        return bounds_of(job, now_seconds)

    def units(self, job: WaitingJob) -> float:
        """Return the job's work as far as the rule knows it."""
        return job.estimated_units

    def priced_options(self, table: OptionTable) -> PricedOptions:
        """Return a table's options by what they cost while devices are free."""
        return PricedOptions(table, active_joules(table) + cost(table, self._prepared_watts))


class _KnownJob(Protocol):
    true_units: float


class ClairvoyantRule(AdaptivePriceRule):
    """`adaptive-price` with true work in place of estimates, and so without a margin on time limits and deadlines.

    It knows nothing of the future: not which jobs will come, nor what will fail. Outside the twin, where no job tells
    its true work, it takes the estimate.
    """

    name = "clairvoyant"
    knowledge = "truth"

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return the bounds for the true work, with no more margin than rounding needs."""
        return bounds_of(job, now_seconds, units=self.units(job), margin=1e-6)

    def units(self, job: WaitingJob) -> float:
        """Return the true work."""
        known = cast(_KnownJob, job)
        return known.true_units if hasattr(job, "true_units") else job.estimated_units
