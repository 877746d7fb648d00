"""The clock of each option, coordinated so that neither a hot node nor a full budget is driven harder."""

import torch
from torch import Tensor, nn

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.policy_head import segment_log_softmax

WARM = 0.65
"""Temperature from which heat counts, in the scale of the feature `hottest`: 65 degrees C."""
TIGHT = 0.75
"""Share of the power budget from which usage counts."""
_POWER_CHANGE = schema.column(schema.CLOCK, "power_change")


class ClockHead(nn.Module):
    r"""Masked distribution over the clocks of each option, section 3.4 of the hierarchical GNN paper (DVFS).

    .. math::
        \ell_{ok} = \mathrm{MLP}(z_o, c_{ok}) - \big( \alpha \, (\vartheta_o - \vartheta_0)_+
        + \beta \, (u_o - u_0)_+ \big) \, P_{ok}

    with the learned strengths :math:`\alpha = \mathrm{softplus}(a)` and :math:`\beta = \mathrm{softplus}(b)`, the power
    :math:`P` of the clock over that of the highest one, the heat :math:`\vartheta` and the usage :math:`u` of the power
    budget. The paper asks for no thermal hot spots and balanced power without a formula. As the strengths are not
    negative and the first term knows neither heat nor usage, the expected power of the distribution never rises with
    either while the context stays the same: its derivative is minus the variance of the power.

    Args:
        context_channels: Width of the concatenated embeddings of all levels.
        hidden: Width of the fully connected layers.

    Shapes:
        context [O, C], clock_x [K, CLOCK], clock_option [K], clock_open [K], heat [O], power [O].
    """

    def __init__(self, context_channels: int, hidden: int) -> None:
        super().__init__()
        self.channels = context_channels
        self.hidden = hidden
        self.context = nn.Linear(context_channels, hidden)
        self.clock = nn.Linear(schema.width(schema.CLOCK), hidden, bias=False)
        self.between = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.heat_strength = nn.Parameter(torch.empty(()))
        self.power_strength = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; both strengths start at softplus(0) = 0.69."""
        for module in (self.context, self.clock, self.between, self.score):
            module.reset_parameters()
        nn.init.zeros_(self.heat_strength)
        nn.init.zeros_(self.power_strength)

    def forward(
        self, context: Tensor, clock_x: Tensor, clock_option: Tensor, clock_open: Tensor, heat: Tensor, power: Tensor
    ) -> Tensor:
        """Return the log-probability of each clock within its option, [K]; minus infinity where it is closed.

        Args:
            context: Concatenated embeddings of all levels for each option, [O, C].
            clock_x: Features of the clocks, [K, CLOCK].
            clock_option: Option of each clock, in any order, [K]; options without one have nothing.
            clock_open: Whether the clock may be chosen, [K], bool.
            heat: Highest temperature of the nodes to which the option would go, scaled as `hottest`, [O].
            power: Power of the cluster over its budget, 0 where one of them is not known, [O].
        """
        if not len(clock_x):
            return clock_x.new_zeros(0)
        # The first layer is that of the concatenation [context, clock], its first part worked out once per option.
        first = self.context(context)[clock_option] + self.clock(clock_x)  # [K, hidden]
        score = self.score(torch.relu(self.between(torch.relu(first)))).squeeze(1)  # [K]
        strain = nn.functional.softplus(self.heat_strength) * torch.relu(heat - WARM)
        strain = strain + nn.functional.softplus(self.power_strength) * torch.relu(power - TIGHT)  # [O]
        # The power less 1: what all clocks of an option have in common, the softmax takes out.
        score = score - strain[clock_option] * clock_x[:, _POWER_CHANGE]
        return segment_log_softmax(score, clock_open, clock_option, context.shape[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, hidden={self.hidden})"
