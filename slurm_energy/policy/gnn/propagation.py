"""Propagation along edges: spectral convolution, and one layer that mixes it with the spatial one by a learned gate."""

from dataclasses import dataclass
from math import sqrt
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import relu_

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.configuration import NetworkConfig, Propagation
from slurm_energy.policy.gnn.spatial import SpatialAttentionConv

EXPANSION = 2
"""Width of the feed-forward part over that of the embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedEdges:
    """Edges of one graph into its first `num_targets` vertices; all layers that run on it share them."""

    edge_index: Tensor
    """Source and target, [2, E]; no target is `num_targets` or above."""
    edge_x: Tensor
    """[E, edge_channels]."""
    edge_type: Tensor | None = None
    """[E], int64; not needed for one type."""
    edge_weight: Tensor | None = None
    """Where edges were sampled, 1 / probability of each, [E]."""
    num_targets: int | None = None
    """Number of vertices that receive; None for all."""
    laplacian: Tensor | None = None
    """`scaled_laplacian` of the undirected graph among the targets; purely spatial layers need none."""


class HybridPropagation(nn.Module):
    r"""Update the targets of a graph by what their neighbours say and by where they lie in it.

    .. math::
        \mathbf{g} &= \sigma(\mathbf{W}\,[\mathbf{x}^{\text{spatial}}, \mathbf{x}^{\text{spectral}}, \mathbf{x}]
            + \mathbf{b})

        \mathbf{h} &= \mathrm{LayerNorm}(\mathbf{x} + \mathbf{g} \odot \mathbf{x}^{\text{spatial}}
            + (1 - \mathbf{g}) \odot \mathbf{x}^{\text{spectral}})

        \mathbf{x}^{\prime} &= \mathrm{LayerNorm}(\mathbf{h} + \mathbf{W}_2\,\mathrm{ReLU}(\mathbf{W}_1\mathbf{h}
            + \mathbf{b}_1) + \mathbf{b}_2)

    Section 3.3 of the paper employs both convolutions and section 4.3 compares them with each alone; neither says how
    they are joined. The gate, one for each vertex and channel, is ours: it starts at exactly 1/2, neither preferred,
    since its weights start at 0. It is a module of its own, so that a forward hook on `gate` reads what a pass through
    the whole network gave, [num_targets, H]. Purely spatial or spectral layers have no parameters of the other, and
    None for a gate.

    The spectral part knows only the graph among the targets: sources that receive nothing, such as the jobs on a
    device, reach a purely spectral layer by no path.

    Args:
        channels: Width H of the embeddings, a multiple of `heads`.
        edge_channels: Columns of the edge features.
        heads: Heads of the attention.
        order: Number of Chebyshev polynomials.
        mode: Which convolutions there are.
        edge_types: Number of edge types.
        attention: Attention over neighbours, or their plain mean.

    Shapes:
        - **input:** embeddings [V, H], of which the first `num_targets` receive
        - **output:** new embeddings of the targets, [num_targets, H]; the other vertices keep theirs
    """

    def __init__(  # noqa: PLR0913  # sizes of both convolutions, each a setting of its own
        self,
        channels: int,
        edge_channels: int,
        heads: int,
        order: int,
        mode: Propagation,
        *,
        edge_types: int = 1,
        attention: bool = True,
    ) -> None:
        super().__init__()
        if mode not in get_args(Propagation):
            raise ValueRangeError(f"propagation {mode!r} does not exist; known: {', '.join(get_args(Propagation))}")
        self.channels = channels
        self.mode = mode
        self.spatial = (
            None
            if mode == "spectral"
            else SpatialAttentionConv(channels, edge_channels, heads, edge_types=edge_types, attention=attention)
        )
        self.spectral = None if mode == "spatial" else ChebyshevConv(channels, channels, order)
        self.gate = nn.Sequential(nn.Linear(3 * channels, channels), nn.Sigmoid()) if mode == "hybrid" else None
        self.gathered_norm = nn.LayerNorm(channels)
        self.widen = nn.Linear(channels, EXPANSION * channels)
        self.narrow = nn.Linear(EXPANSION * channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; the gate is 1/2 again."""
        for part in (self.spatial, self.spectral, self.gathered_norm, self.widen, self.narrow, self.norm):
            if part is not None:
                part.reset_parameters()
        if self.gate is not None:
            for parameter in self.gate.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, edges: TypedEdges) -> Tensor:
        """Return the new embeddings of the targets."""
        old = x[: edges.num_targets]  # [num_targets, H]
        parts: list[Tensor] = []  # spatial before spectral, each [num_targets, H]
        if self.spatial is not None:
            parts.append(
                self.spatial(x, edges.edge_index, edges.edge_x, edges.edge_type, edges.edge_weight, edges.num_targets)
            )
        if self.spectral is not None:
            if edges.laplacian is None:
                raise ValueRangeError(f"Laplacian is missing, {self.mode} propagation needs that of the targets")
            parts.append(self.spectral.filter(old, edges.laplacian))
        if self.gate is None:
            gathered = parts[0]
        else:
            gate = self.gate(torch.cat((*parts, old), dim=1))  # [num_targets, H]
            gathered = torch.lerp(parts[1], parts[0], gate)
        h = self.gathered_norm(old + gathered)  # [num_targets, H]
        wide = relu_(self.widen(h))  # [num_targets, EXPANSION * H]
        out: Tensor = self.norm(h + self.narrow(wide))  # [num_targets, H]
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, mode={self.mode!r}, {self.spatial}, {self.spectral})"


def propagation_of(config: NetworkConfig, edge_channels: int, edge_types: int) -> HybridPropagation:
    """Return one layer with a network's settings."""
    return HybridPropagation(
        config.hidden,
        edge_channels,
        config.heads,
        config.chebyshev_order,
        config.propagation,
        edge_types=edge_types,
        attention=config.attention != "none",
    )


def scaled_laplacian(edge_index: Tensor, edge_weight: Tensor, vertices: int) -> Tensor:
    r"""Return the scaled Laplacian of an undirected graph as a sparse matrix, [vertices, vertices].

    .. math::
        \mathbf{L} = \mathbf{I} - \mathbf{D}^{-1/2}\mathbf{A}\mathbf{D}^{-1/2},\qquad
        \tilde{\mathbf{L}} = \frac{2}{\lambda_{\max}}\mathbf{L} - \mathbf{I}
            = -\mathbf{D}^{-1/2}\mathbf{A}\mathbf{D}^{-1/2}\quad\text{with}\quad\lambda_{\max} = 2

    2 bounds the eigenvalues of every symmetric normalised Laplacian, so that no eigenvalue has to be worked out and
    the graphs of a batch do not depend on each other. A vertex without edges has a row of zeros.

    Args:
        edge_index: Each edge in both directions, without loops, [2, edges].
        edge_weight: Not negative, the same in both directions, [edges].
        vertices: Number of vertices.
    """
    source, target = edge_index[0], edge_index[1]
    degree = edge_weight.new_zeros(vertices).index_add_(0, target, edge_weight)
    # The smallest number in place of 0 keeps a vertex whose edges weigh nothing finite: 0 * large is 0, 0 * inf is not.
    root = degree.clamp_min(torch.finfo(degree.dtype).tiny).rsqrt()
    values = edge_weight * root.index_select(0, source) * root.index_select(0, target)  # [edges]
    # Coordinates need no sorting and a product with them makes no [edges, channels]; it still checks every index.
    return torch.sparse_coo_tensor(edge_index.flip(0), -values, (vertices, vertices), check_invariants=False)


class ChebyshevConv(nn.Module):
    r"""Filter the embeddings of a graph by Chebyshev polynomials of its Laplacian (Defferrard et al., 2016, eq. 4).

    .. math::
        \mathbf{X}^{\prime} = \sum_{k=0}^{K-1} T_k(\tilde{\mathbf{L}})\,\mathbf{X}\,\mathbf{W}_k,\qquad
        T_0 = 1,\ T_1(z) = z,\ T_k(z) = 2 z\,T_{k-1}(z) - T_{k-2}(z)

    The spectral convolution of section 3.3 of the paper, which names "graph Laplacian operations" and no kind of
    them. No bias: the layers that use it add their own.

    Args:
        in_channels: Width of the input.
        out_channels: Width of the output.
        order: Number K of polynomials; the filter reaches K - 1 edges far.

    Shapes:
        - **input:** embeddings [V, in_channels], edges in both directions [2, E], weights [E] (all 1 without)
        - **output:** embeddings [V, out_channels]
    """

    def __init__(self, in_channels: int, out_channels: int, order: int) -> None:
        super().__init__()
        if order < 1:
            raise ValueRangeError(f"Chebyshev order is {order}, it must be at least 1")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.order = order
        self.weight = nn.Parameter(torch.empty(order, in_channels, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights, uniform after Glorot and Bengio, with the polynomials as one wider input."""
        bound = sqrt(6.0 / (self.order * self.in_channels + self.out_channels))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the filtered embeddings of an undirected graph."""
        if edge_weight is None:
            edge_weight = x.new_ones(edge_index.shape[1])
        return self.filter(x, scaled_laplacian(edge_index, edge_weight, x.shape[0]))

    def filter(self, x: Tensor, laplacian: Tensor) -> Tensor:
        """Return the filtered embeddings; layers on one graph share its `scaled_laplacian`."""
        before, polynomial = x, x  # [V, in_channels]
        out = x @ self.weight[0]  # [V, out_channels]
        for k in range(1, self.order):
            product = laplacian @ polynomial  # sparse, target by source: no [E, channels] is made
            before, polynomial = polynomial, product if k == 1 else 2.0 * product - before
            out = torch.addmm(out, polynomial, self.weight[k])
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, order={self.order})"
