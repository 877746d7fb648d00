"""Figures that all ranks have in common, by the same averaging as gradients: ranks must not drift apart."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import Parameter

from slurm_energy.learning.experience import Averaging

FloatArray = NDArray[np.float64]
_SMALLEST_DEVIATION = 1e-6


def carrier(values: Sequence[float]) -> Parameter:
    """Return a parameter whose gradient is these numbers: averaging makes the ranks' mean of them."""
    parameter = Parameter(torch.zeros(len(values), dtype=torch.float64))
    parameter.grad = torch.tensor(values, dtype=torch.float64)
    return parameter


def carried(parameter: Parameter) -> list[float]:
    """Return the numbers of a carrier."""
    assert parameter.grad is not None
    found: list[float] = parameter.grad.tolist()
    return found


def agreed(values: Sequence[float], averaging: Averaging) -> list[float]:
    """Return the mean of these numbers over all ranks."""
    told = carrier(values)
    averaging([told])
    return carried(told)


def shares_of_mean(counts: Sequence[float], averaging: Averaging) -> list[float]:
    """Return each count over the mean of all ranks' counts; 0 where there is none here.

    What a mean over own steps is multiplied by, so that in the mean over ranks each step counts alike.
    """
    means = agreed(counts, averaging)
    return [own / mean if own > 0.0 else 0.0 for own, mean in zip(counts, means, strict=True)]


def mean_and_deviation(values: FloatArray, averaging: Averaging) -> tuple[float, float]:
    """Return mean and standard deviation of all ranks' values together; 0 and 1 where there are none."""
    sums = [float(len(values)), float(values.sum()), float(np.square(values).sum())]
    count, total, squares = agreed(sums, averaging)
    if count == 0.0:
        return 0.0, 1.0
    mean = total / count
    return mean, max(_SMALLEST_DEVIATION, sqrt(max(0.0, squares / count - mean * mean)))
