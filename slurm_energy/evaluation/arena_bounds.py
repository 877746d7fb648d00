"""What nobody can pass, for one run: the bound for its work, and the energy-latency frontier at its own times."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
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
from slurm_energy.evaluation.metrics import Metrics
from slurm_energy.twin.job import Job, Workload
from slurm_energy.twin.outcome import Outcome
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
    """Least energy per unit that anybody could have reached with these arrivals: over all amounts of work up to what
    arrived in the run's time; for the run's work in the best time, where a run goes on until no job is left."""
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
        open_end: Whether the run went on until no job was left.

    Raises:
        EvaluationError: the run's energy is below a bound, or it did more work than arrived or than is possible.
    """
    if metrics.true_units <= 0.0 or outcome.end_seconds <= 0.0 or metrics.joules_per_unit is None:
        return None
    units = outcome.units.tolist()
    plain = bound_of_run(world, jobs, units, outcome.end_seconds)
    assert_not_below(outcome.total_joules, plain, f"policy {outcome.rule}")
    joules, least = plain.joules, plain.least_joules_per_unit
    if not stationary:
        workload = Workload(name="run", jobs=tuple(jobs))
        options = TraceOptions(processed_units=units)
        by_time = clairvoyant_bound(world, workload, outcome.end_seconds, options)
        assert_not_below(outcome.total_joules, by_time, f"policy {outcome.rule}")
        joules = max(joules, by_time.joules)
        if open_end:
            anybody = clairvoyant_bound(world, workload, None, options)
            assert_not_below(outcome.total_joules, anybody, f"policy {outcome.rule}")
            least = anybody.joules_per_unit
    load = stationary_load(jobs, units, outcome.end_seconds) if stationary else None
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


def stationary_load(jobs: Sequence[Job], units: Sequence[float], seconds: float) -> StationaryLoad:
    """Return the load that a run carried: the work it did over its time, in jobs of the size that arrived."""
    done: dict[str, float] = defaultdict(float)
    arrived: dict[str, float] = defaultdict(float)
    number: dict[str, int] = defaultdict(int)
    counts: dict[str, set[int]] = defaultdict(set)
    for job, processed in zip(jobs, units, strict=True):
        done[job.kind] += processed
        arrived[job.kind] += job.true_units
        number[job.kind] += 1
        counts[job.kind].update(job.gpu_counts)
    return StationaryLoad(
        units_per_second_by_kind={kind: amount / seconds for kind, amount in done.items()},
        mean_units_by_kind={kind: amount / number[kind] for kind, amount in arrived.items()},
        gpu_counts_by_kind={kind: tuple(sorted(found)) for kind, found in counts.items()},
    )


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
