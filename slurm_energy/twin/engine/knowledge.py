"""What policies know of jobs in a world that hides them: what a site knows, or for yardsticks the truth.

A site knows who submits a job, its name, what was read of its script, its request and its time limit, and what its
ended runs took. It does not know the kind of work, nor how long the next run takes, nor a job's own curves: tables are
means over the kinds of work, as a site has them that has calibrated its boards. Rules get copies of jobs with nothing
else in them; the daemon's policies get what the daemon gives them (`served`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from statistics import median
from typing import Protocol

import numpy as np

from slurm_energy.estimation.job_groups import job_group, name_stem
from slurm_energy.estimation.run_time import EndedRun, RunTimes
from slurm_energy.policy.placement import Knowledge, OptionTable
from slurm_energy.twin.engine.job import ENDED, Job, JobRun
from slurm_energy.twin.engine.places import OptionTables, Place, option_table
from slurm_energy.twin.workloads.generating import comma_list
from slurm_energy.twin.world import World

LIMIT_SHARE = 0.8
"""Of its time limit that a job is taken to need where nothing else is known, as at a submission to Slurm."""
_CUT_OFF = frozenset({"TIMEOUT", "CANCELLED", "NODE_FAIL"})
_NEIGHBOURS, _RUNS_OF_USER = 5, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEnd:
    """An ended run as a site knows it: what Slurm and the boards' counters say."""

    job: Job
    """Without what is hidden."""
    place: int
    gpus: int
    clock: int
    state: str
    started_seconds: float
    begun_seconds: float
    ended_seconds: float
    run_seconds: float
    energy_joules: float
    restarts: int = 0
    shared_gpu: bool = False
    units: float = 0.0
    """No job reports its work."""

    @property
    def job_id(self) -> int:
        """The job's number."""
        return self.job.job_id

    @property
    def kind(self) -> str:
        """Nothing: Slurm does not say."""
        return self.job.kind

    @property
    def account(self) -> str:
        """The job's account."""
        return self.job.account

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.name

    @property
    def deadline_seconds(self) -> float:
        """By when it was to end."""
        return self.job.deadline_seconds

    def earlier(self, seconds: float) -> "KnownEnd":
        """Return the run as long before."""
        return replace(
            self,
            started_seconds=self.started_seconds - seconds,
            begun_seconds=self.begun_seconds - seconds,
            ended_seconds=self.ended_seconds - seconds,
        )


def hidden_copy(job: Job) -> Job:
    """Return a job as a site knows it: without its kind, its true work, and when it will fail."""
    return replace(job, kind="", true_units=nan, estimated_units=max(0.0, job.estimated_units), fails_after_units=inf)


def known_end(run: JobRun) -> KnownEnd:
    """Return what a site knows of a run that has ended."""
    return KnownEnd(
        job=hidden_copy(run.job),
        place=run.place,
        gpus=run.gpus,
        clock=run.clock,
        state=run.state,
        started_seconds=run.started_seconds,
        begun_seconds=run.begun_seconds,
        ended_seconds=run.ended_seconds,
        run_seconds=run.run_seconds if run.phase == ENDED else 0.0,
        energy_joules=run.energy_joules,
        restarts=run.restarts,
        shared_gpu=run.partner is not None,
    )


class MeanTables(OptionTables):
    """One table for all kinds of work: the mean over them of time and energy per unit."""

    def __init__(self, world: World, places: Sequence[Place]) -> None:
        super().__init__(world, places)
        self._kinds = workload_kinds(world)

    def made(self, kind: str, gpu_counts: tuple[int, ...]) -> OptionTable:  # noqa: ARG002  # it is hidden
        """Return the mean table at the present conditions."""
        tables = [
            option_table(self._world, one, gpu_counts, congestion=self._congestion, places=self._places)
            for one in self._kinds
        ]
        seconds, joules = (
            _mean_of_known([getattr(table, name) for table in tables])
            for name in ("seconds_per_unit", "joules_per_unit")
        )
        with np.errstate(invalid="ignore"):
            watts = np.where(np.isfinite(seconds), joules / seconds, inf)
        return OptionTable(
            gpu_counts=gpu_counts,
            seconds_per_unit=seconds,
            watts=watts,
            free_watts=np.max([table.free_watts for table in tables], axis=0),
            joules_per_unit=joules,
        )


def _mean_of_known(
    columns: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.float64]]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the mean over kinds that can run there, infinite where none can."""
    stacked = np.stack(columns)
    known = np.isfinite(stacked)
    sums, number = np.where(known, stacked, 0.0).sum(axis=0), known.sum(axis=0)
    return np.where(number > 0, sums / np.maximum(number, 1), inf)


def workload_kinds(world: World) -> tuple[str, ...]:
    """Return the kinds that a world's own workload has, else all that its devices can run."""
    named = world.workload_settings.get("kinds")
    known = dict.fromkeys(kind for device in world.devices.values() for kind in device.loads)
    asked = comma_list("kinds", named) if isinstance(named, str) and named else tuple(known)
    return tuple(dict.fromkeys(kind for kind in asked if kind in known)) or tuple(known)


class RunLengths(Protocol):
    """What ended runs say of how long the next one takes; in units of the mean table, so that boards can differ."""

    def add(self, job: Job, units: float, limit_units: float | None, *, cut_off: bool) -> None:
        """Take a run."""
        ...

    def units(self, job: Job, limit_units: float | None) -> float | None:
        """Return what the next run is expected to need; None where nothing is known."""
        ...


class SiteLengths:
    """By runs of the job's group, of its user and of the site, and by its limit: `estimation.run_time`."""

    def __init__(self) -> None:
        self._times = RunTimes()

    def add(self, job: Job, units: float, limit_units: float | None, *, cut_off: bool) -> None:
        """Take a run."""
        self._times.add(
            EndedRun(user=job.user, name=group_of(job), seconds=units, limit_seconds=limit_units, cut_off=cut_off)
        )

    def units(self, job: Job, limit_units: float | None) -> float | None:
        """Return the middle of what it may be."""
        return self._times.estimate(job.user, group_of(job), limit_units).seconds


class NeighbourLengths:
    """The user's own earlier runs that are most alike by name and script: the median of the nearest five."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[tuple[frozenset[str], float]]] = {}

    def add(self, job: Job, units: float, limit_units: float | None, *, cut_off: bool) -> None:  # noqa: ARG002
        """Take a run, one that was cut off as it is."""
        self._runs.setdefault(job.user, deque(maxlen=_RUNS_OF_USER)).append((job_words(job), units))

    def units(self, job: Job, limit_units: float | None) -> float | None:  # noqa: ARG002  # limits say nothing here
        """Return the median of the nearest; of runs equally near the newer first."""
        runs, words = self._runs.get(job.user), job_words(job)
        if not runs:
            return None
        near = sorted(((-_alike(words, other), age, units) for age, (other, units) in enumerate(reversed(runs))))
        return median(units for _, _, units in near[:_NEIGHBOURS])


def group_of(job: Job) -> str:
    """Return under which word a job's runs are put together with others of its user."""
    key = None if job.script is None else job.script.key or None
    return job_group(job.name, key)


def job_words(job: Job) -> frozenset[str]:
    """Return what a job's name and script say, as words."""
    said = {f"name {word}" for word in (job.name, *name_stem(job.name).split("_")) if word}
    if job.script is not None:
        said.update(job.script.encode().split(";"))
    return frozenset((*said, f"gpus {job.gpu_counts[0]}"))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


class JobKnowledge:
    """What the rule of one run knows of jobs: the engine asks at each submission, the driver for what rules get."""

    def __init__(self, world: World, places: Sequence[Place], knowledge: Knowledge) -> None:
        self.knowledge = knowledge
        self.is_truth = knowledge == "truth"
        self.tables: OptionTables | None = None if self.is_truth else MeanTables(world, places)
        """None for the world's own."""
        self._places = places
        self._lengths: RunLengths = NeighbourLengths() if knowledge == "neighbours" else SiteLengths()
        self._shown: dict[int, Job] = {}

    def set_estimate(self, job: Job, allowed: Sequence[int]) -> None:
        """Set the estimate of a job that is being submitted: by what is known of it, or the truth.

        Args:
            job: Changed in place.
            allowed: Places in which it may run.
        """
        if self.is_truth:
            job.estimated_units = job.true_units
            return
        limit = self._limit_units(job, allowed)
        found = self._lengths.units(job, limit)
        if found is None or not isfinite(found):
            found = LIMIT_SHARE * limit if limit is not None else 0.0
        job.estimated_units = found if limit is None else min(found, limit)

    def shown(self, job: Job) -> Job:
        """Return what a rule gets of a job: the same copy each time, with its place, number of GPUs and limit."""
        if self.is_truth:
            return job
        copy = self._shown.get(job.job_id)
        if copy is None:
            copy = self._shown[job.job_id] = hidden_copy(job)
        copy.routed_place = job.routed_place
        copy.gpu_counts, copy.range_counts = job.gpu_counts, job.range_counts
        copy.time_limit_seconds, copy.asked_limit_seconds = job.time_limit_seconds, job.asked_limit_seconds
        return copy

    def learn(self, end: KnownEnd) -> None:
        """Take in a run that ended."""
        self._shown.pop(end.job_id, None)
        if self.tables is None or end.place < 0 or end.restarts or end.shared_gpu:
            return
        seconds = end.ended_seconds - end.begun_seconds
        if not (0.0 < seconds < inf) or end.state not in {"COMPLETED", *_CUT_OFF}:
            return
        per_unit = self._seconds_per_unit(end.job, end.place, end.clock, end.gpus)
        if isfinite(per_unit):
            limit = self._limit_units(end.job, (end.place,))
            self._lengths.add(end.job, seconds / per_unit, limit, cut_off=end.state in _CUT_OFF)

    def _limit_units(self, job: Job, places: Iterable[int]) -> float | None:
        """Return the work that a job's limit leaves room for, in the mean over its places; None without a limit."""
        if job.time_limit_seconds == inf:
            return None
        times = [self._seconds_per_unit(job, place, -1, job.gpu_counts[0]) for place in places]
        known = [seconds for seconds in times if isfinite(seconds)]
        return job.time_limit_seconds * len(known) / sum(known) if known else None

    def _seconds_per_unit(self, job: Job, place: int, clock: int, gpus: int) -> float:
        assert self.tables is not None
        rows = self.tables.rows("", job.gpu_counts)
        column = rows.column.get(gpus)
        if column is None:
            return inf
        times = rows.seconds[place][column]
        last = len(self._places[place].device.relative_clocks) - 1
        return times[min(clock, last) if clock >= 0 else last]
