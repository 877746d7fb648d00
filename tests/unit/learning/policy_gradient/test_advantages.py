"""Generalised advantages agree with the sums that define them, whatever comes between the decisions."""

from dataclasses import replace
from math import exp
from random import Random

import numpy as np
import pytest

from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import decision_block
from slurm_energy.graph.schema import TASK
from slurm_energy.learning.experience import Costs, DecisionMoment, DecisionStep
from slurm_energy.learning.policy_gradient.losses import FloatArray, advantages
from slurm_energy.policy.gnn.cache import whole_blocks

HORIZON = 500.0


def some_steps(count: int, random: Random, *, is_terminal: bool) -> list[DecisionStep]:
    """Return an episode of which times and rewards alone mean anything."""
    state, decision = whole_blocks(ClusterGraph()), decision_block(np.zeros(len(TASK), dtype=np.float32), [])
    times = [0.0]
    for _ in range(count):
        times.append(times[-1] + random.choice([0.0, 3.0, random.expovariate(0.005)]))
    moments = [DecisionMoment(state=state, decision=decision, seconds=seconds) for seconds in times[:-1]]
    return [
        DecisionStep(
            moment=moment,
            asked=0,
            granted=0,
            log_prob=0.0,
            elapsed_seconds=times[index + 1] - times[index],
            reward=random.gauss(-1.0, 1.0),
            costs=Costs(0.0, 0.0, 0.0),
            following=moments[index + 1] if index + 1 < count else None,
            is_terminal=is_terminal and index + 1 == count,
        )
        for index, moment in enumerate(moments)
    ]


def by_definition(steps: list[DecisionStep], values: FloatArray, trace_decay: float) -> list[float]:
    """Return the sum over all later steps k of one episode: discount(t, k) lambda^(k - t) error(k)."""
    found = []
    for start, first in enumerate(steps):
        total, k = 0.0, start
        while True:
            step = steps[k]
            since = step.moment.seconds - first.moment.seconds
            if step.following is None and not step.is_terminal:
                break
            ahead = 0.0
            if step.following is not None:
                ahead = exp(-(step.following.seconds - step.moment.seconds) / HORIZON) * values[k + 1]
            total += exp(-since / HORIZON) * trace_decay ** (k - start) * (step.reward + ahead - values[k])
            if step.following is None:
                break
            k += 1
        found.append(total)
    return found


@pytest.mark.parametrize("trace_decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("is_terminal", [True, False], ids=["to the end", "cut off"])
def test_the_recursion_is_the_double_sum(trace_decay: float, is_terminal: bool) -> None:
    random = Random(3)
    steps = [*some_steps(9, random, is_terminal=is_terminal), *some_steps(6, random, is_terminal=not is_terminal)]
    values = np.array([random.gauss(0.0, 2.0) for _ in steps])
    found = advantages(steps, values, horizon_seconds=HORIZON, trace_decay=trace_decay)
    assert found.advantage == pytest.approx(by_definition(steps, values, trace_decay))
    assert found.returns == pytest.approx(found.advantage + values)


def test_with_lambda_1_returns_are_discounted_rewards_whatever_the_values_say() -> None:
    random = Random(1)
    steps = some_steps(7, random, is_terminal=True)
    wanted = [
        sum(exp(-(later.moment.seconds - step.moment.seconds) / HORIZON) * later.reward for later in steps[index:])
        for index, step in enumerate(steps)
    ]
    for values in (np.zeros(7), np.array([random.gauss(0.0, 5.0) for _ in steps])):
        found = advantages(steps, values, horizon_seconds=HORIZON, trace_decay=1.0)
        assert found.returns == pytest.approx(wanted)


def test_a_cut_is_valued_by_its_last_moment_and_an_end_by_nothing() -> None:
    first, last = some_steps(2, Random(2), is_terminal=False)
    values = np.array([0.0, 10.0])
    discount = exp(-first.elapsed_seconds / HORIZON)
    cut = advantages([first, last], values, horizon_seconds=HORIZON, trace_decay=0.9)
    assert cut.returns[0] == pytest.approx(first.reward + discount * 10.0)
    assert cut.is_known.tolist() == [True, False]
    ended = advantages([first, replace(last, is_terminal=True)], values, horizon_seconds=HORIZON, trace_decay=0.9)
    assert ended.returns[1] == pytest.approx(last.reward)
    assert ended.is_known.tolist() == [True, True]


def test_decisions_at_one_moment_are_not_discounted_against_each_other() -> None:
    steps = [replace(step, elapsed_seconds=0.0) for step in some_steps(4, Random(2), is_terminal=True)]
    found = advantages(steps, np.zeros(4), horizon_seconds=1.0, trace_decay=1.0)
    assert found.returns[0] == pytest.approx(sum(step.reward for step in steps))
