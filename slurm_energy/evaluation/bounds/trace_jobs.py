"""A list of jobs as groups with the same choices, and the earliest moment at which all could have ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from math import inf

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds.activities import WorkGroup
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.places import Place, can_run, option_table, places_of
from slurm_energy.twin.world import World


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
