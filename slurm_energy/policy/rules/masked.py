"""Random choices among the places with room: the published agent's mask without its agent."""

from bisect import bisect_right
from random import Random

from slurm_energy.policy.placement import ClusterView, Placement, PlacementRule, WaitingJob
from slurm_energy.policy.rules.clocks import ClockChoice
from slurm_energy.policy.rules.tables import Prepared


class MaskedRandomRule(PlacementRule):
    """Place uniform over those with room, count uniform and cut to what fits there, energy-optimal clock."""

    name = "masked-random"

    def __init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # a simulation's stream
        self._choices = Prepared(ClockChoice)

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Take the policy's stream."""
        self._random = random
        self._choices.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return a random place and count."""
        room = view.room(job)
        open_places = [place for place, gpus in enumerate(room) if gpus]
        if not open_places:
            return None
        place = self._random.choice(open_places)
        choice = self._choices.of(view.options(job))
        fitting = bisect_right(choice.counts, room[place])
        count = min(self.count(len(choice.counts)), fitting - 1)
        return Placement(place, choice.counts[count], choice.best(place, count, job, view.now_seconds))

    def count(self, counts: int) -> int:
        """Return the index of a count out of so many."""
        return self._random.randrange(counts)


class JointNfMaskRule(MaskedRandomRule):
    """Place uniform over those with room, fewest devices, energy-optimal clock: JointNF with one more line."""

    name = "jointnf-mask"

    def count(self, counts: int) -> int:  # noqa: ARG002  # the hook's form
        """Return the fewest."""
        return 0
