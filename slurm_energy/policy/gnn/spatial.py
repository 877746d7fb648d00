"""Spatial convolution: attention over a vertex's own neighbours, with a weight matrix for each edge type."""

from math import inf, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu_

from slurm_energy.errors import ValueRangeError

NEGATIVE_SLOPE = 0.2
"""Slope of the leaky rectifier for negative values, as in GATv2."""


class SpatialAttentionConv(nn.Module):
    r"""Gather neighbours by multi-head attention over edges of several types, as in GATv2 (Brody et al., 2022).

    .. math::
        \mathbf{m}_{ij} &= \mathbf{W}_{\tau}\mathbf{x}_j + \mathbf{b}_{\tau} + \mathbf{U}_{\tau}\mathbf{e}_{ij}

        s_{ij} &= \mathbf{a}_{\tau}^{\top}\,\mathrm{LeakyReLU}(\mathbf{V}\mathbf{x}_i + \mathbf{m}_{ij})

        \mathbf{x}^{\prime}_i &= \sum_j \alpha_{ij}\,\mathbf{m}_{ij},\qquad
        \alpha_{ij} = \frac{w_{ij}\exp s_{ij}}{\sum_k w_{ik}\exp s_{ik}}

    for each head, where :math:`\tau` is the type of the edge and the sums run over a target's incoming edges of all
    types: one softmax, so that links, jobs and the node compete for the same attention. Section 3.3 of the paper asks
    for attention over these neighbours and gives no formula. Unlike GATv2, the value holds the edge as well.

    With :math:`w = 1 / p` for edges kept with probability p, numerator and denominator are unbiased estimates of those
    over all edges (Horvitz and Thompson, 1952).

    In the form of torch_geometric's operators, without its `MessagePassing`: importing that costs a serving process
    100 MB and two seconds, and each call a fifth of the time on the edges of one node.

    Args:
        channels: Width H of the embeddings, a multiple of `heads`.
        edge_channels: Columns of the edge features; 0 is allowed.
        heads: Attention heads, each of H / heads channels.
        edge_types: Number of edge types.
        attention: Without it, the plain mean, weighted by w: the ablation of the paper's section 4.3.

    Shapes:
        - **input:** embeddings [V, H], edges [2, E], edge features [E, edge_channels], edge types [E] (int64, from 0
          to edge_types - 1; not looked at if there is one type), edge weights [E] (above 0; all 1 without)
        - **output:** embeddings [num_targets, H], those of the first vertices; [V, H] without `num_targets`. A target
          without edges gets zeros.
    """

    def __init__(
        self, channels: int, edge_channels: int, heads: int, edge_types: int = 1, attention: bool = True
    ) -> None:
        super().__init__()
        if channels < 1 or heads < 1 or channels % heads:
            raise ValueRangeError(f"{heads} attention heads do not divide {channels} channels")
        if edge_types < 1:
            raise ValueRangeError(f"edge types are {edge_types}, there must be at least 1")
        self.channels = channels
        self.edge_channels = edge_channels
        self.heads = heads
        self.edge_types = edge_types
        self.source = nn.Linear(channels, edge_types * channels)
        self.edge = nn.Parameter(torch.empty(edge_types * edge_channels, channels))
        self.target = nn.Linear(channels, channels, bias=False) if attention else None
        self.score = nn.Parameter(torch.empty(edge_types, heads, channels // heads)) if attention else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, uniform after Glorot and Bengio for each edge type by itself; biases are 0."""
        square = sqrt(3.0 / self.channels)
        nn.init.uniform_(self.source.weight, -square, square)
        nn.init.zeros_(self.source.bias)
        bound = sqrt(6.0 / (self.edge_channels + self.channels))
        with torch.no_grad():
            self.edge.uniform_(-bound, bound)
        if self.target is not None and self.score is not None:
            nn.init.uniform_(self.target.weight, -square, square)
            bound = sqrt(6.0 / (self.channels // self.heads + 1))
            nn.init.uniform_(self.score, -bound, bound)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_x: Tensor,
        edge_type: Tensor | None = None,
        edge_weight: Tensor | None = None,
        num_targets: int | None = None,
    ) -> Tensor:
        """Return what each target gathers from its neighbours."""
        targets = x.shape[0] if num_targets is None else num_targets
        (sources, receivers), index, slot = self._project(x, edge_index, edge_type, targets)
        x_i = None if receivers is None else receivers.index_select(0, index[1])
        messages = self.message(sources.index_select(0, index[0]), x_i, edge_x, slot, edge_weight, index[1], targets)
        return x.new_zeros(targets, self.channels).index_add_(0, index[1], messages)  # [targets, H]

    def attention(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_x: Tensor,
        edge_type: Tensor | None = None,
        edge_weight: Tensor | None = None,
        num_targets: int | None = None,
    ) -> Tensor:
        """Return the weight of each edge among those into its target, [E, heads]; one column without attention."""
        targets = x.shape[0] if num_targets is None else num_targets
        (sources, receivers), index, slot = self._project(x, edge_index, edge_type, targets)
        values = self._values(sources.index_select(0, index[0]), edge_x, slot)
        x_i = None if receivers is None else receivers.index_select(0, index[1])
        return self._weights(self._scores(values, x_i, slot), edge_weight, index[1], targets)

    def message(  # noqa: PLR0913, PLR0917  # what an edge is made of
        self,
        x_j: Tensor,
        x_i: Tensor | None,
        edge_x: Tensor,
        slot: Tensor | None,
        edge_weight: Tensor | None,
        index: Tensor,
        targets: int,
    ) -> Tensor:
        """Return each edge's part of the sum at its target, [E, H]; `x_j` and `x_i` are overwritten."""
        values = self._values(x_j, edge_x, slot)
        weights = self._weights(self._scores(values, x_i, slot), edge_weight, index, targets)
        heads = weights.shape[1]
        # In place, here and below: one [E, H] takes longer to allocate than to compute.
        values.view(-1, heads, self.channels // heads).mul_(weights.unsqueeze(-1))
        return values

    def _project(
        self, x: Tensor, edge_index: Tensor, edge_type: Tensor | None, targets: int
    ) -> tuple[tuple[Tensor, Tensor | None], Tensor, Tensor | None]:
        """Return vertices as sources of every type and as targets, the edges between them, and the edges' slots.

        A source's row is vertex * edge_types + type: gathering rows gathers the weights of the type as well.
        An edge's slot is edge * edge_types + type, its own place where every edge has a place for each type.
        """
        sources = self.source(x).view(-1, self.channels)  # [V * edge_types, H]
        receivers = None if self.target is None else self.target(x[:targets])  # [targets, H]
        if self.edge_types == 1:
            return (sources, receivers), edge_index, None
        if edge_type is None:
            raise ValueRangeError(f"the type of each edge is missing, there are {self.edge_types} types")
        first = torch.arange(0, edge_type.shape[0] * self.edge_types, self.edge_types, device=x.device)
        typed = torch.stack((edge_index[0] * self.edge_types + edge_type, edge_index[1]))  # [2, E]
        return (sources, receivers), typed, first + edge_type

    def _values(self, x_j: Tensor, edge_x: Tensor, slot: Tensor | None) -> Tensor:
        """Return m of every edge, [E, H]; `x_j` is overwritten."""
        if slot is not None:
            edges = edge_x.shape[0]
            spread = edge_x.new_zeros(edges * self.edge_types, self.edge_channels).index_copy_(0, slot, edge_x)
            edge_x = spread.view(edges, self.edge_types * self.edge_channels)
        return x_j.addmm_(edge_x, self.edge)

    def _scores(self, values: Tensor, x_i: Tensor | None, slot: Tensor | None) -> Tensor:
        """Return s of every edge and head, [E, heads], or zeros [E, 1] without attention; `x_i` is overwritten."""
        if x_i is None or self.score is None:
            return values.new_zeros(values.shape[0], 1)
        excited = leaky_relu_(x_i.add_(values), NEGATIVE_SLOPE)  # [E, H]
        # Heads side by side in one matrix, 0 between them: a product in place of an [E, H] of gathered vectors.
        apart = torch.eye(self.heads, dtype=values.dtype, device=values.device)[:, None, None, :]
        columns = (self.score.permute(1, 2, 0).unsqueeze(-1) * apart).reshape(self.channels, -1)  # [H, types * heads]
        scores = excited @ columns  # [E, types * heads]
        return scores if slot is None else scores.view(-1, self.heads).index_select(0, slot)  # [E, heads]

    @staticmethod
    def _weights(scores: Tensor, edge_weight: Tensor | None, index: Tensor, targets: int) -> Tensor:
        """Return alpha of every edge, as many columns as there are scores.

        As `torch_geometric.utils.softmax`, which has no weights and takes twice as long on the edges of one node.
        """
        # The largest score of a target is taken off, which changes no weight and keeps exp finite.
        largest = scores.new_full((targets, scores.shape[1]), -inf)
        largest.scatter_reduce_(0, index.unsqueeze(-1).expand_as(scores), scores.detach(), "amax")
        parts = (scores - largest.index_select(0, index)).exp_()  # [E, heads]
        if edge_weight is not None:
            parts = parts * edge_weight.unsqueeze(-1)
        total = torch.zeros_like(largest).index_add_(0, index, parts)  # [targets, heads]
        return parts / total.index_select(0, index)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.channels}, {self.edge_channels}, heads={self.heads}, "
            f"edge_types={self.edge_types}, attention={self.score is not None})"
        )
