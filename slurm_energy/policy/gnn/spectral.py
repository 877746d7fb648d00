"""Spectral convolution: polynomials of the graph Laplacian, for what belongs to the graph as a whole."""

from math import sqrt

import torch
from torch import Tensor, nn

from slurm_energy.errors import ValueRangeError


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
        """Draw the weights anew, uniform after Glorot and Bengio, with the polynomials as one wider input."""
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
