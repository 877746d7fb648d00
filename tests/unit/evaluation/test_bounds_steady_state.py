"""The steady-state bound and the frontier on small worlds: by hand, by brute force, and against random mixtures."""

from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from bounds_worlds import brute_force_watts, make_device, make_pool, make_world, random_instant, random_world
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.bounds import (
    StationaryLoad,
    energy_latency_frontier,
    largest_feasible_load,
    steady_state_bound,
)
from slurm_energy.twin.world import FailureRates, Outage
from slurm_energy.twin.world.device_model import PairSpeed

SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS, instants=st.integers(1, 4))
def test_no_mixture_of_states_beats_the_bound(seed: int, instants: int) -> None:
    random = Random(seed)
    world = random_world(random)
    parts = [(random.random() + 0.01, random_instant(world, random)) for _ in range(instants)]
    time = sum(share for share, _ in parts)
    watts = sum(share * instant.watts for share, instant in parts) / time
    load = {kind: sum(share * instant.units_per_second[kind] for share, instant in parts) / time for kind in ("a", "b")}
    assert steady_state_bound(world, load).watts <= watts * (1.0 + 1e-6)


@given(seed=SEEDS, share=st.floats(0.01, 0.99))
def test_the_bound_is_the_optimum_of_a_brute_force_search(seed: int, share: float) -> None:
    random = Random(seed)
    world = random_world(random)
    device = replace(world.devices["gpu0"], context_watts=10.0, free_watts=10.0)
    pool = replace(world.pools[0], host_idle_watts=0.0, host_busy_watts=0.0, suspend=None, jobs_per_gpu=1)
    world = make_world(pool, devices=(device,), max_gpus=random.choice((1, 4)))
    load = share * largest_feasible_load(world, {"a": 1.0})["a"]
    assert steady_state_bound(world, {"a": load}).watts == pytest.approx(brute_force_watts(world, load), rel=1e-6)


def test_hosts_that_never_sleep_are_in_the_base_and_busy_devices_add_their_slope() -> None:
    world = make_world(make_pool(nodes=2, gpus_per_node=4, host=(50.0, 90.0)))
    bound = steady_state_bound(world, {"training": 1.0})
    # Two devices at the low clock, 100 W for 2 s: each adds 100 - 20 W and a quarter of 40 W of host.
    assert bound.base_watts == pytest.approx(2 * 50 + 8 * 20)
    assert bound.watts == pytest.approx(260 + 2 * (80 + 10))


def test_nodes_that_can_sleep_cost_their_share_of_being_awake_only_where_devices_are_busy() -> None:
    world = make_world(make_pool(nodes=2, gpus_per_node=4, host=(52.0, 52.0), suspended_watts=12.0))
    bound = steady_state_bound(world, {"training": 1.0})
    assert bound.base_watts == pytest.approx(2 * 12)
    # One node awake is 52 + 4 x 20 W against 12 W asleep: 30 W for each of its devices; one fast device beats two slow.
    assert bound.watts == pytest.approx(24 + min(2 * (80 + 30), 280 + 30))
    assert bound.busy_gpus == pytest.approx(2)


def test_no_load_leaves_the_base() -> None:
    bound = steady_state_bound(make_world(), {"training": 0.0})
    assert (bound.watts, bound.joules_per_unit) == pytest.approx((80.0, inf))
    assert bound.runs == ()


def test_two_kinds_share_the_devices_of_a_pool() -> None:
    world = make_world(devices=(make_device(kinds=("a", "b")),))
    bound = steady_state_bound(world, {"a": 1.0, "b": 1.5})
    # 4 devices, 2.5 units/s: slow devices do 0.5, fast ones 1; one fast and three slow carry it.
    assert bound.watts == pytest.approx(300 + 3 * 100)
    assert sum(run.units_per_second for run in bound.runs if run.kind == "a") == pytest.approx(1.0)
    assert sum(run.units_per_second for run in bound.runs if run.kind == "b") == pytest.approx(1.5)


def test_sharing_is_used_where_the_pool_allows_it() -> None:
    pairs = {("a", "b"): PairSpeed(speed=0.9, partner_speed=0.8, watts=320.0)}
    device = make_device(watts=(300.0,), seconds=(1.0,), kinds=("a", "b"), pairs=pairs)
    alone = steady_state_bound(make_world(make_pool(), devices=(device,)), {"a": 0.9, "b": 0.8})
    shared = steady_state_bound(make_world(make_pool(jobs_per_gpu=2), devices=(device,)), {"a": 0.9, "b": 0.8})
    assert alone.watts == pytest.approx(80 + 1.7 * 280)
    assert shared.watts == pytest.approx(80 + 300)
    assert [(run.kind, run.partner) for run in shared.runs] == [("a", "b"), ("b", "a")]
    assert [run.busy_gpus for run in shared.runs] == pytest.approx([0.5, 0.5])
    assert sum(run.watts for run in shared.runs) == pytest.approx(320.0) == shared.job_watts


def test_one_more_device_saves_what_its_price_says() -> None:
    load = {"training": 3.0}
    bound = steady_state_bound(make_world(make_pool(gpus_per_node=4)), load)
    more = steady_state_bound(make_world(make_pool(gpus_per_node=5)), load)
    # The device that is added also draws 20 W while it is free: that is no part of the price.
    assert bound.price_watts_by_pool["pool"] == pytest.approx(bound.watts - (more.watts - 20.0))
    assert bound.price_watts_by_pool["pool"] > 0.0


def test_what_fails_at_random_owes_no_idle_power() -> None:
    world = replace(make_world(), failures=FailureRates(node_mtbf_seconds=1e6))
    bound = steady_state_bound(world, {"training": 0.5})
    assert (bound.base_watts, bound.watts) == pytest.approx((0.0, 100.0))


def test_nodes_of_a_planned_outage_owe_no_idle_power() -> None:
    world = replace(make_world(make_pool(nodes=4)), outages=(Outage(pool="pool", at_seconds=0.0, nodes=1),))
    assert steady_state_bound(world, {"training": 0.5}).base_watts == pytest.approx(3 * 80)


def test_a_load_that_nobody_can_carry_names_the_largest() -> None:
    with pytest.raises(ValueRangeError, match=r"load 5 of training units/s .* at most 4 of training"):
        steady_state_bound(make_world(), {"training": 5.0})


@pytest.mark.slow
@given(seed=SEEDS)
def test_the_largest_load_can_be_carried_and_no_more(seed: int) -> None:
    world = random_world(Random(seed))
    largest = largest_feasible_load(world, {"a": 1.0, "b": 2.0})
    assert largest["b"] == pytest.approx(2.0 * largest["a"])
    assert steady_state_bound(world, {kind: 0.9999 * load for kind, load in largest.items()}).busy_gpus > 0.0
    with pytest.raises(ValueRangeError, match="more than world small can carry"):
        steady_state_bound(world, {kind: 1.001 * load for kind, load in largest.items()})


@pytest.mark.parametrize("load", [-1.0, nan, inf])
def test_a_load_must_be_a_number_from_0_up(load: float) -> None:
    with pytest.raises(ValueRangeError, match=r"load in units/s .* of kind 'training'"):
        steady_state_bound(make_world(), {"training": load})


def test_a_kind_without_a_place_is_named() -> None:
    with pytest.raises(ValueRangeError, match=r"kind 'genomics' .* can run nowhere in world small"):
        steady_state_bound(make_world(), {"genomics": 1.0})


def test_device_counts_start_at_1() -> None:
    with pytest.raises(ValueRangeError, match="device counts"):
        steady_state_bound(make_world(), {"training": 1.0}, {"training": (0, 1)})


def test_too_many_counts_are_asked_for_by_name() -> None:
    world = make_world(make_pool(nodes=200), max_gpus=800)
    with pytest.raises(ValueRangeError, match="up to 800 devices"):
        steady_state_bound(world, {"training": 1.0})
    assert steady_state_bound(world, {"training": 1.0}, {"training": (1, 800)}).busy_gpus == pytest.approx(2.0)


def frontier_load(units_per_second: float = 1.0, units: float = 10.0) -> StationaryLoad:
    return StationaryLoad(
        units_per_second_by_kind={"training": units_per_second}, mean_units_by_kind={"training": units}
    )


def test_a_frontier_buys_time_with_energy_until_time_is_out_of_reach() -> None:
    # Jobs of 10 units run 20 s at the low clock and 10 s at the high one; wider jobs are faster at the same energy.
    world = make_world(max_gpus=1)
    slow, mixed, fast = energy_latency_frontier(world, frontier_load(), [inf, 15.0, 10.0])
    assert [slow.bound.watts, mixed.bound.watts, fast.bound.watts] == pytest.approx([240.0, 300.0, 360.0])
    assert [slow.mean_run_seconds, mixed.mean_run_seconds] == pytest.approx([20.0, 15.0])
    with pytest.raises(ValueRangeError, match=r"mean run time 9 s is out of reach .* at least 10 s"):
        energy_latency_frontier(world, frontier_load(), [9.0])


def test_a_frontier_uses_wide_jobs_where_they_are_allowed() -> None:
    (point,) = energy_latency_frontier(make_world(), frontier_load(), [5.0])
    assert (point.bound.watts, point.mean_run_seconds) == pytest.approx((240.0, 5.0))


def test_a_frontier_names_a_load_that_nobody_can_carry() -> None:
    with pytest.raises(ValueRangeError, match="at most 4 of training"):
        energy_latency_frontier(make_world(), frontier_load(5.0), [100.0])


@pytest.mark.parametrize(
    ("units", "limit", "message"), [(0.0, 1.0, "mean size"), (10.0, 0.0, "limit"), (10.0, nan, "limit")]
)
def test_a_frontier_needs_sizes_and_limits_above_0(units: float, limit: float, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        energy_latency_frontier(make_world(), frontier_load(units=units), [limit])


def test_a_frontier_needs_a_load() -> None:
    with pytest.raises(ValueRangeError, match="load is 0"):
        energy_latency_frontier(make_world(), frontier_load(0.0), [100.0])


@pytest.mark.slow
@given(seed=SEEDS, share=st.floats(0.05, 0.9))
def test_a_tighter_limit_never_costs_less(seed: int, share: float) -> None:
    world = random_world(Random(seed))
    largest = largest_feasible_load(world, {"a": 1.0})["a"]
    load = StationaryLoad(units_per_second_by_kind={"a": share * largest}, mean_units_by_kind={"a": 100.0})
    (free,) = energy_latency_frontier(world, load, [inf])
    assume(free.mean_run_seconds > 0.0)
    try:
        (tight,) = energy_latency_frontier(world, load, [0.8 * free.mean_run_seconds])
    except ValueRangeError:
        return
    assert free.bound.watts == pytest.approx(steady_state_bound(world, {"a": share * largest}).watts, rel=1e-6)
    assert tight.bound.watts >= free.bound.watts * (1.0 - 1e-6)
