"""Poolings of a node's devices that are learned: soft assignment, and contraction of links."""

import torch
from torch import Tensor, nn

from slurm_energy.policy.gnn.pooling import SoftlyPooled, Vertices, contracted, groups, heaviest_links

_SLACK = 1e-4


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
        """Draw new weights."""
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


class EdgePool(nn.Module):
    r"""Contraction of a maximal matching of the highest scored links, which keeps connectivity (section 3.3).

    .. math::
        s_{ij} &= 0.5 + \sigma \left(a^\top (x_i + x_j) + 2 b + \tfrac{1}{\sqrt{H}} \, x_i^\top \mathrm{diag}(p) \, x_j
                  + c A_{ij} \right) \\
        x'_{ij} &= s_{ij} (x_i + x_j), \qquad A' = S^\top A S

    After Diehl 2019, Edge contraction pooling for graph neural networks. A device in no contracted link is kept as it
    is. Only linked devices are merged and no link is dropped, so connected devices stay connected and others do not
    become so.

    Departures: the score is the same in both directions (a sigmoid in place of a softmax over the links into one end),
    as links inside a node have none; there is no dropout. Scores that differ by less than 1e-4 tie. Tied links are
    contracted together, and k merged devices give s (2 / k) (x_1 + ... + x_k) with the mean s of their links: what
    their pairings would give on average, and Diehl's vertex for two.

    Shapes: Vertices [n, g, channels] -> Vertices [n, g, channels], one row per merged vertex, the rest padding.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.end = nn.Linear(channels, 1)
        self.pair = nn.Parameter(torch.empty(channels))
        self.link = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.end.reset_parameters()
        bound = self.channels**-0.5
        nn.init.uniform_(self.pair, -bound, bound)
        nn.init.ones_(self.link)

    def forward(self, devices: Vertices) -> Vertices:
        """Return what is left of each node's devices after contraction."""
        score = self.score(devices)  # [nodes, devices, devices]
        with torch.no_grad():
            taken = heaviest_links(score, devices.adjacency > 0, _SLACK)
            assignment = groups(taken, devices.mass)  # [nodes, devices, merged]
            mass = assignment.sum(dim=1)  # [nodes, merged]
            merged = assignment.transpose(1, 2)
            at_device = taken.to(mass.dtype)
            links = torch.bmm(merged, at_device.sum(dim=2, keepdim=True)).squeeze(2)  # [nodes, merged]
        scores = (score * at_device).sum(dim=2, keepdim=True)  # [nodes, devices, 1]
        mean_score = torch.bmm(merged, scores).squeeze(2) / links.clamp(min=1.0)  # [nodes, merged]
        factor = torch.where(mass > 1, mean_score * (2.0 / mass.clamp(min=1.0)), 1.0)
        x = torch.bmm(merged, devices.x) * factor[:, :, None]  # [nodes, merged, channels]
        return Vertices(x, mass, contracted(devices.adjacency, assignment))

    def score(self, devices: Vertices) -> Tensor:
        """Return the score of each pair, which counts where there is a link, [nodes, devices, devices]."""
        end = self.end(devices.x)  # [nodes, devices, 1]
        pair = torch.bmm(devices.x * (self.pair * self.channels**-0.5), devices.x.transpose(1, 2))
        return 0.5 + torch.sigmoid(end + end.transpose(1, 2) + pair + self.link * devices.adjacency)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels})"
