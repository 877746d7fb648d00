"""Neighbour sums as products with a sparse matrix that is made once for each set of edges."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SortedEdges:
    """Edges sorted by target, and what backward needs: the same edges sorted by source.

    Attributes:
        row_start: First edge of each target, [num_vertices + 1].
        column: Source of each edge, [num_edges].
        row: Target of each edge, [num_edges].
        weight: Weight of each edge, [num_edges].
        back_start: First edge of each source, [num_vertices + 1].
        back_column: Target of each edge sorted by source, [num_edges].
        back_order: Place in the order by target of each edge sorted by source, [num_edges].
    """

    row_start: Tensor
    column: Tensor
    row: Tensor
    weight: Tensor
    back_start: Tensor
    back_column: Tensor
    back_order: Tensor


def sorted_edges(edge_index: Tensor, weight: Tensor, num_vertices: int) -> SortedEdges:
    """Return the edges [2, num_edges] with weights [num_edges], sorted."""
    order = torch.argsort(edge_index[1], stable=True)
    column, row = edge_index[0][order], edge_index[1][order]
    back = torch.argsort(column, stable=True)
    return SortedEdges(
        row_start=_starts(row, num_vertices),
        column=column,
        row=row,
        weight=weight[order],
        back_start=_starts(column, num_vertices),
        back_column=row[back],
        back_order=back,
    )


def _starts(index: Tensor, num_vertices: int) -> Tensor:
    counts = torch.bincount(index, minlength=num_vertices)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


class EdgesOfInput:
    """Keeps the sorted edges of the last edge_index; another tensor, or one written to since, is sorted again."""

    def __init__(self) -> None:
        self._seen: weakref.ref[Tensor] | None = None
        self._version = -1
        self._num_vertices = -1
        self._edges: SortedEdges | None = None

    def get(self, edge_index: Tensor, num_vertices: int) -> SortedEdges | None:
        """Return the edges kept for this very tensor, or None."""
        same = self._seen is not None and self._seen() is edge_index
        if not same or self._version != edge_index._version or self._num_vertices != num_vertices:
            return None
        return self._edges

    def keep(self, edge_index: Tensor, num_vertices: int, edges: SortedEdges) -> SortedEdges:
        """Keep and return the edges of this tensor."""
        self._seen, self._version = weakref.ref(edge_index), edge_index._version
        self._num_vertices, self._edges = num_vertices, edges
        return edges

    def __deepcopy__(self, memo: dict[int, Any]) -> "EdgesOfInput":
        return EdgesOfInput()


def _product(start: Tensor, column: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    size = (len(start) - 1, x.size(0))
    matrix = torch.sparse_csr_tensor(start, column, weight, size, check_invariants=False)
    return matrix @ x


class _WeightedSum(torch.autograd.Function):
    """Sum of neighbours with weights: forward A x, backward A^T g and, for each edge, the product of its two rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, edges: SortedEdges) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(x if weight.requires_grad else x.new_empty(0), weight)
        return _product(edges.row_start, edges.column, weight, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        gradient = gradients[0].contiguous()
        x, weight = ctx.saved_tensors
        edges: SortedEdges = ctx.edges
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _product(edges.back_start, edges.back_column, weight[edges.back_order], gradient)
        if ctx.needs_input_grad[1]:
            of_weight = (gradient[edges.row] * x[edges.column]).sum(dim=-1)
        return of_x, of_weight, None


def weighted_sum(x: Tensor, weight: Tensor, edges: SortedEdges) -> Tensor:
    """Return for each target the sum of its sources' rows times the edges' weights, [num_vertices, channels]."""
    result = _WeightedSum.apply(x.contiguous(), weight, edges)  # type: ignore[no-untyped-call]  # torch's own
    assert isinstance(result, Tensor)
    return result
