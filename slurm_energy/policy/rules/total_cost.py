"""The option of the least total cost: devices, hosts, waking nodes, time, slowdown and scarcity, each at a price."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from random import Random

from slurm_energy.policy.placement import (
    ClusterView,
    EndedJob,
    OptionTable,
    Placement,
    PlacementRule,
    WaitingJob,
)
from slurm_energy.policy.rules.bounds import bounds_of
from slurm_energy.policy.rules.budget import BudgetKeeper, PowerPrice
from slurm_energy.policy.rules.corrections import Corrections
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.scarcity import HEADROOM, Scarcity
from slurm_energy.policy.rules.settings import Setting
from slurm_energy.policy.rules.tables import Prepared

_CONTROL_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalCostSettings:
    """What is paid for what; `Prices` says what each is a price of."""

    time_watts: float = 20.0
    slowdown: float = 0.0
    """In terms of the mean energy of the jobs seen so far."""
    share: float = 1.0
    opening: float = 0.1
    waking: float = 1.0
    scarcity: float = 1.0
    """Multiplies the price of devices that rises while they are scarce."""
    headroom: float = HEADROOM
    """Share of the devices that the price of scarcity keeps free."""
    corrects: bool = True
    """Whether ended jobs correct what tables say of their kind and place."""


def _price(name: str, default: float, meaning: str) -> Setting:
    return Setting(name=name, default=default, low=0.0, high=1e6, meaning=meaning)


TOTAL_COST = (
    _price("V", 20.0, "price of time, W"),
    _price("slowdown", 0.0, "price of a slowdown of 1, in mean job energies"),
    _price("share", 1.0, "price of a job's share of awake nodes, J per J"),
    _price("opening", 0.1, "price of a node that a job opens alone, J per J"),
    _price("waking", 1.0, "price of the energy that wakes a node, J per J"),
    _price("scarcity", 1.0, "multiplies the price of devices while they are scarce"),
    Setting(
        name="headroom", default=HEADROOM, low=0.0, high=0.9, meaning="share of the devices that scarcity keeps free"
    ),
    Setting(
        name="correct", default=1, low=0, high=1, whole=True, meaning="1 lets ended jobs correct the tables, 0 does not"
    ),
)


def total_cost_settings(values: Mapping[str, float]) -> TotalCostSettings:
    """Return the settings that a rule's text names."""
    return TotalCostSettings(
        time_watts=values["V"],
        slowdown=values["slowdown"],
        share=values["share"],
        opening=values["opening"],
        waking=values["waking"],
        scarcity=values["scarcity"],
        headroom=values["headroom"],
        corrects=bool(values["correct"]),
    )


class TotalCostRule(PlacementRule):
    """Least cost of all that an option takes.

    Beyond `adaptive-price` it counts what an option does to hosts: a job pays for its share of the nodes that it keeps
    awake, and for a node that it opens alone. A job whose delay reaches the end of its task graph in part only pays
    that part of the price of time. Starts stay under a power budget, and clocks of running jobs follow it.
    """

    name = "total-cost"
    routes = True
    """Only to see every arrival: no job is sent anywhere."""
    observes_ends = True
    control_interval_seconds = _CONTROL_SECONDS

    def __init__(self, settings: TotalCostSettings | None = None) -> None:
        self.settings = settings or TotalCostSettings()
        self._tables = Prepared(self._table)
        self._corrections = Corrections()
        self._scarcity = Scarcity()
        self._budget = BudgetKeeper()
        self._power = PowerPrice()
        self._arrived = (0, 0.0)
        """Jobs so far, and the mean of their energy in J, each at its cheapest option."""
        self._deadlines: dict[int, float] = {}
        """Of jobs that run."""
        self._places = PlaceCosts.of(())

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget the last run."""
        self._tables.forget()
        self._places = PlaceCosts.of(view.places)
        self._corrections = Corrections()
        self._scarcity = Scarcity(view.places, self.settings.headroom)
        self._arrived = (0, 0.0)
        self._deadlines = {}
        self._power = PowerPrice()
        self._budget.begin(view, random)

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:
        """Move the price of scarcity at an arrival; the job waits in the common queue."""
        options = self._options(job, view)
        count, mean = self._arrived
        self._arrived = count + 1, mean + (job.estimated_units * options.least_joules - mean) / (count + 1)
        self._scarcity.move(view, options.least_watts)
        self._power.move(view)
        return None

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option of the least cost."""
        has_budget = view.power_budget_watts < inf
        wanted = PricedJob(
            units=job.estimated_units,
            bounds=bounds_of(job, view.now_seconds),
            spare_watts=self._budget.spare_watts(view) if has_budget else inf,
        )
        options = self._options(job, view)
        found = options.choose(wanted, self.prices(job, view, options), view.room(job), view)
        if found is not None:
            if job.deadline_seconds < inf:
                self._deadlines[job.job_id] = job.deadline_seconds
            if self.settings.corrects:
                self._corrections.expect(job, found, view)
            if has_budget:
                self._budget.watch(job, found, view)
        return found

    @property
    def mean_job_joules(self) -> float:
        """Of the jobs so far, each at its cheapest option."""
        return self._arrived[1]

    def prices(self, job: WaitingJob, view: ClusterView, options: CostTable) -> Prices:  # noqa: ARG002  # for others
        """Return what a job pays now."""
        given = self.settings
        return Prices(
            time_watts=given.time_watts * view.criticality(job),
            slowdown_joules=given.slowdown * self._arrived[1],
            share=given.share,
            opening=given.opening,
            waking=given.waking,
            power=self._power.price,
            device_watts=given.scarcity * self._scarcity.device_watts,
        )

    def ended(self, job: EndedJob) -> None:
        """Learn what a job that completed really took, and whether it came in time."""
        self._corrections.learn(job)
        deadline = self._deadlines.pop(job.job_id, None)
        if deadline is not None:
            self._scarcity.deadline(missed=job.state != "COMPLETED" or job.ended_seconds > deadline)
        self._budget.ended(job)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        """Return the clocks that keep the power budget."""
        return self._budget.control(view) if view.power_budget_watts < inf else {}

    def _options(self, job: WaitingJob, view: ClusterView) -> CostTable:
        return self._tables.of(self._corrections.corrected(job.kind, view.options(job), view.places))

    def _table(self, table: OptionTable) -> CostTable:
        return CostTable(table, self._places)
