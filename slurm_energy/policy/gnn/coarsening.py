"""Coarsening of a node's devices by a clustering that is not learned."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.policy.gnn.readout import Vertices

_SIMILARITY_SHARE = 0.25
"""How much the similarity of workloads weighs beside the link."""
_SLACK = 0.02
"""Affinities that differ by less than 2 % count as equal."""


def heaviest_links(weight: Tensor, linked: Tensor, slack: float) -> Tensor:
    """Return the links that a heavy-edge matching contracts, [nodes, devices, devices], without regard to order.

    A link is taken if no other link at either end is heavier; its ends are then out, and the rest is looked at again.
    For weights that differ this is the greedy matching from the heaviest link down (Preis 1999, Linear time
    1/2-approximation algorithm for maximum weighted matching). Links that tie are taken together, so that no order of
    devices decides; the ends of such links form groups of more than two. Some slack makes ties out of weights that
    differ by rounding alone: the idle devices of a node must not be paired by the noise of a matrix product.

    Args:
        weight: Symmetric, [nodes, devices, devices].
        linked: Where there are links; symmetric, nowhere on the diagonal, [nodes, devices, devices].
        slack: Difference of weight below which links tie, above 0.
    """
    weight = weight.masked_fill(~linked, -torch.inf)
    taken = torch.zeros_like(linked)
    for _ in range(weight.shape[1] // 2):  # every round takes two devices at least out of each node with links left
        heaviest = weight > weight.amax(dim=2, keepdim=True) - slack  # among links at the row's device
        taken = taken | (heaviest & heaviest.transpose(1, 2))
        out = taken.any(dim=2, keepdim=True)  # [nodes, devices, 1]
        weight = weight.masked_fill(out | out.transpose(1, 2), -torch.inf)
        if weight.amax() == -torch.inf:
            break
    return taken


def groups(taken: Tensor, mass: Tensor) -> Tensor:
    """Return the group of each device: those joined by links that were taken, [nodes, devices, devices].

    Entry [., i, k] is 1 where device i is in the group kept in slot k, the slot of its first device; all 0 for padding.

    Args:
        taken: Symmetric, [nodes, devices, devices].
        mass: 0 for padding, [nodes, devices].
    """
    present = mass > 0
    together = taken | torch.diag_embed(present)
    if taken.sum(dim=2).max() > 1:  # Pairs are groups already; ties need the transitive closure.
        for _ in range((taken.shape[1] - 1).bit_length()):
            joined = together.to(mass.dtype)
            together = torch.bmm(joined, joined) > 0
    is_first = ~together.tril(-1).any(dim=2)  # [nodes, devices]; padding is together with nothing
    return (together & is_first[:, None, :]).to(mass.dtype)


def contracted(adjacency: Tensor, assignment: Tensor) -> Tensor:
    """Return the links between groups, S^T A S: the sum of their members' links, [nodes, groups, groups]."""
    return torch.bmm(torch.bmm(assignment.transpose(1, 2), adjacency), assignment)


class CoarseningPool(nn.Module):
    r"""Clusters of devices by heavy-edge matching (section 3.3: communication patterns and workload similarity).

    .. math::
        a_{ij} = A_{ij} \, \frac{3 + \cos(x_i, x_j)}{4}, \qquad
        x'_k = \frac{1}{|C_k|} \sum_{i \in C_k} x_i

    Links weigh by bandwidth, and of like links those between like workloads weigh most. Affinities that differ by less
    than 2 % tie, and ties are contracted together: all idle devices of an island become one cluster, as do those of one
    job. The clusters are not learned and carry no gradient, the means do. Heavy-edge matching is that of Karypis and
    Kumar 1998, with the locally heaviest link in place of a random order. The paper names no algorithm.

    Shapes: Vertices [n, g, channels] -> Vertices [n, g, channels], one row per cluster, the rest padding.
    """

    def forward(self, devices: Vertices) -> Vertices:
        """Return the clusters of each node's devices."""
        assignment = self.assign(devices)  # [nodes, devices, clusters]
        mass = assignment.sum(dim=1)  # [nodes, clusters]
        total = torch.bmm(assignment.transpose(1, 2), devices.x)  # [nodes, clusters, channels]
        x = total / mass.clamp(min=1.0)[:, :, None]
        return Vertices(x, mass, contracted(devices.adjacency, assignment))

    @torch.no_grad()
    def assign(self, devices: Vertices) -> Tensor:
        """Return which device is in which cluster, 0 or 1, [nodes, devices, clusters]."""
        linked = devices.adjacency > 0
        direction = functional.normalize(devices.x, dim=2)
        similarity = torch.bmm(direction, direction.transpose(1, 2))  # [nodes, devices, devices]
        affinity = devices.adjacency * (1.0 + _SIMILARITY_SHARE * (similarity - 1.0))
        # Logarithms make the slack relative.
        return groups(heaviest_links(torch.log(affinity.clamp(min=1e-12)), linked, _SLACK), devices.mass)
