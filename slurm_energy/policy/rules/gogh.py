"""GOGH's allocation (optimise step): waiting jobs together get the places, counts and partners of least energy.

An integer programme over the jobs that wait: one option each at most, GPUs of a place at most once, at most two jobs on
a GPU, rates within each job's bounds. The paper solves it for all jobs at once and moves running ones; here jobs that
run stay where they are, since Slurm moves none, and only partners may join them. A job that is submitted to Slurm is
planned alone: there the programme is the cheapest option.
"""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import numpy as np

from slurm_energy.policy.jobs import PartnerOffer, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    FloatArray,
    OptionTable,
    Placement,
    PlacementRule,
)
from slurm_energy.policy.rules.tables import PlaceClocks, Prepared, active_joules, bounds_of, cost

MAX_NODES = 500
"""Of the search: the same answer on every machine, where the time suffices."""
_Resource = tuple[str, int]
"""A place's free GPUs, or the job that runs alone on a GPU."""


class _Choice(NamedTuple):
    """One way of starting one job."""

    job: int
    """Position among the jobs that are planned."""
    placement: Placement
    joules: float
    resource: _Resource
    taken: int


class GoghRule(PlacementRule):
    """Least energy of the waiting jobs together."""

    name = "gogh"
    routes = True

    def __init__(self, *, jobs: int = 24, min_speed: float = 0.85, seconds: float = 0.2) -> None:
        """Store the settings.

        Args:
            jobs: Most waiting jobs that are planned together, the first of the queue.
            min_speed: What two jobs on a GPU must each keep of their speed alone; above 1: none share.
            seconds: Time of the search; the best plan that it has by then is taken.
        """
        self._max_jobs, self._min_speed, self._seconds = jobs, min_speed, seconds
        self._host_share: FloatArray = np.zeros(0)
        self._busy_watts: FloatArray = np.zeros(0)
        self._clocks = Prepared(self._ranked)
        self._scores = Prepared(self._score)
        self._waiting: dict[int, WaitingJob] = {}
        self._plan: dict[int, Placement | None] = {}
        self._planned_seconds = -1.0
        self.searches = self.unsolved = 0
        """Programmes so far, and those without a plan in time, for which each job took its cheapest option in turn."""

    @property
    def uses(self) -> Capabilities:
        """Counts, and partners on the same GPU."""
        return super().uses | ({Capability.SHARED_GPU} if self._min_speed <= 1.0 else set())

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the last run."""
        self._host_share = np.array([place.host_share for place in view.places])[:, None, None]
        self._busy_watts = np.array([place.busy_watts for place in view.places])[:, None, None]
        self._clocks.forget()
        self._scores.forget()
        self._waiting, self._plan, self._planned_seconds = {}, {}, -1.0
        self.searches = self.unsolved = 0

    def _score(self, table: OptionTable) -> FloatArray:
        """Return joules per unit beyond what the same devices draw when free, hosts included."""
        counts = np.asarray(table.gpu_counts)[None, :, None]
        host = cost(table, self._busy_watts * counts * np.ones_like(table.watts))
        return active_joules(table) * (1.0 + self._host_share) + host

    def _ranked(self, table: OptionTable) -> PlaceClocks:
        return PlaceClocks(table, self._score(table))

    def route(self, job: WaitingJob, view: ClusterView) -> None:  # noqa: ARG002  # the hook's form
        """Note that a job waits."""
        self._waiting[job.job_id] = job

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return what the plan has for the job; plan again where it has nothing that can be carried out."""
        self._waiting[job.job_id] = job
        planned = self._plan.get(job.job_id)
        is_fresh = self._planned_seconds == view.now_seconds and job.job_id in self._plan
        if not is_fresh or (planned is not None and not self._fits(job, planned, view)):
            self._plan, self._planned_seconds = self._planned(job, view), view.now_seconds
            planned = self._plan.get(job.job_id)
        if planned is not None:
            self._waiting.pop(job.job_id, None)
        return planned

    @staticmethod
    def _fits(job: WaitingJob, planned: Placement, view: ClusterView) -> bool:
        if planned.partner is not None:
            return any(offer.job_id == planned.partner for offer in view.partners(job))
        return view.room(job)[planned.place] >= planned.gpus

    def _planned(self, job: WaitingJob, view: ClusterView) -> dict[int, Placement | None]:
        """Return the plan of the first waiting jobs and this one, whatever its place in the queue."""
        others = [other for other in self._waiting.values() if other.job_id != job.job_id]
        others.sort(key=lambda other: (-other.priority, other.submitted_seconds))
        jobs = [job, *others[: self._max_jobs - 1]]
        choices = [choice for at, one in enumerate(jobs) for choice in self._choices(at, one, view)]
        free = {("place", at): gpus for at, gpus in enumerate(view.free_gpus)}
        found = self._solved(choices, free, len(jobs))
        plan: dict[int, Placement | None] = dict.fromkeys((one.job_id for one in jobs), None)
        plan.update((jobs[choice.job].job_id, choice.placement) for choice in found)
        return plan

    def _choices(self, at: int, job: WaitingJob, view: ClusterView) -> list[_Choice]:
        table = view.options(job)
        clocks, score = self._clocks.of(table), self._scores.of(table)
        units = max(job.estimated_units, 1e-9)
        found = []
        for place, room in enumerate(view.room(job)):
            for count, gpus in enumerate(clocks.counts):
                if gpus > room or not clocks.runs(place, count):
                    continue
                clock = clocks.best(place, count, job, view.now_seconds)
                joules = units * float(score[place, count, clock]) + view.wakeup_joules(place, gpus)
                found.append(_Choice(at, Placement(place, gpus, clock), joules, ("place", place), gpus))
        if self._min_speed > 1.0 or 1 not in table.gpu_counts:
            return found
        running = {one.job_id: one.clock for one in view.running_jobs()}
        for offer in view.partners(job):
            beside = self._shared_joules(job, offer, running.get(offer.job_id), table, view)
            if beside is not None:
                placement = Placement(offer.place, 1, running[offer.job_id], offer.job_id)
                found.append(_Choice(at, placement, units * beside, ("partner", offer.job_id), 1))
        return found

    def _shared_joules(
        self, job: WaitingJob, offer: PartnerOffer, clock: int | None, table: OptionTable, view: ClusterView
    ) -> float | None:
        """Return the energy of a unit beside a running job, its own loss included; None where that may not be."""
        if clock is None or min(offer.speed, offer.partner_speed) < self._min_speed:
            return None
        alone = table.seconds_per_unit[offer.place, table.count_index(1)]
        seconds = float(alone[clock]) / offer.speed
        bounds = bounds_of(job, view.now_seconds)
        if not np.isfinite(seconds) or (
            bounds is not None
            and (seconds > bounds.slowdown * alone.min() or seconds > bounds.deadline_seconds_per_unit)
        ):
            return None
        lost = (1.0 - offer.partner_speed) * (offer.partner_watts - view.places[offer.place].free_watts)
        return seconds * (offer.watts - offer.partner_watts + lost)

    def _solved(self, choices: list[_Choice], free: Mapping[_Resource, int], num_jobs: int) -> list[_Choice]:
        """Return the choices of least energy among the plans that start the most jobs, the first ones before others."""
        if not choices:
            return []
        if num_jobs == 1:
            return [min(choices, key=lambda choice: choice.joules)]
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  # a single job needs no search
        from scipy.sparse import csr_matrix  # noqa: PLC0415

        self.searches += 1
        resources = list(dict.fromkeys(choice.resource for choice in choices))
        rows, columns, values = [], [], []
        for column, choice in enumerate(choices):
            rows += [choice.job, num_jobs + resources.index(choice.resource)]
            columns += [column, column]
            values += [1, choice.taken]
        limits = [1] * num_jobs + [free.get(resource, 1) for resource in resources]
        matrix = csr_matrix((values, (rows, columns)), shape=(len(limits), len(choices)))
        # Every job that can start does: one more start is worth more than all energy, an earlier job's a little more.
        largest = max(1e-9, *(abs(choice.joules) for choice in choices))
        worth = [num_jobs + 1.0 + (num_jobs - choice.job) / num_jobs for choice in choices]
        prices = [choice.joules / largest - gain for choice, gain in zip(choices, worth, strict=True)]
        found = milp(
            np.asarray(prices),
            integrality=np.ones(len(choices)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, -np.inf, np.asarray(limits, dtype=float)),
            options={"time_limit": self._seconds, "node_limit": MAX_NODES},
        )
        if found.x is not None:
            return [choice for choice, taken in zip(choices, found.x, strict=True) if taken > 0.5]
        self.unsolved += 1
        return _in_turn(choices, free)


def _in_turn(choices: list[_Choice], free: Mapping[_Resource, int]) -> list[_Choice]:
    """Return the cheapest option of each job that the jobs before it leave."""
    left, found, begun = dict(free), [], set[int]()
    for choice in sorted(choices, key=lambda choice: (choice.job, choice.joules)):
        if choice.job not in begun and left.setdefault(choice.resource, 1) >= choice.taken:
            left[choice.resource] -= choice.taken
            begun.add(choice.job)
            found.append(choice)
    return found
