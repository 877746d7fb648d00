"""Rules that take the option of the least score: the score makes the rule."""

from random import Random

from slurm_energy.policy.placement import ClusterView, OptionTable, Placement, PlacementRule, WaitingJob
from slurm_energy.policy.rules.bounds import Bounds, bounds_of
from slurm_energy.policy.rules.ranking import Ranking
from slurm_energy.policy.rules.tables import Prepared


class ScoredRule(PlacementRule):
    """Least score among the options with room, within the job's bounds; subclasses rank the options of a table."""

    def __init__(self, *, wake: bool = True) -> None:
        """Store the settings.

        Args:
            wake: Whether the energy of waking suspended nodes counts, spread over the job's estimated work.
        """
        self._wake = wake
        self._rankings = Prepared(self.ranking)

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the tables of the last run."""
        self._rankings.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option with the least score."""
        ranking = self._rankings.of(view.options(job))
        wake_units = self.units(job) if self._wake else 0.0
        return ranking.choose(view.room(job), view, self.bounds(job, view.now_seconds), wake_units)

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return what the job's bounds leave if it starts now."""
        return bounds_of(job, now_seconds)

    def units(self, job: WaitingJob) -> float:
        """Return the job's work as far as the rule knows it."""
        return job.estimated_units

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options in the rule's order."""
        raise NotImplementedError
