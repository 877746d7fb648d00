"""What critics and actor are trained on: soft targets over all next options, and the exact expectation over options."""

import torch
from torch import Tensor

from slurm_energy.policy.gnn.heads import OptionDistribution


def expected(distribution: OptionDistribution, values: Tensor) -> Tensor:
    """Return the mean of a value over each job's options by their probability, [jobs, ...].

    A closed option has no part in it, whatever its value is, also where that is not finite.

    Args:
        distribution: Of the options, masked.
        values: [options, ...].
    """
    is_open = distribution.log_prob > -float("inf")
    share = distribution.log_prob.exp().where(is_open, 0.0)  # [options]
    wide = (slice(None), *(None,) * (values.dim() - 1))
    weighted = share[wide] * values.where(is_open[wide], 0.0)
    total = values.new_zeros(distribution.entropy.shape[0], *values.shape[1:])
    return total.index_add(0, distribution.option_job, weighted)


def soft_value(distribution: OptionDistribution, quantiles: Tensor, temperature: float) -> Tensor:
    r"""Return the soft value of each moment as quantiles, [jobs, quantiles].

    .. math::
        V_\tau(s) = \sum_a \pi(a|s) \, Z_\tau(s, a) + \alpha \, \mathcal{H}(\pi(\cdot|s))

    Each quantile is the mean of the options' own: exact in the mean; the spread between the options, which the policy
    chooses and chance does not, is left out.

    Args:
        distribution: Of the next options by the present actor, under the masks of that decision.
        quantiles: Of the options' return by the target critics, [options, quantiles].
        temperature: In rewards per nat.
    """
    return expected(distribution, quantiles) + temperature * distribution.entropy[:, None]


def bootstrapped(
    reward: Tensor, discount: Tensor, goes_on: Tensor, next_value: Tensor | None, quantiles: int
) -> Tensor:
    r"""Return the targets of the critics, [batch, quantiles].

    .. math::
        y_\tau = r + \gamma^{\Delta t / t_\text{ref}} \, V_\tau(s')

    Decisions come at any time: the discount is by what passed between them (a semi-Markov decision process), where the
    paper discounts each decision alike. Nothing is added where nothing follows for ever.

    Args:
        reward: [batch].
        discount: Of what follows, [batch].
        goes_on: Rows that something follows, [going on].
        next_value: Value of what follows, [going on, quantiles]; None where nothing does in the whole batch.
        quantiles: How many there are.
    """
    target = reward[:, None].expand(-1, quantiles)
    if next_value is None:
        return target
    return target.index_add(0, goes_on, discount[goes_on, None] * next_value)


def critic_loss(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Return the loss of both critics, eq. 10 of CHSAC-AF.

    Args:
        first: Quantiles of the options that were taken by the first critic, [batch, quantiles].
        second: By the second.
        target: [batch, quantiles].
    """
    return quantile_huber_loss(first, target) + quantile_huber_loss(second, target)


def actor_loss(distribution: OptionDistribution, value: Tensor, temperature: float) -> Tensor:
    r"""Return the loss of the actor, eq. 11 of CHSAC-AF as an exact expectation over all options.

    .. math::
        \mathcal{L}_\pi = \operatorname{mean}_s \sum_a \pi(a|s) \, (\alpha \log \pi(a|s) - q(s, a))

    Its gradient is the direction of better options. The paper's code draws one option and takes its value as constant,
    which leaves no such gradient.

    Args:
        distribution: Of the actor.
        value: Lower mean of the two critics for each option, [options]; taken as constant.
        temperature: In rewards per nat.
    """
    return -(expected(distribution, value.detach()) + temperature * distribution.entropy).mean()


_KAPPA = 1.0
"""Where the Huber loss turns from a square to a line."""


def quantile_huber_loss(predicted: Tensor, target: Tensor) -> Tensor:
    r"""Return the quantile Huber loss, eq. 10 of Dabney et al. 2018 with kappa 1, mean over the batch.

    .. math::
        \sum_i \operatorname{mean}_j \; |\hat\tau_i - 1[u_{ij} < 0]| \; L_1(u_{ij}), \qquad
        u_{ij} = \text{target}_j - \text{predicted}_i

    The weight belongs to the quantile that is predicted: where it lies on the target's axis, every quantile is drawn to
    the same value.

    Args:
        predicted: Quantiles at the midpoints (2 i + 1) / 2 N, [batch, N].
        target: Samples or quantiles of the return, taken as constant, [batch, M].
    """
    quantiles = predicted.shape[1]
    midpoint = (torch.arange(quantiles, dtype=predicted.dtype, device=predicted.device) + 0.5) / quantiles  # [N]
    error = target.detach()[:, None, :] - predicted[:, :, None]  # [batch, N, M]
    size = error.abs()
    huber = torch.where(size <= _KAPPA, 0.5 * error.square(), _KAPPA * (size - 0.5 * _KAPPA))
    weight = (midpoint[None, :, None] - (error.detach() < 0.0).to(error.dtype)).abs()
    return (weight * huber).mean(2).sum(1).mean()
