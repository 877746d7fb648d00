"""Random streams of a workload, and arrival times drawn from them."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import ConfigError

FloatArray = NDArray[np.float64]
_BRANCH = 0x776B
"""Keeps a workload's streams apart from those that others spawn from the same seed."""


def workload_streams(seed: int, count: int) -> list[np.random.SeedSequence]:
    """Return independent seeds of a workload's streams: arrivals first, then sizes, then what a generator needs.

    The first streams are the same however many are asked for.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"workload seed {seed} is not 0 or more")
    return np.random.SeedSequence(seed, spawn_key=(_BRANCH,)).spawn(count)


def poisson_times(rate_per_second: float, horizon_seconds: float, random: np.random.Generator) -> FloatArray:
    """Return ascending arrival times [s] in (0, horizon] of a Poisson process; empty for a rate of 0.

    The same stream at another rate gives the same times, stretched.
    """
    horizon_gaps = rate_per_second * horizon_seconds
    block = int(horizon_gaps + 4.0 * horizon_gaps**0.5 + 16.0)
    parts: list[FloatArray] = []
    reached = 0.0
    while reached <= horizon_gaps and horizon_gaps > 0.0:
        parts.append(reached + np.cumsum(random.standard_exponential(block)))
        reached = float(parts[-1][-1])
    if not parts:
        return np.empty(0)
    gaps = np.concatenate(parts)
    return np.minimum(horizon_seconds, gaps[gaps <= horizon_gaps] / rate_per_second)


def thinned_times(
    peak_per_second: float,
    rate_per_second: Callable[[FloatArray], FloatArray],
    horizon_seconds: float,
    random: np.random.Generator,
) -> FloatArray:
    """Return arrival times [s] of a Poisson process whose rate changes, by thinning one at the peak rate.

    Lewis and Shedler (1979), "Simulation of nonhomogeneous Poisson processes by thinning".

    Args:
        peak_per_second: Bound of the rate, never passed by it.
        rate_per_second: Rate at given times, [num_times] to [num_times].
        horizon_seconds: Length of the workload.
        random: Stream of the arrivals.
    """
    candidates = poisson_times(peak_per_second, horizon_seconds, random)
    kept = random.random(len(candidates)) * peak_per_second < rate_per_second(candidates)
    return candidates[kept]
