"""The least energy for a finite list of jobs, known beforehand and with jobs that may be cut anywhere.

The relaxation keeps: what each job's work costs at best in the places it may use, how many devices a pool has, and that
no work is done before it is submitted (by stretches of time: work counts as submitted from the start of its stretch).
It leaves out: that a job is one piece with one width, how jobs pack onto nodes, waking, the order of the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, hstack, identity, kron, vstack

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds.activities import Activities, WorkGroup, activities_of
from slurm_energy.evaluation.bounds.floor import Downtime, PoolFloor, pool_floors
from slurm_energy.evaluation.bounds.programme import Rows, Solution, SolverError, devices_used, minimise, outputs
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.places import Place, can_run, option_table, places_of
from slurm_energy.twin.world import World

FloatArray = NDArray[np.float64]
MAX_VARIABLES = 60_000
"""More stretches than this allows are not made: a programme of that size takes some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a trace is bounded."""

    stretches: int = 24
    """Stretches of time, each with the capacity of the pools; 0 asks for each job's least energy with room for all."""
    processed_units: Sequence[float] | None = None
    """True units that were done of each job, in the workload's order; None for every job to its end."""
    downtime: Downtime | None = None
    """What really was down, where a horizon is given; see `pool_floors`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedWork:
    """Jobs with work that the world can run; arrays are [num_jobs] and leave out the others."""

    groups: tuple[WorkGroup, ...]
    index: NDArray[np.int64]
    """Of the job in the workload."""
    group: NDArray[np.int64]
    units: NDArray[np.float64]
    submitted_seconds: NDArray[np.float64]
    unrunnable_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBound:
    """An energy below which no policy does these jobs."""

    joules: float
    base_joules: float
    """Of the cluster with nothing running, until `min_end_seconds`."""
    job_joules: float
    """Of the devices that jobs hold."""
    units: float
    """Of all kinds together."""
    min_end_seconds: float
    """The horizon, or without one the end of the last job in the optimum: no earlier than any policy's."""
    stretches: int
    groups: int
    """Sets of jobs of one kind with the same choices."""
    unrunnable_jobs: int
    """Jobs with work that no place of the world can run; they are not in the bound."""

    @property
    def joules_per_unit(self) -> float:
        """Total energy over work, infinite without work."""
        return self.joules / self.units if self.units else np.inf


def clairvoyant_bound(
    world: World, workload: Workload, horizon_seconds: float | None = None, options: TraceOptions | None = None
) -> TraceBound:
    """Return the least total energy in which a list of jobs can be done.

    Args:
        world: The cluster.
        workload: The jobs.
        horizon_seconds: Time over which the cluster's energy counts, from 0; None until the last job has ended.
        options: How finely, and which work.

    Raises:
        ValueRangeError: the work does not fit into the horizon, or an option is out of bounds.
    """
    options = options or TraceOptions()
    if options.stretches < 0:
        raise ValueRangeError(f"{options.stretches} stretches of time are not 0 or more")
    if horizon_seconds is not None and not 0.0 < horizon_seconds < np.inf:
        raise ValueRangeError(f"horizon {horizon_seconds} s is not a finite number above 0")
    work = grouped_work(world, workload, options.processed_units)
    kinds = {group.kind for group in work.groups}
    floors = pool_floors(world, kinds, horizon_seconds=horizon_seconds, downtime=options.downtime)
    activities = activities_of(world, work.groups, floors)
    end = earliest_end_seconds(world, workload, work) if horizon_seconds is None else horizon_seconds
    late = horizon_seconds is not None and work.submitted_seconds.size and work.submitted_seconds.max() > end
    if late:
        raise ValueRangeError(
            f"work of workload {workload.name} that is submitted at {work.submitted_seconds.max():.6g} s is asked for "
            f"within a horizon of {end:.6g} s: name the units that were processed"
        )
    programme, solution = _solved(
        lambda stretches: _TracePlan(floors, activities, work, end, stretches, is_open=horizon_seconds is None),
        options.stretches,
    )
    if solution is None:
        raise ValueRangeError(
            f"the work of workload {workload.name} does not fit into {end:.6g} s in world {world.name}, whatever the "
            "policy: name the units that were processed, or a longer horizon"
        )
    return programme.bound(solution)


def _solved(plan: Callable[[int], "_TracePlan"], stretches: int) -> "tuple[_TracePlan, Solution | None]":
    """Return a plan and its optimum: with fewer stretches where the solver gives up, a bound that is as true and lower.

    Raises:
        SolverError: it gives up whatever the stretches.
    """
    while True:
        programme = plan(stretches)
        try:
            return programme, programme.solve()
        except SolverError:
            if stretches == 0:
                raise
            stretches //= 2


class _TracePlan:
    """The programme: device-seconds of every activity in every stretch, work left at the end of each, and the tail.

    Variables: [stretches x activities | stretches x groups | 1]; the last is the time after the earliest end that an
    open horizon may take, which lengthens the last stretch.
    """

    def __init__(
        self,
        floors: Sequence[PoolFloor],
        activities: Activities,
        work: GroupedWork,
        end_seconds: float,
        stretches: int,
        *,
        is_open: bool,
    ) -> None:
        self._floors, self._activities, self._work = floors, activities, work
        self._end_seconds, self._is_open, self._has_capacity = end_seconds, is_open, stretches > 0
        size = len(activities) + len(work.groups)
        self._stretches = max(1, min(stretches, MAX_VARIABLES // max(1, size)))
        self._base_watts = sum(floor.base_watts for floor in floors)

    def solve(self) -> Solution | None:
        """Return the cheapest plan, None if the work does not fit."""
        if not self._work.groups:
            return minimise(np.zeros(0))
        extra = np.tile(self._activities.extra_watts, self._stretches)
        waiting = np.zeros(self._stretches * len(self._work.groups))
        tail = [self._base_watts] if self._is_open and self._has_capacity else []
        return minimise(np.concatenate([extra, waiting, tail]), equal=self._flow(), most=self._capacity())

    def bound(self, solution: Solution) -> TraceBound:
        """Return what an optimum says."""
        num = self._stretches * len(self._activities)
        tail_seconds = float(solution.x[-1]) if self._is_open and self._has_capacity and len(solution.x) else 0.0
        seconds = self._end_seconds + tail_seconds
        watts = np.tile(self._activities.watts, self._stretches)
        return TraceBound(
            joules=self._base_watts * self._end_seconds + solution.value,
            base_joules=self._base_watts * seconds,
            job_joules=float(watts @ solution.x[:num]) if len(solution.x) else 0.0,
            units=float(self._work.units.sum()),
            min_end_seconds=seconds,
            stretches=self._stretches if self._has_capacity else 0,
            groups=len(self._work.groups),
            unrunnable_jobs=self._work.unrunnable_jobs,
        )

    def _flow(self) -> Rows:
        """Work done + left at the end - left before = work submitted, by stretch and group; none is left at last.

        Each group's rows are scaled by its total work.
        """
        groups, stretches = len(self._work.groups), self._stretches
        submitted = self._submitted()
        total = submitted.sum(axis=0)
        done = kron(identity(stretches, format="csr"), outputs(self._activities, groups) / total[:, None])
        left = np.eye(stretches) - np.eye(stretches, k=-1)
        left[:, -1] = 0.0
        matrix = [done, kron(csr_array(left), identity(groups, format="csr"))]
        if self._is_open and self._has_capacity:
            matrix.append(csr_array((stretches * groups, 1)))
        return Rows(matrix=csr_array(hstack(matrix)), values=(submitted / total).ravel())

    def _submitted(self) -> FloatArray:
        """Return the units that each group submits in each stretch, [stretches, groups]."""
        edges = np.linspace(0.0, self._end_seconds, self._stretches + 1)[1:-1]
        stretch = np.searchsorted(edges, self._work.submitted_seconds, side="right")
        units = coo_array(
            (self._work.units, (stretch, self._work.group)), shape=(self._stretches, len(self._work.groups))
        )
        dense: FloatArray = units.toarray()
        return dense

    def _capacity(self) -> Rows | None:
        """Device-seconds of each pool in each stretch are at most its devices times the stretch."""
        if not self._has_capacity:
            return None
        devices = np.array([floor.devices for floor in self._floors], dtype=np.float64)
        groups, stretches = len(self._work.groups), self._stretches
        seconds = self._end_seconds / stretches
        used = kron(identity(stretches, format="csr"), devices_used(self._activities, len(devices)) / devices[:, None])
        matrix = [used, csr_array((stretches * len(devices), stretches * groups))]
        if self._is_open:
            last = csr_array(np.full((len(devices), 1), -1.0))
            matrix.append(vstack([csr_array(((stretches - 1) * len(devices), 1)), last]))
        return Rows(matrix=csr_array(hstack(matrix)), values=np.full(stretches * len(devices), seconds))


def grouped_work(world: World, workload: Workload, processed_units: Sequence[float] | None) -> GroupedWork:
    """Return the work of a workload by groups of jobs with the same kind, counts, places and willingness to share.

    Args:
        world: Says where a job may run.
        workload: The jobs.
        processed_units: Work that was done of each job; None for all of it, up to where a job fails by itself.

    Raises:
        ValueRangeError: `processed_units` has another length, or an amount that cannot be.
    """
    jobs = workload.jobs
    if processed_units is None:
        processed_units = [min(job.true_units, job.fails_after_units) for job in jobs]
    elif len(processed_units) != len(jobs):
        raise ValueRangeError(f"processed units of {len(processed_units)} jobs are given for {len(jobs)} jobs")
    places = places_of(world)
    default = tuple(partition.name for partition in world.partitions if partition.is_default)
    number: dict[WorkGroup, int] = {}
    rows: list[tuple[int, int]] = []
    unrunnable = 0
    for index, (job, units) in enumerate(zip(jobs, processed_units, strict=True)):
        if not 0.0 <= units < inf:
            raise ValueRangeError(f"job {job.job_id}: {units} units of work are not a finite number from 0 up")
        if units == 0.0:
            continue
        group = _group(places, default, job)
        if group.places:
            rows.append((index, number.setdefault(group, len(number))))
        else:
            unrunnable += 1
    index_of = np.array([index for index, _ in rows], dtype=np.int64)
    return GroupedWork(
        groups=tuple(number),
        index=index_of,
        group=np.array([group for _, group in rows], dtype=np.int64),
        units=np.array(processed_units, dtype=np.float64)[index_of],
        submitted_seconds=np.array([job.submitted_seconds for job in jobs], dtype=np.float64)[index_of],
        unrunnable_jobs=unrunnable,
    )


def earliest_end_seconds(world: World, workload: Workload, work: GroupedWork) -> float:
    """Return a time before which no policy can have done the work: each job at its fastest after what it depends on."""
    seconds_per_unit = np.array([_fastest_seconds(world, group) for group in work.groups])
    least = dict(
        zip(work.index.tolist(), (work.units * seconds_per_unit[work.group]).tolist(), strict=True)
        if len(work.index)
        else ()
    )
    jobs = workload.jobs
    index_of = {job.job_id: index for index, job in enumerate(jobs)}
    parents = {
        index: [index_of[parent] for parent in (*job.after_ok, *job.after_any) if parent in index_of]
        for index, job in enumerate(jobs)
    }
    ends: dict[int, float] = {}
    try:
        for index in TopologicalSorter(parents).static_order():
            start = max([jobs[index].submitted_seconds, *(ends[parent] for parent in parents[index])])
            ends[index] = start + (world.launch_seconds + least[index] if index in least else 0.0)
    except CycleError as error:
        raise ValueRangeError(f"the dependencies of workload {workload.name} go in a circle") from error
    return max((ends[index] for index in least), default=0.0)


def _group(places: Sequence[Place], default: tuple[str, ...], job: Job) -> WorkGroup:
    asked = job.partitions or default
    allowed = tuple(
        place.index for place in places if can_run(place, job) and (not asked or place.partition.name in asked)
    )
    return WorkGroup(job.kind, job.gpu_counts, allowed, job.shareable)


def _fastest_seconds(world: World, group: WorkGroup) -> float:
    """Return the least time of one unit; a pair may make its jobs a little faster than they are alone."""
    table = option_table(world, group.kind, group.gpu_counts)
    speeds = [
        max(pair.speed, pair.partner_speed) for device in world.devices.values() for pair in device.pairs.values()
    ]
    return float(table.seconds_per_unit[list(group.places)].min()) / max([1.0, *speeds])
