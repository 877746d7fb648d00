"""The node of a start, and whether it is worth waiting for one: known answers by hand."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.policy.placement import PlaceNode
from slurm_energy.policy.rules.total_cost import PackingPrices, Slot, Stay, best_slot

PRICES = PackingPrices(longer_watts=1000.0, idle_seconds=900.0, wait_watts=10.0)


def node(number: int, free: int, *ends: float, awake: bool = True) -> PlaceNode:
    """Return a node of which each job has one device."""
    return PlaceNode(number, free, awake, tuple((end, 1) for end in sorted(ends)))


def stay(seconds: float = 100.0, gpus: int = 1, latest: float = 0.0) -> Stay:
    return Stay(gpus=gpus, seconds=seconds, now_seconds=0.0, latest_seconds=latest)


def test_a_job_goes_where_the_last_job_ends_soonest_after_it() -> None:
    nodes = [node(0, 3, 5000.0), node(1, 3, 130.0), node(2, 3, 90.0)]
    assert best_slot(nodes, stay(100.0), PRICES) == Slot(1, 0.0)


def test_a_job_that_outlasts_all_goes_where_it_keeps_a_node_awake_least_longer() -> None:
    nodes = [node(0, 3, 500.0), node(1, 3, 900.0), node(2, 3)]
    assert best_slot(nodes, stay(4000.0), PRICES) == Slot(1, 0.0)


def test_an_idle_node_that_is_awake_is_taken_before_one_that_sleeps() -> None:
    nodes = [node(0, 4, awake=False), node(1, 4), node(2, 0, 50.0)]
    assert best_slot(nodes, stay(), PRICES) == Slot(1, 0.0)


def test_the_scheduler_wakes_a_node_where_none_is_awake_with_room() -> None:
    assert best_slot([node(0, 4, awake=False), node(1, 1, 50.0)], stay(gpus=2), PRICES) == Slot(None, 0.0)
    assert best_slot([], stay(), PRICES) == Slot(None, 0.0)


def test_a_job_waits_for_a_node_that_lasts_rather_than_keep_one_awake() -> None:
    # Opening costs 1000 W x (100 + 900) s = 1e6 J, 40 s of waiting 400 J; it would come back a second after the end.
    nodes = [node(0, 0, 40.0, 5000.0), node(1, 4, awake=False)]
    assert best_slot(nodes, stay(latest=60.0), PRICES).start_seconds == 41.0
    assert best_slot(nodes, stay(latest=39.0), PRICES) == Slot(None, 0.0)


def test_a_job_does_not_wait_where_waiting_costs_more_than_it_saves() -> None:
    # Longer awake now: 100 - 80 = 20 s, 20 kJ; later 10 s of waiting.
    nodes = [node(0, 1, 80.0), node(1, 0, 10.0, 5000.0)]
    assert best_slot(nodes, stay(latest=60.0), PRICES).start_seconds == 11.0
    dear = PRICES._replace(wait_watts=2001.0)
    assert best_slot(nodes, stay(latest=60.0), dear) == Slot(0, 0.0)


def test_a_job_does_not_wait_while_a_node_that_lasts_has_room() -> None:
    nodes = [node(0, 1, 5000.0), node(1, 0, 10.0, 200.0)]
    assert best_slot(nodes, stay(latest=60.0), PRICES) == Slot(0, 0.0)


def test_a_wide_job_waits_for_as_many_ends_as_it_needs() -> None:
    nodes = [node(0, 1, 10.0, 20.0, 30.0, 5000.0), node(1, 8, awake=False)]
    assert best_slot(nodes, stay(gpus=3, latest=60.0), PRICES).start_seconds == 21.0


def test_ends_that_have_passed_are_not_waited_for() -> None:
    nodes = [node(0, 0, -5.0, 5000.0), node(1, 4, awake=False)]
    assert best_slot(nodes, stay(latest=60.0), PRICES) == Slot(None, 0.0)


ends = st.lists(st.floats(-50.0, 5000.0), max_size=8)
states = st.lists(st.tuples(ends, st.booleans()), max_size=6).map(
    lambda rows: [node(number, 8 - len(row), *row, awake=awake) for number, (row, awake) in enumerate(rows)]
)


@given(states, st.integers(1, 7), st.floats(1.0, 5000.0), st.floats(-10.0, 500.0))
def test_a_node_has_room_and_a_wait_is_within_its_limit(
    nodes: list[PlaceNode], gpus: int, seconds: float, latest: float
) -> None:
    slot = best_slot(nodes, stay(seconds, gpus, latest), PRICES)
    if slot.node is not None:
        assert nodes[slot.node].free_gpus >= gpus and nodes[slot.node].is_awake
    assert slot.start_seconds == 0.0 or 0.0 < slot.start_seconds <= latest + 1.0


@pytest.mark.parametrize("latest", [0.0, -1.0, -inf])
def test_a_job_that_shall_not_wait_starts_now(latest: float) -> None:
    assert best_slot([node(0, 0, 1.0, 5000.0)], stay(latest=latest), PRICES).start_seconds == 0.0
