"""Probabilities of nodes against torch.distributions, and the feature that hints at the likely ones."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.heads import AssignmentHead
from slurm_energy.policy.gnn.policy import preferred_feature

_CHANNELS = 6
_PAIR_JOB = torch.tensor([0, 0, 0, 0, 1, 1, 2])
_PAIR_NODE = torch.tensor([0, 1, 2, 3, 3, 1, 0])
_OPEN = torch.tensor([1, 0, 1, 1, 1, 1, 0], dtype=torch.bool)


def _head(seed: int = 0) -> AssignmentHead:
    torch.manual_seed(seed)
    return AssignmentHead(_CHANNELS, 16)


def _vertices(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return jobs, nodes and the features of pairs."""
    draw = torch.Generator().manual_seed(seed)
    pair_x = torch.randn(7, schema.width(schema.DEVICE_OPTION), generator=draw)
    return torch.randn(3, _CHANNELS, generator=draw), torch.randn(4, _CHANNELS, generator=draw), pair_x


def _log_prob(head: AssignmentHead, is_open: Tensor = _OPEN) -> Tensor:
    job, node, pair_x = _vertices()
    result: Tensor = head(job, node, _PAIR_JOB, _PAIR_NODE, pair_x, is_open)
    return result


def test_probabilities_are_a_softmax_of_a_perceptron_over_the_concatenation() -> None:
    head = _head()
    job, node, pair_x = _vertices()
    weight = torch.cat((head.job.weight, head.node.weight, head.pair.weight), 1)
    together = torch.cat((job[_PAIR_JOB], node[_PAIR_NODE], pair_x), 1)
    with torch.no_grad():
        first = torch.relu(together @ weight.T + head.job.bias)
        score = head.score(torch.relu(head.between(first))).squeeze(1)
        result = _log_prob(head)
        for number in (0, 1):
            rows = torch.nonzero(torch.eq(_PAIR_JOB, number) & _OPEN).flatten()
            expected = Categorical(logits=score[rows]).logits
            torch.testing.assert_close(result[rows], expected, atol=1e-6, rtol=1e-5)
    assert result[~_OPEN].tolist() == [-math.inf, -math.inf]


@given(st.lists(st.booleans(), min_size=7, max_size=7))
def test_masks_leak_no_probability_and_gradients_stay_finite(flags: list[bool]) -> None:
    head = _head()
    is_open = torch.tensor(flags)
    result = _log_prob(head, is_open)
    mass = torch.zeros(3).index_add(0, _PAIR_JOB, result.exp())
    torch.testing.assert_close(mass, (torch.zeros(3).index_add(0, _PAIR_JOB, is_open.float()) > 0).float())
    torch.autograd.backward(result[is_open].sum())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


def test_gradient_reaches_every_parameter() -> None:
    head = _head()
    torch.autograd.backward(_log_prob(head)[0])
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 1e-7, name


def test_the_numbers_of_nodes_and_the_order_of_pairs_do_not_matter() -> None:
    head = _head()
    job, node, pair_x = _vertices()
    nodes, pairs = torch.tensor([2, 0, 3, 1]), torch.tensor([6, 2, 4, 0, 5, 1, 3])
    place = torch.argsort(nodes)
    moved = head(job, node[nodes], _PAIR_JOB[pairs], place[_PAIR_NODE[pairs]], pair_x[pairs], _OPEN[pairs])
    torch.testing.assert_close(moved, _log_prob(head)[pairs], atol=1e-6, rtol=1e-5)


def test_no_pairs_give_nothing() -> None:
    job, node, pair_x = _vertices()
    none = torch.zeros(0, dtype=torch.int64)
    assert _head()(job, node, none, none, pair_x[:0], none.bool()).shape == (0,)


def test_the_same_seed_gives_the_same_head_and_reset_draws_anew() -> None:
    head = _head(2)
    torch.testing.assert_close(_log_prob(head), _log_prob(_head(2)), atol=0, rtol=0)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert repr(head) == "AssignmentHead(6, hidden=16)"


def test_the_feature_with_the_most_probability_for_its_nodes_is_preferred() -> None:
    features = [{"gpu", "cool"}, {"gpu", "cool"}, {"gpu", "warm"}, {"gpu", "warm"}]
    assert preferred_feature([0.5, 0.3, 0.1, 0.1], features) == "cool"
    assert preferred_feature([0.1, 0.1, 0.3, 0.5], features) == "warm"


def test_a_feature_of_all_nodes_or_an_even_probability_hints_at_nothing() -> None:
    assert preferred_feature([0.7, 0.3], [{"gpu"}, {"gpu"}]) is None
    assert preferred_feature([0.25] * 4, [{"a"}, {"a"}, {"b"}, {"b"}]) is None


def test_the_smaller_of_two_features_with_the_same_probability_is_preferred() -> None:
    features = [{"rack1", "row1"}, {"row1"}, set(), set()]
    assert preferred_feature([0.9, 0.0, 0.1, 0.0], features) == "rack1"


def test_a_feature_with_little_of_the_probability_is_no_hint_however_few_its_nodes() -> None:
    features = [{"odd"}, {"big"}, {"big"}, {"big"}, set(), set(), set(), set(), set(), set()]
    probabilities = [0.4, 0.2, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert preferred_feature(probabilities, features) == "big"
    assert preferred_feature(probabilities, features, min_mass=0.3) == "odd"


def test_equal_features_are_told_apart_by_their_names() -> None:
    assert preferred_feature([1.0, 0.0], [{"b", "a", "c"}, set()]) == "a"


def test_sums_that_differ_by_rounding_alone_are_equal() -> None:
    features = [{"b"}, {"b"}, {"b"}, {"a"}, {"a"}, {"a"}, set()]
    probabilities = [0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 1.0]
    assert preferred_feature(probabilities, features, min_mass=0.0, min_lift=0.0) == "a"


@pytest.mark.parametrize("name", ["a&b", "a|b", "[a]", "a*2", "a b", "", "-x", "x" * 65, "é", "a,b", "a\n"])
def test_names_that_slurm_would_read_as_more_than_a_name_are_left_out(name: str) -> None:
    assert preferred_feature([1.0, 0.0], [{name}, set()]) is None


def test_no_nodes_and_no_probability_give_no_feature() -> None:
    assert preferred_feature([], []) is None
    assert preferred_feature([0.0, 0.0], [{"a"}, set()]) is None
    assert preferred_feature([math.nan, -1.0, math.inf], [{"a"}, {"b"}, {"c"}]) is None


@given(
    st.lists(st.tuples(st.floats(), st.sets(st.sampled_from("abcd"))), max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_hint_is_total_and_does_not_depend_on_the_order_of_nodes(
    nodes: list[tuple[float, set[str]]], order: Random
) -> None:
    first = preferred_feature([p for p, _ in nodes], [names for _, names in nodes])
    order.shuffle(nodes)
    assert preferred_feature([p for p, _ in nodes], [names for _, names in nodes]) == first
