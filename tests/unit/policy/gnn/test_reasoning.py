"""Attention at the top against explicit loops and torch's own layer, its masks, and the tie of heads to objectives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.gnn.configuration import Attention
from slurm_energy.policy.gnn.top_level import ObjectiveAttention

_CHANNELS, _HEADS, _STRUCTURE, _EDGE = 12, 6, 4, 3
_MODES: tuple[Attention, ...] = ("objectives", "plain", "none")


def _layer(mode: Attention = "objectives", edge_channels: int = 0, seed: int = 0) -> ObjectiveAttention:
    torch.manual_seed(seed)
    return ObjectiveAttention(_CHANNELS, _HEADS, _STRUCTURE, mode, edge_channels=edge_channels)


def _vertices(batch: int = 2, vertices: int = 5, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, allowed, structure and edge features; every vertex may look at itself."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, vertices, _CHANNELS, generator=draw)
    allowed = torch.rand(batch, vertices, vertices, generator=draw) < 0.6
    allowed |= torch.eye(vertices, dtype=torch.bool)
    structure = torch.randn(batch, vertices, _STRUCTURE, generator=draw)
    return x, allowed, structure, torch.randn(batch, vertices, vertices, _EDGE, generator=draw)


def _by_loops(layer: ObjectiveAttention, x: Tensor, allowed: Tensor, structure: Tensor, edge: Tensor) -> Tensor:
    """Return the attention of one item, [heads, V, V], with one exponential at a time."""
    vertices, width = x.shape[0], _CHANNELS // _HEADS
    normed = torch.nn.functional.layer_norm(x, (_CHANNELS,))
    query, key, _ = torch.split(normed @ layer.project.weight.T, _CHANNELS, 1)
    assert layer.importance is not None
    assert layer.edge is not None
    attention = torch.zeros(_HEADS, vertices, vertices)
    for head in range(_HEADS):
        columns = slice(head * width, (head + 1) * width)
        for i in range(vertices):
            mass = {}
            for j in range(vertices):
                if allowed[i, j]:
                    score = float(query[i, columns] @ key[j, columns]) / math.sqrt(width)
                    score += float(layer.importance.weight[head] @ structure[j])
                    mass[j] = math.exp(score + float(layer.edge.weight[head] @ edge[i, j]))
            for j, value in mass.items():
                attention[head, i, j] = value / sum(mass.values())
    return attention


def test_attention_is_that_of_explicit_loops() -> None:
    layer = _layer(edge_channels=_EDGE)
    x, allowed, structure, edge = _vertices()
    with torch.no_grad():
        result = layer(x, allowed, structure, edge)
        for item in range(len(x)):
            expected = _by_loops(layer, x[item], allowed[item], structure[item], edge[item])
            torch.testing.assert_close(result.attention[item], expected, atol=1e-6, rtol=1e-5)
            values = torch.nn.functional.layer_norm(x[item], (_CHANNELS,)) @ layer.project.weight[2 * _CHANNELS :].T
            parts = [expected[head] @ values[:, 2 * head : 2 * head + 2] for head in range(_HEADS)]
            torch.testing.assert_close(result.head_x[item], torch.cat(parts, 1), atol=1e-6, rtol=1e-5)


def test_without_structure_and_edges_it_is_torch_multihead_attention() -> None:
    layer = _layer("plain")
    x, allowed, structure, _ = _vertices()
    reference = torch.nn.MultiheadAttention(_CHANNELS, _HEADS, bias=False, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(layer.project.weight)
        reference.out_proj.weight.copy_(layer.mix.weight)
        normed = layer.attention_norm(x)
        closed = (~allowed).repeat_interleave(_HEADS, 0)
        message, weights = reference(normed, normed, normed, attn_mask=closed, average_attn_weights=False)
        after = x + message
        expected = after + layer.feed_forward(layer.forward_norm(after))
        result = layer(x, allowed, torch.zeros_like(structure))
    torch.testing.assert_close(result.attention, weights, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.x, expected, atol=1e-6, rtol=1e-5)


def test_a_ready_bias_does_what_the_layer_makes_of_edge_features() -> None:
    layer, ready = _layer(edge_channels=_EDGE), _layer()
    ready.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "edge.weight"})
    x, allowed, structure, edge = _vertices()
    assert layer.edge is not None
    torch.testing.assert_close(
        layer(x, allowed, structure, edge).x, ready(x, allowed, structure, layer.edge(edge)).x, atol=0, rtol=0
    )


def test_mode_none_is_the_mean_of_what_is_allowed_whatever_structure_says() -> None:
    layer = _layer("none")
    x, allowed, structure, edge = _vertices()
    result = layer(x, allowed, structure, edge)
    values = layer.project(layer.attention_norm(x))
    for item in range(len(x)):
        for row in range(x.shape[1]):
            mean = values[item][allowed[item, row]].mean(0)
            torch.testing.assert_close(result.head_x[item, row], mean, atol=1e-6, rtol=1e-5)
    assert result.attention.shape == (2, _HEADS, 5, 5)
    torch.testing.assert_close(layer(x, allowed, 7.0 * structure).x, result.x, atol=0, rtol=0)


def test_structural_importance_draws_attention_to_a_vertex() -> None:
    layer = _layer("plain")
    x, allowed, structure, _ = _vertices(batch=1)
    assert layer.importance is not None
    with torch.no_grad():
        layer.importance.weight.zero_()
        layer.importance.weight[2, 1] = 1.0
        before = layer(x, allowed, structure).attention
        structure[0, 3, 1] += 2.0
        after = layer(x, allowed, structure).attention
    seen = allowed[0, :, 3] & (allowed[0].sum(1) > 1)
    assert bool((after[0, 2, seen, 3] > before[0, 2, seen, 3]).all())
    torch.testing.assert_close(after[0, [0, 1, 3, 4, 5]], before[0, [0, 1, 3, 4, 5]])


@pytest.mark.parametrize("mode", _MODES)
def test_a_vertex_that_may_look_at_nothing_has_zeros_and_finite_gradients(mode: Attention) -> None:
    layer = _layer(mode)
    x, allowed, structure, _ = _vertices()
    allowed[0, 2] = False
    allowed[1] = False
    x.requires_grad_()
    result = layer(x, allowed, structure)
    assert not bool(result.attention[0, :, 2].any())
    assert not bool(result.head_x[1].any())
    alone = x + layer.feed_forward(layer.forward_norm(x))
    torch.testing.assert_close(result.x[1], alone[1])
    torch.autograd.backward(result.x.square().sum())
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in layer.parameters())


@given(st.lists(st.booleans(), min_size=16, max_size=16), st.sampled_from(_MODES), st.floats(0.1, 100.0))
def test_masks_leak_no_attention(flags: list[bool], mode: Attention, scale: float) -> None:
    layer = _layer(mode)
    x, _, structure, _ = _vertices(batch=1, vertices=4)
    allowed = torch.tensor(flags).view(1, 4, 4)
    with torch.no_grad():
        attention = layer(x, allowed, scale * structure).attention
        assert float(attention.masked_select(~allowed.unsqueeze(1).expand_as(attention)).abs().sum()) == 0.0
        torch.testing.assert_close(attention.sum(-1), allowed.any(-1).float().unsqueeze(1).expand(1, _HEADS, 4))
        # What nobody may look at changes nobody else.
        hidden = ~allowed[0].any(0)
        changed = torch.where(hidden[:, None], x + 5.0, x)
        difference = layer(changed, allowed, structure).x - layer(x, allowed, structure).x
    assert float(difference[0, ~hidden].abs().sum()) == 0.0


@pytest.mark.parametrize("mode", _MODES)
def test_renumbering_vertices_renumbers_the_result(mode: Attention) -> None:
    layer = _layer(mode, edge_channels=_EDGE)
    x, allowed, structure, edge = _vertices()
    order = torch.tensor([3, 0, 4, 2, 1])
    result = layer(x, allowed, structure, edge)
    moved = layer(x[:, order], allowed[:, order][:, :, order], structure[:, order], edge[:, order][:, :, order])
    torch.testing.assert_close(moved.x, result.x[:, order], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(moved.attention, result.attention[:, :, order][:, :, :, order], atol=1e-6, rtol=1e-5)


def test_items_of_a_batch_do_not_see_each_other() -> None:
    layer = _layer(edge_channels=_EDGE)
    x, allowed, structure, edge = _vertices(batch=3)
    whole = layer(x, allowed, structure, edge)
    for item in range(3):
        one = slice(item, item + 1)
        alone = layer(x[one], allowed[one], structure[one], edge[one])
        torch.testing.assert_close(alone.x, whole.x[one], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", _MODES)
def test_gradient_reaches_every_parameter(mode: Attention) -> None:
    layer = _layer(mode, edge_channels=_EDGE)
    result = layer(*_vertices())
    values = layer.objective_values(result.head_x[:, 0])
    loss = result.x.square().sum() + (0.0 if values is None else values.square().sum())
    torch.autograd.backward(loss)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 1e-6, name


@pytest.mark.parametrize("objective", [0, 1, 2])
def test_an_objective_trains_its_own_heads_alone(objective: int) -> None:
    layer = _layer()
    x, allowed, structure, _ = _vertices()
    values = layer.objective_values(layer(x, allowed, structure).head_x[:, 0])
    assert values is not None
    torch.autograd.backward(values[:, objective].sum())
    third = torch.zeros(_CHANNELS, dtype=torch.bool)
    third[4 * objective : 4 * objective + 4] = True
    assert layer.project.weight.grad is not None
    reached = layer.project.weight.grad.abs().sum(1).view(3, _CHANNELS) > 0.0  # query, key, value
    assert bool((reached == third).all())
    assert layer.importance is not None
    assert layer.importance.weight.grad is not None
    assert (layer.importance.weight.grad.abs().sum(1) > 0.0).tolist() == [head // 2 == objective for head in range(6)]


def test_objective_values_are_linear_in_each_third() -> None:
    layer = _layer()
    assert layer.objective_weight is not None
    assert layer.objective_bias is not None
    with torch.no_grad():
        layer.objective_bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    head_x = torch.randn(7, _CHANNELS, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        values = layer.objective_values(head_x)
    assert values is not None
    weight = layer.objective_weight.detach()
    for row in range(7):
        for third in range(3):
            part = head_x[row, 4 * third : 4 * third + 4]
            expected = float(part @ weight[third]) + third + 1.0
            assert float(values[row, third]) == pytest.approx(expected, abs=1e-6)


def test_only_tied_heads_have_objective_values() -> None:
    for mode in ("plain", "none"):
        layer = _layer(mode)
        assert layer.objective_values(torch.zeros(1, _CHANNELS)) is None
        assert not [name for name, _ in layer.named_parameters() if "objective" in name]


@pytest.mark.slow
def test_a_tie_to_time_lets_the_time_heads_find_the_busy_queue() -> None:
    layer = _layer()
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(512, 6, _CHANNELS, generator=draw)
    structure = torch.rand(512, 6, _STRUCTURE, generator=draw)
    structure[:, :, 0] = torch.nn.functional.one_hot(torch.randint(1, 6, (512,), generator=draw), 6)
    busy = structure[:, :, 0].argmax(1)
    log_time = x[torch.arange(512), busy, 0]
    allowed = torch.ones(512, 6, 6, dtype=torch.bool)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150):
        result = layer(x, allowed, structure)
        values = layer.objective_values(result.head_x[:, 0])
        assert values is not None
        optimiser.zero_grad()
        torch.autograd.backward(torch.nn.functional.mse_loss(values[:, 0], log_time))
        optimiser.step()
    looked = layer(x, allowed, structure).attention.detach()[torch.arange(512), :, 0, busy].mean(0)  # [heads]
    assert float(looked[:2].max()) > 0.6
    assert float(looked[2:].max()) < 0.3


def test_the_same_seed_gives_the_same_layer_and_reset_draws_anew() -> None:
    inputs = _vertices()
    layer = _layer(edge_channels=_EDGE, seed=4)
    torch.testing.assert_close(layer(*inputs), _layer(edge_channels=_EDGE, seed=4)(*inputs), atol=0, rtol=0)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.reset_parameters()
    changed = {name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "norm" not in name and name != "objective_bias"}


def test_no_vertices_give_no_result() -> None:
    for mode in _MODES:
        result = _layer(mode)(*_vertices(batch=0)[:3])
        assert result.x.shape == (0, 5, _CHANNELS)
        assert result.attention.shape == (0, _HEADS, 5, 5)


@pytest.mark.parametrize(("channels", "heads", "mode"), [(12, 5, "plain"), (12, 4, "objectives")])
def test_heads_that_do_not_fit_are_refused(channels: int, heads: int, mode: Attention) -> None:
    with pytest.raises(ValueRangeError, match=f"{heads} heads and {channels} channels"):
        ObjectiveAttention(channels, heads, _STRUCTURE, mode)


def test_it_tells_what_it_is() -> None:
    assert repr(_layer()) == "ObjectiveAttention(12, heads=6, mode='objectives')"
