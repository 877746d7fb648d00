"""Bootstrap intervals over seeds, and differences of runs that met the same arrivals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from scipy import stats

from slurm_energy.errors import EvaluationError

CONFIDENCE = 0.95
RESAMPLES = 9_999


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds with its 95 % interval; low and high are None with one seed: then there is no interval."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


def estimate(values: Sequence[float], seed: int = 0) -> Estimate | None:
    """Return mean and bootstrap interval of a figure over seeds, None when there is no value.

    Percentile bootstrap, both sides of which are widened by one factor so that for normal figures the interval is as
    wide as Student's (after Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 3.4, where the
    percentiles are moved instead, which ends at the least and greatest value): without, one of five seeds is 1.6 times
    too narrow and holds the truth 84 times of 100 instead of 94. Skewed figures keep their lopsided interval; of
    exponential ones it holds the truth 89 times of 100 with five seeds and 93 with twenty.

    Args:
        values: One for each seed.
        seed: Of the resampling: the same values and seed give the same interval.

    Raises:
        EvaluationError: a value is not finite.
    """
    if not values:
        return None
    if not all(map(isfinite, values)):
        raise EvaluationError(f"values {list(values)[:8]} over seeds are not all finite numbers")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean=mean, low=None, high=None, seeds=1)
    if min(values) == max(values):
        return Estimate(mean=mean, low=mean, high=mean, seeds=len(values))
    found = stats.bootstrap(
        (np.array(values, dtype=np.float64),),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    wider = _widening(len(values))
    low, high = (mean + wider * (end - mean) for end in (float(found.low), float(found.high)))
    return Estimate(mean=mean, low=low, high=high, seeds=len(values))


def _widening(count: int) -> float:
    """Return Student's interval over the one that resampling gives for so many normal figures."""
    quantile = 0.5 + 0.5 * CONFIDENCE
    return float(stats.t.ppf(quantile, count - 1) / stats.norm.ppf(quantile) * np.sqrt(count / (count - 1.0)))


def paired_difference_percent(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> Estimate | None:
    """Return the mean over seeds of each value's difference from the reference of its own seed, in per cent of that.

    Args:
        values: One for each seed.
        reference: Of the same seeds, in the same order.
        seed: Of the resampling.

    Raises:
        EvaluationError: the two are not of the same length, or a value is not finite.
    """
    if len(values) != len(reference):
        raise EvaluationError(f"{len(values)} values cannot be paired with {len(reference)} of the reference")
    if not all(reference):
        return None
    pairs = zip(values, reference, strict=True)
    return estimate([100.0 * (value - other) / abs(other) for value, other in pairs], seed)
