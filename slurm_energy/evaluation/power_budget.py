"""How long a run's power was above the world's budget.

It rests on the samples of the run, each the mean power over its stretch: what is shorter is not seen.
"""

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import Series, World

FloatArray = NDArray[np.float64]


def seconds_above_budget(outcome: Outcome, world: World) -> float | None:
    """Return for how long the mean power of a sample was above the budget of that time; None without a budget."""
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
