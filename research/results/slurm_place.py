"""How much longer jobs run than where Slurm alone would have started them, at the default clock.

That is the first place of the job's own partitions, in the site's order, that has room at the moment of its start. A
slower type to which a policy sends a job counts as a slowdown, and so does a lower clock; a faster type counts too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np

from research.results.failure_recovery import WatchedRule
from slurm_energy.config import Config
from slurm_energy.policy.jobs import EndedJob, WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement, Postponement
from slurm_energy.twin.adapters.view import TwinView
from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.engine.knowledge import KnownEnd
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import places_of
from slurm_energy.twin.world import World

BOUND = Config().policy.max_slowdown
"""Slowdown that a site allows jobs that name none; the default of the installed product."""
_TOLERANCE_PERCENT = 0.5


class _Start(NamedTuple):
    place: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    start: _Start
    seconds: float


class SlurmPlaceRule(WatchedRule):
    """Another rule, with the same answers, that notes where Slurm alone would have started each job."""

    def begin(self, view: ClusterView, random: Random) -> None:
        """Start a run."""
        super().begin(view, random)
        self._would: dict[int, _Start] = {}
        self.runs: dict[int, _Run] = {}
        self._rule_observes = self._rule.observes_ends
        self.observes_ends = True

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | Postponement | None:
        """Return the rule's answer; the place that Slurm would take is noted where it is a start."""
        assert isinstance(view, TwinView)
        run, room = view.runs[job.job_id], view.room(job)
        first = next((place for place in view.allowed_to(run.job) if _has_room(view, run, room, place)), None)
        answer = super().place(job, view)
        if isinstance(answer, Placement):
            self._would[job.job_id] = _Start(answer.place if first is None else first, answer.gpus)
        return answer

    def ended(self, job: EndedJob) -> None:
        """Note how long a job ran that completed, and let the rule learn."""
        start = self._would.pop(job.job_id, None)
        if start is not None and job.state == "COMPLETED" and isinstance(job, JobRun | KnownEnd) and not job.restarts:
            self.runs[job.job_id] = _Run(start=start, seconds=job.ended_seconds - job.begun_seconds)
        if self._rule_observes:
            super().ended(job)


def _has_room(view: TwinView, run: JobRun, room: Sequence[int], place: int) -> bool:
    """Return whether Slurm would start a job in a place now; what is kept for the first waiting job is not room."""
    return room[place] > 0 if place in run.allowed else view.has_room(run.job, place)


def slurm_place_figures(rule: SlurmPlaceRule, world: World, jobs: Sequence[Job], outcome: Outcome) -> dict[str, float]:
    """Return the mean slowdown in per cent, and the share of jobs beyond their bound and half a point.

    That is each job's own one, else the site's, and of clock and GPU type together.
    """
    places = places_of(world)
    ratios, bounds = [], []
    for job, counted in zip(jobs, outcome.is_counted.tolist(), strict=True):
        run = rule.runs.get(job.job_id)
        if run is None or not counted:
            continue
        load = places[run.start.place].device.loads[job.kind]
        alone = job.true_units * load.scaling.seconds(load.seconds_per_unit[-1], run.start.gpus)
        ratios.append(run.seconds / alone)
        bounds.append(job.max_slowdown if job.max_slowdown < inf else BOUND)
    if not ratios:
        return {}
    found = 100.0 * (np.array(ratios) - 1.0)
    return {
        "slurm_place_slowdown_percent": float(found.mean()),
        "jobs_beyond_bound_percent": 100.0 * float(np.mean(found > 100.0 * np.array(bounds) + _TOLERANCE_PERCENT)),
    }
