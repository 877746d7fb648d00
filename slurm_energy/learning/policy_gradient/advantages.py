"""Generalised advantages over decisions that come at irregular times."""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_energy.learning.experience import Step

FloatArray = NDArray[np.float64]


class Advantages(NamedTuple):
    """What came of each step, set against what was expected."""

    advantage: FloatArray
    """[steps]."""
    returns: FloatArray
    """Advantage and value together: what the value should have been, [steps]."""
    is_known: NDArray[np.bool_]
    """False for the last step of an episode that was cut off: nobody knows what it would have led to, [steps]."""


def advantages(steps: Sequence[Step], values: FloatArray, *, horizon_seconds: float, trace_decay: float) -> Advantages:
    r"""Return the generalised advantages, equations 14 and 16 of Schulman et al. 2016, of a semi-Markov process.

    .. math::
        \hat A_t = \delta_t + \gamma_t \lambda \hat A_{t+1}, \qquad
        \delta_t = r_t + \gamma_t V_{t+1} - V_t, \qquad \gamma_t = e^{-\tau_t / h}

    The discount depends on the time :math:`\tau_t` until the next decision, where the paper has one for each step: many
    decisions at one moment are no further apart than one. After a terminal step nothing follows, :math:`V_{t+1} = 0`.
    The last step of an episode that was cut off has no successor to be valued: it is only what the steps before it are
    valued by, and has the advantage 0.

    Args:
        steps: Of whole episodes, one behind the other.
        values: Value of each step's moment, [steps].
        horizon_seconds: After so much time a reward counts 1/e.
        trace_decay: Lambda of the paper, for each step.
    """
    advantage = np.zeros(len(steps))
    is_known = np.ones(len(steps), dtype=bool)
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if step.following is not None:
            discount = exp(-step.elapsed_seconds / horizon_seconds)
            error = step.reward + discount * values[index + 1] - values[index]
            advantage[index] = error + discount * trace_decay * advantage[index + 1]
        elif step.is_terminal:
            advantage[index] = step.reward - values[index]
        else:
            is_known[index] = False
    return Advantages(advantage, advantage + values, is_known)
