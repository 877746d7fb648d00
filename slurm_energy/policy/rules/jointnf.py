"""The published joint choice of count and clock: blind routing, the least joules per unit."""

from random import Random

import numpy as np

from slurm_energy.policy.placement import ClusterView, OptionTable, Placement, WaitingJob
from slurm_energy.policy.rules.blind import BlindRule, waits_at
from slurm_energy.policy.rules.clocks import ClockChoice
from slurm_energy.policy.rules.tables import Prepared


class _JointChoice:
    """Counts of each place in the order of their least joules per unit, and the clocks of each."""

    def __init__(self, table: OptionTable) -> None:
        self.clocks = ClockChoice(table)
        least = table.joules_per_unit.min(axis=2)
        self.counts: list[list[int]] = np.argsort(least, axis=1, kind="stable").tolist()


class JointNfRule(BlindRule):
    """Count and clock of the least joules per unit at the place where the job waits.

    Published: (n, f) = argmin of E(n, f) over all n, then n = min(n, free). Here: the least of the counts that fit.
    """

    name = "jointnf"

    def __init__(self) -> None:
        super().__init__()
        self._choices = Prepared(_JointChoice)

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget the tables of the last run."""
        super().begin(view, random)
        self._choices.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return count and clock of the least energy."""
        room = view.room(job)
        place = waits_at(job, room)
        if place is None:
            return None
        choice = self._choices.of(view.options(job))
        counts = choice.clocks.counts
        count = next(index for index in choice.counts[place] if counts[index] <= room[place])
        return Placement(place, counts[count], choice.clocks.best(place, count, job, view.now_seconds))
