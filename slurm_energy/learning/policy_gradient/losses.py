"""Advantages over decisions at irregular times, the losses of the policy gradient, and the value heads together."""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slurm_energy.graph import schema
from slurm_energy.learning.experience import DecisionStep
from slurm_energy.policy.prices import BALANCED_WEIGHTS

_WEIGHTS = [schema.column(schema.TASK, name) for name in ("time_weight", "energy_weight")]


def combined_value(values: Tensor, job_x: Tensor) -> Tensor:
    """Return one value for each job: those for time and energy, weighed as the job weighs them, [jobs].

    A step has one reward, so that the sum is what is trained, without fairness. Balanced weights add the two.

    Args:
        values: For time, energy and fairness, [jobs, 3].
        job_x: The jobs' columns, [jobs, TASK].
    """
    weights = job_x[:, _WEIGHTS] / job_x.new_tensor(BALANCED_WEIGHTS)  # [jobs, 2]
    return (values[:, :2] * weights).sum(1)


def surrogate_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return minus the clipped surrogate of each step, [steps]; equation 7 of Schulman et al. 2017.

    Args:
        log_prob: Of what was asked for, under the present weights, [steps].
        old_log_prob: Under the weights that acted, [steps].
        advantage: [steps].
        clip: Bound on the distance of the probability ratio from 1.
    """
    ratio = (log_prob - old_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Return the squared error of each value, [steps]; with a bound, the larger of that and the bounded value's.

    Args:
        value: Under the present weights, [steps].
        old_value: Before the round's updates, [steps].
        returns: What they should have been, [steps].
        clip: Bound on the distance between value and old value; None for none.
    """
    error = (value - returns).square()
    if clip is None:
        return error
    bounded = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(error, (bounded - returns).square())


def divergence(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """Return an estimate from samples of KL(old, new) that is never below 0: the mean of ratio - 1 - log ratio."""
    log_ratio = log_prob - old_log_prob
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


FloatArray = NDArray[np.float64]


class Advantages(NamedTuple):
    """What came of each step, set against what was expected."""

    advantage: FloatArray
    """[steps]."""
    returns: FloatArray
    """Advantage and value together: what the value should have been, [steps]."""
    is_known: NDArray[np.bool_]
    """False for the last step of an episode that was cut off: what it would have led to is not known, [steps]."""


def advantages(
    steps: Sequence[DecisionStep], values: FloatArray, *, horizon_seconds: float, trace_decay: float
) -> Advantages:
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
