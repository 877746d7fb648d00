"""Temperature of devices: throttling at the limit, air that grows warmer, and warm starts.

Thermal model: 0.4 K/W, 100 s; at 25 degrees air a device tends to 105 at 200 W, 65 at 100 W, 29 free; the limit is 85.
"""

from math import exp, inf, log
from typing import Any

import pytest
from small_worlds import (
    Answers,
    FirstFit,
    ended,
    joules,
    make_device,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
)

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.placement import ClusterView
from slurm_energy.twin.world import Outage, Series, World
from slurm_energy.twin.world.device_model import (
    Thermal,
    seconds_to_limit,
    steady_celsius,
    sustainable_watts,
    temperature_after,
)

THERMAL = Thermal(resistance_kelvin_per_watt=0.4, time_constant_seconds=100.0, ambient_celsius=25.0, limit_celsius=85.0)
START, STEADY = 29.0, 105.0
THROTTLES_AFTER = 100.0 * log((STEADY - START) / (STEADY - 85.0))


def hot_world(**changes: Any) -> World:
    return make_world(make_pool(), devices=[make_device(thermal=THERMAL)], **changes)


def test_a_job_throttles_when_the_closed_form_says_so() -> None:
    """150 W keep 85 degrees, so the clock falls to 0.5 and 100 W."""
    outcome = run_jobs(hot_world(), [make_job(1, units=200.0)])
    left = 200.0 - THROTTLES_AFTER
    assert ended(outcome) == {1: pytest.approx(THROTTLES_AFTER + 2.0 * left)}
    assert joules(outcome) == {1: pytest.approx(THROTTLES_AFTER * 200.0 + 2.0 * left * 100.0)}
    assert outcome.balance_error < 1e-12


def test_a_job_that_ends_before_the_limit_does_not_throttle() -> None:
    outcome = run_jobs(hot_world(), [make_job(1, units=THROTTLES_AFTER - 0.001)])
    assert ended(outcome) == {1: pytest.approx(THROTTLES_AFTER - 0.001)}


def test_a_clock_that_never_reaches_the_limit_does_not_throttle() -> None:
    outcome = run_jobs(hot_world(), [make_job(1, units=1_000.0)], FirstFit(clock=1))
    assert ended(outcome) == {1: 2_000.0}


def test_heat_is_that_of_one_device_whatever_the_job_s_width() -> None:
    outcome = run_jobs(hot_world(), [make_job(1, units=800.0, gpus=4)])
    left = 800.0 - 4 * THROTTLES_AFTER
    assert ended(outcome) == {1: pytest.approx(THROTTLES_AFTER + left / 2.0)}


def test_the_second_job_on_a_warm_device_throttles_earlier() -> None:
    first = 60.0
    warm = STEADY + (START - STEADY) * exp(-first / 100.0)
    outcome = run_jobs(
        make_world(make_pool(gpus_per_node=1), devices=[make_device(thermal=THERMAL)]),
        [make_job(1, units=first), make_job(2, units=200.0)],
    )
    throttles = 100.0 * log((STEADY - warm) / (STEADY - 85.0))
    assert ended(outcome)[2] == pytest.approx(first + throttles + 2.0 * (200.0 - throttles))


def test_a_device_cools_while_it_is_free() -> None:
    first, pause = 60.0, 40.0
    warm = STEADY + (START - STEADY) * exp(-first / 100.0)
    cooler = START + (warm - START) * exp(-pause / 100.0)
    throttles = 100.0 * log((STEADY - cooler) / (STEADY - 85.0))
    jobs = [make_job(1, units=first), make_job(2, submitted=first + pause, units=200.0)]
    assert ended(run_jobs(hot_world(), jobs))[2] == pytest.approx(first + pause + throttles + 2.0 * (200.0 - throttles))


def test_a_change_of_clock_keeps_the_temperature_reached() -> None:
    rule = Answers(
        place=FirstFit(clock=1).place,
        control=lambda view: {1: 2} if view.now_seconds == 100.0 else {},
        control_interval_seconds=100.0,
    )
    warm = 65.0 + (START - 65.0) * exp(-1.0)
    throttles = 100.0 * log((STEADY - warm) / (STEADY - 85.0))
    outcome = run_jobs(hot_world(), [make_job(1, units=250.0)], rule)
    assert ended(outcome) == {1: pytest.approx(100.0 + throttles + 2.0 * (250.0 - 50.0 - throttles))}


def test_warm_air_throttles_at_once_and_cool_air_lets_the_clock_rise_again() -> None:
    """At 50 degrees air 87.5 W keep the limit: 60 W at the lowest clock. At 30 degrees, 137.5 W: the middle clock."""
    air = Series(times_seconds=(0.0, 200.0, 300.0), values=(25.0, 50.0, 25.0))
    outcome = run_jobs(hot_world(ambient_celsius=air), [make_job(1, units=1_000.0)])
    done = THROTTLES_AFTER + (200.0 - THROTTLES_AFTER) / 2.0
    temperature = 65.0 + (85.0 - 65.0) * exp(-(200.0 - THROTTLES_AFTER) / 100.0)
    assert done == pytest.approx(166.75, abs=0.01)
    assert temperature < 85.0
    # From 200 s the air is at 50: the set clock heats to 130, reaches the limit soon, then the lowest clock to 74.
    hot = 100.0 * log((130.0 - temperature) / (130.0 - 85.0))
    done += hot + (100.0 - hot) / 4.0
    temperature = 74.0 + (85.0 - 74.0) * exp(-(100.0 - hot) / 100.0)
    cool = 100.0 * log((STEADY - temperature) / (STEADY - 85.0))
    done += cool
    assert ended(outcome) == {1: pytest.approx(300.0 + cool + 2.0 * (1_000.0 - done))}


def test_air_above_the_limit_leaves_the_lowest_clock() -> None:
    air = Series(times_seconds=(0.0,), values=(90.0,))
    outcome = run_jobs(hot_world(ambient_celsius=air), [make_job(1, units=10.0)])
    assert ended(outcome) == {1: pytest.approx(40.0)}


def test_a_requeued_job_starts_at_its_set_clock_again() -> None:
    world = hot_world(outages=(Outage(pool="pool", at_seconds=200.0, until_seconds=10_000.0, nodes=1),))
    outcome = run_jobs(world, [make_job(1, units=200.0)])
    left = 200.0 - THROTTLES_AFTER
    assert ended(outcome) == {1: pytest.approx(10_000.0 + THROTTLES_AFTER + 2.0 * left)}


def test_rules_see_the_clock_that_the_board_keeps() -> None:
    seen: dict[float, tuple[int, float]] = {}

    def control(view: ClusterView) -> dict[int, int]:
        for run in view.running_jobs():
            seen[view.now_seconds] = (run.clock, run.watts)
        return {}

    run_jobs(hot_world(), [make_job(1, units=200.0)], Answers(control=control, control_interval_seconds=100.0))
    assert seen == {100.0: (2, 200.0), 200.0: (1, 100.0)}


def test_the_clock_falls_no_further_than_the_limit_asks() -> None:
    load = make_load(watts=(60.0, 149.0, 200.0))
    world = make_world(devices=[make_device(thermal=THERMAL, loads={"training": load})])
    outcome = run_jobs(world, [make_job(1, units=200.0)])
    left = 200.0 - THROTTLES_AFTER
    assert joules(outcome) == {1: pytest.approx(THROTTLES_AFTER * 200.0 + 2.0 * left * 149.0)}


def test_closed_forms() -> None:
    assert steady_celsius(THERMAL, 25.0, 200.0) == pytest.approx(105.0)
    assert temperature_after(THERMAL, 29.0, 105.0, 0.0) == 29.0
    assert temperature_after(THERMAL, 29.0, 105.0, 1e6) == pytest.approx(105.0)
    after = seconds_to_limit(THERMAL, 29.0, 105.0)
    assert temperature_after(THERMAL, 29.0, 105.0, after) == pytest.approx(85.0)
    assert seconds_to_limit(THERMAL, 29.0, 85.0) == inf
    assert seconds_to_limit(THERMAL, 85.0, 105.0) == 0.0
    assert sustainable_watts(THERMAL, 25.0) == pytest.approx(150.0)
    assert sustainable_watts(THERMAL, 90.0) == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"resistance_kelvin_per_watt": 0.0},
        {"time_constant_seconds": -1.0},
        {"time_constant_seconds": inf},
        {"ambient_celsius": 85.0},
        {"limit_celsius": float("nan")},
    ],
)
def test_a_thermal_model_that_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueRangeError):
        Thermal(**{"resistance_kelvin_per_watt": 0.4, "time_constant_seconds": 100.0, **changes})
