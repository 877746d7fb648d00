"""Baseline and critics: their formulas by hand, and that they learn."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.decision_level import QuantileHead, ValueHead, present_mean

_OPTION = schema.width(schema.OPTION)


def _draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _value(seed: int = 0) -> ValueHead:
    torch.manual_seed(seed)
    return ValueHead(6, 16)


def _quantile(seed: int = 0) -> QuantileHead:
    torch.manual_seed(seed)
    return QuantileHead(5, 7, 16)


def test_the_mean_is_over_the_vertices_that_are_present() -> None:
    x = _draw(3, 4, 6)
    present = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    mean = present_mean(x, present)
    torch.testing.assert_close(mean[0], (x[0, 0] + x[0, 2] + x[0, 3]) / 3.0)
    torch.testing.assert_close(mean[1], x[1, 1])
    assert mean[2].tolist() == [0.0] * 6


def test_the_mean_does_not_depend_on_the_order_of_vertices() -> None:
    x, present, order = _draw(2, 5, 6), _draw(2, 5, seed=2) > 0.0, torch.tensor([4, 1, 0, 3, 2])
    torch.testing.assert_close(present_mean(x[:, order], present[:, order]), present_mean(x, present))


def test_values_are_those_of_a_perceptron_by_hand() -> None:
    head = _value()
    job, cluster = _draw(3, 6), _draw(3, 6, seed=2)
    hidden = (torch.cat((job, cluster), 1) @ head.first.weight.T + head.first.bias).clamp(min=0.0)
    expected = hidden @ head.last.weight.T + head.last.bias
    torch.testing.assert_close(head(job, cluster), expected)
    assert head(job, cluster).shape == (3, 3)


def test_quantiles_are_those_of_a_perceptron_by_hand() -> None:
    head = _quantile()
    context, option_x = _draw(4, 5), _draw(4, _OPTION, seed=2)
    first = (torch.cat((context, option_x), 1) @ head.first.weight.T + head.first.bias).clamp(min=0.0)
    between = (first @ head.between.weight.T + head.between.bias).clamp(min=0.0)
    torch.testing.assert_close(head(context, option_x), between @ head.last.weight.T + head.last.bias)
    assert head(context, option_x).shape == (4, 7)


def test_no_jobs_and_no_options_give_nothing() -> None:
    assert _value()(_draw(0, 6), _draw(0, 6)).shape == (0, 3)
    assert _quantile()(_draw(0, 5), _draw(0, _OPTION)).shape == (0, 7)
    assert present_mean(_draw(0, 4, 6), torch.zeros(0, 4, dtype=torch.bool)).shape == (0, 6)


def test_gradient_reaches_every_parameter() -> None:
    value, quantile = _value(), _quantile()
    loss = value(_draw(3, 6), _draw(3, 6, seed=2)).square().sum()
    torch.autograd.backward(loss + quantile(_draw(4, 5), _draw(4, _OPTION, seed=2)).square().sum())
    for name, parameter in (*value.named_parameters(), *quantile.named_parameters()):
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 1e-6, name


def test_quantile_regression_finds_the_quantiles_of_a_return() -> None:
    head = _quantile()
    level = (torch.arange(7) + 0.5) / 7.0
    context, option_x = torch.ones(1, 5), torch.ones(1, _OPTION)
    returns = torch.linspace(0.0, 1.0, 201)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(300):
        error = returns[:, None] - head(context, option_x)  # [returns, quantiles]
        optimiser.zero_grad()
        torch.autograd.backward(torch.maximum(level * error, (level - 1.0) * error).mean())
        optimiser.step()
    assert float((head(context, option_x)[0] - level).abs().max()) < 0.05


@pytest.mark.parametrize("make", [_value, _quantile])
def test_the_same_seed_gives_the_same_head_and_reset_draws_anew(
    make: Callable[[int], ValueHead | QuantileHead],
) -> None:
    head, again = make(3), make(3)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())
    head.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_they_tell_what_they_are() -> None:
    assert repr(_value()) == "ValueHead(6, hidden=16)"
    assert repr(_quantile()) == f"QuantileHead({5 + _OPTION}, quantiles=7, hidden=16)"
