"""The option of the least total cost: devices, hosts, waking nodes, time, slowdown and scarcity, each at a price.

Where a node's time awake has a price, `best_slot` chooses the node, and whether the job waits for one. A node stays
awake until its last job ends, so what a start costs beyond the job's share is how much longer it keeps its node awake.
That is dynamic bin packing with known departures: the best fit in *time* leaves the nodes that stay longest to the jobs
that stay longest, so that nodes empty together.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import NamedTuple

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    FloatArray,
    OptionTable,
    Placement,
    PlacementRule,
    PlaceNode,
    Postponement,
)
from slurm_energy.policy.rules.cap import CapGreedyRule
from slurm_energy.policy.rules.corrections import Corrections
from slurm_energy.policy.rules.cost_table import CostTable, Explanation, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.scarcity import PlacePrices, Scarcity, TypeScarcity
from slurm_energy.policy.rules.settings import TotalCostSettings
from slurm_energy.policy.rules.tables import TIME_MARGIN, Prepared, bounds_of

_CONTROL_SECONDS = 20.0
_USAGE = 0.95
"""Share of the budget above which joules get a price."""
_POWER_STEP, _POWER_CEILING = 0.2, 3.0
"""Of the price, at one arrival and a usage 1 above that; and the most that it may reach."""


class PowerPrice:
    """The dual variable of the power budget: what a joule costs on top while power is what all jobs wait for."""

    def __init__(self) -> None:
        self.price = 0.0

    def move(self, view: ClusterView) -> None:
        """Move the price at an arrival; jobs that wait although devices are free wait for power."""
        if view.power_budget_watts == inf or view.power_budget_watts <= 0.0:
            self.price = 0.0
            return
        usage = (view.power_watts + view.coming_watts) / view.power_budget_watts
        if view.num_waiting and any(view.free_gpus):
            usage = max(usage, 1.0)
        self.price = min(_POWER_CEILING, max(0.0, self.price + _POWER_STEP * (usage - _USAGE)))


class BudgetKeeper(CapGreedyRule):
    """Lowers running jobs while the budget is exceeded, the most watts per speed first, and back to their own clocks.

    Beyond `cap-greedy`, which wants every job at its highest clock, no clock is raised above the one at which the
    job was started.
    """

    def spare_watts(self, view: ClusterView) -> float:
        """Return what a start may add; infinite while nothing runs, for a budget below one job cannot be kept."""
        if not self._is_busy(view):
            return inf
        return view.power_budget_watts - view.power_watts - view.coming_watts

    def watch(self, job: WaitingJob, placement: Placement, view: ClusterView) -> None:
        """Take in a start; one that shares a GPU keeps its neighbour's clock and is left alone."""
        if placement.partner is not None:
            return
        ladders = self._ladders.of(view.options(job))
        count = ladders.choice.counts.index(placement.gpus)
        lowest = ladders.choice.at_least(0, placement.place, count, job, view.now_seconds)
        ladder = ladders.of(placement.place, count, view.places[placement.place].relative_clocks)
        highest = ladder.highest if placement.clock == -1 else min(placement.clock, ladder.highest)
        self._started[job.job_id] = (replace(ladder, highest=highest), min(lowest, highest))


class LatestEnd:
    """Expected ends of running jobs, the last one first; each start and end costs the logarithm of their number."""

    def __init__(self) -> None:
        self._expected: dict[int, float] = {}
        self._last_first: list[tuple[float, int]] = []

    def started(self, job_id: int, end_seconds: float) -> None:
        """Take in a start, or another one of a job that was requeued; an end that never comes says nothing."""
        self._expected.pop(job_id, None)
        if end_seconds < inf:
            self._expected[job_id] = end_seconds
            heappush(self._last_first, (-end_seconds, job_id))

    def ended(self, job_id: int) -> None:
        """Take in that a job is over, whenever it was expected to be."""
        self._expected.pop(job_id, None)

    def seconds_left(self, now_seconds: float) -> float:
        """Return how long from now until the last of them is expected to end; 0 where none is expected to run on."""
        heap, expected = self._last_first, self._expected
        while heap and expected.get(heap[0][1]) != -heap[0][0]:
            heappop(heap)
        return max(0.0, -heap[0][0] - now_seconds) if heap else 0.0


class TotalCostRule(PlacementRule):
    """Least cost of all that an option takes.

    Beyond `adaptive-price` it counts what an option does to hosts: a job pays for its share of the nodes that it keeps
    awake, and for a node that it opens alone. A job whose delay reaches the end of its task graph in part only pays
    that part of the price of time. Starts stay under a power budget, and clocks of running jobs follow it. With a price
    of `awake_time` it also chooses the node, and may put a job off until there is room on one that stays awake anyway.
    """

    name = "total-cost"
    routes = True
    """Only to see every arrival: no job is sent anywhere."""
    observes_ends = True
    weighs_counts = True
    control_interval_seconds = _CONTROL_SECONDS

    def __init__(self, settings: TotalCostSettings | None = None) -> None:
        self.settings = settings or TotalCostSettings()
        self._tables = Prepared(self._table)
        self._corrections = Corrections()
        self._scarcity = Scarcity()
        self._place_prices = PlacePrices()
        self._types = TypeScarcity()
        self._latest_end = LatestEnd()
        self._typical_watts = 0.0
        """What one device of the jobs so far draws, each in its cheapest option, in the mean."""
        self._budget = BudgetKeeper()
        self._power = PowerPrice()
        self._arrived = (0, 0.0)
        """Jobs so far, and the mean of their energy in J, each at its cheapest option."""
        self._deadlines: dict[int, float] = {}
        """Of jobs that run."""
        self._places = PlaceCosts.of(())
        self._capabilities: Capabilities = frozenset()

    @property
    def uses(self) -> Capabilities:
        """Node and later start where they have a price; ends for corrections, deadlines and the last end."""
        given = self.settings
        found = {Capability.COUNT, Capability.ENDED_JOBS, Capability.RUN_TIMES, Capability.RUNNING_CLOCK}
        found |= {Capability.NODE} if given.awake_time > 0.0 else set()
        found |= {Capability.LATER_START} if given.awake_time > 0.0 and given.max_node_wait > 0.0 else set()
        return frozenset(found)

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget the last run."""
        self._tables.forget()
        self._capabilities = view.capabilities
        self._places = PlaceCosts.of(view.places)
        self._corrections = Corrections()
        self._scarcity = Scarcity(view.places, self.settings.headroom)
        self._place_prices = PlacePrices(view.places)
        self._types = TypeScarcity(view.places, self.settings.type_headroom)
        self._latest_end = LatestEnd()
        self._typical_watts = 0.0
        self._arrived = (0, 0.0)
        self._deadlines = {}
        self._power = PowerPrice()
        self._budget.begin(view, random)

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:
        """Move the prices of scarcity at an arrival; the job waits in the common queue."""
        options = self._options(job, view)
        count, mean = self._arrived
        self._arrived = count + 1, mean + (job.estimated_units * options.min_joules - mean) / (count + 1)
        self._typical_watts += (options.min_watts - self._typical_watts) / (count + 1)
        self._scarcity.move(view, options.min_watts)
        self._types.move(view, options.min_watts)
        self._power.move(view)
        if self.settings.by_place:
            dual = self._scarce_watts + self._types.device_watts + self._place_prices.dual_watts
            prices = self._rule_prices(job, view)._replace(device_watts=dual)
            wanted = options.wanted(job.estimated_units, prices, view.allowed_places(job))
            if wanted is not None:
                self._place_prices.move(*wanted, self._typical_watts, view.now_seconds)
        return None

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Return the option of the least cost, or until when to wait for its node."""
        options = self._options(job, view)
        prices = self.prices(job, view, options)
        found = options.choose(self._priced(job, view), prices, view.room(job), view)
        if found is not None and self.settings.awake_time > 0.0 and Capability.NODE in self._capabilities:
            packed = self._packed(job, found, prices, view)
            if isinstance(packed, Postponement):
                return packed
            found = packed
        if found is not None and Capability.ENDED_JOBS in self._capabilities:
            if self.settings.makespan_watts > 0.0:
                run_seconds = job.estimated_units * options.seconds(found._replace(node=None))[0]
                self._latest_end.started(job.job_id, view.now_seconds + run_seconds)
            if job.deadline_seconds < inf:
                self._deadlines[job.job_id] = job.deadline_seconds
            if self.settings.corrects:
                self._corrections.expect(job, found, view)
            if view.power_budget_watts < inf:
                self._budget.watch(job, found, view)
        return found

    def explained(self, job: WaitingJob, view: ClusterView) -> Explanation:
        """Return the costs of the places with room."""
        return TotalCostRule.explaining(self, job, view)()

    def explaining(self, job: WaitingJob, view: ClusterView) -> Callable[[], Explanation]:
        """Take the prices of now, and return what works out the costs at them."""
        options = self._options(job, view)
        asked = self._priced(job, view)._replace(spare_watts=inf)
        prices = self.prices(job, view, options)
        return lambda: Explanation(options.place_costs(asked, prices, view.room(job), view), {})

    def _priced(self, job: WaitingJob, view: ClusterView) -> PricedJob:
        has_budget = view.power_budget_watts < inf
        return PricedJob(
            units=job.estimated_units,
            bounds=bounds_of(job, view.now_seconds),
            spare_watts=self._budget.spare_watts(view) if has_budget else inf,
        )

    @property
    def mean_job_joules(self) -> float:
        """Of the jobs so far, each at its cheapest option."""
        return self._arrived[1]

    def prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:  # noqa: ARG002  # for others
        """Return what a job pays now."""
        return self._rule_prices(job, view)

    def _rule_prices(self, job: WaitingJob, view: ClusterView) -> Prices:
        given = self.settings
        return Prices(
            time_watts=given.time_watts * view.criticality(job),
            slowdown_joules=given.slowdown * self._arrived[1],
            share=given.share,
            opened_nodes=given.opened_nodes,
            waking=given.waking,
            power=self._power.price,
            device_watts=self._scarce_watts + self.place_watts(view),
            makespan_watts=given.makespan_watts,
            last_end_seconds=self._latest_end.seconds_left(view.now_seconds) if given.makespan_watts > 0.0 else 0.0,
        )

    def place_watts(self, view: ClusterView) -> FloatArray:
        """Return what a job pays for a device of each place beyond the price of scarcity, [places]."""
        return self._types.device_watts + self._place_prices.charged_watts(view.free_gpus)

    @property
    def _scarce_watts(self) -> FloatArray:
        return self.settings.scarcity * self._scarcity.device_watts

    def _packed(self, job: WaitingJob, found: Placement, prices: Prices, view: ClusterView) -> Placement | Postponement:
        """Return a placement with its node, or until when to wait for a node that costs less."""
        place = view.places[found.place]
        if place.node_watts <= 0.0 or found.gpus >= place.gpus_per_node or job.estimated_units <= 0.0:
            return found
        run, default = (job.estimated_units * seconds for seconds in self._options(job, view).seconds(found))
        now = view.now_seconds
        wait = self.settings.max_node_wait if Capability.LATER_START in self._capabilities else 0.0
        latest = job.submitted_seconds + min(wait * default, MAX_WAIT_SECONDS)
        if prices.makespan_watts > 0.0:
            latest = min(latest, now + max(0.0, prices.last_end_seconds - run))  # a wait must not move the last end
        if job.deadline_seconds < inf:
            latest = min(latest, job.deadline_seconds - run / (1.0 - TIME_MARGIN))
        slot = best_slot(
            view.nodes(found.place),
            Stay(gpus=found.gpus, seconds=run, now_seconds=now, latest_seconds=latest),
            PackingPrices(
                longer_watts=self.settings.awake_time * place.node_watts,
                idle_seconds=place.idle_seconds,
                wait_watts=prices.time_watts + prices.slowdown_joules / default,
            ),
        )
        return Postponement(slot.start_seconds) if slot.start_seconds > now else found._replace(node=slot.node)

    def ended(self, job: EndedJob) -> None:
        """Learn what a job that completed really took, and whether it came in time."""
        self._corrections.learn(job)
        self._latest_end.ended(job.job_id)
        is_known = Capability.ENDED_JOBS in self._capabilities
        deadline = self._deadlines.pop(job.job_id, inf) if is_known else job.deadline_seconds
        if deadline < inf:
            self._scarcity.deadline(missed=job.state != "COMPLETED" or job.ended_seconds > deadline)
        self._budget.ended(job)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        """Return the clocks that keep the power budget."""
        return self._budget.control(view) if view.power_budget_watts < inf else {}

    def _options(self, job: WaitingJob, view: ClusterView) -> CostTable:
        return self._tables.of(self._corrections.corrected(job.kind, view.options(job), view.places))

    def _table(self, table: OptionTable) -> CostTable:
        return CostTable(table, self._places)


MAX_WAIT_SECONDS = 14_400.0
"""Longest wait for room on a node, whatever the job's length."""
_LONGER = 100.0
"""What a second that a node is kept awake longer counts beside one that its last job stays beyond the new one."""
_MARGIN_SECONDS = 1.0
"""A job comes back so much later than the devices it waits for should be free."""


class Stay(NamedTuple):
    """A start as packing sees it."""

    gpus: int
    """Devices on one node, fewer than it has."""
    seconds: float
    """Expected run."""
    now_seconds: float
    latest_seconds: float
    """Latest start; now or before for a job that must not wait."""


class PackingPrices(NamedTuple):
    """What is paid for what."""

    longer_watts: float
    """Of a second that a node is kept awake longer."""
    idle_seconds: float
    """How long a node stays awake with nothing to do."""
    wait_watts: float
    """Of a second of waiting."""


class Slot(NamedTuple):
    """Where and when."""

    node: int | None
    """None leaves it to the scheduler: no node that is awake has room."""
    start_seconds: float


def best_slot(nodes: Iterable[PlaceNode], stay: Stay, prices: PackingPrices) -> Slot:
    """Return the node for a start now, or a later start on a node that is full now if that costs less.

    Now it is the node whose last job ends soonest after the new one; where none lasts so long, the one that lasts
    longest, or nearly. A later start must be of less cost in the time that a node is kept awake and in waiting. Ends
    that have passed say nothing: their nodes are not waited for.

    Args:
        nodes: Of the place.
        stay: The start.
        prices: What is paid for what.
    """
    awake = [state for state in nodes if state.is_awake]
    now, end = stay.now_seconds, stay.now_seconds + stay.seconds
    node, least, kept = None, inf, stay.seconds + prices.idle_seconds
    for state in awake:
        if state.free_gpus < stay.gpus or not state.ends_seconds:
            continue
        last = state.ends_seconds[-1][0]
        misfit = last - end if last >= end else _LONGER * (end - last)
        if misfit < least:
            node, least, kept = state.node, misfit, max(0.0, end - max(last, now))
    if node is None:
        node = next((state.node for state in awake if state.free_gpus >= stay.gpus), None)
    cost, start = prices.longer_watts * kept, now
    if stay.latest_seconds > now and cost > 0.0:
        for state in awake:
            begins = _free_from(state, stay.gpus) if state.free_gpus < stay.gpus else now
            if now < begins <= stay.latest_seconds:
                longer = max(0.0, begins + stay.seconds - state.ends_seconds[-1][0])
                later = prices.longer_watts * longer + prices.wait_watts * (begins - now)
                if later < cost:
                    cost, start = later, begins + _MARGIN_SECONDS
    return Slot(node, start)


def _free_from(state: PlaceNode, gpus: int) -> float:
    """Return when so many devices of a node will be free, infinite for never."""
    free = state.free_gpus
    for end, given_back in state.ends_seconds:
        free += given_back
        if free >= gpus:
            return end
    return inf
