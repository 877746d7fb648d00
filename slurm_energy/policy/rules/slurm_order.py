"""What Slurm itself does: the first place with room, as many devices as fit, the highest clock."""

from random import Random

from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    Discipline,
    Placement,
    PlacementRule,
    WaitingJob,
)
from slurm_energy.policy.rules.clocks import ClockChoice
from slurm_energy.policy.rules.tables import Prepared

SLURM_ORDER = Discipline(order="fifo", backfill="easy")


class FirstPlaceRule(PlacementRule):
    """First place with room in the world's order, most devices that fit; subclasses choose the clock.

    Slurm tries a job's partitions in the order given and takes nodes by weight, which is the order of places here; of a
    range such as --gpus=2-8 it gives the most that fits.
    """

    def __init__(self) -> None:
        self._clocks = Prepared(ClockChoice)

    @property
    def uses(self) -> Capabilities:
        """Slurm gives a range of counts the most that fits by itself; another order than its own is a wish."""
        return frozenset({Capability.QUEUE_ORDER} if self.discipline not in {None, SLURM_ORDER} else ())

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the tables of the last run."""
        self._clocks.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the first place with room."""
        choice = self._clocks.of(view.options(job))
        for place, gpus in enumerate(view.room(job)):
            if gpus:
                count = choice.counts.index(gpus)
                if choice.runs(place, count):
                    return Placement(place, gpus, self.clock(choice, place, count, job, view))
        return None

    def clock(self, choice: ClockChoice, place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the clock for a place and the index of a count."""
        raise NotImplementedError


class SlurmDefaultRule(FirstPlaceRule):
    """FIFO with EASY backfill, highest clock."""

    name = "slurm-default"
    discipline = Discipline(order="fifo", backfill="easy")

    def clock(self, choice: ClockChoice, place: int, count: int, job: WaitingJob, view: ClusterView) -> int:  # noqa: ARG002  # the hook's form
        """Return the default clock."""
        return choice.default(place, count)


class FcfsRule(SlurmDefaultRule):
    """FIFO without backfill, highest clock."""

    name = "fcfs"
    discipline = Discipline(order="fifo", backfill="none")


class SjfBackfillRule(SlurmDefaultRule):
    """Shortest expected work first, with EASY backfill, highest clock."""

    name = "sjf-backfill"
    discipline = Discipline(order="sjf", backfill="easy")
