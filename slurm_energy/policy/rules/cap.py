"""Keeping a power budget: start clocks that fit under it, and clocks of running jobs that follow it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isfinite
from random import Random
from typing import NamedTuple

import numpy as np

from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import Capabilities, Capability, ClusterView, OptionTable, Placement, PlacementRule
from slurm_energy.policy.rules.running_clocks import CappedJob, Ladder, lower_clocks, raise_clocks
from slurm_energy.policy.rules.settings import CAP_INTERVAL_SECONDS, CAP_MARGIN
from slurm_energy.policy.rules.tables import PlaceClocks, Prepared, active_joules


class _Wanted(NamedTuple):
    efficient_watts: float
    highest_watts: float


class _Ladders:
    """The ladders of one table."""

    def __init__(self, table: OptionTable) -> None:
        self.choice = PlaceClocks(table)
        self._table = table
        self._made: dict[tuple[int, int], Ladder] = {}
        efficient = np.argmin(active_joules(table), axis=2)[:, :, None]
        below = np.arange(table.watts.shape[2])[None, None, :] < efficient
        added = np.where(below, inf, table.watts - table.free_watts)
        self.min_added_watts: list[float] = added.min(axis=(1, 2)).tolist()
        """By place, of any start from the efficient clock up."""

    def of(self, place: int, count: int, relative_clocks: Sequence[float]) -> Ladder:
        found = self._made.get((place, count))
        if found is None:
            seconds = self._table.seconds_per_unit[place, count].tolist()
            while not isfinite(seconds[-1]):  # of another place with more clocks; one inside is no option
                seconds.pop()
            gpus = self._table.gpu_counts[count]
            watts = self._table.watts[place, count, : len(seconds)].tolist()
            free = float(self._table.free_watts[place, count, len(seconds) - 1])
            found = self._made[place, count] = Ladder(
                watts=watts,
                speed=[gpus * seconds[-1] / value for value in seconds],
                free_watts=free,
                relative_clocks=relative_clocks,
                highest=len(seconds) - 1,
                efficient=min(range(len(seconds)), key=lambda clock: _joules(watts[clock] - free, seconds[clock])),
            )
        return found


def _joules(watts: float, seconds: float) -> float:
    return watts * seconds if isfinite(seconds) else inf


class CapRule(PlacementRule):
    """Slurm's placement under a power budget; subclasses say which clocks move.

    A job starts at the first place with room, with the most devices and at the highest clock whose power still fits
    under the budget, but not below its efficient clock, where a watt does less work. A job for which there is no power
    waits, unless nothing runs at all: a budget below the least that one job needs cannot be kept. While jobs wait for
    power, jobs start at their efficient clocks and running ones are lowered to theirs.
    """

    observes_ends = True

    def __init__(self, *, interval_seconds: float = CAP_INTERVAL_SECONDS, margin: float = CAP_MARGIN) -> None:
        """Store the settings.

        Args:
            interval_seconds: Between two looks at the cluster's power.
            margin: Share of the budget that must be left before clocks are raised.
        """
        self.control_interval_seconds = interval_seconds
        self._margin = margin
        self._cap = inf
        """Relative clock above which no job starts."""
        self._wanted: _Wanted | None = None
        """What the last job wanted that found no power; None while there is enough for all who wait."""
        self._ladders = Prepared(_Ladders)
        self._started: dict[int, tuple[Ladder, int]] = {}
        """Ladder and lowest clock of every job that was placed and has not ended."""

    @property
    def uses(self) -> Capabilities:
        """Clocks of jobs that run follow the power."""
        return frozenset({Capability.RUNNING_CLOCK})

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the last run."""
        self._cap, self._wanted, self._started = inf, None, {}
        self._ladders.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the first option in Slurm's order that fits under the budget."""
        spare = view.power_budget_watts - view.power_watts - view.coming_watts
        self._forget_shortage(view, spare)
        if self._wanted is not None and self._is_busy(view) and self._is_hopeless(job, view, spare):
            return None
        coolest: tuple[float, Placement, Ladder, int] | None = None
        for placement, ladder, lowest in self._ways(job, view):
            floor = max(lowest, ladder.efficient)
            top = floor if self._wanted else ladder.highest_under(self._cap, floor)
            for clock in range(top, floor - 1, -1):
                if ladder.added_watts(clock) <= spare:
                    self._started[job.job_id] = (ladder, lowest)
                    return placement._replace(clock=clock)
            added = ladder.added_watts(lowest)
            if coolest is None or added < coolest[0]:
                coolest = added, placement, ladder, lowest
        if coolest is None:
            return None
        _, placement, ladder, lowest = coolest
        if not self._is_busy(view):
            self._started[job.job_id] = (ladder, lowest)
            return placement
        floor = max(lowest, ladder.efficient)
        self._wanted = _Wanted(ladder.added_watts(floor), ladder.added_watts(ladder.highest))
        return None

    def ended(self, job: EndedJob) -> None:
        """Forget a job."""
        self._started.pop(job.job_id, None)

    def control(self, view: ClusterView) -> Mapping[int, int]:
        """Lower clocks while the budget is exceeded or jobs wait for power; else raise them where there is room."""
        budget = view.power_budget_watts
        spare = budget - view.power_watts - view.coming_watts
        self._forget_shortage(view, spare)
        if not self._started:
            return {}
        if spare < 0.0:
            return self._moved(view, lambda jobs: self.lower(jobs, -spare), efficient=False)
        if self._wanted is not None:
            missing = self._wanted.efficient_watts * view.num_waiting - spare
            return self._moved(view, lambda jobs: self.lower(jobs, missing), efficient=True) if missing > 0.0 else {}
        room = spare - self._margin * budget if budget < inf else inf
        return self._moved(view, lambda jobs: self.raise_clocks(jobs, room), efficient=False) if room > 0.0 else {}

    def lower(self, jobs: list[CappedJob], over_watts: float) -> None:
        """Set lower clocks that save at least so many watts, or the lowest there are."""
        raise NotImplementedError

    def raise_clocks(self, jobs: list[CappedJob], spare_watts: float) -> None:
        """Set higher clocks that add at most so many watts."""
        raise NotImplementedError

    def _ways(self, job: WaitingJob, view: ClusterView) -> Iterator[tuple[Placement, Ladder, int]]:
        """Yield places in order and counts from the largest that fits, with the lowest clock that bounds allow."""
        ladders = self._ladders.of(view.options(job))
        choice = ladders.choice
        for place, room in enumerate(view.room(job)):
            for count in range(len(choice.counts) - 1, -1, -1) if room else ():
                if choice.counts[count] <= room and choice.runs(place, count):
                    lowest = choice.at_least(0, place, count, job, view.now_seconds)
                    ladder = ladders.of(place, count, view.places[place].relative_clocks)
                    yield Placement(place, choice.counts[count], lowest), ladder, lowest

    @staticmethod
    def _is_busy(view: ClusterView) -> bool:
        """Return whether any device is taken, so that there will be power or room when it is given back."""
        return any(free < place.total_gpus for free, place in zip(view.free_gpus, view.places, strict=True))

    def _is_hopeless(self, job: WaitingJob, view: ClusterView, spare_watts: float) -> bool:
        """Return whether there is no power for the job whatever its bounds: many jobs may ask at every event."""
        least = self._ladders.of(view.options(job)).min_added_watts
        return all(not room or watts > spare_watts for room, watts in zip(view.room(job), least, strict=True))

    def _moved(self, view: ClusterView, move: Callable[[list[CappedJob]], None], *, efficient: bool) -> dict[int, int]:
        """Return the clocks that a move changes; `efficient` keeps it from going below efficient clocks."""
        jobs = []
        for running in view.running_jobs():
            ladder, lowest = self._started.get(running.job_id, (None, 0))
            if ladder is not None:
                clock = running.clock % len(ladder.watts)
                floor = min(max(lowest, ladder.efficient), clock) if efficient else min(lowest, clock)
                jobs.append(CappedJob(job_id=running.job_id, ladder=ladder, lowest=floor, clock=clock))
        before = [job.clock for job in jobs]
        move(jobs)
        return {job.job_id: job.clock for job, clock in zip(jobs, before, strict=True) if job.clock != clock}

    def _forget_shortage(self, view: ClusterView, spare_watts: float) -> None:
        """Forget that a job found no power once there is enough for all who wait at their highest clocks."""
        if self._wanted is not None and self._wanted.highest_watts * view.num_waiting <= spare_watts:
            self._wanted = None


class CapGreedyRule(CapRule):
    """Step by step, lowers the clock that saves the most watts per unit of speed lost; raises in the reverse order.

    Speed is that relative to the default clock, times devices, so that jobs of different kinds compare. The published
    rule took the least watts per speed first, which is backwards.
    """

    name = "cap-greedy"

    def lower(self, jobs: list[CappedJob], over_watts: float) -> None:
        """Take steps down, the best first, until enough is saved."""
        lower_clocks(jobs, over_watts)

    def raise_clocks(self, jobs: list[CappedJob], spare_watts: float) -> None:
        """Take steps up, the most speed per watt first, as long as each fits."""
        raise_clocks(jobs, spare_watts)


class CapUniformRule(CapRule):
    """All jobs run at the highest clock up to one relative clock, the highest at which the budget is kept.

    The published rule estimated savings with each job's own clock and so never saw any; this one looks them up.
    """

    name = "cap-uniform"

    def lower(self, jobs: list[CappedJob], over_watts: float) -> None:
        """Lower the common bound until enough is saved."""
        self._cap = _highest_cap(jobs, -over_watts, lift_only=False)
        for job in jobs:
            job.clock = _target(job, self._cap, lift_only=False)

    def raise_clocks(self, jobs: list[CappedJob], spare_watts: float) -> None:
        """Raise the common bound as far as there is room; no job is lowered for another."""
        if all(job.clock == job.ladder.highest for job in jobs):
            self._cap = inf
            return
        cap = _highest_cap(jobs, spare_watts, lift_only=True)
        self._cap = max(self._cap, cap)
        for job in jobs:
            job.clock = _target(job, cap, lift_only=True)


def _highest_cap(jobs: Sequence[CappedJob], spare_watts: float, *, lift_only: bool) -> float:
    """Return the highest relative clock that adds no more than so many watts, the lowest of all when none does."""
    caps = sorted({clock for job in jobs for clock in job.ladder.relative_clocks})
    low, high = 0, len(caps)
    while high - low > 1:
        middle = (low + high) // 2
        added = -sum(job.saved_watts(_target(job, caps[middle], lift_only=lift_only)) for job in jobs)
        if added <= spare_watts:
            low = middle
        else:
            high = middle
    return caps[low] if low < len(caps) - 1 else inf  # also for no jobs at all


def _target(job: CappedJob, cap: float, *, lift_only: bool) -> int:
    clock = job.ladder.highest_under(cap, job.lowest)
    return max(clock, job.clock) if lift_only else clock
