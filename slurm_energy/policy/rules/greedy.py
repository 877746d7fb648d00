"""The cheapest place with room: fewest devices, energy-optimal clock."""

from slurm_energy.policy.placement import OptionTable
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.scored import ScoredRule


class GreedyRule(ScoredRule):
    """Fewest devices, then the least n T P; more devices only where time limit or deadline needs them."""

    name = "greedy"

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by count, then by joules per unit."""
        return Ranking(table, table.joules_per_unit, fewest_first=True)
