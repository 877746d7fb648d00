"""How members speak for themselves where many are pooled into one: bounded attention, summed in parts."""

import torch
from torch import Tensor, nn

from slurm_energy.policy.gnn.levels import WEIGHT_BOUND, Contributions


class Offering(nn.Module):
    r"""Return what each member adds to the sums of its owners.

    .. math:: w_i = \exp(3 \tanh(A x_i)), \quad v_i = w_i \odot (V x_i)

    The paper weighs by attention (section 3.3); a bounded score is our departure: sums of exponentials that cannot
    overflow may be built up and taken apart in any order, which is what makes the cached answer equal the full one.

    Shapes: x [members, channels] -> weight [members, heads], value [members, hidden].
    """

    def __init__(self, channels: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.width = hidden // heads
        self.score = nn.Linear(channels, heads)
        self.value = nn.Linear(channels, hidden)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.score.reset_parameters()
        self.value.reset_parameters()

    def forward(self, x: Tensor, member_weight: Tensor | None = None) -> Contributions:
        """Return the contributions; `member_weight` is 1 / probability of being in the sample, [members]."""
        weight = torch.exp(WEIGHT_BOUND * torch.tanh(self.score(x)))  # [members, heads]
        if member_weight is not None:
            weight = weight * member_weight[:, None]
        by_head: Tensor = self.value(x).view(x.shape[0], self.heads, self.width) * weight[:, :, None]
        return Contributions(weight, by_head.flatten(1))  # [members, hidden]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value.in_features}, {self.value.out_features}, heads={self.heads})"
