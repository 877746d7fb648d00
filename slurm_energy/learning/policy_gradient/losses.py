"""The losses of the policy gradient, and what the value heads say together."""

import torch
from torch import Tensor

from slurm_energy.graph import schema
from slurm_energy.policy.mode_weights import BALANCED_WEIGHTS

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
