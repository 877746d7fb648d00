"""The bound on the energy of a run from the work that it did, and the check that every outcome must pass."""

from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from bounds_worlds import make_device, make_pool, make_world, random_instant, random_world
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm_energy.errors import EvaluationError, ValueRangeError
from slurm_energy.evaluation.bounds import (
    Downtime,
    ProcessedBound,
    RunConditions,
    assert_not_below,
    bound_for_processed,
    bound_of_run,
    steady_state_bound,
)
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import FailureRates, Outage

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@given(seed=SEEDS, stretches=st.integers(1, 6))
def test_no_run_of_changing_states_is_below_the_bound_for_its_work(seed: int, stretches: int) -> None:
    random = Random(seed)
    world = random_world(random)
    done = dict.fromkeys(("a", "b"), 0.0)
    joules = horizon = 0.0
    for _ in range(stretches):
        seconds = random.choice((0.5, 60.0, 4000.0))
        instant = random_instant(world, random)
        joules += seconds * instant.watts
        horizon += seconds
        for kind, rate in instant.units_per_second.items():
            done[kind] += seconds * rate
    assume(any(done.values()))
    arrived = {kind: units * random.choice((1.0, 1.3)) for kind, units in done.items()}
    bound = bound_for_processed(world, done, arrived, horizon)
    assert_not_below(joules, bound)
    assert joules >= bound.min_joules_per_unit * sum(done.values()) * (1.0 - 1e-6)


def test_the_bound_is_the_steady_power_for_the_time_of_the_run() -> None:
    bound = bound_for_processed(make_world(), {"training": 100.0}, {"training": 150.0}, 100.0)
    steady = steady_state_bound(make_world(), {"training": 1.0})
    assert bound.joules == pytest.approx(100.0 * steady.watts)
    assert bound.joules_per_unit == pytest.approx(steady.joules_per_unit)


def test_the_least_energy_per_unit_stops_where_devices_become_dear() -> None:
    # 2 units/s on slow devices take 80 + 4 x 80 W, 200 J per unit; 2 more on fast ones take 4 x 300 W more, 600 J each.
    device = make_device(watts=(100.0, 400.0))
    world = make_world(devices=(device,))
    bound = bound_for_processed(world, {"training": 400.0}, {"training": 400.0}, 100.0)
    assert bound.joules_per_unit == pytest.approx(400.0)
    assert bound.min_joules_per_unit == pytest.approx(200.0)


def test_the_least_energy_per_unit_knows_how_much_arrived() -> None:
    bound = bound_for_processed(make_world(), {"training": 0.0}, {"training": 50.0}, 100.0)
    assert bound.min_joules_per_unit == pytest.approx(
        steady_state_bound(make_world(), {"training": 0.5}).joules_per_unit
    )


def test_a_run_without_work_owes_the_base() -> None:
    bound = bound_for_processed(make_world(), {}, {"training": 50.0}, 100.0)
    assert (bound.joules, bound.joules_per_unit) == pytest.approx((8000.0, inf))


def test_a_kind_that_was_not_run_does_not_disturb_the_others() -> None:
    world = make_world(devices=(make_device(kinds=("a", "b")),))
    with_both = bound_for_processed(world, {"a": 100.0}, {"a": 100.0, "b": 70.0}, 100.0)
    assert with_both.joules == pytest.approx(bound_for_processed(world, {"a": 100.0}, {"a": 100.0}, 100.0).joules)


def test_arrivals_that_the_world_cannot_run_are_left_aside() -> None:
    both = bound_for_processed(make_world(), {"training": 1.0}, {"training": 1.0, "genomics": 5.0}, 100.0)
    assert both == bound_for_processed(make_world(), {"training": 1.0}, {"training": 1.0}, 100.0)


@pytest.mark.parametrize("joules", [0.0, 12_000.0 * (1.0 - 1e-4), nan])
def test_an_energy_below_the_bound_is_an_error_that_names_both(joules: float) -> None:
    bound = ProcessedBound(joules=12_000.0, joules_per_unit=120.0, min_joules_per_unit=120.0, horizon_seconds=1.0)
    with pytest.raises(EvaluationError, match=r"greedy took .* J, below the 12000 J"):
        assert_not_below(joules, bound, "greedy")


def test_an_energy_at_the_bound_passes() -> None:
    bound = ProcessedBound(joules=12_000.0, joules_per_unit=120.0, min_joules_per_unit=120.0, horizon_seconds=1.0)
    assert_not_below(12_000.0 * (1.0 - 1e-9), bound)


def test_more_work_than_arrived_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="2 units of kind 'training' were processed, and 1 arrived"):
        bound_for_processed(make_world(), {"training": 2.0}, {"training": 1.0}, 100.0)


def test_more_work_than_the_devices_can_do_is_an_error() -> None:
    with pytest.raises(
        EvaluationError, match=r"500 of training units were processed in 100 s.* at most 400 of training"
    ):
        bound_for_processed(make_world(), {"training": 500.0}, {"training": 500.0}, 100.0)


@pytest.mark.parametrize("horizon", [0.0, -1.0, nan, inf])
def test_a_run_has_a_length(horizon: float) -> None:
    with pytest.raises(ValueRangeError, match="horizon"):
        bound_for_processed(make_world(), {"training": 1.0}, {"training": 1.0}, horizon)


@pytest.mark.parametrize("arrived", [{}, {"training": 0.0}, {"genomics": 3.0}])
def test_something_that_can_run_must_have_arrived(arrived: dict[str, float]) -> None:
    with pytest.raises(ValueRangeError, match="nothing arrived that world small can run"):
        bound_for_processed(make_world(), {}, arrived, 100.0)


@pytest.mark.parametrize("units", [-1.0, nan])
def test_processed_units_are_numbers_from_0_up(units: float) -> None:
    with pytest.raises(ValueRangeError, match="processed units"):
        bound_for_processed(make_world(), {"training": units}, {"training": 1.0}, 100.0)


def test_real_downtime_takes_the_place_of_the_worst_case() -> None:
    world = replace(make_world(make_pool(nodes=2)), failures=FailureRates(node_mtbf_seconds=1e6, gpu_mtbf_seconds=1e6))
    down = Downtime(node_seconds={"pool": 50.0}, gpu_seconds={"pool": 100.0})
    worst = bound_for_processed(world, {}, {"training": 1.0}, 100.0)
    real = bound_for_processed(world, {}, {"training": 1.0}, 100.0, RunConditions(downtime=down))
    assert worst.joules == 0.0
    assert real.joules == pytest.approx(160 * 100 - 50 * 80 - 100 * 20)


def test_a_planned_outage_counts_for_its_part_of_the_run() -> None:
    outage = Outage(pool="pool", at_seconds=60.0, until_seconds=1e9, nodes=1, gpus=1)
    world = replace(make_world(make_pool(nodes=2)), outages=(outage,))
    bound = bound_for_processed(world, {}, {"training": 1.0}, 100.0)
    assert bound.joules == pytest.approx(160 * 100 - 40 * 80 - 40 * 20)


def test_downtime_is_a_number_from_0_up() -> None:
    down = Downtime(node_seconds={"pool": nan}, gpu_seconds={})
    with pytest.raises(ValueRangeError, match="downtime nan s of pool pool"):
        bound_for_processed(make_world(), {}, {"training": 1.0}, 100.0, RunConditions(downtime=down))


def test_a_run_is_bounded_from_its_jobs_and_their_device_counts() -> None:
    device = replace(make_device(kinds=("a", "b")))
    world = make_world(devices=(device,))
    jobs = [
        Job(job_id=1, submitted_seconds=0.0, true_units=60.0, kind="a", gpu_counts=(2,)),
        Job(job_id=2, submitted_seconds=5.0, true_units=40.0, kind="a", gpu_counts=(1, 4)),
        Job(job_id=3, submitted_seconds=9.0, true_units=80.0, kind="b", gpu_counts=(1,)),
    ]
    bound = bound_of_run(world, jobs, [60.0, 10.0, 0.0], 100.0)
    by_hand = bound_for_processed(
        world,
        {"a": 70.0, "b": 0.0},
        {"a": 100.0, "b": 80.0},
        100.0,
        RunConditions(gpu_counts_by_kind={"a": (1, 2, 4), "b": (1,)}),
    )
    assert bound == by_hand


def test_every_job_of_a_run_has_its_units() -> None:
    with pytest.raises(ValueRangeError, match="units of 2 jobs are given for 1 jobs"):
        bound_of_run(make_world(), [Job(job_id=1, submitted_seconds=0.0, true_units=1.0)], [1.0, 1.0], 100.0)
