"""The published bandit: blind routing, all the devices that fit, the clock by UCB1."""

from math import inf, log, sqrt
from random import Random

from slurm_energy.policy.placement import Capabilities, Capability, ClusterView, EndedJob, Placement, WaitingJob
from slurm_energy.policy.rules.blind import BlindRule, waits_at
from slurm_energy.policy.rules.clocks import ClockChoice
from slurm_energy.policy.rules.tables import Prepared


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
        self._choices = Prepared(ClockChoice)

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
