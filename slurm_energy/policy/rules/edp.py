"""Least energy x delay."""

import numpy as np

from slurm_energy.policy.placement import OptionTable
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.scored import ScoredRule


class EdpRule(ScoredRule):
    """Least (n T P) T^exponent: the energy-delay product of the run, or ED2P with exponent 2 (Horowitz et al. 1994)."""

    name = "edp"

    def __init__(self, *, exponent: float = 1.0, wake: bool = True) -> None:
        super().__init__(wake=wake)
        self._exponent = exponent

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by energy x delay, both per unit of work."""
        delay = np.power(table.seconds_per_unit, self._exponent)
        return Ranking(table, table.joules_per_unit * delay, delay)
