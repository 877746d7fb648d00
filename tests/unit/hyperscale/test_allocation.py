"""Parts to devices: the agent beside the exact optimum, memory, and moves while training."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from slurm_energy.errors import ConfigError
from slurm_energy.hyperscale.allocation import Agent, PartAllocation, exact, greedy
from slurm_energy.hyperscale.reallocation import MIN_GAIN, WINDOW_EPOCHS, Reallocator, Transition
from slurm_energy.hyperscale.training import EpochReport


def problem(seed: int, parts: int, devices: int) -> PartAllocation:
    drawn = np.random.default_rng(seed)
    exchanged = drawn.exponential(1e6, (parts, parts)) * (drawn.random((parts, parts)) < 0.6)
    exchanged = exchanged + exchanged.T
    np.fill_diagonal(exchanged, 0.0)
    return PartAllocation(
        work=tuple(drawn.uniform(1e5, 1e6, parts).tolist()),
        part_bytes=(10,) * parts,
        exchanged_bytes=exchanged,
        speeds=tuple(drawn.uniform(1e6, 8e6, devices).tolist()),
        memory_bytes=(10 * (parts // devices + 3),) * devices,
        link_bytes_per_second=10.0 ** drawn.uniform(7.0, 9.5),
    )


@pytest.mark.parametrize("seed", range(4))
def test_highs_finds_the_cheapest_of_all_allocations(seed: int) -> None:
    case = problem(seed, 5, 3)
    cheapest = min(case.cost(places) for places in product(range(3), repeat=5))
    assert case.cost(exact(case)) == pytest.approx(cheapest)


@pytest.mark.parametrize(
    ("seed", "parts", "devices"), [(0, 4, 2), (1, 6, 2), (2, 7, 3), (3, 8, 3), (4, 8, 4), (5, 9, 4)]
)
def test_the_agent_is_at_most_5_percent_worse_than_the_optimum(seed: int, parts: int, devices: int) -> None:
    case = problem(seed, parts, devices)
    assert case.cost(Agent(seed).learn(case, updates=40)) <= 1.05 * case.cost(exact(case))


def test_what_the_agent_learned_makes_its_tries_cheaper() -> None:
    case, agent = problem(8, 9, 3), Agent(3)
    before, _ = agent.tried(case, 200)
    agent.learn(case, updates=40)
    after, _ = agent.tried(case, 200)
    costs = [np.mean([case.cost(one) for one in tries.tolist()]) for tries in (before, after)]
    assert costs[1] < 0.8 * costs[0]


def test_the_same_seed_gives_the_same_places() -> None:
    case = problem(3, 8, 3)
    assert Agent(5).learn(case, updates=3) == Agent(5).learn(case, updates=3)


@pytest.mark.parametrize("allocate", [greedy, exact, lambda case: Agent().learn(case, updates=5)])
def test_no_device_gets_more_than_its_memory(allocate: Any) -> None:
    case = replace(problem(1, 6, 2), memory_bytes=(20, 40), speeds=(9e6, 1e6))
    places = allocate(case)
    assert [places.count(device) for device in range(2)] == [2, 4]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("memory_bytes", (20, 20), "parts need 60 bytes together and 10 at most"),
        ("memory_bytes", (60,), "each device memory"),
        ("speeds", (1.0, 0.0), "speeds and link_bytes_per_second more than 0"),
        ("speeds", (1.0, float("nan")), "speeds and link_bytes_per_second more than 0"),
        ("work", (1.0,) * 5 + (-1.0,), "work must be 0 or more"),
        ("exchanged_bytes", np.zeros((2, 2)), r"the shape \(2, 2\), there are 6 parts"),
        ("exchanged_bytes", np.full((6, 6), -1.0), "exchanged bytes must be finite and 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(problem(1, 6, 2), **{field: value})


def test_too_many_parts_for_the_exact_allocation_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="use the agent"):
        exact(problem(1, 64, 8))


def simulated(reallocator: Reallocator, speeds_at: Any, case: PartAllocation, epochs: int) -> list[tuple[int, ...]]:
    """Return the places in each epoch of a training whose ranks have these speeds."""
    places, history = greedy(case), []
    for epoch in range(1, epochs + 1):
        work = np.bincount(places, weights=case.work, minlength=len(case.speeds))
        busy = work / np.array(speeds_at(epoch))
        report = EpochReport(
            epoch=epoch,
            loss=1.0,
            seconds=float(busy.max()),
            busy_seconds=tuple(busy.tolist()),
            waited_seconds=tuple((busy.max() - busy).tolist()),
            sent_bytes=0,
            accuracy=None,
        )
        history.append(places)
        places = reallocator(report, places) or places
    return history


def even(parts: int = 12) -> PartAllocation:
    return PartAllocation(
        work=(1e6,) * parts,
        part_bytes=(1,) * parts,
        exchanged_bytes=np.full((parts, parts), 10.0),
        speeds=(4e6, 4e6, 4e6),
        memory_bytes=(parts,) * 3,
        link_bytes_per_second=1e8,
    )


def test_parts_move_off_a_device_that_becomes_slow() -> None:
    case = even()
    moves: list[tuple[Transition, float]] = []
    moved = Reallocator(case, 400, move_seconds=1.0, on_move=lambda *one: moves.append(one))
    history = simulated(moved, lambda epoch: (4e6, 4e6, 4e6 if epoch <= 20 else 1e6), case, 60)
    assert history[19].count(2) == 4
    assert history[-1].count(2) <= 2
    assert len(moves) == 1
    state, expected = moves[0]
    assert 20 < state.epoch <= 20 + 2 * WINDOW_EPOCHS
    assert state.utilisation[2] == pytest.approx(1.0)
    assert state.utilisation[0] < 0.5
    assert -state.reward > 1.5 * expected


def test_parts_stay_where_devices_are_as_planned_or_little_is_left_to_train() -> None:
    case = even()
    steady = simulated(Reallocator(case, 400, move_seconds=1.0), lambda _: (4e6, 3.9e6, 4.1e6), case, 40)
    assert len(set(steady)) == 1, f"a move that saves less than {MIN_GAIN:.0%}"
    late = simulated(Reallocator(case, 42, move_seconds=60.0), lambda epoch: (4e6, 4e6, 1e6), case, 40)
    assert len(set(late)) == 1


def test_transitions_have_the_state_of_the_formulation() -> None:
    case = even()
    watcher = Reallocator(case, 400)
    simulated(watcher, lambda _: (4e6, 4e6, 2e6), case, WINDOW_EPOCHS)
    (only,) = watcher.transitions
    assert only.utilisation == pytest.approx((0.5, 0.5, 1.0))
    assert sum(only.received_share) == pytest.approx(1.0)
    assert only.reward == pytest.approx(-2.0 - case.communication_weight * only.communication_seconds)
