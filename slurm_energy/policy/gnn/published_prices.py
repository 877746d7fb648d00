"""Prices of one moment as plain arrays: a job costs microseconds, in whatever process, without torch."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.graph.blocks import Floats

_Array = NDArray[np.float32]
SLOPE = 0.1
"""Of the head's units below 0. With 0, a few rounds of noisy bills push every unit below it in all states, where it has
no gradient: what is left of the network then is the bias of its last layer, the same price in every state."""


class PublishedPrices(NamedTuple):
    """What a network's head of prices and its look at the cluster come down to; the formula is `PriceHead`'s."""

    state: _Array
    """What the state adds to the first layer, [hidden]."""
    device_raw: _Array
    """Raw price of devices by partition, [partitions]."""
    job: _Array
    """Weights of the job's columns, [hidden, PRICED_JOB]."""
    between: _Array
    """[hidden, hidden]."""
    between_bias: _Array
    last: _Array
    """[prices, hidden]."""
    last_bias: _Array

    @property
    def is_finite(self) -> bool:
        """Whether the state's part of the prices is."""
        return bool(np.isfinite(self.state).all() and np.isfinite(self.device_raw).all())

    def job_raw(self, job_x: Floats) -> _Array:
        """Return the raw prices of a job, [prices].

        Args:
            job_x: Its columns with what is known beside them, [PRICED_JOB].
        """
        first = _leaky(self.state + self.job @ job_x)
        raw: _Array = self.last @ _leaky(self.between @ first + self.between_bias) + self.last_bias
        return raw


def _leaky(x: _Array) -> _Array:
    found: _Array = np.maximum(x, np.float32(SLOPE) * x)
    return found
