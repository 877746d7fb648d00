from typing import Any

import pytest
from small_clusters import make_node

from slurm_energy.domain.cluster import NodeGpus
from slurm_energy.graph.holdings import Held, Holding, held_devices, spread

NODE = make_node()
TYPES = ("a100",) * 4


def hold(task: int, devices: int = 1, positions: tuple[int, ...] | None = None, types: tuple[str, ...] = ()) -> Holding:
    return Holding(task=task, devices=devices, positions=positions, slurm_types=types)


def test_jobs_take_the_first_free_devices_in_their_order() -> None:
    held = held_devices(TYPES, NODE, [hold(5, 1), hold(9, 2)])
    assert held == Held([5, 9, 9], [0, 1, 2], [True, True, True, False])


def test_known_positions_come_first_and_may_be_shared() -> None:
    held = held_devices(TYPES, NODE, [hold(1, 2), hold(2, 2, (0, 1)), hold(3, 1, (1, 1, 7, -1))])
    assert held == Held([2, 2, 3, 1, 1], [0, 1, 1, 2, 3], [True] * 4)


def test_a_job_takes_devices_of_its_types() -> None:
    held = held_devices(("a100", "t4", "t4"), NODE, [hold(1, 1, types=("t4",)), hold(2, 1)])
    assert (held.tasks, held.devices) == ([1, 2], [1, 0])


def test_more_than_there_is_is_cut() -> None:
    assert held_devices(TYPES[:1], NODE, [hold(1, 3), hold(2, 1)]) == Held([1], [0], [True])


def test_devices_that_slurm_counts_as_allocated_are_in_use_by_nobody_known() -> None:
    node = make_node(gpus=(NodeGpus(slurm_type="a100", count=3, allocated=2), NodeGpus(slurm_type="t4", count=1)))
    held = held_devices(("a100", "a100", "a100", "t4"), node, [hold(1, 1, (2,))])
    assert held == Held([1], [2], [True, False, True, False])


@pytest.mark.parametrize(
    ("changes", "jobs", "in_use"), [({}, 0, False), ({"cpus_allocated": 64}, 0, True), ({}, 2, True)]
)
def test_a_node_without_gpus_has_one_device_that_its_jobs_share(
    changes: dict[str, Any], jobs: int, in_use: bool
) -> None:
    holdings = [hold(number, 0) for number in range(jobs)]
    held = held_devices((), make_node(count=0, **changes), holdings)
    assert held == Held(list(range(jobs)), [0] * jobs, [in_use])


def test_devices_are_spread_evenly() -> None:
    assert [spread(7, 3, index) for index in range(3)] == [3, 2, 2]
    assert [spread(1, 3, index) for index in range(3)] == [1, 0, 0]
