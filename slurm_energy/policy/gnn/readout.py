"""From the pooled vertices of a node to the node's embedding."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

_SCORE_BOUND = 3.0
_FULL_NODE = 8.0
"""Devices of a usual node: brings the sum over devices near the size of their mean."""
_LEAST_VARIANCE = 1e-6
"""Keeps the slope of the square root finite where all devices are alike."""


class Vertices(NamedTuple):
    """One small graph per node, side by side: its devices, or what pooling made of them.

    Rows beyond a node's own vertices are padding: mass 0, features 0, no links.
    """

    x: Tensor
    """[nodes, vertices, channels]."""
    mass: Tensor
    """Devices that a vertex stands for; 0 for padding, [nodes, vertices]."""
    adjacency: Tensor
    """Weights of links, symmetric; on the diagonal those inside a vertex, each twice, [nodes, vertices, vertices]."""


class Summary(NamedTuple):
    """What can be said of a node's devices without pooling them; zeros for a node without any."""

    mean: Tensor
    """[nodes, channels]."""
    largest: Tensor
    """[nodes, channels]."""
    spread: Tensor
    """Load balance: standard deviation over the devices, [nodes, channels]."""
    number: Tensor
    """[nodes, 1]."""
    link_weight: Tensor
    """Sum over ordered pairs; pooling keeps it, [nodes, 1]."""


def summarise(devices: Vertices) -> Summary:
    """Return mean, largest, spread and number of each node's devices."""
    present = devices.mass[:, :, None]  # [nodes, devices, 1]
    number = present.sum(dim=1)  # [nodes, 1]
    divisor = number.clamp(min=1.0)
    mean = devices.x.sum(dim=1) / divisor  # [nodes, channels]
    variance = ((devices.x - mean[:, None]) * present).square().sum(dim=1) / divisor
    spread = (variance + _LEAST_VARIANCE).sqrt() - _LEAST_VARIANCE**0.5
    return Summary(mean, _largest(devices), spread, number, devices.adjacency.sum(dim=(1, 2))[:, None])


class Readout(nn.Module):
    r"""Pooled vertices to one embedding per node (section 3.3: capacity, load balance, communication overhead).

    .. math::
        h_v &= x_v + \frac{\sum_{u \ne v} A_{vu} W x_u}{1 + \sum_{u \ne v} A_{vu}}, \qquad
        \alpha_v \propto m_v \exp(3 \tanh(a^\top h_v)) \\
        y &= L \left[\sum_v \alpha_v h_v \,\Vert\, \max_v h_v \,\Vert\, \sigma \,\Vert\, \tfrac{n}{8} \mu
             \,\Vert\, b \,\Vert\, c \right]

    with the mass m of a vertex, mean \mu, spread \sigma and number n of the devices (n \mu / 8 is the aggregate
    capacity), the mean weight b over all pairs of devices and the share c of all link weight that lies between pooled
    vertices (communication overhead). As attention counts devices and not vertices, it does not matter whether alike
    devices became one vertex or several. A node without devices gets zeros.

    The paper says what pooling keeps but not how it is read out: this form is ours.

    Shapes: Vertices of n nodes and v vertices, Summary of n nodes -> [n, channels].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.neighbour = nn.Linear(channels, channels, bias=False)
        self.attention = nn.Linear(channels, 1, bias=False)
        self.out = nn.Linear(4 * channels + 2, channels)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for layer in (self.neighbour, self.attention, self.out):
            layer.reset_parameters()

    def forward(self, vertices: Vertices, devices: Summary) -> Tensor:
        """Return the embeddings of the nodes.

        Args:
            vertices: What pooling made of the devices.
            devices: Summary of the same nodes' devices before pooling.
        """
        inside = torch.diagonal(vertices.adjacency, dim1=1, dim2=2)  # [nodes, vertices]
        between = vertices.adjacency - torch.diag_embed(inside)  # [nodes, vertices, vertices]
        strength = between.sum(dim=2, keepdim=True)  # [nodes, vertices, 1]
        x = vertices.x + torch.bmm(between, self.neighbour(vertices.x)) / (1.0 + strength)
        score = self.attention(x).squeeze(2)  # [nodes, vertices]
        weight = vertices.mass * torch.exp(_SCORE_BOUND * torch.tanh(score))
        weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
        mean = torch.bmm(weight[:, None], x).squeeze(1)  # [nodes, channels]
        largest = _largest(vertices._replace(x=x))
        number = devices.number
        bandwidth = devices.link_weight / (number * (number - 1.0)).clamp(min=1.0)
        crossing = strength.sum(dim=1) / devices.link_weight.clamp(min=1e-12)  # [nodes, 1]
        parts = [
            mean,
            largest,
            devices.spread,
            devices.mean * (number / _FULL_NODE),
            bandwidth,
            crossing,
        ]
        y: Tensor = self.out(torch.cat(parts, dim=1)) * (number > 0)
        return y

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels})"


def _largest(vertices: Vertices) -> Tensor:
    """Return the largest entry of each channel over a node's vertices; 0 without any, [nodes, channels]."""
    padding = vertices.mass == 0  # [nodes, vertices]
    largest = vertices.x.masked_fill(padding[:, :, None], -torch.inf).amax(dim=1)
    return largest.masked_fill(padding.all(dim=1, keepdim=True), 0.0)
