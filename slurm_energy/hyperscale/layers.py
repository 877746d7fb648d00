"""Layers of torch_geometric computed over a rank's parts with their own parameters.

A model is torch_geometric's own `GCN`, `GraphSAGE` or `GAT`; what is here computes the same function where neighbours
are on other ranks. Three departures save transfers and memory and change nothing in exact arithmetic:

- A layer sends rows before or after its linear map, whichever are shorter: sums of neighbours and linear maps commute.
- Where the features are not dropped out, the first layer's sums never change and are made once (GCN, GraphSAGE); GAT
  keeps the halo's features and transforms them itself. So the first layer sends nothing.
- No message is stored for each edge: sums are sparse products, and GAT computes its edges' gradients in pieces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.nn import GAT, GCN, GATConv, GCNConv, GraphSAGE, SAGEConv
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.utils import softmax

from slurm_energy.hyperscale.halo import (
    Channel,
    LocalGraph,
    Routes,
    Stale,
    Weights,
    aggregate,
    matrices,
    post,
    sparse,
    wait,
)

MODELS: dict[str, type[BasicGNN]] = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT}
_EDGES_AT_ONCE = 65_536


@dataclass(slots=True)
class LayerInput:
    """What one layer computes with, beside its values."""

    graph: LocalGraph
    edges: "Weights | tuple[EdgeBlock, EdgeBlock]"
    """Weighted matrices; for attention the edges into interior and into boundary vertices."""
    channel: Channel
    constant: Tensor | None = None
    """Where the layer's values never change: sums over neighbours, for attention the halo's values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeBlock:
    """The edges into some rows, self loops among them, sorted by row."""

    source: Tensor
    row: Tensor
    """Counted from the first of these rows."""
    row_starts: Tensor
    """First edge of each row, then their number, int32."""
    by_source: Tensor
    """The edges in the order of their source."""
    source_starts: Tensor
    """First of these of each source, then their number, int32."""


def edge_block(source: Tensor, row: Tensor, num_rows: int, num_sources: int) -> EdgeBlock:
    """Return edges in both orders."""
    order = torch.argsort(row, stable=True)
    source, row = source[order], row[order]
    return EdgeBlock(
        source=source,
        row=row,
        row_starts=_starts(row, num_rows),
        by_source=torch.argsort(source, stable=True),
        source_starts=_starts(source, num_sources),
    )


def _starts(places: Tensor, count: int) -> Tensor:
    starts = torch.zeros(count + 1, dtype=torch.int64, device=places.device)
    starts[1:] = torch.cumsum(torch.bincount(places, minlength=count), 0)
    return starts.int()


def gcn_layer(conv: GCNConv, values: Tensor, given: LayerInput) -> Tensor:
    """Return Kipf and Welling's layer (ICLR 2017, Eq. 2)."""
    assert isinstance(given.edges, Weights)
    if given.constant is not None:
        result: Tensor = conv.lin(given.constant)
    elif conv.out_channels <= conv.in_channels:
        result = aggregate(conv.lin(values), given.edges, given.channel, given.graph)
    else:
        result = conv.lin(aggregate(values, given.edges, given.channel, given.graph))
    return result if conv.bias is None else result + conv.bias


def sage_layer(conv: SAGEConv, values: Tensor, given: LayerInput) -> Tensor:
    """Return GraphSAGE's layer with the mean of neighbours (Hamilton et al., NeurIPS 2017, algorithm 1)."""
    assert isinstance(given.edges, Weights)
    if given.constant is not None:
        result: Tensor = conv.lin_l(given.constant)
    elif conv.out_channels <= conv.in_channels:
        mapped = nn.functional.linear(values, conv.lin_l.weight)
        result = aggregate(mapped, given.edges, given.channel, given.graph)
        result = result if conv.lin_l.bias is None else result + conv.lin_l.bias
    else:
        result = conv.lin_l(aggregate(values, given.edges, given.channel, given.graph))
    return result + conv.lin_r(values) if conv.root_weight else result


def gat_layer(conv: GATConv, values: Tensor, given: LayerInput) -> Tensor:
    """Return attention over neighbours (Velickovic et al., ICLR 2018, Eq. 1 to 6); interior vertices first."""
    assert not isinstance(given.edges, Weights)
    heads, channels, first = conv.heads, conv.out_channels, given.graph.num_interior
    mapped = conv.lin(values)  # [num_own, heads * channels]
    tie = None if given.constant is not None else post(mapped, given.channel)
    to = (mapped.view(-1, heads, channels) * conv.att_dst).sum(-1)  # [num_own, heads]
    inner = _attended(conv, mapped, to[:first], given.edges[0])
    halo = conv.lin(given.constant) if tie is None else wait(tie, given.channel)
    outer = _attended(conv, torch.cat([mapped, halo]), to[first:], given.edges[1])
    sums = torch.cat([inner, outer])
    result = sums if conv.concat else sums.view(-1, heads, channels).mean(dim=1)
    return result if conv.bias is None else result + conv.bias


def _attended(conv: GATConv, mapped: Tensor, to: Tensor, edges: EdgeBlock) -> Tensor:
    """Return the attention-weighted sums of some rows, [num_rows, heads * channels]."""
    by_head = mapped.view(-1, conv.heads, conv.out_channels)
    of = (by_head * conv.att_src).sum(-1)  # [num_sources, heads]
    raw = nn.functional.leaky_relu(of[edges.source] + to[edges.row], conv.negative_slope)
    alpha = softmax(raw, edges.row, num_nodes=len(to))
    alpha = nn.functional.dropout(alpha, conv.dropout, training=conv.training)
    sums = [_weighted_sums(alpha[:, head], by_head[:, head], edges) for head in range(conv.heads)]
    return torch.cat(sums, dim=1)


class _WeightedSums(Function):
    """Sums of sources' values weighted by their edges; messages exist for a piece of the edges at a time."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Tensor, edges: EdgeBlock) -> Tensor:
        """Return the sums, [num_rows, channels]."""
        ctx.save_for_backward(weight, values)
        ctx.edges = edges
        return sparse(edges.row_starts, edges.source, weight, len(values)) @ values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of weights and values."""
        (weight, values), edges, gradient = ctx.saved_tensors, ctx.edges, gradients[0].contiguous()
        order = edges.by_source
        back = sparse(edges.source_starts, edges.row[order], weight[order], len(gradient)) @ gradient
        of_weight = torch.empty_like(weight)
        for at in range(0, len(weight), _EDGES_AT_ONCE):
            piece = slice(at, at + _EDGES_AT_ONCE)
            of_weight[piece] = (gradient[edges.row[piece]] * values[edges.source[piece]]).sum(-1)
        return of_weight, back, None


def _weighted_sums(weight: Tensor, values: Tensor, edges: EdgeBlock) -> Tensor:
    sums: Tensor = _WeightedSums.apply(weight.contiguous(), values.contiguous(), edges)  # type: ignore[no-untyped-call]
    return sums


Layer = Callable[[Any, Tensor, LayerInput], Tensor]
LAYERS: dict[type[nn.Module], Layer] = {GCNConv: gcn_layer, SAGEConv: sage_layer, GATConv: gat_layer}


def layer_inputs(
    model: BasicGNN, graph: LocalGraph, routes: Routes, features: Tensor, *, stale: Stale | None, is_constant: bool
) -> list[LayerInput]:
    """Return what each layer of a model computes with; every rank must call this at the same time.

    Args:
        model: One of `MODELS`.
        graph: The rank's vertices and edges.
        routes: Agreed with the other ranks.
        features: Of own vertices, [num_own, num_features].
        stale: How halos are kept, None for exact ones.
        is_constant: Whether features reach the first layer unchanged.
    """
    edges = _edges_of(model.convs[0], graph, routes)
    given = [LayerInput(graph, edges, Channel(routes, stale)) for _ in model.convs]
    if is_constant:
        exact = Channel(routes)
        if isinstance(edges, Weights):
            given[0].constant = aggregate(features, edges, exact, graph)
        else:
            given[0].constant = wait(post(features, exact), exact)
    return given


def _edges_of(conv: nn.Module, graph: LocalGraph, routes: Routes) -> Weights | tuple[EdgeBlock, EdgeBlock]:
    source, target, num_own = graph.source, graph.target, graph.num_own
    if isinstance(conv, SAGEConv):
        count = torch.bincount(target, minlength=num_own).clamp(min=1)
        return matrices(graph, source, target, 1.0 / count[target])
    is_loop = source == target
    loops = torch.arange(num_own, device=source.device)
    source, target = torch.cat([source[~is_loop], loops]), torch.cat([target[~is_loop], loops])
    if isinstance(conv, GCNConv):
        degree = torch.bincount(target, minlength=num_own).float()
        channel = Channel(routes)
        scale = torch.cat([degree, wait(post(degree, channel), channel)]).rsqrt()
        return matrices(graph, source, target, scale[source] * scale[target])
    first = graph.num_interior
    is_inner = target < first
    return (
        edge_block(source[is_inner], target[is_inner], first, num_own),
        edge_block(source[~is_inner], target[~is_inner] - first, num_own - first, num_own + len(graph.halo)),
    )


def forward(model: BasicGNN, values: Tensor, given: Sequence[LayerInput], layers: Mapping[type, Layer]) -> Tensor:
    """Return the logits of own vertices, [num_own, num_classes], as the model's own forward would.

    Args:
        model: One of `MODELS`, without jumping knowledge.
        values: Features of own vertices, [num_own, num_features].
        given: Of each layer.
        layers: How each kind of layer is computed.
    """
    last = len(model.convs) - 1
    for number, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        values = layers[type(conv)](conv, values, given[number])
        if number < last:
            values = model.dropout(model.act(norm(values)))
    return values
