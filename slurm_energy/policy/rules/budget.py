"""Keeping a power budget around any rule: what a start may add, and the clocks of what runs."""

from dataclasses import replace
from math import inf

from slurm_energy.policy.placement import ClusterView, Placement, WaitingJob
from slurm_energy.policy.rules.cap_greedy import CapGreedyRule

_USAGE = 0.95
"""Share of the budget above which joules get a price."""
_STEP, _CEILING = 0.2, 3.0
"""Of the price, at one arrival and a usage 1 above that; and the most that it may reach."""


class PowerPrice:
    """The dual variable of the power budget: what a joule costs on top while power is what everybody waits for."""

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
        self.price = min(_CEILING, max(0.0, self.price + _STEP * (usage - _USAGE)))


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
