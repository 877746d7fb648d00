"""Rules that keep a power budget."""

from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_factory import A30, H100, L4, FakeRun, FakeView, make_job, make_view

from slurm_energy.policy.placement import Placement
from slurm_energy.policy.registry import create_rule
from slurm_energy.policy.rules.cap import CapRule

NAMES = ["cap-uniform", "cap-greedy"]


def begun(text: str, view: FakeView) -> CapRule:
    rule = create_rule(text)
    assert isinstance(rule, CapRule)
    rule.begin(view, Random(1))
    view.power_watts = power_of(view)
    return rule


def power_of(view: FakeView) -> float:
    """Return what the fake cluster draws: its jobs and its free devices."""
    busy = [0] * len(view.devices)
    total = 0.0
    for run in view.running:
        device = view.devices[run.place]
        busy[run.place] += run.gpus
        total += run.gpus * device.watts(device.clocks[run.clock])
    return total + sum(
        (count - used) * device.free_watts for count, used, device in zip(view.totals, busy, view.devices, strict=True)
    )


def start(rule: CapRule, view: FakeView, job_id: int, **changes: object) -> Placement | None:
    """Ask for a placement and carry it out."""
    placement = rule.place(make_job(job_id=job_id, **changes), view)
    if placement is not None:
        view.running.append(FakeRun(job_id, placement.place, placement.gpus, placement.clock))
        view.free_gpus[placement.place] -= placement.gpus
        view.power_watts = power_of(view)
    return placement


def control(rule: CapRule, view: FakeView) -> dict[int, int]:
    """Let the rule look once and carry out what it says."""
    clocks = dict(rule.control(view))
    for run in view.running:
        run.clock = clocks.get(run.job_id, run.clock)
    view.power_watts = power_of(view)
    return clocks


def clocks_of(view: FakeView) -> list[int]:
    return [run.clock for run in view.running]


def relative_speed(view: FakeView, run: FakeRun) -> float:
    device = view.devices[run.place]
    return run.gpus * device.seconds(run.gpus, 1.0) / device.seconds(run.gpus, device.clocks[run.clock])


@pytest.mark.parametrize("name", NAMES)
def test_without_a_budget_jobs_start_as_slurm_has_them_and_nothing_moves(name: str) -> None:
    view = make_view()
    rule = begun(name, view)
    assert start(rule, view, 1) == Placement(0, 8, 7)
    assert control(rule, view) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_job_starts_at_the_highest_clock_that_fits_under_the_budget(name: str) -> None:
    view = make_view(devices=(H100,), totals=(8,))
    rule = begun(name, view)
    view.power_budget_watts = 8 * H100.watts(0.9) + 1.0
    assert start(rule, view, 1) == Placement(0, 8, 6)


@pytest.mark.parametrize("name", NAMES)
def test_fewer_devices_come_before_a_clock_at_which_a_watt_does_less(name: str) -> None:
    view = make_view(devices=(H100,), totals=(8,))
    rule = begun(name, view)
    view.power_budget_watts = 8 * H100.watts(0.4)
    placement = start(rule, view, 1)
    assert placement is not None
    assert placement.gpus < 8
    assert placement.clock >= 4
    assert view.power_watts <= view.power_budget_watts


@pytest.mark.parametrize("name", NAMES)
def test_a_job_waits_for_power_but_an_idle_cluster_runs_one_whatever_the_budget(name: str) -> None:
    view = make_view(devices=(H100,), totals=(16,), power_budget_watts=1.0)
    rule = begun(name, view)
    assert start(rule, view, 1) == Placement(0, 1, 0)
    assert start(rule, view, 2) is None


@pytest.mark.parametrize("name", NAMES)
@given(share=st.floats(0.45, 1.1), seed=st.integers(0, 20))
def test_one_look_brings_the_power_under_any_budget_that_clocks_can_keep(name: str, share: float, seed: int) -> None:
    view = make_view(devices=(H100, L4, A30), totals=(16, 32, 64))
    rule = begun(name, view)
    random = Random(seed)
    for job_id in range(12):
        start(rule, view, job_id, gpu_counts=(random.choice([1, 2, 4, 8]),))
    full = view.power_watts
    view.power_budget_watts = share * full
    control(rule, view)
    assert view.power_watts <= view.power_budget_watts or set(clocks_of(view)) == {0}
    view.power_budget_watts = 1.2 * full
    control(rule, view)
    assert clocks_of(view) == [7] * 12, "raised again once there is room"


@pytest.mark.parametrize("name", NAMES)
def test_no_clock_goes_below_the_bound_of_its_job(name: str) -> None:
    view = make_view(devices=(L4,), totals=(16,))
    rule = begun(name, view)
    start(rule, view, 1, max_slowdown=0.15)
    start(rule, view, 2)
    view.power_budget_watts = 10.0
    control(rule, view)
    assert clocks_of(view) == [6, 0]


@pytest.mark.parametrize("name", NAMES)
def test_raising_stops_short_of_the_budget_so_that_clocks_do_not_swing(name: str) -> None:
    view = make_view(devices=(A30,), totals=(64,))
    rule = begun(name, view)
    for job_id in range(8):
        start(rule, view, job_id)
    view.power_budget_watts = 0.7 * view.power_watts
    control(rule, view)
    first = clocks_of(view)
    assert control(rule, view) == {}
    view.power_budget_watts *= 1.15
    assert control(rule, view)
    assert view.power_watts <= 0.98 * view.power_budget_watts
    assert sum(clocks_of(view)) > sum(first)
    assert control(rule, view) == {}


def test_the_uniform_cap_gives_all_jobs_one_clock() -> None:
    view = make_view(devices=(H100, L4, A30), totals=(16, 32, 64))
    rule = begun("cap-uniform", view)
    for job_id in range(10):
        start(rule, view, job_id)
    view.power_budget_watts = 0.8 * view.power_watts
    control(rule, view)
    (clock,) = set(clocks_of(view))
    assert 0 < clock < 7
    view.running = [FakeRun(job_id=0, place=0, gpus=8, clock=clock)]
    view.free_gpus = [8, 32, 64]
    view.power_watts = power_of(view)
    assert start(rule, view, 20) == Placement(0, 8, clock), "a later start keeps the same clock"


def test_the_greedy_cap_lowers_first_what_saves_the_most_watts_per_speed() -> None:
    view = make_view(devices=(H100, L4), totals=(8, 8))
    rule = begun("cap-greedy", view)
    start(rule, view, 1)
    start(rule, view, 2)
    view.power_budget_watts = view.power_watts - 1.0
    control(rule, view)
    assert clocks_of(view) == [6, 7], "a step of the H100 saves more for the same loss"


def test_the_greedy_cap_loses_no_more_speed_than_the_uniform_one() -> None:
    speeds = {}
    for name in NAMES:
        view = make_view(devices=(H100, L4, A30), totals=(64, 64, 64))
        rule = begun(name, view)
        for job_id in range(24):
            start(rule, view, job_id)
        view.power_budget_watts = 0.7 * view.power_watts
        control(rule, view)
        assert view.power_watts <= view.power_budget_watts
        speeds[name] = sum(relative_speed(view, run) for run in view.running)
    assert speeds["cap-greedy"] >= speeds["cap-uniform"]


@pytest.mark.parametrize("name", NAMES)
def test_running_jobs_make_room_for_one_that_waits_for_power_but_not_below_their_efficient_clocks(name: str) -> None:
    view = make_view(devices=(H100,), totals=(24,))
    rule = begun(name, view)
    start(rule, view, 1)
    start(rule, view, 2)
    view.power_budget_watts = view.power_watts + 20.0
    assert start(rule, view, 3) is None
    view.num_waiting = 1
    assert control(rule, view)
    assert min(clocks_of(view)) >= 4
    placement = start(rule, view, 3)
    assert placement is not None
    assert view.power_watts <= view.power_budget_watts


@pytest.mark.parametrize("name", NAMES)
def test_ended_and_unknown_jobs_are_left_alone(name: str) -> None:
    view = make_view(devices=(H100,), totals=(24,))
    rule = begun(name, view)
    start(rule, view, 1)
    view.running.append(FakeRun(job_id=99, place=0, gpus=8, clock=7))
    view.power_watts, view.power_budget_watts = power_of(view), 100.0
    assert set(control(rule, view)) == {1}
    rule.ended(view.running.pop(0))
    assert control(rule, view) == {}


def test_a_budget_that_ends_lets_every_clock_rise() -> None:
    view = make_view(devices=(H100,), totals=(24,))
    rule = begun("cap-uniform", view)
    start(rule, view, 1)
    view.power_budget_watts = 1000.0
    control(rule, view)
    assert clocks_of(view) != [7]
    view.power_budget_watts = inf
    control(rule, view)
    assert clocks_of(view) == [7]
