"""Differentiable pooling of a node's devices."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.policy.gnn.coarsening import contracted
from slurm_energy.policy.gnn.readout import Vertices


class SoftlyPooled(NamedTuple):
    """Pooled vertices and the two auxiliary losses of their assignment."""

    vertices: Vertices
    link_loss: Tensor
    """Scalar."""
    entropy_loss: Tensor
    """Scalar."""


class DifferentiablePool(nn.Module):
    r"""Soft assignment of devices to a few vertices, learned with everything else (section 3.3).

    .. math::
        S &= \mathrm{softmax}(W_3 \, \mathrm{relu}(W_1 x + W_2 \hat{A} x)), \qquad
        \hat{A}_{ij} = \frac{A_{ij}}{1 + \sum_k A_{ik}} \\
        x' &= S^\top x, \qquad A' = S^\top A S, \qquad
        L_{LP} = \frac{\lVert A - S S^\top \rVert_F}{g^2}, \qquad
        L_E = \frac{1}{g} \sum_i H(S_i)

    After Ying et al. 2018, Hierarchical graph representation learning with differentiable pooling. The layers below
    take the place of its embedding network. The link loss is that of each node of g devices, on average over nodes
    with devices, so that it does not depend on what else is in the batch; the entropy is on average over devices.

    Shapes: Vertices [n, g, channels] -> Vertices [n, pooled_vertices, channels], all padding for an empty node.
    """

    def __init__(self, channels: int, pooled_vertices: int) -> None:
        super().__init__()
        self.channels = channels
        self.pooled_vertices = pooled_vertices
        self.own = nn.Linear(channels, channels)
        self.neighbour = nn.Linear(channels, channels, bias=False)
        self.assignment = nn.Linear(channels, pooled_vertices)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for layer in (self.own, self.neighbour, self.assignment):
            layer.reset_parameters()

    def forward(self, devices: Vertices) -> SoftlyPooled:
        """Return the pooled vertices of each node and the losses of all."""
        log_share = torch.log_softmax(self.logits(devices), dim=2)  # [nodes, devices, pooled]
        share = log_share.exp() * devices.mass[:, :, None]
        x = torch.bmm(share.transpose(1, 2), devices.x)  # [nodes, pooled, channels]
        vertices = Vertices(x, share.sum(dim=1), contracted(devices.adjacency, share))
        count = devices.mass.sum(dim=1)  # [nodes]
        together = torch.bmm(share, share.transpose(1, 2))  # [nodes, devices, devices]
        missed = torch.linalg.vector_norm(devices.adjacency - together, dim=(1, 2))  # [nodes]
        link_loss = (missed / count.square().clamp(min=1.0)).sum() / (count > 0).sum().clamp(min=1)
        entropy_loss = -(share * log_share).sum() / count.sum().clamp(min=1.0)
        return SoftlyPooled(vertices, link_loss, entropy_loss)

    def logits(self, devices: Vertices) -> Tensor:
        """Return the scores of each device for each pooled vertex, [nodes, devices, pooled]."""
        strength = devices.adjacency.sum(dim=2, keepdim=True)  # [nodes, devices, 1]
        heard = torch.bmm(devices.adjacency, devices.x) / (1.0 + strength)  # [nodes, devices, channels]
        logits: Tensor = self.assignment(torch.relu(self.own(devices.x) + self.neighbour(heard)))
        return logits

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, pooled_vertices={self.pooled_vertices})"
