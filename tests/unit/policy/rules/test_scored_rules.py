"""Rules that take the least of a score: greedy, price and energy-delay product, against a plain search."""

from collections.abc import Callable
from math import inf
from random import Random
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_speed import slowness
from rule_factory import A10, A30, H100, L4, TWO_CLOCKS, FakeView, make_job, make_view

from slurm_energy.policy.placement import FloatArray, OptionTable, Placement, PlacementRule
from slurm_energy.policy.registry import create_rule

SCORES: dict[str, Callable[[OptionTable], FloatArray]] = {
    "price:V=20": lambda table: (table.watts - table.free_watts + 20.0) * table.seconds_per_unit,
    "price:V=300": lambda table: (table.watts - table.free_watts + 300.0) * table.seconds_per_unit,
    "edp": lambda table: table.joules_per_unit * table.seconds_per_unit,
    "edp:exponent=2": lambda table: table.joules_per_unit * table.seconds_per_unit**2,
    "greedy": lambda table: table.joules_per_unit + 1e9 * np.arange(len(table.gpu_counts))[None, :, None],
}
ROOMS = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 100]), min_size=5, max_size=5)


def begun(text: str, view: FakeView) -> PlacementRule:
    rule = create_rule(text)
    rule.begin(view, Random(1))
    return rule


def wide_view(free_gpus: list[int] | None = None) -> FakeView:
    return make_view(devices=(H100, L4, A30, A10, TWO_CLOCKS), totals=(100,) * 5, free_gpus=free_gpus or [100] * 5)


def least(score: FloatArray, table: OptionTable, allowed: Callable[[int, int, int], bool]) -> float:
    return min(
        (float(score[index]) for index in np.ndindex(*score.shape) if score[index] < inf and allowed(*index)),
        default=inf,
    )


@pytest.mark.parametrize("text", SCORES)
@given(free_gpus=ROOMS, counts=st.sampled_from([(1,), (4,), (2, 3, 8), tuple(range(1, 9))]))
def test_no_option_with_room_has_a_lower_score(text: str, free_gpus: list[int], counts: tuple[int, ...]) -> None:
    view = wide_view()
    view.free_gpus = free_gpus
    job = make_job(gpu_counts=counts)
    table = view.options(job)
    score = SCORES[text](table)
    best = least(score, table, lambda place, count, _: counts[count] <= free_gpus[place])
    placement = begun(text, view).place(job, view)
    if placement is None:
        assert best == inf
    else:
        assert isinstance(placement, Placement)
        assert placement.gpus <= free_gpus[placement.place]
        assert score[placement.place, table.count_index(placement.gpus), placement.clock] == pytest.approx(best)


@given(
    free_gpus=ROOMS,
    slowdown=st.sampled_from([0.0, 0.1, 0.5, inf]),
    limit=st.sampled_from([300.0, 1500.0, 4000.0, inf]),
    text=st.sampled_from(sorted(SCORES)),
)
def test_bounds_leave_the_best_of_the_options_that_keep_them(
    free_gpus: list[int], slowdown: float, limit: float, text: str
) -> None:
    view = wide_view()
    view.free_gpus = free_gpus
    job = make_job(max_slowdown=slowdown, time_limit_seconds=limit)
    table = view.options(job)
    seconds, score = table.seconds_per_unit, SCORES[text](table)
    default = [seconds[place, :, len(device.clocks) - 1] for place, device in enumerate(view.devices)]

    def keeps(place: int, count: int, clock: int) -> bool:
        takes = seconds[place, count, clock]
        in_time = takes * job.estimated_units <= 0.95 * limit
        return bool(count < free_gpus[place] and in_time and takes <= default[place][count] * (1.0 + slowdown) * 1.0001)

    best = least(score, table, keeps)
    placement = begun(text, view).place(job, view)
    if placement is None:
        assert not any(free_gpus)
        return
    assert isinstance(placement, Placement)
    chosen = (placement.place, placement.gpus - 1, placement.clock)
    if best < inf:
        assert keeps(*chosen)
        assert score[chosen] == pytest.approx(best)
    else:
        fastest = least(seconds, table, lambda place, count, _: count < free_gpus[place])
        assert seconds[chosen] == pytest.approx(fastest), "when nothing keeps the limit, the fastest option"


@pytest.mark.parametrize("text", ["greedy", "price", "adaptive-price"])
def test_a_deadline_that_can_be_met_is_met_and_one_that_cannot_binds_no_more(text: str) -> None:
    view = wide_view()
    view.now_seconds = 1000.0
    free = begun(text, view).place(make_job(), view)
    assert isinstance(free, Placement)
    hurried = begun(text, view).place(make_job(deadline_seconds=1400.0), view)
    assert isinstance(hurried, Placement) and hurried != free
    table = view.options(make_job())
    assert table.seconds_per_unit[hurried.place, hurried.gpus - 1, hurried.clock] * 50_000.0 <= 400.0
    for too_late in (1001.0, 900.0):
        assert begun(text, view).place(make_job(deadline_seconds=too_late), view) == free


def test_greedy_takes_one_device_at_the_energy_optimal_clock_of_the_cheapest_place_with_room() -> None:
    view = make_view(devices=(H100, L4, A30, A10), totals=(9, 9, 9, 9))
    rule = begun("greedy", view)
    order = []
    for _ in range(4):
        placement = rule.place(make_job(), view)
        assert isinstance(placement, Placement)
        order.append(placement)
        view.free_gpus[placement.place] = 0
    assert order == [Placement(1, 1, 4), Placement(3, 1, 5), Placement(2, 1, 5), Placement(0, 1, 5)]


@pytest.mark.parametrize("text", ["greedy", "price:V=0", "adaptive-price:V=0"])
def test_waking_a_node_costs_what_it_takes_unless_told_otherwise(text: str) -> None:
    view = make_view(devices=(H100, L4, A10), totals=(9, 9, 9), wake={1: 2e5})
    short, long = make_job(estimated_units=1000.0), make_job(estimated_units=1e6)
    first, second = begun(text, view).place(short, view), begun(text, view).place(long, view)
    assert isinstance(first, Placement) and isinstance(second, Placement)
    assert (first.place, second.place) == (2, 1)
    careless = begun(text + (",wake=0" if ":" in text else ":wake=0"), view).place(short, view)
    assert isinstance(careless, Placement) and careless.place == 1


def test_a_table_made_anew_is_looked_at_anew() -> None:
    view = make_view(devices=(H100, A10), totals=(9, 9))
    rule = begun("greedy", view)
    before = rule.place(make_job(), view)
    view.devices = (A10, H100)
    view.tables.clear()
    after = rule.place(make_job(), view)
    assert isinstance(before, Placement) and isinstance(after, Placement)
    assert (before.place, after.place) == (1, 0)


@pytest.mark.parametrize(("text", "microseconds"), [("price", 25.0), ("greedy", 25.0), ("adaptive-price", 100.0)])
def test_a_decision_on_a_table_of_512_options_is_quick(text: str, microseconds: float) -> None:
    view = make_view(devices=(H100, L4, A30, A10) * 2, totals=(512,) * 8, free_gpus=[0, 0, 1, 0, 3, 1, 0, 2])
    rule, job = begun(text, view), make_job()
    if text == "adaptive-price":
        view.num_waiting = 1
        rule.route(job, view)
    rule.place(job, view)
    batches = []
    for _ in range(20):
        before = thread_time()
        for _ in range(100):
            rule.place(job, view)
        batches.append((thread_time() - before) / 100)
    assert min(batches) * 1e6 <= microseconds * slowness()
