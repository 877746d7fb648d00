"""What a situation is worth, and what an option would bring: baseline and critics of the learner."""

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.reasoning import OBJECTIVES


def present_mean(x: Tensor, is_present: Tensor) -> Tensor:
    """Return the mean of the vertices that are present, [B, H]; zeros where none is.

    Args:
        x: Vertices, [B, V, H].
        is_present: Whether a vertex counts, [B, V], bool.
    """
    weight = is_present.to(x.dtype).unsqueeze(1)  # [B, 1, V]
    return (weight @ x).squeeze(1) / weight.sum(-1).clamp(min=1.0)


class ValueHead(nn.Module):
    r"""Value of the situation in which a job is submitted, for each objective.

    .. math::
        V(s) = \mathrm{MLP} \big( [x_j, \operatorname{mean}_{v \in \text{cluster}} x_v] \big)

    Args:
        channels: Width of the embeddings.
        hidden: Width of the fully connected layer.

    Shapes:
        job [J, H], cluster [J, H].
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.channels = channels
        self.hidden = hidden
        self.first = nn.Linear(2 * channels, hidden)
        self.last = nn.Linear(hidden, len(OBJECTIVES))

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.first.reset_parameters()
        self.last.reset_parameters()

    def forward(self, job: Tensor, cluster: Tensor) -> Tensor:
        """Return the values for time, energy and fairness, [J, 3].

        Args:
            job: Each job's vertex at the top, [J, H].
            cluster: Mean of the other vertices of its top, [J, H]; see `present_mean`.
        """
        value: Tensor = self.last(torch.relu(self.first(torch.cat((job, cluster), 1))))
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"


class QuantileHead(nn.Module):
    r"""Quantiles of the return of each option, for critics trained by quantile regression.

    .. math::
        Z_\tau(s, a) = \mathrm{MLP} \big( [z_a, e_a] \big)_\tau

    Quantiles may cross: the loss of quantile regression orders them, and a mean does not mind.

    Args:
        context_channels: Width of the concatenated embeddings of all levels.
        quantiles: Number of quantiles.
        hidden: Width of the fully connected layers.
        option_channels: Width of the options' own features.

    Shapes:
        context [O, C], option_x [O, F].
    """

    def __init__(
        self,
        context_channels: int,
        quantiles: int,
        hidden: int,
        *,
        option_channels: int = schema.width(schema.OPTION),
    ) -> None:
        super().__init__()
        self.quantiles = quantiles
        self.hidden = hidden
        self.channels = context_channels + option_channels
        self.first = nn.Linear(self.channels, hidden)
        self.between = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, quantiles)

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        for module in (self.first, self.between, self.last):
            module.reset_parameters()

    def forward(self, context: Tensor, option_x: Tensor) -> Tensor:
        """Return the quantiles of each option, [O, quantiles].

        Args:
            context: Concatenated embeddings of all levels for each option, [O, C].
            option_x: Features of the options, [O, F].
        """
        hidden = torch.relu(self.first(torch.cat((context, option_x), 1)))  # [O, hidden]
        quantile: Tensor = self.last(torch.relu(self.between(hidden)))  # [O, quantiles]
        return quantile

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, quantiles={self.quantiles}, hidden={self.hidden})"
