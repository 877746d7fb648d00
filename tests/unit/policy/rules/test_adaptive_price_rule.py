"""The price on devices that follows their occupancy, and the rule that knows the true work."""

from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_factory import A10, A30, H100, L4, TWO_CLOCKS, Device, FakeView, make_job, make_view

from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule
from slurm_energy.policy.rules.adaptive_price import AdaptivePriceRule


def begun(text: str, view: FakeView) -> AdaptivePriceRule:
    rule = create_rule(text)
    assert isinstance(rule, AdaptivePriceRule)
    rule.begin(view, Random(1))
    return rule


def arrive(rule: AdaptivePriceRule, view: FakeView, times: int = 1) -> tuple[float, ...]:
    for _ in range(times):
        assert rule.route(make_job(), view) is None
    return rule.prices_watts


def test_the_price_rises_by_k_times_the_occupancy_above_the_threshold_at_every_arrival() -> None:
    view = make_view(devices=(H100, L4), totals=(100, 100), free_gpus=[1, 1])
    rule = begun("adaptive-price:k=2,threshold=0.95", view)
    assert arrive(rule, view) == pytest.approx((0.08, 0.08))
    assert arrive(rule, view, 3) == pytest.approx((0.32, 0.32))
    view.free_gpus = [30, 0]
    assert arrive(rule, view) == pytest.approx((0.12, 0.12))
    assert arrive(rule, view) == (0.0, 0.0), "never below 0"


def test_the_price_has_a_ceiling_and_a_new_run_starts_without_one() -> None:
    view = make_view(devices=(H100,), totals=(100,), free_gpus=[1])
    rule = begun("adaptive-price:k=1000,ceiling=60", view)
    assert arrive(rule, view, 5) == (60.0,)
    rule.begin(view, Random(1))
    assert rule.prices_watts == (0.0,)


def test_jobs_that_wait_count_as_a_full_cluster_though_devices_are_free() -> None:
    view = make_view(devices=(H100,), totals=(100,), free_gpus=[60], num_waiting=3)
    assert arrive(begun("adaptive-price:k=2,threshold=0.95", view), view) == pytest.approx((0.1,))


def test_every_place_may_have_a_price_of_its_own() -> None:
    view = make_view(devices=(H100, L4), totals=(100, 100), free_gpus=[1, 60])
    assert arrive(begun("adaptive-price:by_place=1", view), view) == pytest.approx((0.08, 0.0))


def test_cpu_sockets_have_no_price_where_there_are_gpus() -> None:
    cpu = Device("xeon", (40.0, 30.0, 60.0), (0.0, 0.9, 0.0), 30.0, clocks=(1.0,), is_cpu=True)
    view = make_view(devices=(cpu, L4), totals=(100, 100), free_gpus=[100, 1])
    assert arrive(begun("adaptive-price", view), view) == pytest.approx((0.0, 0.08))
    only = make_view(devices=(cpu,), totals=(100,), free_gpus=[1])
    assert arrive(begun("adaptive-price", only), only) == pytest.approx((0.08,))


@given(
    mu=st.sampled_from([0.0, 5.0, 60.0, 400.0]),
    free_gpus=st.lists(st.sampled_from([0, 1, 3, 5, 8]), min_size=5, max_size=5),
    limit=st.sampled_from([600.0, 3000.0, inf]),
)
def test_the_choice_is_the_least_of_the_published_sum(mu: float, free_gpus: list[int], limit: float) -> None:
    view = make_view(devices=(H100, L4, A30, A10, TWO_CLOCKS), totals=(10,) * 5)
    view.free_gpus, view.num_waiting = free_gpus, 1
    rule = begun(f"adaptive-price:V=20,k=20000,threshold=0,ceiling={mu}", view)
    arrive(rule, view)
    job = make_job(time_limit_seconds=limit)
    table = view.options(job)
    seconds, gpus = table.seconds_per_unit, np.array(table.gpu_counts)[None, :, None]
    score = (table.watts - table.free_watts + 20.0 + mu * gpus) * seconds
    room = np.array(free_gpus)[:, None, None] >= gpus
    in_time = room & (seconds * job.estimated_units <= 0.95 * limit)
    placement = rule.place(job, view)
    if placement is None:
        assert not room.any()
        return
    chosen = (placement.place, placement.gpus - 1, placement.clock)
    if in_time.any():
        assert in_time[chosen]
        assert score[chosen] == pytest.approx(score[in_time].min())
    else:
        assert seconds[chosen] == pytest.approx(np.where(room, seconds, inf).min())


def test_a_price_makes_jobs_narrower_and_faster_per_device() -> None:
    view = make_view(devices=(A30,), totals=(100,))
    rule = begun("adaptive-price:V=100,k=100,threshold=0", view)
    before = rule.place(make_job(), view)
    view.num_waiting = 1
    arrive(rule, view, 4)
    after = rule.place(make_job(), view)
    assert before is not None and after is not None
    assert after.gpus < before.gpus
    assert after.clock > before.clock


def test_waking_counts_under_a_price_too() -> None:
    view = make_view(devices=(L4, A10), totals=(9, 9), num_waiting=1)
    rule = begun("adaptive-price:k=5", view)
    arrive(rule, view)
    job = make_job(gpu_counts=(1,), estimated_units=1000.0)
    awake = rule.place(job, view)
    view.wake = {0: 1e5}
    asleep = rule.place(job, view)
    assert awake is not None and asleep is not None
    assert (awake.place, asleep.place) == (0, 1)
    view.wake = {0: 1e5, 1: 1e5}
    assert rule.place(job, view) == awake


def test_only_the_clairvoyant_sees_that_the_estimate_is_wrong() -> None:
    view = make_view(devices=(L4,), totals=(8,))
    job = make_job(gpu_counts=(1,), true_units=10_000.0, estimated_units=40_000.0, time_limit_seconds=900.0)
    assert begun("clairvoyant", view).place(job, view) == Placement(0, 1, 5)
    assert begun("adaptive-price", view).place(job, view) == Placement(0, 1, 7), "thought to be too long at any clock"


@pytest.mark.parametrize("name", ["slurm-default", "dp", "greedy", "price", "adaptive-price", "edp", "job-table"])
def test_no_other_rule_reads_the_truth(name: str) -> None:
    view = make_view(devices=(L4, A10), totals=(8, 8))
    placements = set()
    for truth in (1.0, 1e7):
        rule = create_rule(name)
        rule.begin(view, Random(1))
        job = make_job(true_units=truth, routed_place=0, time_limit_seconds=3000.0, deadline_seconds=2000.0)
        placements.add(rule.place(job, view))
    assert len(placements) == 1
