"""Fused layers give what the separate layers give, forward and backward, and stay out where a form is not known."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from slurm_energy.hyperscale.fusion import FusedModule, fuse


class TwoLayers(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.norm, self.dropout = first, second, norm, dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, p=self.dropout, training=self.training)
        x = functional.relu(self.norm(self.first(x, edge_index)))
        result: Tensor = self.second(x, edge_index)
        return result


class ReadTwice(TwoLayers):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden: Tensor = self.first(x, edge_index)
        return functional.relu(hidden) + hidden


def edges() -> Tensor:
    return torch.randint(0, 40, (2, 200), generator=torch.Generator().manual_seed(3))


def results(module: nn.Module, x: Tensor, owner: nn.Module) -> list[Tensor]:
    x = x.clone().requires_grad_()
    module.zero_grad()
    out = module(x, edges())
    out.square().sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(each.grad.clone() for each in owner.parameters() if each.grad is not None)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(16), nn.LayerNorm(16)], ids=["batch", "layer"])
@pytest.mark.parametrize("width", [8, 40])
@pytest.mark.parametrize("layer", [GCNConv, SAGEConv, GATConv])
def test_a_fused_model_equals_the_model(layer: type[nn.Module], width: int, norm: nn.Module, training: bool) -> None:
    torch.manual_seed(0)
    model = TwoLayers(layer(width, 16), layer(16, 8), copy.deepcopy(norm)).double().train(training)
    fused = fuse(model)
    assert isinstance(fused, FusedModule)
    assert fused.num_fused_layers == 2
    assert fused.state_dict().keys() == model.state_dict().keys()
    x = torch.randn(40, width, dtype=torch.float64)
    for separate, together in zip(results(model, x, model), results(fused, x, model), strict=True):
        torch.testing.assert_close(together, separate, rtol=1e-9, atol=1e-9)


def test_single_precision_stays_within_a_hundred_thousandth() -> None:
    torch.manual_seed(0)
    model = TwoLayers(GCNConv(30, 16), GCNConv(16, 4), nn.LayerNorm(16))
    x = torch.randn(40, 30)
    assert float((fuse(model)(x, edges()) - model(x, edges())).abs().max()) < 1e-5


def test_a_value_that_is_read_twice_keeps_its_activation_apart() -> None:
    model = ReadTwice(GCNConv(8, 16), GCNConv(16, 8), nn.Identity())
    x = torch.randn(40, 8)
    torch.testing.assert_close(fuse(model)(x, edges()), model(x, edges()), rtol=1e-5, atol=1e-5)


def test_dropout_follows_the_mode_after_fusing() -> None:
    fused = fuse(TwoLayers(GCNConv(8, 16), GCNConv(16, 8), nn.Identity(), dropout=0.5).eval())
    x = torch.randn(40, 8)
    assert torch.equal(fused(x, edges()), fused(x, edges()))
    fused.train()
    assert not torch.equal(fused(x, edges()), fused(x, edges()))


def test_an_unknown_layer_leaves_the_model_as_it_is() -> None:
    model = TwoLayers(GINConv(nn.Linear(8, 16)), GINConv(nn.Linear(16, 8)), nn.Identity())
    assert fuse(model) is model


def test_edges_changed_in_place_are_read_again() -> None:
    model = TwoLayers(GCNConv(8, 16), GCNConv(16, 8), nn.Identity()).eval()
    fused, x, index = fuse(model), torch.randn(40, 8), edges()
    fused(x, index)
    index[0] = index[0].flip(0)
    torch.testing.assert_close(fused(x, index), model(x, index), rtol=1e-5, atol=1e-5)
