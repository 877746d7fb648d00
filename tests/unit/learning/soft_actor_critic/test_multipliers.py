"""Multipliers rise while a constraint is broken, fall back to 0 while it is kept, and weigh costs when one learns."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from seen_moments import make_step, seen_moment
from torch.nn import Parameter

from slurm_energy.errors import ConfigError
from slurm_energy.learning.experience import Costs
from slurm_energy.learning.soft_actor_critic.multipliers import ConstraintSettings, Multipliers, mean_costs

ALL = ConstraintSettings(
    latency_target_seconds=100.0, waiting_target_jobs=4.0, power_target_watts=2000.0, rate=0.5, ceiling=3.0
)


def test_a_multiplier_rises_above_the_target_and_falls_back_to_zero_below_it() -> None:
    multipliers = Multipliers(ALL)
    history = []
    for latency in (200.0, 200.0, 100.0, 50.0, 50.0, 50.0, 50.0, 50.0):
        multipliers.move(torch.tensor([latency, 0.0, 0.0]))
        history.append(float(multipliers.values[0]))
    assert history == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert multipliers.values[1:].tolist() == [0.0, 0.0]


def test_a_multiplier_stops_at_its_ceiling() -> None:
    multipliers = Multipliers(ALL)
    multipliers.move(torch.tensor([1e9, 5.0, 1e9]))
    assert multipliers.values.tolist() == pytest.approx([3.0, 0.125, 3.0])


def test_a_constraint_without_a_target_is_off_and_an_unknown_cost_moves_nothing() -> None:
    multipliers = Multipliers(replace(ALL, latency_target_seconds=None))
    multipliers.move(torch.tensor([1e9, torch.nan, 4000.0]))
    assert multipliers.values.tolist() == pytest.approx([0.0, 0.0, 0.5])
    assert multipliers.penalty(torch.tensor([1e9, 6.0, 1000.0])) == pytest.approx(3.0 * 0.5)


def test_the_reward_that_is_learned_from_is_the_lagrangian() -> None:
    multipliers = Multipliers(ALL)
    reward, durations = torch.tensor([-1.0, -2.0, 0.5]), torch.tensor([0.0, 2.0, 0.5])
    costs = torch.tensor([[50.0, 0.0, 4000.0], [300.0, 8.0, 1000.0], [0.0, 4.0, 1000.0]])
    starts = torch.tensor([True, True, False])
    assert torch.equal(multipliers.effective_reward(reward, costs, durations, starts), reward)
    multipliers.move(torch.tensor([300.0, 12.0, 3000.0]))
    first, second, third = multipliers.values.tolist()
    expected = []
    for index in range(3):
        latency, waiting, watts = costs[index].tolist()
        duration = float(durations[index])
        cost = first * (latency / 100.0 - 1.0) if starts[index] else 0.0
        cost += duration * second * (waiting / 4.0 - 1.0) + duration * third * (watts / 2000.0 - 1.0)
        expected.append((float(reward[index]) - cost) / (1.0 + first + second + third))
    assert multipliers.effective_reward(reward, costs, durations, starts).tolist() == pytest.approx(expected)


def test_an_old_transition_follows_the_multipliers_of_now() -> None:
    multipliers = Multipliers(ALL)
    reward, costs, durations = torch.tensor([-1.0]), torch.tensor([[400.0, 0.0, 0.0]]), torch.tensor([0.0])
    multipliers.move(torch.tensor([200.0, 0.0, 0.0]))
    starts = torch.tensor([True])
    broken = float(multipliers.effective_reward(reward, costs, durations, starts))
    multipliers.move(torch.tensor([0.0, 0.0, 0.0]))
    assert broken < -1.0
    assert float(multipliers.effective_reward(reward, costs, durations, starts)) == -1.0


def test_mean_costs_are_over_started_jobs_and_over_time() -> None:
    moment = seen_moment(0)
    steps = [
        make_step(moment, 0, elapsed_seconds=10.0, costs=Costs(60.0, 2.0, 100.0)),
        make_step(moment, 0, elapsed_seconds=30.0, costs=Costs(80.0, 6.0, 500.0)),
        make_step(moment, 0, elapsed_seconds=0.0, costs=Costs(100.0, 1e6, 1e6)),
        make_step(moment, -1, elapsed_seconds=40.0, costs=Costs(0.0, 1.0, 400.0)),
    ]
    assert mean_costs(steps).tolist() == pytest.approx([80.0, 3.0, 400.0])
    assert bool(torch.isnan(mean_costs([])).all())


def test_all_ranks_move_by_the_mean_of_their_costs() -> None:
    other = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]  # all of its costs are at their targets
    multipliers = Multipliers(ALL)
    multipliers.move(torch.tensor([200.0, 4.0, 2000.0]), partial(with_another_rank, other))
    assert multipliers.values.tolist() == pytest.approx([0.25, 0.0, 0.0])


def test_a_rank_that_does_not_know_a_cost_has_no_say_in_it() -> None:
    other = [0.0, 1.0, 0.0, 0.0, 1.0, 1.0]  # no job was started there, and the queue is twice as long as it should be
    multipliers = Multipliers(ALL)
    multipliers.move(torch.tensor([200.0, torch.nan, 2000.0]), partial(with_another_rank, other))
    assert multipliers.values.tolist() == pytest.approx([0.5, 0.5, 0.0])


def with_another_rank(told: Sequence[float], parameters: Iterable[Parameter]) -> None:
    """Take the mean with what another rank tells: excess of each cost, and whether it knows it."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = (parameter.grad + parameter.grad.new_tensor(told)) / 2.0


def test_settings_name_what_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"learner\.constraints\.latency_target_seconds is 0\.0"):
        ConstraintSettings(latency_target_seconds=0.0)
    with pytest.raises(ConfigError, match=r"learner\.constraints\.ceiling is inf"):
        ConstraintSettings(ceiling=float("inf"))
