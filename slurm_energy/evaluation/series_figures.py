"""Figures that weigh a run's power with a series of the world: budget, carbon, price.

They rest on the samples of the run, each the mean power over its stretch: what is shorter is not seen.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slurm_energy.twin.outcome import Outcome
from slurm_energy.twin.world import Series, World

FloatArray = NDArray[np.float64]
JOULES_PER_KWH = 3.6e6


def seconds_above_budget(outcome: Outcome, world: World) -> float | None:
    """Return for how long the mean power of a sample was above the budget of that time; None without a budget."""
    series = world.power_budget_watts
    if series is None:
        return None
    times, seconds, watts = _pieces(outcome, series)
    return float(np.sum(seconds[watts > _values(series, times)]))


def carbon_grams(outcome: Outcome, world: World) -> float | None:
    """Return the carbon dioxide of the run's energy in g; None when the world has no series for all its pools."""
    if outcome.carbon_grams is not None:
        return outcome.carbon_grams
    return _weighed(outcome, world, world.carbon_grams_per_kwh)


def cost(outcome: Outcome, world: World) -> float | None:
    """Return the price of the run's energy, in the currency of the world; None when it has no series for all pools."""
    return outcome.cost if outcome.cost is not None else _weighed(outcome, world, world.price_per_kwh)


def _weighed(outcome: Outcome, world: World, series_by_region: Mapping[str, Series]) -> float | None:
    """Return the integral of power times a series that is the same everywhere; samples do not tell regions apart."""
    distinct = {series_by_region.get(pool.region) or series_by_region.get("") for pool in world.pools}
    series = next(iter(distinct))
    if len(distinct) != 1 or series is None:
        return None
    times, seconds, watts = _pieces(outcome, series)
    return float(np.sum(watts * seconds * _values(series, times))) / JOULES_PER_KWH


def _pieces(outcome: Outcome, series: Series) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return start, length and power of stretches over which neither sample nor series changes."""
    samples = outcome.sample_seconds
    if len(samples) < 2:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    changes = np.array(series.times_seconds)
    inside = changes[(changes > samples[0]) & (changes < samples[-1])]
    edges = np.union1d(samples, inside)
    row = np.searchsorted(samples, edges[:-1], side="right") - 1
    return edges[:-1], np.diff(edges), outcome.sample_watts[row]


def _values(series: Series, times: FloatArray) -> FloatArray:
    row = np.maximum(0, np.searchsorted(np.array(series.times_seconds), times, side="right") - 1)
    values: FloatArray = np.array(series.values)[row]
    return values
