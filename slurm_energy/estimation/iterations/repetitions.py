"""The repetitions found in one window, judged: what one takes, how sure that is, or what speaks against it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_energy.estimation.iterations.beats import Chain
from slurm_energy.estimation.iterations.traces import Floats, Grid

MIN_REPETITIONS = 5
MIN_FIT = 0.62
MIN_COVERAGE = 0.6
"""Share of the window that lies in repetitions that fit."""
MAX_SPREAD = 0.14


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """No answer, and why."""

    reason: str
    longer_may_help: bool = False
    """Whether a longer window may answer: what repeats was seen, but not often enough to be sure."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repetitions:
    """A chain with its judgement."""

    chain: Chain
    period: float
    error: float
    fit: float
    count: int
    good: NDArray[np.bool_]
    """Which distances of the chain (to the one before) count."""
    variance: float
    """Of a distance over the period."""
    placing: float
    """Part of it, twice, that comes from placing the ends."""


def judge(grid: Grid, chain: Chain) -> Repetitions | Unknown:
    """Return period and error of a chain, or what speaks against it."""
    steps = np.diff(chain.seconds)
    fits = np.minimum(chain.matches[:-1], chain.matches[1:])
    good = chain.linked[1:] & (fits >= 0.45)
    if good.sum() < MIN_REPETITIONS:
        return Unknown(reason="fewer than 5 repetitions", longer_may_help=True)
    middle = float(np.median(steps[good]))
    scatter = 1.4826 * float(np.median(np.abs(steps[good] - middle)))
    usual = good & (np.abs(steps - middle) <= max(4.0 * scatter, 0.03 * middle))
    # Rare stalls are dropped; frequent long repetitions belong to the work.
    if (good & ~usual).sum() <= 0.08 * good.sum():
        good = usual
    if _is_wave(good):
        return Unknown(reason="short waves within a longer repetition")
    fit = float(chain.matches.mean())
    if fit < MIN_FIT:
        return Unknown(reason="repetitions do not resemble each other")
    if steps[good].sum() < MIN_COVERAGE * (grid.span_seconds - chain.template.size * chain.cell_seconds):
        return Unknown(reason="too little of the window repeats")
    if steps[good].std() > MAX_SPREAD * steps[good].mean():
        return Unknown(reason="repetitions differ too much in length")
    variance, placing = _variances(steps, good, chain.cell_seconds)
    period, error = mean_step(steps, good, variance, placing)
    return Repetitions(
        chain=chain,
        period=period,
        error=error,
        fit=fit,
        count=int(good.sum()),
        good=good,
        variance=variance,
        placing=placing,
    )


def _variances(steps: Floats, good: NDArray[np.bool_], cell_seconds: float) -> tuple[float, float]:
    """Return the variance of distances over their mean squared, and what of it comes from one placed end.

    A distance is a repetition's own length, which varies, plus the errors with which its two ends were placed; the
    error of an end enters two neighbours with opposite signs.
    """
    mean = float(steps[good].mean())
    around = np.where(good, steps - mean, 0.0)
    count = int(good.sum())
    variance = float((around**2).sum()) / (count - 1) + (0.1 * cell_seconds) ** 2
    pairs = good[:-1] & good[1:]
    product = float((around[:-1] * around[1:])[pairs].sum()) / max(int(pairs.sum()), 1)
    return variance / mean**2, float(np.clip(-product - variance / count, 0.0, 0.495 * variance)) / mean**2


def mean_step(steps: Floats, good: NDArray[np.bool_], variance: float, placing: float) -> tuple[float, float]:
    """Return the mean of distances and its standard error, by generalised least squares with both variances."""
    values = steps[good]
    covariance = np.eye(values.size) * variance
    adjacent = np.flatnonzero(np.diff(np.flatnonzero(good)) == 1)
    covariance[adjacent, adjacent + 1] = covariance[adjacent + 1, adjacent] = -placing
    weights = np.linalg.solve(covariance, np.ones(values.size))
    total = float(weights.sum())
    mean = float(weights @ values) / total
    error = mean / float(np.sqrt(total))
    return mean, error * _drift(values, error)


def _drift(values: Floats, error: float) -> float:
    """Return by how much parts of the window differ more than their repetitions let expect; at least 1."""
    if values.size < 12 or error <= 0.0:
        return 1.0
    count = 4 if values.size < 40 else 8
    parts = [part.mean() for part in np.array_split(values, count)]
    return max(1.0, float(np.std(parts, ddof=1)) / (error * float(np.sqrt(count))) / 1.25)


def _is_wave(good: NDArray[np.bool_]) -> bool:
    """Return whether the chain breaks off again and again after about as many repetitions: a longer one holds it."""
    breaks = np.flatnonzero(~good)
    between = np.diff(breaks) - 1
    between = between[between > 0]
    if between.size < 2:
        return False
    middle = float(np.median(between))
    return middle <= 12 and float(np.mean(np.abs(between - middle) <= 0.25 * middle + 0.5)) >= 0.6
