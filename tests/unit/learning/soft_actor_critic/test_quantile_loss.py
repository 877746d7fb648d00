"""Quantile regression: the loss is that of the paper, and its minimum is at the quantiles."""

import numpy as np
import pytest
import torch

from slurm_energy.learning.soft_actor_critic.learner import quantile_huber_loss


def by_loops(predicted: np.ndarray, target: np.ndarray) -> float:
    total = 0.0
    for own, goals in zip(predicted, target, strict=True):
        for index, value in enumerate(own):
            tau = (2 * index + 1) / (2 * len(own))
            for goal in goals:
                error = goal - value
                huber = 0.5 * error * error if abs(error) <= 1.0 else abs(error) - 0.5
                total += (tau if error > 0.0 else 1.0 - tau) * huber / len(goals)
    return total / len(predicted)


@pytest.mark.parametrize(("quantiles", "goals"), [(1, 1), (5, 5), (4, 7)])
def test_the_loss_is_the_sum_that_defines_it(quantiles: int, goals: int) -> None:
    random = np.random.default_rng(3)
    predicted, target = 2.0 * random.normal(size=(6, quantiles)), 2.0 * random.normal(size=(6, goals))
    found = quantile_huber_loss(torch.from_numpy(predicted), torch.from_numpy(target))
    assert float(found) == pytest.approx(by_loops(predicted, target))


@pytest.mark.slow
def test_the_quantiles_of_a_distribution_are_recovered() -> None:
    generator = torch.Generator().manual_seed(0)
    predicted = torch.zeros(1, 8, requires_grad=True)
    optimiser = torch.optim.Adam([predicted], lr=1.0)
    for step in range(900):
        optimiser.param_groups[0]["lr"] = 1.0 if step < 600 else 0.1
        samples = 100.0 * torch.rand(1, 64, generator=generator) ** 2  # skewed: the mean is not the median
        optimiser.zero_grad()
        quantile_huber_loss(predicted, samples).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
    tau = (np.arange(8) + 0.5) / 8
    assert predicted.detach()[0].numpy() == pytest.approx(100.0 * tau**2, abs=2.5)


def test_no_gradient_reaches_the_target() -> None:
    predicted, target = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    quantile_huber_loss(predicted, target).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert target.grad is None
    assert predicted.grad is not None and bool((predicted.grad < 0.0).all())
