"""What no policy can pass, for one run: the bound for its work, and the energy-latency frontier at its own times."""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds import (
    StationaryLoad,
    TraceOptions,
    assert_not_below,
    bound_of_run,
    clairvoyant_bound,
    energy_latency_frontier,
)
from slurm_energy.evaluation.metrics import Metrics, system_seconds
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import places_of
from slurm_energy.twin.world import World

_FRONTIER_POINTS = 28
_FRONTIER_SPAN = 12.0
"""The longest limit over the shortest that can be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBounds:
    """Energies below which no policy could have done the work of one run."""

    joules: float
    """For exactly the work that was done, in the time that the run took; with arrival times where those were used."""
    joules_per_unit: float
    gap_percent: float
    """Of the run's energy above that bound."""
    arrivals_joules_per_unit: float
    """Least energy per unit that any policy could have reached with these arrivals: over all amounts of work up to what
    arrived in the run's time; for the run's work in the best time, where a run lasts until no job is left."""
    by_arrival_times: bool
    """Whether the bound knows when the work arrived, or only how much of it."""
    frontier_run_joules_per_unit: float | None
    """Least energy per unit of policies with the run's mean run time, at the load that it carried; None where arrivals
    are not stationary."""
    frontier_run_gap_percent: float | None
    frontier_turnaround_joules_per_unit: float | None
    """The same with the run's mean turnaround in the place of the run time: waiting counts against the policy."""
    frontier_turnaround_gap_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierLine:
    """The energy-latency frontier of a load, for a plot."""

    mean_run_seconds: tuple[float, ...]
    joules_per_unit: tuple[float, ...]


def bounds_of_run(
    world: World, jobs: Sequence[Job], outcome: Outcome, metrics: Metrics, *, stationary: bool, open_end: bool
) -> RunBounds | None:
    """Return the bounds of a run after checking that it is not below them; None when it did no work.

    Args:
        world: The cluster.
        jobs: The run's jobs in the order of submission.
        outcome: The run.
        metrics: Its figures.
        stationary: Whether arrivals are, so that there is a frontier; else the bound takes arrival times into account.
        open_end: Whether the run lasted until no job was left.

    Raises:
        EvaluationError: the run's energy is below a bound, or it did more work than arrived or than is possible.
    """
    if metrics.true_units <= 0.0 or outcome.end_seconds <= 0.0 or metrics.joules_per_unit is None:
        return None
    world, work, units, seconds = _counted(world, jobs, outcome)
    plain = bound_of_run(world, work, units, seconds)
    assert_not_below(outcome.total_joules, plain, f"policy {outcome.rule}")
    joules, least = plain.joules, plain.min_joules_per_unit
    if not stationary:
        workload = Workload(name="run", jobs=tuple(work))
        options = TraceOptions(processed_units=units)
        by_time = clairvoyant_bound(world, workload, seconds, options)
        assert_not_below(outcome.total_joules, by_time, f"policy {outcome.rule}")
        joules = max(joules, by_time.joules)
        if open_end:
            by_arrivals = clairvoyant_bound(world, workload, None, options)
            assert_not_below(outcome.total_joules, by_arrivals, f"policy {outcome.rule}")
            least = by_arrivals.joules_per_unit
    load = stationary_load(work, units, seconds, sizes=jobs) if stationary else None
    at_run = _frontier_at(world, load, None if metrics.run is None else metrics.run.mean_seconds)
    at_turnaround = _frontier_at(world, load, None if metrics.turnaround is None else metrics.turnaround.mean_seconds)
    return RunBounds(
        joules=joules,
        joules_per_unit=joules / metrics.true_units,
        gap_percent=_above_percent(outcome.total_joules, joules) or 0.0,
        arrivals_joules_per_unit=least,
        by_arrival_times=not stationary,
        frontier_run_joules_per_unit=at_run,
        frontier_run_gap_percent=_above_percent(metrics.joules_per_unit, at_run),
        frontier_turnaround_joules_per_unit=at_turnaround,
        frontier_turnaround_gap_percent=_above_percent(metrics.joules_per_unit, at_turnaround),
    )


def frontier_excess_percent(world: World, jobs: Sequence[Job], outcome: Outcome) -> float | None:
    """Return how far a run's energy is above the frontier at its own time in the system; None where there is none.

    The mean turnaround is the time that all jobs together were in the system, over the work done in jobs of the mean
    size (Little). Both it and the energy are means over the counted time of what is a mixture at every instant, and the
    frontier is convex: so no run is below it, whether or not arrivals are stationary and whatever was there before.

    Args:
        world: The cluster.
        jobs: Every job that came, in the outcome's order.
        outcome: The run.
    """
    units = float(np.sum(outcome.units))
    if units <= 0.0:
        return None
    load, seconds = counted_load(world, jobs, outcome)
    rate = sum(amount / load.mean_units_by_kind[kind] for kind, amount in load.units_per_second_by_kind.items())
    limit = float(np.sum(system_seconds(outcome))) / (rate * seconds)
    return _above_percent(outcome.total_joules / units, _frontier_at(world, load, limit))


def counted_load(world: World, jobs: Sequence[Job], outcome: Outcome) -> tuple[StationaryLoad, float]:
    """Return the load that a run carried in its counted time, and the length of that."""
    _, work, done, seconds = _counted(world, jobs, outcome)
    load = stationary_load(work, done, seconds, sizes=jobs)
    carried = {kind: amount for kind, amount in load.units_per_second_by_kind.items() if amount > 0.0}
    return replace(load, units_per_second_by_kind=carried), seconds


def stationary_load(
    jobs: Sequence[Job], units: Sequence[float], seconds: float, *, sizes: Sequence[Job] | None = None
) -> StationaryLoad:
    """Return the load that a run carried: the work it did over its time, in jobs of the size that arrived.

    Args:
        jobs: Those that had work left.
        units: Work that was done of each.
        seconds: In this time.
        sizes: Jobs whose mean size counts, where those above are partly what a warm-up left of them.
    """
    done: dict[str, float] = defaultdict(float)
    arrived: dict[str, float] = defaultdict(float)
    number: dict[str, int] = defaultdict(int)
    counts: dict[str, set[int]] = defaultdict(set)
    for job, processed in zip(jobs, units, strict=True):
        done[job.kind] += processed
        counts[job.kind].update(job.gpu_counts)
    for job in jobs if sizes is None else sizes:
        arrived[job.kind] += job.true_units
        number[job.kind] += 1
    return StationaryLoad(
        units_per_second_by_kind={kind: amount / seconds for kind, amount in done.items()},
        mean_units_by_kind={kind: amount / number[kind] for kind, amount in arrived.items()},
        gpu_counts_by_kind={kind: tuple(sorted(found)) for kind, found in counts.items()},
    )


def _counted(
    world: World, jobs: Sequence[Job], outcome: Outcome
) -> tuple[World, Sequence[Job], Sequence[float], float]:
    """Return world, jobs, work done of each, and length of what is counted, its clock beginning at 0.

    After a warm-up a job has the work that was left of it, and has been there from the start if it came before.
    """
    start, jobs = outcome.counted_from_seconds, _with_every_choice(world, jobs, outcome)
    if start == 0.0:
        return world, jobs, outcome.units.tolist(), outcome.end_seconds
    left: list[Job] = []
    done: list[float] = []
    rows = zip(jobs, outcome.units_before.tolist(), outcome.units.tolist(), strict=True)
    for job, before, units in rows:
        if before < job.true_units:
            rest = copy(job)
            rest.true_units = job.true_units - before
            rest.submitted_seconds = max(0.0, job.submitted_seconds - start)
            left.append(rest)
            # What a job lost after the warm-up may be more than it did since: others' work is not less for it.
            done.append(min(max(0.0, units), rest.true_units))
    outages = [
        replace(outage, at_seconds=max(0.0, outage.at_seconds - start), until_seconds=outage.until_seconds - start)
        for outage in world.outages
        if outage.until_seconds > start
    ]
    return replace(world, outages=tuple(outages)), left, done, outcome.counted_seconds


def _with_every_choice(world: World, jobs: Sequence[Job], outcome: Outcome) -> list[Job]:
    """Return jobs with all that a policy could choose: every number of GPUs of a range, whatever was fixed in the run.

    A job that left its partitions open, or that a policy sent to others than those it asks for, may run in all.
    """
    places, default = places_of(world), tuple(one.name for one in world.partitions if one.is_default)
    found = []
    for job, place in zip(jobs, outcome.place.tolist(), strict=True):
        asked = job.partitions or default
        leaves = bool(asked) and (job.open is True or (place >= 0 and places[place].partition.name not in asked))
        if job.range_counts or job.asked_limit_seconds or leaves:
            free = copy(job)
            free.gpu_counts = job.range_counts or job.gpu_counts
            free.time_limit_seconds = job.asked_limit_seconds or job.time_limit_seconds
            free.partitions = tuple(one.name for one in world.partitions) if leaves else job.partitions
            found.append(free)
        else:
            found.append(job)
    return found


def frontier_line(world: World, jobs: Sequence[Job], seconds: float) -> FrontierLine | None:
    """Return the frontier of a stationary workload, None when no policy can carry it."""
    load = stationary_load(jobs, [job.true_units for job in jobs], seconds)
    shortest = _shortest_limit(world, load)
    if shortest is None:
        return None
    limits = (shortest * np.geomspace(1.0, _FRONTIER_SPAN, _FRONTIER_POINTS)).tolist()
    points = energy_latency_frontier(world, load, limits)
    return FrontierLine(
        mean_run_seconds=tuple(limits), joules_per_unit=tuple(point.bound.joules_per_unit for point in points)
    )


def _shortest_limit(world: World, load: StationaryLoad) -> float | None:
    """Return a mean run time just above the least that can be kept, found by halving steps on a logarithmic scale."""
    longest = 1e9
    if _frontier_at(world, load, inf) is None:
        return None
    low, high = 1e-3, longest
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        if _frontier_at(world, load, middle) is None:
            low = middle
        else:
            high = middle
    return high


def _frontier_at(world: World, load: StationaryLoad | None, limit_seconds: float | None) -> float | None:
    """Return the least energy per unit within a mean run time, None where no policy keeps it or without a load."""
    if load is None or limit_seconds is None or not limit_seconds > 0.0:
        return None
    try:
        (point,) = energy_latency_frontier(world, load, [limit_seconds])
    except ValueRangeError:
        return None
    found = point.bound.joules_per_unit
    return found if isfinite(found) else None


def _above_percent(value: float, bound: float | None) -> float | None:
    return None if bound is None or bound <= 0.0 else 100.0 * (value / bound - 1.0)
