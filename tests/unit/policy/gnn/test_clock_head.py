"""Probabilities of clocks: masks, and that heat and a full budget never drive a clock up."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.heads import TIGHT, WARM, ClockHead

_CONTEXT = 5
_OPTION = torch.tensor([0, 0, 0, 0, 1, 1, 1, 3, 3])
_OPEN = torch.tensor([1, 1, 0, 1, 1, 1, 1, 0, 0], dtype=torch.bool)
"""Option 2 has no clock, option 3 none that is open."""
_POWER_CHANGE = schema.column(schema.CLOCK, "power_change")
_COLD = torch.zeros(4)


def _head(seed: int = 0) -> ClockHead:
    torch.manual_seed(seed)
    return ClockHead(_CONTEXT, 16)


def _features(seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    clock_x = torch.randn(9, schema.width(schema.CLOCK), generator=draw)
    clock_x[:, _POWER_CHANGE] = -0.6 * torch.rand(9, generator=draw)
    return torch.randn(4, _CONTEXT, generator=draw), clock_x


def _log_prob(head: ClockHead, heat: Tensor = _COLD, power: Tensor = _COLD, is_open: Tensor = _OPEN) -> Tensor:
    context, clock_x = _features()
    result: Tensor = head(context, clock_x, _OPTION, is_open, heat, power)
    return result


def _expected_power(log_prob: Tensor) -> Tensor:
    power = 1.0 + _features()[1][:, _POWER_CHANGE]
    return torch.zeros(4).index_add(0, _OPTION, log_prob.exp() * power)


def test_probabilities_are_a_softmax_less_what_heat_and_power_cost() -> None:
    head = _head()
    heat, power = torch.tensor([0.9, 0.7, 0.0, 0.0]), torch.tensor([0.95, 0.2, 0.0, 0.0])
    with torch.no_grad():
        head.heat_strength.fill_(0.4)
        head.power_strength.fill_(-0.3)
        context, clock_x = _features()
        result = _log_prob(head, heat, power)
        for option in (0, 1):
            logits, rows = [], [row for row in range(9) if _OPTION[row] == option and _OPEN[row]]
            for row in rows:
                weight = torch.cat((head.context.weight, head.clock.weight), 1)
                first = torch.relu(weight @ torch.cat((context[option], clock_x[row])) + head.context.bias)
                own = float(head.score(torch.relu(head.between(first))))
                strain = math.log1p(math.exp(0.4)) * max(0.0, float(heat[option]) - WARM)
                strain += math.log1p(math.exp(-0.3)) * max(0.0, float(power[option]) - TIGHT)
                logits.append(own - strain * (1.0 + float(clock_x[row, _POWER_CHANGE])))
            expected = Categorical(logits=torch.tensor(logits)).logits
            torch.testing.assert_close(result[rows], expected, atol=1e-5, rtol=1e-5)


def test_closed_clocks_have_exactly_no_probability() -> None:
    result = _log_prob(_head())
    assert result[~_OPEN].tolist() == [-math.inf] * 3
    mass = torch.zeros(4).index_add(0, _OPTION, result.exp())
    torch.testing.assert_close(mass, torch.tensor([1.0, 1.0, 0.0, 0.0]))


@given(
    st.floats(0.0, 1.3),
    st.floats(0.0, 1.3),
    st.floats(0.0, 1.0),
    st.floats(-5.0, 5.0),
    st.lists(st.booleans(), min_size=9, max_size=9),
    st.integers(0, 20),
)
def test_more_heat_or_power_never_shifts_probability_to_a_clock_of_more_power(
    heat: float, power: float, more: float, strength: float, flags: list[bool], seed: int
) -> None:
    head = _head(seed)
    is_open = torch.tensor(flags)
    with torch.no_grad():
        head.heat_strength.fill_(strength)
        head.power_strength.fill_(-strength)
        before = _expected_power(_log_prob(head, torch.full((4,), heat), torch.full((4,), power), is_open))
        hotter = _log_prob(head, torch.full((4,), heat + more), torch.full((4,), power), is_open)
        fuller = _log_prob(head, torch.full((4,), heat), torch.full((4,), power + more), is_open)
    assert float((_expected_power(hotter) - before).max()) <= 1e-6
    assert float((_expected_power(fuller) - before).max()) <= 1e-6


def test_a_hot_node_draws_less_and_other_options_are_left_alone() -> None:
    head = _head()
    with torch.no_grad():
        cold, hot = _log_prob(head), _log_prob(head, torch.tensor([1.5, 0.0, 0.0, 0.0]))
    assert float(_expected_power(hot)[0]) < float(_expected_power(cold)[0]) - 1e-3
    torch.testing.assert_close(hot[4:7], cold[4:7], atol=0, rtol=0)


def test_heat_and_power_below_their_thresholds_change_nothing() -> None:
    head = _head()
    mild = _log_prob(head, torch.full((4,), WARM - 0.01), torch.full((4,), TIGHT - 0.01))
    torch.testing.assert_close(mild, _log_prob(head), atol=0, rtol=0)


@given(st.lists(st.booleans(), min_size=9, max_size=9))
def test_gradients_stay_finite_under_any_mask(flags: list[bool]) -> None:
    head = _head()
    is_open = torch.tensor(flags)
    result = _log_prob(head, torch.full((4,), 1.0), torch.full((4,), 1.0), is_open)
    assert not bool(result.isnan().any())
    torch.autograd.backward(result[is_open].sum())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


def test_gradient_reaches_every_parameter() -> None:
    head = _head()
    torch.autograd.backward(_log_prob(head, torch.full((4,), 0.9), torch.full((4,), 0.9))[0])
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 1e-8, name


def test_the_order_of_clocks_does_not_matter() -> None:
    head = _head()
    context, clock_x = _features()
    order = torch.tensor([8, 2, 5, 0, 7, 3, 1, 6, 4])
    moved = head(context, clock_x[order], _OPTION[order], _OPEN[order], _COLD, _COLD)
    torch.testing.assert_close(moved, _log_prob(head)[order], atol=1e-6, rtol=1e-5)


def test_no_clocks_give_nothing() -> None:
    context, clock_x = _features()
    none = torch.zeros(0, dtype=torch.int64)
    assert _head()(context, clock_x[:0], none, none.bool(), _COLD, _COLD).shape == (0,)


def test_the_same_seed_gives_the_same_head_and_reset_draws_anew() -> None:
    head = _head(2)
    torch.testing.assert_close(_log_prob(head), _log_prob(_head(2)), atol=0, rtol=0)
    with torch.no_grad():
        head.heat_strength.fill_(3.0)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.reset_parameters()
    same = {name for name, value in head.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"power_strength"}
    assert head.heat_strength.detach() == 0.0
    assert repr(head) == "ClockHead(5, hidden=16)"
