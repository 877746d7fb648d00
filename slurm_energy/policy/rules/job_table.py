"""The best static clock of each kind of job, known by its account and name, from what its own runs used."""

from collections.abc import Mapping
from random import Random

from slurm_energy.policy.placement import Capabilities, Capability, ClusterView, EndedJob, WaitingJob
from slurm_energy.policy.rules.clocks import ClockChoice, nearest_clock
from slurm_energy.policy.rules.fixed_clock import FixedDvfsRule
from slurm_energy.policy.rules.settings import HIGHEST

_STEPS = 8
"""A search steps over an eighth of a place's clocks, at least one."""


class _Search:
    """Measured joules per unit of one kind of job on one device type with one count, by clock."""

    __slots__ = ("_runs", "_sums")

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}
        self._sums: dict[int, float] = {}

    def learn(self, clock: int, joules_per_unit: float) -> None:
        self._runs[clock] = self._runs.get(clock, 0) + 1
        self._sums[clock] = self._sums.get(clock, 0.0) + joules_per_unit

    def clock(self, start: int, lowest: int, highest: int) -> int:
        """Return an untried neighbour of the best clock so far, else that best clock.

        Args:
            start: The first clock to try.
            lowest: Least clock that the job's bounds allow.
            highest: The default clock.
        """
        tried = {clock: total / self._runs[clock] for clock, total in self._sums.items() if lowest <= clock <= highest}
        if not tried:
            return max(start, lowest)
        best = min(tried, key=lambda clock: (tried[clock], -clock))
        step = max(1, (highest + 1) // _STEPS)
        for neighbour in (max(lowest, best - step), min(highest, best + step)):
            if neighbour not in tried:
                return neighbour
        return best


class JobTableRule(FixedDvfsRule):
    """Slurm's placement; the clock by account and name, learned by trying one neighbouring clock after another.

    A pair of account and name starts at the fall-back clock; every further run takes an untried neighbour of the clock
    with the least measured joules per unit so far, until the clocks on both sides of the best are known to be worse.
    Device types and counts are searched apart.
    """

    name = "job-table"
    observes_ends = True

    def __init__(self, clocks: Mapping[tuple[str, str], float] | None = None, *, f: float = HIGHEST) -> None:
        """Store the settings.

        Args:
            clocks: Relative clock by account and name, where it is known; nothing is learned for these.
            f: Relative clock to fall back on, and to start from.
        """
        super().__init__(f=f)
        self._given = dict(clocks or {})
        self._searches: dict[tuple[str, str, str, int], _Search] = {}
        self._ran: dict[int, tuple[_Search, int]] = {}

    @property
    def uses(self) -> Capabilities:
        """What ended jobs measured says which clock is tried next."""
        return super().uses | {Capability.ENDED_JOBS}

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget what was learned."""
        super().begin(view, random)
        self._searches, self._ran = {}, {}

    def clock(self, choice: ClockChoice, place: int, count: int, job: WaitingJob, view: ClusterView) -> int:
        """Return the job's clock in the table, within its bounds."""
        where = view.places[place]
        given = self._given.get((job.account, job.name))
        if given is not None:
            wanted = nearest_clock(where.relative_clocks, given)
            return choice.at_least(wanted, place, count, job, view.now_seconds)
        if Capability.ENDED_JOBS not in view.capabilities:
            return choice.at_least(self._wanted[place], place, count, job, view.now_seconds)
        lowest = choice.at_least(0, place, count, job, view.now_seconds)
        key = (job.account, job.name, where.device, choice.counts[count])
        search = self._searches.setdefault(key, _Search())
        clock = search.clock(self._wanted[place], lowest, choice.default(place, count))
        self._ran[job.job_id] = (search, clock)
        return clock

    def ended(self, job: EndedJob) -> None:
        """Write down what a completed run used."""
        search, clock = self._ran.pop(job.job_id, (None, 0))
        if search is not None and job.state == "COMPLETED" and job.units > 0.0:
            search.learn(clock, job.energy_joules / job.units)
