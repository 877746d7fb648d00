"""Free devices, CPUs and memory of a pool's nodes: where a job fits, and that all is given back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import make_job, make_pool

from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.engine.pool_state import AWAKE, DOWN, SUSPENDED, PoolState
from slurm_energy.twin.world import SuspendSettings


def state(*, by_node: bool = True, **changes: Any) -> PoolState:
    return PoolState(make_pool(**changes), by_node=by_node)


def take(pool: PoolState, job: Job, gpus: int) -> JobRun:
    run = JobRun(job)
    allocation = pool.find(job, gpus)
    assert allocation is not None
    run.allocation, run.gpus = allocation, gpus
    pool.take(run, allocation, gpus)
    return run


def nodes_of(run: JobRun) -> list[tuple[int, int]]:
    return sorted((node, held) for node, _, held in run.allocation)


def test_a_part_of_a_node_goes_where_the_fewest_devices_stay_free() -> None:
    pool = state(nodes=3)
    take(pool, make_job(1, gpus=1), 1)
    take(pool, make_job(2, gpus=3), 3)
    assert pool.free == [0, 4, 4]
    take(pool, make_job(3, gpus=2), 2)
    assert nodes_of(take(pool, make_job(4, gpus=2), 2)) == [(1, 2)]


def test_a_job_wider_than_a_node_takes_whole_nodes_and_a_part() -> None:
    pool = state(nodes=3)
    assert nodes_of(take(pool, make_job(1, gpus=6), 6)) == [(0, 4), (1, 2)]
    assert pool.find(make_job(2, gpus=6), 6) == [(2, 4, 4), (1, 2, 2)]


def test_free_devices_in_pieces_do_not_hold_a_job_that_packs_but_one_that_may_spread() -> None:
    pool = state(nodes=2)
    take(pool, make_job(1, gpus=3), 3)
    take(pool, make_job(2, gpus=3), 3)
    assert pool.room(make_job(3, gpus=2), 99) == 0
    assert pool.room(make_job(4, gpus=2, spread=True), 99) == 2
    assert nodes_of(take(pool, make_job(4, gpus=2, spread=True), 2)) == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("gpus", "changes", "where"),
    [
        (1, {}, [(1, 1, 1)]),
        (5, {}, [(1, 4, 4), (2, 1, 1)]),
        (2, {"exclusive": True}, [(1, 2, 4)]),
        (6, {"spread": True}, [(1, 4, 4), (2, 2, 2)]),
        (9, {}, None),
    ],
)
def test_nodes_that_are_kept_for_another_job_are_left_alone(
    gpus: int, changes: dict[str, Any], where: list[tuple[int, int, int]] | None
) -> None:
    assert state(nodes=3).find(make_job(1, gpus=gpus, **changes), gpus, without=frozenset({0})) == where


def test_an_exclusive_job_holds_whole_nodes_and_uses_what_it_asked_for() -> None:
    pool = state(nodes=2)
    run = take(pool, make_job(1, gpus=1, exclusive=True), 1)
    assert run.allocation == [(0, 1, 4)]
    assert pool.free_total == 4
    take(pool, make_job(2, gpus=1), 1)
    assert pool.room(make_job(3, gpus=1, exclusive=True), 99) == 0
    pool.give_back(run, 1)
    assert pool.free_total == 7


def test_an_exclusive_job_with_a_broken_device_on_every_node_does_not_fit() -> None:
    pool = state(nodes=1)
    pool.break_device(0)
    assert pool.room(make_job(1, exclusive=True), 99) == 0
    assert pool.room(make_job(1, gpus=3), 99) == 3
    pool.repair_device(0)
    assert pool.room(make_job(1, exclusive=True), 99) == 1


def test_cpus_keep_a_job_off_a_node_with_free_devices() -> None:
    pool = state(nodes=2, cpus_per_node=16)
    take(pool, make_job(1, gpus=1, cpus=14), 1)
    run = take(pool, make_job(2, gpus=1, cpus=4), 1)
    assert nodes_of(run) == [(1, 1)]
    assert pool.cpus_free == [2, 12]
    assert pool.room(make_job(3, gpus=1, cpus=13), 99) == 0


def test_cpus_of_a_job_over_two_nodes_are_split_as_its_devices_are() -> None:
    pool = state(nodes=2, cpus_per_node=16)
    take(pool, make_job(1, gpus=6, cpus=18), 6)
    assert pool.cpus_free == [16 - 12, 16 - 6]


def test_an_exclusive_job_with_few_devices_needs_no_more_cpus_than_it_asks_for() -> None:
    pool = state(nodes=1, cpus_per_node=16)
    assert pool.room(make_job(1, gpus=1, cpus=8, exclusive=True), 99) == 1


def test_a_spread_job_takes_from_each_node_what_its_cpus_allow() -> None:
    pool = state(nodes=2, cpus_per_node=2)
    assert nodes_of(take(pool, make_job(1, gpus=4, cpus=4, spread=True), 4)) == [(0, 2), (1, 2)]


def test_a_smaller_count_that_would_not_fit_takes_the_larger_ones_from_the_room() -> None:
    """5 devices put 8 of the job's 9 CPUs on one node, 6 devices only 6 of them."""
    pool = state(nodes=2, cpus_per_node=6)
    assert pool.room(make_job(1, gpus=(5, 6), cpus=9), 99) == 0
    assert pool.room(make_job(2, gpus=(6,), cpus=9), 99) == 6


def test_memory_is_given_back_to_the_last_byte() -> None:
    pool = state(nodes=1, memory_gib_per_node=0.6)
    runs = [take(pool, make_job(number, memory_gib=memory), 1) for number, memory in enumerate((0.1, 0.2, 0.3))]
    for run in runs:
        pool.give_back(run, 1)
    assert pool.memory_free == [0.6]
    assert pool.room(make_job(9, memory_gib=0.6), 99) == 1


def test_memory_that_adds_up_to_the_node_s_fits_in_spite_of_rounding() -> None:
    pool = state(nodes=1, memory_gib_per_node=0.6)
    for number in range(3):
        take(pool, make_job(number, memory_gib=0.2), 1)
    assert pool.free_total == 1


def test_what_a_job_took_is_given_back_by_the_neighbour_that_stays() -> None:
    pool = state(nodes=1, cpus_per_node=16, jobs_per_gpu=2)
    first, second = take(pool, make_job(1, cpus=4), 1), JobRun(make_job(2, cpus=1))
    pool.runs[2] = second
    second.gpus, second.allocation, first.allocation = 1, first.allocation, []
    del pool.runs[1], pool.runs_on[0][1]
    pool.runs_on[0][2] = second
    pool.give_back(second, 1)
    assert (pool.cpus_free, pool.free) == ([16], [4])


def test_a_node_that_is_down_has_no_room_and_comes_back_with_all_its_devices() -> None:
    pool = state(nodes=2)
    pool.break_device(1)
    pool.set_power(1, DOWN)
    assert pool.free_total == 4
    assert pool.room(make_job(1, gpus=(1, 8)), 99) == 1
    pool.repair_device(1)
    pool.set_power(1, AWAKE)
    assert pool.free_total == 8


def sleeping(*asleep: int, nodes: int = 3) -> PoolState:
    settings = SuspendSettings(idle_seconds=1.0, resume_seconds=1.0, suspended_watts=1.0, resume_watts=1.0)
    pool = state(nodes=nodes, suspend=settings)
    for node in asleep:
        pool.set_power(node, SUSPENDED)
    return pool


@pytest.mark.parametrize(("gpus", "woken"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2)])
def test_nodes_that_a_start_would_wake(gpus: int, woken: int) -> None:
    pool = sleeping(1, 2)
    assert pool.sleeping_needed(gpus) == woken
    assert len([node for node, _, _ in pool.find(make_job(1, gpus=gpus), gpus) or [] if node]) == woken


def test_free_devices_in_pieces_spare_no_sleeping_node() -> None:
    pool = sleeping(2)
    for number in range(4):
        take(pool, make_job(number, gpus=2), 2)
    pool.give_back(pool.runs[0], 2)
    pool.give_back(pool.runs[2], 2)
    assert pool.free == [2, 2, 4]
    assert [pool.sleeping_needed(gpus) for gpus in (2, 3, 4)] == [0, 1, 1]


def test_awake_nodes_go_before_sleeping_ones() -> None:
    pool = sleeping(0)
    assert nodes_of(take(pool, make_job(1, gpus=1), 1)) == [(1, 1)]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9), st.integers(0, 20), st.sampled_from([0.0, 0.1, 7.3, 32.0]), st.booleans(), st.booleans()
        ),
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_taken_is_there_and_all_of_it_comes_back(
    asks: list[tuple[int, int, float, bool, bool]], random: Any
) -> None:
    pool = state(nodes=3, cpus_per_node=16, memory_gib_per_node=64.0)
    running: list[JobRun] = []
    for number, (gpus, cpus, memory, exclusive, spread) in enumerate(asks):
        job = make_job(number, gpus=gpus, cpus=cpus, memory_gib=memory, exclusive=exclusive, spread=spread)
        if pool.room(job, 99):
            running.append(take(pool, job, gpus))
            assert sum(used for _, used, _ in running[-1].allocation) == gpus
        elif running:
            leaving = running.pop(random.randrange(len(running)))
            pool.give_back(leaving, leaving.gpus)
        held = [sum(count for run in running for at, _, count in run.allocation if at == node) for node in range(3)]
        assert pool.free == [4 - count for count in held]
        assert pool.free_total == sum(pool.free)
        assert all(cpus >= 0 for cpus in pool.cpus_free)
        assert all(memory >= -1e-9 for memory in pool.memory_free)
    for run in running:
        pool.give_back(run, run.gpus)
    assert (pool.free, pool.cpus_free, pool.memory_free) == ([4] * 3, [16] * 3, [64.0] * 3)
    assert not any(pool.runs_on) and not pool.runs


def test_nodes_without_any_job_that_a_start_would_take_are_counted() -> None:
    pool = PoolState(make_pool(nodes=3, gpus_per_node=4), by_node=True)
    assert [pool.opened_nodes(gpus) for gpus in (1, 4, 5, 8)] == [1, 1, 2, 2]
    job = make_job(1, gpus=2)
    found = pool.find(job, 2)
    assert found is not None
    pool.take(JobRun(job), found, 2)
    assert [pool.opened_nodes(gpus) for gpus in (1, 2, 3, 4, 6)] == [0, 0, 1, 1, 1]
    assert PoolState(make_pool(nodes=1, gpus_per_node=4), by_node=False).opened_nodes(2) == 0
