"""The metric of the published geo-distributed simulator: what its tables call J/unit.

It logs the work of running jobs once in each interval, and a job that ends adds its last part on top of an interval
that was already counted in full. So units come out some per cent too many, and J per unit too few.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from slurm_energy.twin.engine.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """A run in the published metric."""

    units: float
    joules_per_unit: float
    """Infinite without work."""


def published_figures(outcome: Outcome, log_seconds: float) -> PublishedFigures:
    """Return energy per unit as the published simulator counts units.

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
