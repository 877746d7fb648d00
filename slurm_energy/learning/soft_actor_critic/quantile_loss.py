"""The loss of quantile regression, for critics that learn the distribution of the return."""

import torch
from torch import Tensor

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
