"""A price on time: how many watts the cluster pays for a job that is done sooner."""

from slurm_energy.policy.placement import OptionTable
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.scored import ScoredRule
from slurm_energy.policy.rules.tables import active_joules, cost


class PriceRule(ScoredRule):
    """Least n T (P - free) + V T over all places, counts and clocks with room; V in W."""

    name = "price"

    def __init__(self, *, v: float = 20.0, wake: bool = True) -> None:
        super().__init__(wake=wake)
        self._watts = v

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by active joules plus the price of their time."""
        return Ranking(table, active_joules(table) + cost(table, self._watts))
