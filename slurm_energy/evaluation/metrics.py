"""The figures of one run; each is defined by formula in docs/reference/arena.md.

Times are means and percentiles over finished jobs: those that started and ended. A mean over finished jobs flatters a
policy that leaves long waits unfinished, so the number of unfinished jobs and the wait so far of all stand beside it.
After a warm-up jobs are those that were submitted from its end on, while energy, work and the time that jobs spend in
the system are of everything that happens from then on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.places import network_cost, places_of
from slurm_energy.twin.world import Series, World

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
SHORTEST_SECONDS = 10.0
"""Shorter runs count as that long in the bounded slowdown (Feitelson and Rudolph 1998)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A time over jobs in s."""

    mean_seconds: float
    p95_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a run comes to. None is what a run cannot say: a mean over no job, an energy per no unit."""

    jobs: int
    completed_jobs: int
    finished_jobs: int
    """Started and ended, in whatever state."""
    unfinished_jobs: int
    """Wait, run, or are held for another job when the run ends."""
    ended_otherwise_jobs: int
    """Ended in another state than COMPLETED: timed out, failed, cancelled, refused."""
    jobs_by_state: Mapping[str, int]
    end_seconds: float
    total_joules: float
    active_joules: float
    """Charged to jobs."""
    joules_by_component: Mapping[str, float]
    """What no job is charged for."""
    true_units: float
    """Work done and kept, in part by jobs in flight."""
    system_job_seconds: float
    """Time that all jobs together were submitted and not ended: by Little's law rate times mean turnaround."""
    lost_units: float
    joules_per_unit: float | None
    active_joules_per_unit: float | None
    mean_power_watts: float | None
    makespan_seconds: float
    energy_time_product_joule_seconds: float
    wait: Spread | None
    run: Spread | None
    turnaround: Spread | None
    mean_wait_so_far_seconds: float | None
    """Over all jobs that could have started, the wait of unfinished ones until the end of the run: a lower bound."""
    mean_bounded_slowdown: float | None
    p95_bounded_slowdown: float | None
    deadline_jobs: int
    deadline_misses: int
    gpu_utilisation_share: float | None
    cpu_utilisation_share: float | None
    """Of the sockets of CPU places."""
    waiting_at_day_end: tuple[int, ...]
    suspended_node_hours: float
    clamped_decisions: int
    declined_decisions: int
    decisions: int
    mean_decision_seconds: float | None
    """Wall-clock time: the one figure that differs from run to run."""
    restarts: int
    seconds_above_power_budget: float | None
    """None in a world without a power budget."""
    carbon_grams: float | None
    cost: float | None
    published_units: float | None
    published_joules_per_unit: float | None
    """In the metric of the published simulator; None in a world without one."""
    extra: Mapping[str, float] = field(default_factory=dict)


def metrics_of(outcome: Outcome, world: World, jobs: Sequence[Job] | None = None) -> Metrics:
    """Return the figures of a run.

    Args:
        outcome: The run.
        world: The one it ran in.
        jobs: Its jobs in the order of submission; with them the bounded slowdown is against the run at the default
            clock on the same devices, so that a lower clock shows. Without them it is against the run itself.
    """
    counted = outcome.is_counted
    states = Counter(outcome.state) if counted.all() else Counter(np.array(outcome.state, dtype=object)[counted])
    started, ended = np.isfinite(outcome.started_seconds), np.isfinite(outcome.ended_seconds)
    finished = started & ended & counted
    wait = outcome.started_seconds[finished] - outcome.eligible_seconds[finished]
    run = outcome.run_seconds[finished]
    turnaround = outcome.ended_seconds[finished] - outcome.submitted_seconds[finished]
    slowdown = _bounded_slowdown(wait, run, _reference_seconds(outcome, world, jobs, finished))
    units = float(np.sum(outcome.units))
    unfinished = states["PENDING"] + states["RUNNING"]
    makespan = _makespan(outcome, has_unfinished=unfinished > 0)
    misses = _deadline_misses(outcome)
    published = None
    if world.published_log_seconds is not None and outcome.counted_from_seconds == 0.0:
        published = published_figures(outcome, world.published_log_seconds)
    gpu_share, cpu_share = _utilisation(outcome)
    return Metrics(
        jobs=int(np.count_nonzero(counted)),
        completed_jobs=states["COMPLETED"],
        finished_jobs=int(np.count_nonzero(finished)),
        unfinished_jobs=unfinished,
        ended_otherwise_jobs=int(np.count_nonzero(counted)) - states["COMPLETED"] - unfinished,
        jobs_by_state=dict(sorted(states.items())),
        end_seconds=outcome.end_seconds,
        total_joules=outcome.total_joules,
        active_joules=outcome.jobs_joules,
        joules_by_component=dict(outcome.joules_by_component),
        true_units=units,
        system_job_seconds=float(np.sum(system_seconds(outcome))),
        lost_units=float(np.sum(outcome.units_lost)),
        joules_per_unit=_ratio(outcome.total_joules, units),
        active_joules_per_unit=_ratio(outcome.jobs_joules, units),
        mean_power_watts=_ratio(outcome.total_joules, outcome.counted_seconds),
        makespan_seconds=makespan,
        energy_time_product_joule_seconds=outcome.total_joules * makespan,
        wait=_spread(wait),
        run=_spread(run),
        turnaround=_spread(turnaround),
        mean_wait_so_far_seconds=_wait_so_far(outcome, started & counted, ended | ~counted),
        mean_bounded_slowdown=_mean(slowdown),
        p95_bounded_slowdown=_percentile(slowdown, 95.0),
        deadline_jobs=int(np.count_nonzero(np.isfinite(outcome.deadline_seconds) & counted)),
        deadline_misses=misses,
        gpu_utilisation_share=gpu_share,
        cpu_utilisation_share=cpu_share,
        waiting_at_day_end=tuple(outcome.waiting_at_day_end),
        suspended_node_hours=outcome.suspended_node_hours,
        clamped_decisions=outcome.clamped,
        declined_decisions=outcome.declined,
        decisions=outcome.decisions,
        mean_decision_seconds=_ratio(outcome.decision_seconds, outcome.decisions),
        restarts=int(np.sum(outcome.restarts)),
        seconds_above_power_budget=seconds_above_budget(outcome, world),
        carbon_grams=outcome.carbon_grams,
        cost=outcome.cost,
        published_units=None if published is None else published.units,
        published_joules_per_unit=(
            None if published is None or not isfinite(published.joules_per_unit) else published.joules_per_unit
        ),
        extra=dict(outcome.extra),
    )


def _reference_seconds(outcome: Outcome, world: World, jobs: Sequence[Job] | None, finished: BoolArray) -> FloatArray:
    """Return the run of each finished job at the default clock of its last devices, [num_finished]."""
    run = outcome.run_seconds[finished]
    if jobs is None:
        return run
    places = places_of(world)
    found: dict[tuple[str, int, int], float] = {}
    seconds_per_unit = np.zeros(len(run))
    rows = np.flatnonzero(finished).tolist()
    place_of, gpus_of = outcome.place.tolist(), outcome.gpus.tolist()
    for index, row in enumerate(rows):
        key = (jobs[row].kind, place_of[row], gpus_of[row])
        seconds = found.get(key)
        if seconds is None:
            place = places[key[1]]
            load = place.device.loads[key[0]]
            seconds = load.scaling.seconds(load.seconds_per_unit[-1], key[2])
            seconds += network_cost(load, place, key[2], 1.0)[0]
            found[key] = seconds
        seconds_per_unit[index] = seconds
    return outcome.units[finished] * seconds_per_unit


def _bounded_slowdown(wait: FloatArray, run: FloatArray, reference: FloatArray) -> FloatArray:
    slowdown: FloatArray = np.maximum(1.0, (wait + run) / np.maximum(reference, SHORTEST_SECONDS))
    return slowdown


def _makespan(outcome: Outcome, *, has_unfinished: bool) -> float:
    """Return the time from the first submission to the last end, to the run's end while jobs are unfinished."""
    counted = outcome.is_counted
    if not counted.any():
        return 0.0
    ended = outcome.ended_seconds[np.isfinite(outcome.ended_seconds) & counted]
    last = outcome.end_seconds if has_unfinished or not len(ended) else float(ended.max())
    return max(0.0, last - float(outcome.submitted_seconds[counted].min()))


def system_seconds(outcome: Outcome) -> FloatArray:
    """Return the time of each job between submission and end that is counted, [num_jobs]."""
    until = np.minimum(outcome.ended_seconds, outcome.end_seconds)
    since = np.maximum(outcome.submitted_seconds, outcome.counted_from_seconds)
    seconds: FloatArray = np.maximum(0.0, until - since)
    return seconds


def _wait_so_far(outcome: Outcome, started: BoolArray, ended: BoolArray) -> float | None:
    """Return the mean wait over jobs that started, and those that could have and still wait."""
    waits = np.where(started, outcome.started_seconds, outcome.end_seconds) - outcome.eligible_seconds
    counted = (started | ~ended) & np.isfinite(waits)
    return _mean(np.maximum(0.0, waits[counted]))


def _deadline_misses(outcome: Outcome) -> int:
    """Count jobs that did not end by their deadline as completed, or as failed of themselves.

    A job that is unfinished misses its deadline if that has passed; one that was cut off, refused or cancelled misses
    it.
    """
    deadline = outcome.deadline_seconds
    state = np.array(outcome.state, dtype=str)
    came_to_its_end = (state == "COMPLETED") | (state == "FAILED")
    is_open = (state == "PENDING") | (state == "RUNNING")
    in_time = came_to_its_end & (outcome.ended_seconds <= deadline)
    still_possible = is_open & (outcome.end_seconds <= deadline)
    return int(np.count_nonzero(np.isfinite(deadline) & outcome.is_counted & ~in_time & ~still_possible))


def _utilisation(outcome: Outcome) -> tuple[float | None, float | None]:
    """Return the device-seconds that jobs held, over those that there were: of GPUs, of CPU sockets."""
    is_cpu = np.array([*outcome.place_is_cpu, False], dtype=bool)[outcome.place]
    on_cpu = float(np.sum(outcome.gpu_seconds[is_cpu]))
    on_gpu = float(np.sum(outcome.gpu_seconds)) - on_cpu
    return (
        _ratio(on_gpu, outcome.total_gpus * outcome.counted_seconds),
        _ratio(on_cpu, outcome.total_cpu_sockets * outcome.counted_seconds),
    )


def _spread(seconds: FloatArray) -> Spread | None:
    if not len(seconds):
        return None
    p95, p99 = np.percentile(seconds, [95.0, 99.0]).tolist()
    return Spread(mean_seconds=float(seconds.mean()), p95_seconds=p95, p99_seconds=p99)


def _mean(values: FloatArray) -> float | None:
    return float(values.mean()) if len(values) else None


def _percentile(values: FloatArray, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """A run in the published metric."""

    units: float
    joules_per_unit: float
    """Infinite without work."""


def published_figures(outcome: Outcome, log_seconds: float) -> PublishedFigures:
    """Return energy per unit as the published geo-distributed simulator counts units: what its tables call J/unit.

    It logs the work of running jobs once in each interval, and a job that ends adds its last part on top of an interval
    that was already counted in full. So units come out some per cent too many, and J per unit too few.

    A job that started at s and ended at e counts, at its mean rate r, as
    ``r (I (floor(e / I) - ceil(s / I) + 1) + e mod I)``; one that runs at the end h as
    ``r I (floor(h / I) - ceil(s / I) + 1)``.

    Args:
        outcome: The run.
        log_seconds: Interval I of the log.
    """
    start, end = outcome.last_started_seconds, outcome.ended_seconds
    began = np.isfinite(start)
    done = began & np.isfinite(end) & (end > start)
    rate = outcome.units[done] / (end[done] - start[done])
    ticks = np.floor(end[done] / log_seconds) - np.ceil(start[done] / log_seconds) + 1.0
    units = float(np.sum(rate * (log_seconds * ticks + end[done] % log_seconds)))
    running = began & ~np.isfinite(end)
    ticks = np.floor(outcome.end_seconds / log_seconds) - np.ceil(start[running] / log_seconds) + 1.0
    units += float(np.sum(outcome.units_per_second[running] * log_seconds * ticks))
    return PublishedFigures(units=units, joules_per_unit=outcome.total_joules / units if units > 0.0 else inf)


def seconds_above_budget(outcome: Outcome, world: World) -> float | None:
    """Return for how long the mean power of a sample was above the budget of that time; None without a budget.

    A sample is the mean power over its stretch: what is shorter is not seen.
    """
    series = world.power_budget_watts
    if series is None:
        return None
    times, seconds, watts = _pieces(outcome, series)
    return float(np.sum(seconds[watts > _values(series, times)]))


def joules_above_budget(outcome: Outcome, world: World) -> float | None:
    """Return the energy above the budget, by the mean power of each sample; None without a budget."""
    series = world.power_budget_watts
    if series is None:
        return None
    times, seconds, watts = _pieces(outcome, series)
    return float(np.sum(seconds * np.maximum(0.0, watts - _values(series, times))))


def _pieces(outcome: Outcome, series: Series) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return start, length and power of counted stretches over which neither sample nor series changes."""
    samples = outcome.sample_seconds
    if len(samples) < 2:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    changes = np.array(series.times_seconds)
    inside = changes[(changes > samples[0]) & (changes < samples[-1])]
    edges = np.union1d(samples, inside)
    start = outcome.counted_from_seconds
    if start > 0.0:
        edges = np.union1d(edges[edges > start], [start])
    row = np.searchsorted(samples, edges[:-1], side="right") - 1
    return edges[:-1], np.diff(edges), outcome.sample_watts[row]


def _values(series: Series, times: FloatArray) -> FloatArray:
    row = np.maximum(0, np.searchsorted(np.array(series.times_seconds), times, side="right") - 1)
    values: FloatArray = np.array(series.values)[row]
    return values
