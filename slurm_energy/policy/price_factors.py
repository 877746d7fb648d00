"""What a network of prices says, as factors: the same for who trains, who simulates and who serves; without torch."""

from math import log

import numpy as np
from numpy.typing import NDArray

JOB_PRICES = ("time_watts", "slowdown_joules", "share", "opening", "waking")
"""In the order of the network's outputs for a job; fields of `policy.rules.cost_table.Prices`."""
LARGEST = 3.0
"""A price is moved by a factor from exp(-3) to exp(3)."""
_RELATIVE_SCALE = 4.0


def price_factors(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by what prices are multiplied, exp(3 tanh(raw / 3))."""
    found: NDArray[np.float32] = np.exp(LARGEST * np.tanh(raw / LARGEST))
    return found


def relative_joules(own: float, mean: float) -> float:
    """Return the column that says how large a job is, ln(own / mean) / 4; 0 where one of them is not known."""
    return log(own / mean) / _RELATIVE_SCALE if 0.0 < own < float("inf") and mean > 0.0 else 0.0
