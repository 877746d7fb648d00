"""A table's options by everything that they cost: devices, hosts, waking, time, slowdown, scarcity; each at a price."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.policy.placement import ClusterView, FloatArray, OptionTable, PlaceInfo, Placement
from slurm_energy.policy.rules.tables import TIME_MARGIN, Bounds, active_joules, cheapest_by_speed, slowdowns


class PlaceCosts(NamedTuple):
    """What does not change of the places, by place."""

    free_watts: FloatArray
    """Of one free device."""
    node_watts: FloatArray
    """Of a node that is awake, beyond a suspended one."""
    share_watts: FloatArray
    """The same over its devices."""
    busy_watts: FloatArray
    """What a host draws more for each device in use."""
    host_share: FloatArray
    """What it draws more for each watt of its devices."""
    idle_seconds: FloatArray
    resume_seconds: FloatArray
    max_seconds: FloatArray
    """Time limit of the partition."""

    @classmethod
    def of(cls, places: Sequence[PlaceInfo]) -> "PlaceCosts":
        """Return the costs of some places."""
        node = np.array([place.node_watts for place in places])
        per_node = np.array([place.gpus_per_node for place in places])
        return cls(
            free_watts=np.array([place.free_watts for place in places]),
            node_watts=node,
            share_watts=node / per_node,
            busy_watts=np.array([place.busy_watts for place in places]),
            host_share=np.array([place.host_share for place in places]),
            idle_seconds=np.array([place.idle_seconds for place in places]),
            resume_seconds=np.array([place.resume_seconds for place in places]),
            max_seconds=np.array([place.max_seconds for place in places]),
        )


class Prices(NamedTuple):
    """What is paid for what an option takes beyond its own devices' energy."""

    time_watts: float
    """V: of a second of the job, run or wait."""
    slowdown_joules: float
    """Of one more run time, in terms of the run at the default clock."""
    share: float
    """Of a joule of the job's share of awake nodes: what they draw over the devices that they have."""
    opened_nodes: float
    """Of a joule of a node that has no other job, while the job runs and until it is suspended again."""
    waking: float
    """Of a joule that wakes a node."""
    power: float
    """Of a joule of the devices beyond the first: rises while a power budget binds."""
    device_watts: FloatArray
    """mu: of a device for as long as it is held, [places]."""
    makespan_watts: float = 0.0
    """Of a second that the job would still run after every other."""
    last_end_seconds: float = 0.0
    """Until the last of the others is expected to end."""


class CostParts(NamedTuple):
    """What an option costs by part, J of the whole job."""

    energy: float
    """Of its devices, beyond what they draw when free."""
    host: float
    time: float
    slowdown: float
    """Beyond the run at the default clock."""
    share: float
    opened_nodes: float
    waking: float
    scarcity: float
    power: float
    makespan: float


class PlaceCost(NamedTuple):
    """The option of the least cost in one place."""

    place: int
    clock: int
    """Index into the place's clocks."""
    parts: Mapping[str, float]
    """J of the whole job."""
    full_parts: Mapping[str, float]
    """At the place's default clock."""


class Explanation(NamedTuple):
    """What a rule weighs."""

    costs: Sequence[PlaceCost]
    """The cheapest place first."""
    factors: Mapping[str, float]
    """By what a network multiplied the prices that count."""


class PricedJob(NamedTuple):
    """What prices need to know of a job."""

    units: float
    """Work as estimated."""
    bounds: Bounds | None
    spare_watts: float
    """What its start may add to the cluster's power; infinite without a budget."""


class CostTable:
    """Options of one table, flat and pruned.

    At the same place and count an option that is no faster and no cheaper than another is left out, since it can win at
    no prices from 0 up; the fastest, which bounds may need, never is.
    """

    def __init__(self, table: OptionTable, places: PlaceCosts) -> None:
        """Prepare a table."""
        active = active_joules(table)
        where = cheapest_by_speed(table.seconds_per_unit, active)
        place, count, clock = where
        gpus = np.asarray(table.gpu_counts)[count]
        seconds = table.seconds_per_unit[where]
        self._places = places
        self._place, self._gpus = place, gpus
        self._seconds = seconds
        self._slowdown = slowdowns(table)[where]
        self._default_seconds = seconds / self._slowdown
        self._device_seconds = gpus * seconds
        self._active_joules = active[where]
        self._joules = active[where] * (1.0 + places.host_share[place]) + places.busy_watts[place] * gpus * seconds
        self._gross_joules = active[where] + places.free_watts[place] * gpus * seconds
        self._added_watts = active[where] / seconds
        self._share_joules = places.share_watts[place] * gpus * seconds
        self._pairs, pair = np.unique(np.stack([place, gpus]), axis=1, return_inverse=True)
        self._pair = pair.reshape(-1)
        self._has_limits = bool((places.max_seconds < inf).any())
        self._can_sleep = bool(places.node_watts.any())
        self.min_joules = float(self._joules.min()) if len(seconds) else 0.0
        """Per unit, of the cheapest option."""
        cheapest = int(self._joules.argmin()) if len(seconds) else 0
        self.min_watts = float(self._added_watts[cheapest] / gpus[cheapest]) if len(seconds) else 0.0
        """Of one device in the cheapest option, beyond being free."""
        self._placements = [Placement(*row) for row in np.stack([place, gpus, clock], axis=1).tolist()]
        self._row = {placement: row for row, placement in enumerate(self._placements)}

    def seconds(self, placement: Placement) -> tuple[float, float]:
        """Return seconds per unit of one of the options, and those at the default clock of its place and count."""
        row = self._row[placement]
        return float(self._seconds[row]), float(self._default_seconds[row])

    def wanted(self, units: float, prices: Prices, places: Sequence[int]) -> tuple[int, float] | None:
        """Return the place of the cheapest option if all had room, and the device-seconds it would take there.

        Opening and waking are left out. None where no option is in one of the places.
        """
        allowed = np.isin(self._place, np.asarray(places, dtype=np.intp))
        if not allowed.any():
            return None
        cost = self._running_costs(units, prices) + prices.share * self._share_joules
        row = int(np.where(allowed, cost, inf).argmin())
        return int(self._place[row]), float(self._device_seconds[row]) * units

    def choose(self, job: PricedJob, prices: Prices, room: Sequence[int], view: ClusterView) -> Placement | None:
        """Return the option of the least cost with room, None when there is none or no power for any.

        Bounds that no option can keep give way: first the deadline, then the time limit, for which the fastest option
        is taken.
        """
        fits = np.asarray(room)[self._place] >= self._gpus
        if not fits.any():
            return None
        if self._has_limits:
            limits = self._places.max_seconds[self._place] * (1.0 - TIME_MARGIN)
            in_limit = fits & (self._seconds * job.units <= limits)
            fits = in_limit if in_limit.any() else fits
        within = fits if job.bounds is None else self._within(fits, job.bounds)
        if not within.any():
            fastest = np.where(fits, self._seconds, inf)
            within = fastest == fastest.min()
        if job.spare_watts < inf:
            within &= self._added_watts <= job.spare_watts
            if not within.any():
                return None
        return self._placements[int(np.where(within, self._costs(job, prices, within, view), inf).argmin())]

    def place_costs(
        self, job: PricedJob, prices: Prices, room: Sequence[int], view: ClusterView
    ) -> tuple[PlaceCost, ...]:
        """Return the option of the least cost in each place with room, the cheapest first, with its parts."""
        fits = np.asarray(room)[self._place] >= self._gpus
        within = fits if job.bounds is None else self._within(fits, job.bounds)
        within = within if within.any() else fits
        if not within.any():
            return ()
        costs = np.where(within, self._costs(job, prices, within, view), inf)
        found = []
        for place in np.unique(self._place[within]).tolist():
            rows = np.flatnonzero(within & (self._place == place))
            row = int(rows[costs[rows].argmin()])
            alike = np.flatnonzero((self._place == place) & (self._gpus == self._gpus[row]))
            full = int(alike[self._slowdown[alike].argmin()])
            parts, at_full = (self._parts(one, job, prices, view)._asdict() for one in (row, full))
            found.append((costs[row], PlaceCost(place, self._placements[row].clock, parts, at_full)))
        return tuple(cost for _, cost in sorted(found, key=lambda item: item[0]))

    def _parts(self, row: int, job: PricedJob, prices: Prices, view: ClusterView) -> CostParts:
        place, gpus, units = int(self._place[row]), int(self._gpus[row]), max(job.units, 1e-9)
        costs, seconds = self._places, float(self._seconds[row])
        energy = float(self._active_joules[row])
        opened = view.opened_nodes(place, gpus) if self._can_sleep else 0
        joules = view.wakeup_joules(place, gpus) if opened else 0.0
        resume = float(costs.resume_seconds[place]) if joules > 0.0 else 0.0
        slowdown = float(self._slowdown[row]) - 1.0 + resume / float(self._default_seconds[row]) / units
        awake = units * seconds + float(costs.idle_seconds[place])
        late = max(0.0, units * seconds - prices.last_end_seconds)
        return CostParts(
            energy=units * energy,
            host=units * (float(self._joules[row]) - energy),
            time=prices.time_watts * (units * seconds + resume),
            slowdown=prices.slowdown_joules * slowdown,
            share=prices.share * units * float(self._share_joules[row]) if self._can_sleep else 0.0,
            opened_nodes=prices.opened_nodes * opened * float(costs.node_watts[place]) * awake,
            waking=prices.waking * joules,
            scarcity=float(prices.device_watts[place]) * units * float(self._device_seconds[row]),
            power=prices.power * units * float(self._gross_joules[row]),
            makespan=prices.makespan_watts * late,
        )

    def min_joules_in(self, room: Sequence[int]) -> float:
        """Return the joules per unit of the cheapest option with room, 0 where there is none."""
        fits = np.asarray(room)[self._place] >= self._gpus
        return float(self._joules[fits].min()) if fits.any() else 0.0

    def min_cost(self, units: float, prices: Prices) -> float:
        """Return what the cheapest option of an empty cluster would cost in J, opened nodes and waking left out."""
        if not len(self._seconds) or units <= 0.0:
            return 0.0
        cost = self._joules + prices.time_watts * self._seconds + prices.share * self._share_joules
        return float((cost * units + prices.slowdown_joules * self._slowdown).min())

    def _costs(self, job: PricedJob, prices: Prices, asked: NDArray[np.bool_], view: ClusterView) -> FloatArray:
        """Return each option's cost in J per unit of work; right for those that are asked about."""
        cost = self._running_costs(job.units, prices)
        if self._can_sleep:
            cost += prices.share * self._share_joules + self._nodes(job, prices, asked, view)
        return cost

    def _running_costs(self, units: float, prices: Prices) -> FloatArray:
        """Return what each option costs wherever its nodes are, in J per unit of work."""
        cost: FloatArray = (
            self._joules + prices.time_watts * self._seconds + prices.device_watts[self._place] * self._device_seconds
        )
        if prices.power > 0.0:
            cost += prices.power * self._gross_joules
        if prices.makespan_watts > 0.0:
            cost += prices.makespan_watts * np.maximum(0.0, self._seconds - prices.last_end_seconds / max(units, 1e-9))
        if prices.slowdown_joules > 0.0:
            cost += prices.slowdown_joules * self._slowdown / max(units, 1e-9)
        return cost

    def _nodes(self, job: PricedJob, prices: Prices, asked: NDArray[np.bool_], view: ClusterView) -> FloatArray:
        """Return what the nodes cost that a start opens and wakes, per unit."""
        units = max(job.units, 1e-9)
        opened, waking = np.zeros(self._pairs.shape[1]), np.zeros(self._pairs.shape[1])
        for index in np.unique(self._pair[asked]).tolist():
            place, gpus = self._pairs[:, index].tolist()
            opened[index] = view.opened_nodes(place, gpus)
            waking[index] = view.wakeup_joules(place, gpus) if opened[index] else 0.0
        costs, pair = self._places, self._pair
        tail = costs.idle_seconds[self._place] / units
        nodes = prices.opened_nodes * opened[pair] * costs.node_watts[self._place] * (self._seconds + tail)
        nodes += prices.waking * waking[pair] / units
        resume = np.where(waking[pair] > 0.0, costs.resume_seconds[self._place], 0.0) / units
        wait: FloatArray = nodes + prices.time_watts * resume
        if prices.slowdown_joules > 0.0:
            wait += prices.slowdown_joules * resume / self._default_seconds / units
        return wait

    def _within(self, fits: NDArray[np.bool_], bounds: Bounds) -> NDArray[np.bool_]:
        fits = fits & (self._slowdown <= bounds.slowdown)
        in_time: NDArray[np.bool_] = fits & (self._seconds <= bounds.deadline_seconds_per_unit)
        if not in_time.any():
            in_time = fits & (self._seconds <= bounds.limit_seconds_per_unit)
        return in_time
