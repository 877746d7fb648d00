"""A price on time: how many watts the cluster pays for a job that is done sooner."""

from random import Random

from slurm_energy.policy.placement import Capabilities, Capability, ClusterView, OptionTable, Placement, WaitingJob
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.scored import ScoredRule
from slurm_energy.policy.rules.sharing import Prices, with_partner
from slurm_energy.policy.rules.tables import active_joules, cost


class PriceRule(ScoredRule):
    """Least n T (P - free) + V T over all places, counts and clocks with room; V in W."""

    name = "price"

    def __init__(self, *, v: float = 20.0, wake: bool = True, share: bool = False) -> None:
        """Store the settings.

        Args:
            v: Price of time in W.
            wake: Whether the energy of waking suspended nodes counts.
            share: Whether a job may share a GPU with a running one.
        """
        super().__init__(wake=wake)
        self._watts, self._share = v, share
        self._prices = Prices(v, ())

    @property
    def uses(self) -> Capabilities:
        """A partner on the same GPU with `share`."""
        return super().uses | ({Capability.SHARED_GPU} if self._share else set())

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget the tables of the last run."""
        super().begin(view, random)
        self._prices = Prices(self._watts, [0.0] * len(view.places))

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option with the least price."""
        own = super().place(job, view)
        if not self._share:
            return own
        return with_partner(job, view, own, self._prices, self.bounds(job, view.now_seconds))

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by active joules plus the price of their time."""
        return Ranking(table, active_joules(table) + cost(table, self._watts))
