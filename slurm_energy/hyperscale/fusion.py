"""Combine linear part, aggregation, normalisation and activation of graph layers by a transformation with torch.fx.

A layer is fused where it is a GCNConv, SAGEConv or GATConv of a known form, called with features and edges alone;
what follows it (BatchNorm or LayerNorm, then ReLU or ELU) joins it where nothing else reads the value between them.
Any other layer stays as it is, and a module that torch.fx cannot trace is returned unchanged.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, LayerNorm, MessagePassing, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from slurm_energy.hyperscale.aggregation import EdgesOfInput, SortedEdges, sorted_edges, weighted_sum

logger = logging.getLogger(__name__)

Activation = Callable[[Tensor], Tensor]
RELU_CALLS = {functional.relu, torch.relu, torch.Tensor.relu, "relu"}
ELU_CALLS = {functional.elu}


class FusedLayer(nn.Module):
    """One graph layer with the normalisation and activation after it; parameters stay those of the modules given."""

    def __init__(self, conv: MessagePassing, norm: nn.Module | None, activation: Activation | None) -> None:
        super().__init__()
        # In a tuple, so that the parameters stay registered under the model's own names alone.
        self._modules_used = (conv, norm)
        self._activation = activation
        self._edges = EdgesOfInput()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return what the separate modules return, [num_vertices, channels]; edges [2, num_edges]."""
        conv, norm = self._modules_used
        if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor) or edge_index.is_sparse_csr:
            out = conv(x, edge_index)
            out = out if norm is None else norm(out)
            return out if self._activation is None else self._activation(out)
        edges = self._edges.get(edge_index, x.size(0))
        if edges is None:
            made = _edges_for(conv, edge_index, x)
            edges = self._edges.keep(edge_index, x.size(0), made)
        scale, shift = _folded(norm)
        out = LAYERS[type(conv)](conv, x, edges, scale)
        bias = conv.lin_l.bias if isinstance(conv, SAGEConv) else conv.bias
        if bias is not None:
            out = out + (bias if scale is None else bias * scale)
        if shift is not None:
            out = out + shift
        elif norm is not None:
            out = norm(out)
        return out if self._activation is None else self._activation(out)


def _folded(norm: nn.Module | None) -> tuple[Tensor | None, Tensor | None]:
    """Return scale and shift of a batch normalisation that uses its running figures, both None where it cannot fold."""
    inner = norm.module if isinstance(norm, BatchNorm) else norm
    if not isinstance(inner, nn.BatchNorm1d) or inner.training or inner.running_var is None:
        return None, None
    assert inner.running_mean is not None
    scale = torch.rsqrt(inner.running_var + inner.eps)
    scale = scale if inner.weight is None else scale * inner.weight
    shift = -inner.running_mean * scale
    return scale, shift if inner.bias is None else shift + inner.bias


def _edges_for(conv: MessagePassing, edge_index: Tensor, x: Tensor) -> SortedEdges:
    vertices = x.size(0)
    if isinstance(conv, GCNConv):
        index, weight = gcn_norm(edge_index, None, vertices, conv.improved, conv.add_self_loops, dtype=x.dtype)
        if weight is None:
            weight = x.new_ones(index.size(1))
        return sorted_edges(index, weight, vertices)
    if isinstance(conv, GATConv):
        if conv.add_self_loops:
            edge_index, _ = add_self_loops(remove_self_loops(edge_index)[0], num_nodes=vertices)
        return sorted_edges(edge_index, x.new_ones(edge_index.size(1)), vertices)
    weight = x.new_ones(edge_index.size(1))
    if conv.aggr == "mean":
        weight = 1.0 / torch.bincount(edge_index[1], minlength=vertices).clamp(min=1).to(x.dtype)[edge_index[1]]
    return sorted_edges(edge_index, weight, vertices)


def _scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    return weight if scale is None else weight * scale[:, None]


def _linear_sum(x: Tensor, weight: Tensor, edges: SortedEdges) -> Tensor:
    """Return A x W^T in the order in which the narrower of the two widths is aggregated."""
    if weight.size(0) <= weight.size(1):
        return weighted_sum(functional.linear(x, weight), edges.weight, edges)
    return functional.linear(weighted_sum(x, edges.weight, edges), weight)


def _gcn(conv: GCNConv, x: Tensor, edges: SortedEdges, scale: Tensor | None) -> Tensor:
    return _linear_sum(x, _scaled(conv.lin.weight, scale), edges)


def _sage(conv: SAGEConv, x: Tensor, edges: SortedEdges, scale: Tensor | None) -> Tensor:
    neighbours = _scaled(conv.lin_l.weight, scale)
    if not conv.root_weight:
        return _linear_sum(x, neighbours, edges)
    own = _scaled(conv.lin_r.weight, scale)
    if neighbours.size(0) <= neighbours.size(1):
        both = functional.linear(x, torch.cat([neighbours, own]))
        of_neighbours, of_own = both.tensor_split([neighbours.size(0)], dim=-1)
        return weighted_sum(of_neighbours, edges.weight, edges) + of_own
    aggregated = weighted_sum(x, edges.weight, edges)
    return functional.linear(torch.cat([aggregated, x], dim=-1), torch.cat([neighbours, own], dim=-1))


def _gat(conv: GATConv, x: Tensor, edges: SortedEdges, scale: Tensor | None) -> Tensor:
    H, C = conv.heads, conv.out_channels  # noqa: N806
    rows = functional.linear(x, conv.lin.weight).view(-1, H, C)
    of_source = (rows * conv.att_src).sum(dim=-1)  # [num_vertices, heads]
    of_target = (rows * conv.att_dst).sum(dim=-1)
    alpha = functional.leaky_relu(of_source[edges.column] + of_target[edges.row], conv.negative_slope)
    alpha = softmax(alpha, edges.row, num_nodes=x.size(0))
    alpha = functional.dropout(alpha, p=conv.dropout, training=conv.training)
    heads = [weighted_sum(rows[:, head], alpha[:, head].contiguous(), edges) for head in range(H)]
    out = torch.cat(heads, dim=-1) if conv.concat else torch.stack(heads).mean(dim=0)
    return out if scale is None else out * scale


LAYERS: dict[type, Callable[..., Tensor]] = {GCNConv: _gcn, SAGEConv: _sage, GATConv: _gat}


def known_form(conv: Any) -> bool:
    """Return whether the fused form computes all that this layer does."""
    hooks = [*conv._forward_hooks, *conv._forward_pre_hooks]
    if hooks or getattr(conv, "explain", None):
        return False
    if getattr(conv, "flow", "source_to_target") != "source_to_target":
        return False
    if type(conv) is GCNConv:
        return bool(conv.normalize and conv.aggr in {"add", "sum"})
    if type(conv) is SAGEConv:
        plain = not conv.project and not conv.normalize and isinstance(conv.in_channels, int)
        return bool(plain and conv.aggr in {"mean", "add", "sum"})
    if type(conv) is GATConv:
        return bool(conv.lin is not None and conv.edge_dim is None and getattr(conv, "res", None) is None)
    return False


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(module, MessagePassing | BatchNorm | LayerNorm)
        return own or super().is_leaf_module(module, module_qualified_name)


class FusedModule(fx.GraphModule):
    """A module whose layers are fused; parameters, state_dict and results are those of the module it was made of."""

    num_fused_layers: int


def fuse(module: nn.Module) -> nn.Module:
    """Return the module with its known layers fused, sharing its parameters, or the module itself where none is known.

    Results and gradients differ from the module's by rounding alone (1e-5). Attention dropout of a GATConv draws other
    random numbers, since edges are sorted. `F.dropout(..., training=self.training)` becomes a layer that follows
    `train()` and `eval()`.
    """
    was_training = module.training
    try:
        graph = _Tracer().trace(module.train())
        quiet = _Tracer().trace(module.eval())
    except Exception as error:  # noqa: BLE001 - torch.fx raises what the module's own code raises on a proxy
        logger.info("layers not fused module=%s reason=%s", type(module).__name__, error)
        return module
    finally:
        module.train(was_training)
    if [node.target for node in graph.nodes] != [node.target for node in quiet.nodes]:
        logger.info("layers not fused module=%s reason=forward differs in training", type(module).__name__)
        return module
    fused = FusedModule(module, graph)
    _follow_training(fused, quiet)
    fused.num_fused_layers = _fuse_layers(fused)
    if not fused.num_fused_layers:
        return module
    fused.graph.lint()
    fused.recompile()
    fused.train(was_training)
    return fused


def _follow_training(fused: FusedModule, quiet: fx.Graph) -> None:
    """Make dropout calls whose argument was the module's mode follow it: a trace holds the mode as a constant."""
    for number, (node, other) in enumerate(zip(list(fused.graph.nodes), quiet.nodes, strict=True)):
        if node.op != "call_function" or node.target is not functional.dropout:
            continue
        if node.kwargs.get("training", True) == other.kwargs.get("training", True):
            continue
        name = f"dropout_of_mode_{number}"
        fused.add_module(name, nn.Dropout(node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)))
        _replace(fused, node, name, (node.args[0],))


def _replace(fused: FusedModule, node: fx.Node, name: str, args: tuple[Any, ...]) -> None:
    with fused.graph.inserting_after(node):
        new = fused.graph.call_module(name, args)
    node.replace_all_uses_with(new)
    fused.graph.erase_node(node)


def _fuse_layers(fused: FusedModule) -> int:
    count = 0
    for node in list(fused.graph.nodes):
        if node.op != "call_module":
            continue
        conv = fused.get_submodule(node.target)
        if not known_form(conv) or len(node.args) != 2 or node.kwargs:
            continue
        norm = activation = None
        chain = [node]
        after = _only_user(node)
        if after is not None and (norm := _norm_of(fused, after)) is not None:
            chain.append(after)
            after = _only_user(after)
        if after is not None and (activation := _activation_of(fused, after)) is not None:
            chain.append(after)
        name = f"fused_layer_{count}"
        fused.add_module(name, FusedLayer(conv, norm, activation))
        _replace(fused, chain[-1], name, node.args)
        for unused in reversed(chain[:-1]):
            fused.graph.erase_node(unused)
        count += 1
    return count


def _only_user(node: fx.Node) -> fx.Node | None:
    users = list(node.users)
    alone = len(users) == 1 and users[0].all_input_nodes == [node] and users[0].args[:1] == (node,)
    return users[0] if alone else None


def _norm_of(fused: FusedModule, node: fx.Node) -> nn.Module | None:
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = fused.get_submodule(str(node.target))
    return module if isinstance(module, nn.BatchNorm1d | nn.LayerNorm | BatchNorm | LayerNorm) else None


def _activation_of(fused: FusedModule, node: fx.Node) -> Activation | None:
    if node.op == "call_module":
        module = fused.get_submodule(str(node.target))
        return module if isinstance(module, nn.ReLU | nn.ELU) else None
    if len(node.args) != 1 or node.kwargs.keys() - {"inplace"}:
        return None
    # A sum is not read again by its own backward, so the activation may take its place.
    if node.target in RELU_CALLS:
        return functional.relu_
    return functional.elu_ if node.target in ELU_CALLS else None
