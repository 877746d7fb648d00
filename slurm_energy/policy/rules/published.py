"""The baselines that papers published: blind routing at submission, and the published agent's mask without an agent."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, log, sqrt
from random import Random

import numpy as np

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    Discipline,
    OptionTable,
    Placement,
    PlacementRule,
    placement_alone,
)
from slurm_energy.policy.rules.slurm_order import nearest_clock
from slurm_energy.policy.rules.tables import PlaceClocks, Prepared


class BlindRule(PlacementRule):
    """Each job waits at a uniformly random one of the places that it may use, whatever the load.

    Exactly one draw for a job, `random.choice`, which is the published baselines' stream when all places are allowed.
    """

    routes = True
    shares_arrival_stream = True
    discipline = Discipline(order="fifo", backfill="none")

    def __init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # a simulation's stream

    @property
    def uses(self) -> Capabilities:
        """A queue without backfill."""
        return super().uses | {Capability.QUEUE_ORDER}

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Take the policy's stream."""
        self._random = random

    def route(self, job: WaitingJob, view: ClusterView) -> int | None:
        """Return a random place; None where none is allowed, without a draw."""
        allowed = view.allowed_places(job)
        count = len(allowed)
        if not count:
            return None
        draw, bits = self._random.getrandbits, count.bit_length()  # `random.choice`, without its calls
        index = draw(bits)
        while index >= count:
            index = draw(bits)
        return allowed[index]


def waits_at(job: WaitingJob, room: Sequence[int]) -> int | None:
    """Return where a job that was routed starts, None without room there; unrouted: the first place with room."""
    place = job.routed_place
    if place is None:
        return next((index for index, gpus in enumerate(room) if gpus), None)
    return place if room[place] else None


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
        self._choices = Prepared(PlaceClocks)

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


class _Arms:
    """The clocks of one place for one kind of work."""

    __slots__ = ("means", "pulls", "untried")

    def __init__(self, num_clocks: int) -> None:
        self.pulls = [0] * num_clocks
        """Completed ones."""
        self.means = [0.0] * num_clocks
        """Rewards: minus joules per unit."""
        self.untried = num_clocks

    def learn(self, clock: int, reward: float) -> None:
        self.untried -= self.pulls[clock] == 0
        self.pulls[clock] += 1
        self.means[clock] += (reward - self.means[clock]) / self.pulls[clock]


class Ucb1Rule(BlindRule):
    """Auer, Cesa-Bianchi and Fischer 2002: the clock of the greatest mean + sqrt(2 ln t / pulls).

    As published: t counts selections over all places and kinds, pulls count completions, the reward is minus joules per
    unit and is not scaled to [0, 1], and a clock without a completed pull is tried again until one completes.
    """

    name = "ucb1"
    observes_ends = True

    def __init__(self) -> None:
        super().__init__()
        self._arms: dict[tuple[int, str], _Arms] = {}
        self._pulled: dict[int, tuple[_Arms, int]] = {}
        self._selections = 0
        self._choices = Prepared(PlaceClocks)

    @property
    def uses(self) -> Capabilities:
        """What ended jobs measured rewards the arms."""
        return super().uses | {Capability.ENDED_JOBS}

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget every arm."""
        super().begin(view, random)
        self._arms, self._pulled, self._selections = {}, {}, 0
        self._choices.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return all devices that fit at the place where the job waits, at the arm's clock."""
        room = view.room(job)
        place = waits_at(job, room)
        if place is None:
            return None
        gpus = room[place]
        if Capability.ENDED_JOBS not in view.capabilities:
            return Placement(place, gpus, -1)  # nothing would ever be learned from a trial
        arms = self._arms.get((place, job.kind))
        if arms is None:
            arms = self._arms[place, job.kind] = _Arms(len(view.places[place].relative_clocks))
        lowest = 0
        if job.max_slowdown < inf or job.time_limit_seconds < inf or job.deadline_seconds < inf:
            choice = self._choices.of(view.options(job))
            lowest = choice.at_least(0, place, choice.counts.index(gpus), job, view.now_seconds)
        clock = self._select(arms, lowest)
        self._pulled[job.job_id] = (arms, clock)
        return Placement(place, gpus, clock)

    def ended(self, job: EndedJob) -> None:
        """Reward the clock that was chosen for the job; a job without any work done teaches nothing."""
        arms, clock = self._pulled.pop(job.job_id, (None, 0))
        if arms is not None and job.units > 0.0:
            arms.learn(clock, -job.energy_joules / job.units)

    def _select(self, arms: _Arms, lowest: int) -> int:
        self._selections += 1
        pulls, means = arms.pulls, arms.means
        if arms.untried and 0 in pulls[lowest:]:
            return pulls.index(0, lowest)
        best, most = lowest, -inf
        twice = 2.0 * log(self._selections)
        for clock in range(lowest, len(pulls)):
            value = means[clock] + sqrt(twice / pulls[clock])
            if value > most:
                best, most = clock, value
        return best


class _JointChoice:
    """Counts of each place in the order of their least joules per unit, and the clocks of each."""

    def __init__(self, table: OptionTable) -> None:
        self.clocks = PlaceClocks(table)
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


class MaskedRandomRule(PlacementRule):
    """Place uniform over those with room, count uniform and cut to what fits there, energy-optimal clock."""

    name = "masked-random"

    def __init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # a simulation's stream
        self._choices = Prepared(PlaceClocks)

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
