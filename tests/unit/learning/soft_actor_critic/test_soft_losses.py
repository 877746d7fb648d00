"""Targets and actor loss: sums over open options alone, and a gradient towards the better ones."""

from math import exp, log

import pytest
import torch
from seen_moments import distribution_of

from slurm_energy.learning.soft_actor_critic.learner import (
    actor_loss,
    bootstrapped,
    critic_loss,
    expected,
    quantile_huber_loss,
    soft_value,
)

JOB = torch.tensor([0, 0, 0, 1, 1, 1])
OPEN = torch.tensor([True, False, True, True, True, False])
LOGIT = torch.tensor([0.5, 9.0, -0.5, 0.2, 0.1, 3.0])


def chances() -> list[dict[int, float]]:
    """Return the probability of each open option, by another way than the code's."""
    found = []
    for rows in ((0, 2), (3, 4)):
        weight = {row: exp(float(LOGIT[row])) for row in rows}
        found.append({row: value / sum(weight.values()) for row, value in weight.items()})
    return found


@pytest.mark.parametrize("huge", [1e30, float("inf"), float("nan")])
def test_a_masked_option_has_no_probability_and_no_part_in_values_however_good_it_looks(huge: float) -> None:
    policy = distribution_of(LOGIT, OPEN, JOB)
    value = torch.tensor([-1.0, huge, -2.0, -3.0, -5.0, huge])
    found = expected(policy, value)
    assert policy.log_prob.exp()[~OPEN].tolist() == [0.0, 0.0]
    assert found.tolist() == pytest.approx([sum(p * float(value[row]) for row, p in one.items()) for one in chances()])
    assert bool(torch.isfinite(actor_loss(policy, value, 0.1)))
    quantiles = value[:, None].expand(-1, 3)
    assert bool(torch.isfinite(soft_value(policy, quantiles, 0.1)).all())


def test_the_soft_value_is_the_expectation_of_each_quantile_and_the_entropy() -> None:
    policy = distribution_of(LOGIT, OPEN, JOB)
    quantiles = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    found = soft_value(policy, quantiles, 0.3)
    for job, options in enumerate(chances()):
        for index in range(4):
            value = sum(p * (float(quantiles[row, index]) - 0.3 * log(p)) for row, p in options.items())
            assert float(found[job, index]) == pytest.approx(value, rel=1e-5)


def test_what_follows_is_discounted_and_nothing_follows_an_end() -> None:
    reward, discount = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([0.9, 0.5, 0.1])
    following = torch.tensor([[-10.0, -20.0], [-1.0, -2.0]])
    found = bootstrapped(reward, discount, torch.tensor([1, 2]), following, 2)
    assert found.flatten().tolist() == pytest.approx([-1.0, -1.0, -7.0, -12.0, -3.1, -3.2])
    assert (
        bootstrapped(reward, discount, torch.tensor([], dtype=torch.int64), None, 2)[:, 1].tolist() == reward.tolist()
    )


def test_the_actor_loss_is_the_exact_expectation_over_all_options() -> None:
    value = torch.tensor([-1.0, 50.0, -2.0, -3.0, -5.0, 50.0])
    found = actor_loss(distribution_of(LOGIT, OPEN, JOB), value, 0.3)
    by_hand = [sum(p * (0.3 * log(p) - float(value[row])) for row, p in one.items()) for one in chances()]
    assert float(found) == pytest.approx(sum(by_hand) / 2)


def test_one_step_of_the_actor_goes_towards_better_open_options_and_not_the_value() -> None:
    logit = torch.zeros(6, requires_grad=True)
    value = torch.tensor([-1.0, 50.0, -2.0, -5.0, -3.0, 50.0], requires_grad=True)
    actor_loss(distribution_of(logit, OPEN, JOB), value, 0.01).backward()  # type: ignore[no-untyped-call]  # in torch
    assert value.grad is None
    assert logit.grad is not None
    step = -logit.grad
    assert step[0] > 0.0 > step[2] and step[4] > 0.0 > step[3]
    assert step[~OPEN].tolist() == [0.0, 0.0]


def test_the_actor_ends_at_the_softmax_of_values_over_the_temperature() -> None:
    logit = torch.zeros(6, requires_grad=True)
    value = torch.tensor([-1.0, 50.0, -2.0, -5.0, -4.8, 50.0])
    optimiser = torch.optim.Adam([logit], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        actor_loss(distribution_of(logit, OPEN, JOB), value, 0.5).backward()  # type: ignore[no-untyped-call]  # in torch
        optimiser.step()
    found = distribution_of(logit, OPEN, JOB).log_prob.detach()
    best = distribution_of(value / 0.5, OPEN, JOB).log_prob
    assert found[OPEN].tolist() == pytest.approx(best[OPEN].tolist(), abs=0.01)


def test_both_critics_are_in_the_loss() -> None:
    first, second, target = torch.zeros(2, 3), torch.ones(2, 3), torch.full((2, 3), -1.0)
    both = quantile_huber_loss(first, target) + quantile_huber_loss(second, target)
    assert float(critic_loss(first, second, target)) == float(both)
