"""The published default policy: blind routing, all the devices that fit, one clock for each place."""

from math import inf
from random import Random

from slurm_energy.policy.placement import ClusterView, Placement, WaitingJob, placement_alone
from slurm_energy.policy.rules.blind import BlindRule, waits_at
from slurm_energy.policy.rules.clocks import ClockChoice, nearest_clock
from slurm_energy.policy.rules.tables import Prepared


class DpRule(BlindRule):
    """The place's clock is set at every start: to `clock` with two or more free devices, else to no less than that.

    The published code starts every place at its highest clock; the first start with two free devices lowers it.
    """

    name = "dp"

    def __init__(self, *, clock: float = 0.6) -> None:
        super().__init__()
        self._clock = clock
        self._wanted: list[int] = []
        self._set: list[int] = []
        self._choices = Prepared(ClockChoice)

    def begin(self, view: ClusterView, random: Random) -> None:
        """Put every place at its highest clock."""
        super().begin(view, random)
        self._choices.forget()
        self._wanted = [nearest_clock(place.relative_clocks, self._clock) for place in view.places]
        self._set = [len(place.relative_clocks) - 1 for place in view.places]

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return all devices that fit at the place where the job waits, at the place's clock."""
        room = view.room(job)
        place = waits_at(job, room)
        if place is None:
            return None
        clock, wanted, gpus = self._set[place], self._wanted[place], room[place]
        if clock != wanted and (clock < wanted or view.free_gpus[place] >= 2):
            clock = self._set[place] = wanted
        if job.max_slowdown < inf or job.time_limit_seconds < inf or job.deadline_seconds < inf:
            choice = self._choices.of(view.options(job))
            clock = choice.at_least(clock, place, choice.counts.index(gpus), job, view.now_seconds)
        return placement_alone(place, gpus, clock)


class DpFullRule(DpRule):
    """The same at the highest clock, as the paper's text has it."""

    name = "dp-full"

    def __init__(self) -> None:
        super().__init__(clock=inf)
