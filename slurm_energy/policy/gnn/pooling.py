"""From the devices of a node to the node: the node-level aggregation of section 3.3.

Devices are clustered by a matching that is not learned, and the clusters are read out; learned poolings are in
`ablation/pools.py`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.policy.gnn.configuration import Pooling

STRATEGIES = ("coarsening", "differentiable", "edge")
"""Columns of the mixture when all are mixed."""

_SCORE_BOUND = 3.0

_FULL_NODE = 8.0
"""Devices of a usual node: brings the sum over devices near the size of their mean."""

_MIN_VARIANCE = 1e-6
"""Keeps the slope of the square root finite where all devices are alike."""

_SIMILARITY_SHARE = 0.25
"""How much the similarity of workloads weighs beside the link."""

_SLACK = 0.02
"""Affinities that differ by less than 2 % count as equal."""


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


class SoftlyPooled(NamedTuple):
    """Pooled vertices and the two auxiliary losses of their assignment."""

    vertices: Vertices
    link_loss: Tensor
    """Scalar."""
    entropy_loss: Tensor
    """Scalar."""


class PooledDevices(NamedTuple):
    """Embeddings of nodes, and what training wants to know of how they came about."""

    x: Tensor
    """[nodes, channels]."""
    link_loss: Tensor
    """Of differentiable pooling; 0 without it. Scalar."""
    entropy_loss: Tensor
    """The same."""
    mixture: Tensor
    """Weight of each enabled strategy; rows add up to 1, or are 0 for nodes without devices, [nodes, strategies]."""


class NodePooling(nn.Module):
    r"""One embedding per node from its devices, by one pooling strategy or by a learned mix of all three.

    .. math::
        y = \sum_p \pi_p \, \mathrm{Readout}_p(\mathrm{Pool}_p(x, A)), \qquad
        \pi = \mathrm{softmax}(G \, [\mathrm{mean}_i \, x_i \,\Vert\, \max_i x_i])

    The paper has coarsening, differentiable and edge pooling side by side and does not say how they are joined; the
    gate is ours. A single strategy has no gate. A node's result depends on its own devices and links alone, and not on
    their order. A node without devices gets zeros.

    Shapes: x [g, channels], gpu_node [g], link_index [2, l], link_weight [l] -> PooledDevices of num_nodes nodes.
    """

    def __init__(self, channels: int, mode: Pooling, pooled_vertices: int) -> None:
        super().__init__()
        self.channels = channels
        self.mode = mode
        self.strategies = STRATEGIES if mode == "mixed" else (mode,)
        self.pools = nn.ModuleList(_pool(name, channels, pooled_vertices) for name in self.strategies)
        self.readouts = nn.ModuleList(Readout(channels) for _ in self.strategies)
        self.gate = nn.Linear(2 * channels, len(self.strategies)) if len(self.strategies) > 1 else None

    def reset_parameters(self) -> None:
        """Draw new weights."""
        for layer in (*self.pools, *self.readouts, self.gate):
            if layer is not None and not isinstance(layer, CoarseningPool):
                layer.reset_parameters()

    def forward(
        self, x: Tensor, gpu_node: Tensor, num_nodes: int, link_index: Tensor, link_weight: Tensor
    ) -> PooledDevices:
        """Return the embeddings of all nodes.

        Args:
            x: Devices, [gpus, channels].
            gpu_node: Node of each device, ascending, [gpus].
            num_nodes: How many nodes there are, those without devices as well.
            link_index: Links between devices of one node, [2, links].
            link_weight: Above 0, [links].
        """
        loss = x.new_zeros(())
        if not len(x):
            return PooledDevices(
                x.new_zeros(num_nodes, self.channels), loss, loss, x.new_zeros(num_nodes, len(self.strategies))
            )
        devices = side_by_side(x, gpu_node, num_nodes, link_index, link_weight)
        summary = summarise(devices)
        link_loss, entropy_loss, embeddings = loss, loss, []
        for pool, readout in zip(self.pools, self.readouts, strict=True):
            vertices = pool(devices)
            if isinstance(vertices, SoftlyPooled):
                vertices, link_loss, entropy_loss = vertices
            embeddings.append(readout(vertices, summary))
        mixture = (summary.number > 0).to(x.dtype)  # [nodes, 1]
        if self.gate is None:
            return PooledDevices(embeddings[0], link_loss, entropy_loss, mixture)
        mixture = mixture * torch.softmax(self.gate(torch.cat([summary.mean, summary.largest], dim=1)), dim=1)
        mixed = torch.bmm(mixture[:, None], torch.stack(embeddings, dim=1)).squeeze(1)  # [nodes, channels]
        return PooledDevices(mixed, link_loss, entropy_loss, mixture)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, {self.mode})"


def _pool(strategy: str, channels: int, pooled_vertices: int) -> nn.Module:
    if strategy == "coarsening":
        return CoarseningPool()
    from slurm_energy.policy.gnn.ablation import pools  # noqa: PLC0415  # learned poolings are not served

    return (
        pools.DifferentiablePool(channels, pooled_vertices)
        if strategy == "differentiable"
        else pools.EdgePool(channels)
    )


def side_by_side(x: Tensor, gpu_node: Tensor, num_nodes: int, link_index: Tensor, link_weight: Tensor) -> Vertices:
    """Return the devices of each node in rows of their own, as many as the largest node has.

    A link counts in both directions, where sampling left one of them as well.

    Args:
        x: Devices, at least one, [gpus, channels].
        gpu_node: Node of each device, ascending, [gpus].
        num_nodes: How many nodes there are.
        link_index: [2, links].
        link_weight: [links].
    """
    counts = torch.bincount(gpu_node, minlength=num_nodes)  # [nodes]
    most = int(counts.max())
    position = torch.arange(len(x), device=x.device) - (counts.cumsum(0) - counts)[gpu_node]  # [gpus]
    row = gpu_node * most + position
    dense = x.new_zeros(num_nodes * most, x.shape[1]).index_copy(0, row, x)
    mass = x.new_zeros(num_nodes * most)
    mass[row] = 1.0
    weight = link_weight.new_zeros(num_nodes * most * most)
    weight[row[link_index[0]] * most + position[link_index[1]]] = link_weight
    one_way = weight.view(num_nodes, most, most)
    return Vertices(
        dense.view(num_nodes, most, -1),
        mass.view(num_nodes, most),
        torch.maximum(one_way, one_way.transpose(1, 2)),
    )


def summarise(devices: Vertices) -> Summary:
    """Return mean, largest, spread and number of each node's devices."""
    present = devices.mass[:, :, None]  # [nodes, devices, 1]
    number = present.sum(dim=1)  # [nodes, 1]
    divisor = number.clamp(min=1.0)
    mean = devices.x.sum(dim=1) / divisor  # [nodes, channels]
    variance = ((devices.x - mean[:, None]) * present).square().sum(dim=1) / divisor
    spread = (variance + _MIN_VARIANCE).sqrt() - _MIN_VARIANCE**0.5
    return Summary(mean, _largest(devices), spread, number, devices.adjacency.sum(dim=(1, 2))[:, None])


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
        """Draw new weights."""
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
