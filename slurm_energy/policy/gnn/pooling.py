"""From the devices of a node to the node: the node-level aggregation of section 3.3."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slurm_energy.policy.gnn.coarsening import CoarseningPool
from slurm_energy.policy.gnn.configuration import Pooling
from slurm_energy.policy.gnn.differentiable_pool import DifferentiablePool
from slurm_energy.policy.gnn.edge_pool import EdgePool
from slurm_energy.policy.gnn.readout import Readout, Vertices, summarise

STRATEGIES = ("coarsening", "differentiable", "edge")
"""Columns of the mixture when all are mixed."""


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
        """Draw all weights anew."""
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
            if isinstance(pool, DifferentiablePool):
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


def _pool(strategy: str, channels: int, pooled_vertices: int) -> CoarseningPool | DifferentiablePool | EdgePool:
    if strategy == "coarsening":
        return CoarseningPool()
    if strategy == "differentiable":
        return DifferentiablePool(channels, pooled_vertices)
    return EdgePool(channels)


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
