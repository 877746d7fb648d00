"""The policy's distribution against torch.distributions, its masks, samples and order."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from slurm_energy.graph import schema
from slurm_energy.policy.gnn.heads import (
    OptionDistribution,
    PolicyHead,
    best,
    sample,
    segment_best,
    segment_entropy,
    segment_log_softmax,
    segment_sample,
)

_CONTEXT = 5
_JOB = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 3, 3])
_PARTITION = torch.tensor([2, 2, 0, 0, 0, 1, 2, 2, 0, 1])
_OPEN = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 0, 0], dtype=torch.bool)
"""Job 2 has no option, job 3 none that is open."""


def _head(seed: int = 0) -> PolicyHead:
    torch.manual_seed(seed)
    return PolicyHead(_CONTEXT, 16)


def _features(options: int = 10, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    width = schema.width(schema.OPTION)
    return torch.randn(options, _CONTEXT, generator=draw), torch.randn(options, width, generator=draw)


def _distribution(is_open: Tensor = _OPEN, head: PolicyHead | None = None) -> OptionDistribution:
    result: OptionDistribution = (head or _head())(*_features(), _JOB, _PARTITION, is_open, 4)
    return result


def _by_hand(head: PolicyHead, is_open: Tensor) -> list[dict[int, float]]:
    """Return the probability of each open option of each job, through torch's categorical distributions."""
    z = torch.cat(_features(), 1)
    jobs: list[dict[int, float]] = []
    for job in range(4):
        open_of = {
            p: [o for o in range(10) if _JOB[o] == job and _PARTITION[o] == p and is_open[o]]
            for p in set(_PARTITION[torch.eq(_JOB, job)].tolist())
        }
        partitions = {p: options for p, options in open_of.items() if options}
        probabilities: dict[int, float] = {}
        if partitions:
            logits = torch.stack([head.partition(z[options].mean(0)).squeeze() for options in partitions.values()])
            for p, options in zip(Categorical(logits=logits).probs, partitions.values(), strict=True):
                counts = Categorical(logits=head.count(z[options]).squeeze(1)).probs
                probabilities |= {o: float(p * n) for o, n in zip(options, counts, strict=True)}
        jobs.append(probabilities)
    return jobs


def test_probabilities_are_those_of_a_partition_times_those_of_its_counts() -> None:
    head = _head()
    with torch.no_grad():
        probability = _distribution(head=head).log_prob.exp()
        by_hand = _by_hand(head, _OPEN)
    for job in range(4):
        for option in torch.nonzero(torch.eq(_JOB, job)).flatten().tolist():
            assert float(probability[option]) == pytest.approx(by_hand[job].get(option, 0.0), abs=1e-6)


def test_entropies_are_those_of_torch() -> None:
    head = _head()
    with torch.no_grad():
        result = _distribution(head=head)
        by_hand = _by_hand(head, _OPEN)
    for job, probabilities in enumerate(by_hand):
        by_partition: dict[int, float] = {}
        for option, probability in probabilities.items():
            key = int(_PARTITION[option])
            by_partition[key] = by_partition.get(key, 0.0) + probability
        for entropy, values in ((result.entropy, probabilities), (result.partition_entropy, by_partition)):
            expected = -sum(p * math.log(p) for p in values.values())
            assert float(entropy[job]) == pytest.approx(expected, abs=1e-5)


def test_partition_probability_is_equal_for_all_counts_of_a_partition() -> None:
    result = _distribution()
    assert result.partition_log_prob[0] == result.partition_log_prob[1]
    assert result.partition_log_prob[2] == result.partition_log_prob[3] == result.partition_log_prob[4]
    torch.testing.assert_close(result.log_prob, result.partition_log_prob + result.count_log_prob)


def test_closed_options_have_exactly_no_probability() -> None:
    result = _distribution()
    assert result.log_prob[~_OPEN].tolist() == [-math.inf] * 4
    assert bool(result.log_prob[_OPEN].isfinite().all())
    assert not any(bool(part.isnan().any()) for part in result)


def test_a_job_without_an_open_option_has_no_entropy_and_no_choice() -> None:
    result = _distribution()
    assert result.entropy[2:].tolist() == [0.0, 0.0]
    assert result.partition_entropy[2:].tolist() == [0.0, 0.0]
    assert best(result)[2:].tolist() == [-1, -1]
    assert sample(result, torch.Generator().manual_seed(0))[2:].tolist() == [-1, -1]


@given(st.lists(st.booleans(), min_size=10, max_size=10))
def test_masks_leak_no_probability(flags: list[bool]) -> None:
    is_open = torch.tensor(flags)
    head = _head()
    result = _distribution(is_open, head)
    mass = torch.zeros(4).index_add(0, _JOB, result.log_prob.exp())
    has_open = torch.zeros(4).index_add(0, _JOB, is_open.float()) > 0
    torch.testing.assert_close(mass, has_open.float())
    # What a closed option says of itself is of no consequence.
    context, option_x = _features()
    changed = torch.where(is_open[:, None], context, 3.0 * context + 1.0)
    again = head(changed, option_x, _JOB, _PARTITION, is_open, 4)
    torch.testing.assert_close(again.log_prob, result.log_prob, atol=0, rtol=0)
    chosen = best(result)
    torch.autograd.backward(
        result.log_prob[chosen[chosen >= 0]].sum() + result.entropy.sum() + result.partition_entropy.sum()
    )
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


def test_gradient_reaches_every_parameter() -> None:
    head = _head()
    result = _distribution(head=head)
    torch.autograd.backward(result.log_prob[torch.tensor([0, 5])].sum())
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 1e-7, name


@given(st.permutations(range(10)))
def test_the_order_of_options_does_not_matter(order: list[int]) -> None:
    head = _head()
    context, option_x = _features()
    result = _distribution(head=head)
    moved = head(context[order], option_x[order], _JOB[order], _PARTITION[order], _OPEN[order], 4)
    for name in ("partition_log_prob", "count_log_prob", "log_prob"):
        torch.testing.assert_close(getattr(moved, name), getattr(result, name)[order], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(moved.entropy, result.entropy, atol=1e-5, rtol=1e-5)


def test_jobs_are_answered_as_if_each_were_alone() -> None:
    head = _head()
    context, option_x = _features()
    result = _distribution(head=head)
    own = _JOB == 1
    alone = head(context[own], option_x[own], torch.zeros(3, dtype=torch.int64), _PARTITION[own], _OPEN[own], 1)
    torch.testing.assert_close(alone.log_prob, result.log_prob[own], atol=1e-6, rtol=1e-5)


def test_no_options_at_all_are_answered() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    result = _head()(*_features(0), none, none, none.bool(), 2)
    assert result.log_prob.shape == (0,)
    assert result.entropy.tolist() == [0.0, 0.0]
    assert best(result).tolist() == [-1, -1]
    nobody = _head()(*_features(0), none, none, none.bool(), 0)
    assert best(nobody).tolist() == sample(nobody, torch.Generator()).tolist() == []


def test_log_softmax_of_huge_logits_stays_finite() -> None:
    logit = torch.tensor([1e6, -1e6, 3e6, 0.0], requires_grad=True)
    segment = torch.tensor([0, 0, 1, 1])
    result = segment_log_softmax(logit, torch.ones(4, dtype=torch.bool), segment, 2)
    expected = torch.stack([logit[:2].log_softmax(0), logit[2:].log_softmax(0)]).flatten()
    torch.testing.assert_close(result, expected)
    torch.autograd.backward(segment_entropy(result, segment, 2).sum())
    assert logit.grad is not None
    assert bool(logit.grad.isfinite().all())


def test_gradient_of_log_softmax_is_that_of_torch() -> None:
    logit = torch.randn(4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    weight = torch.tensor([0.3, -1.0, 2.0, 0.5])
    is_open = torch.tensor([True, True, False, True])
    result = segment_log_softmax(logit, is_open, torch.zeros(4, dtype=torch.int64), 1)
    (ours,) = torch.autograd.grad((result * weight)[is_open].sum(), logit)
    (expected,) = torch.autograd.grad((logit[is_open].log_softmax(0) * weight[is_open]).sum(), logit)
    torch.testing.assert_close(ours, expected)


def test_the_best_of_equals_is_the_first() -> None:
    log_prob = torch.tensor([0.3, 0.5, 0.5, 0.0, 0.7, 0.7]).log()
    segment = torch.tensor([0, 0, 0, 1, 2, 2])
    assert segment_best(log_prob, segment, 4).tolist() == [1, -1, 4, -1]


def test_samples_come_as_often_as_they_are_probable() -> None:
    probability = torch.tensor([0.1, 0.6, 0.0, 0.3])
    draws = 4000
    log_prob = probability.log().repeat(draws)
    segment = torch.arange(draws).repeat_interleave(4)
    chosen = segment_sample(log_prob, segment, draws, torch.Generator().manual_seed(7)) % 4
    share = torch.bincount(chosen, minlength=4) / draws
    assert float(share[2]) == 0.0
    assert float((share - probability).abs().max()) < 4.0 * math.sqrt(0.25 / draws)


def test_samples_follow_the_generator_alone() -> None:
    result = _distribution()
    torch.manual_seed(1)
    first = [sample(result, torch.Generator().manual_seed(seed)).tolist() for seed in range(20)]
    torch.manual_seed(2)
    again = [sample(result, torch.Generator().manual_seed(seed)).tolist() for seed in range(20)]
    assert first == again
    assert len({tuple(draw) for draw in first}) > 1
    assert all(_OPEN[job] for draw in first for job in draw if job >= 0)
    assert all(_JOB[draw[job]] == job for draw in first for job in (0, 1))


def test_the_same_seed_gives_the_same_head_and_reset_draws_anew() -> None:
    head = _head(3)
    torch.testing.assert_close(_distribution(head=head), _distribution(head=_head(3)), atol=0, rtol=0)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head.reset_parameters()
    assert not any(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_a_policy_gradient_learns_the_better_option() -> None:
    head = _head()
    context, option_x = _features()
    reward = torch.zeros(10)
    reward[4], reward[7] = 1.0, 1.0
    optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(150):
        result = head(context, option_x, _JOB, _PARTITION, _OPEN, 4)
        optimiser.zero_grad()
        torch.autograd.backward(-(result.log_prob.exp() * reward).sum())
        optimiser.step()
    assert best(result).tolist() == [4, 7, -1, -1]
    assert float(result.log_prob.detach().exp()[4]) > 0.9


def test_it_tells_what_it_is() -> None:
    assert repr(_head()) == f"PolicyHead({_CONTEXT + schema.width(schema.OPTION)}, hidden=16)"
