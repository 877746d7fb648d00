"""The clairvoyant bound for a list of jobs: by hand on small worlds, its tightening, its errors, its speed."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from bounds_worlds import make_device, make_pool, make_world
from measured_data import write_philly_jobs
from processor_speed import slowness

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.arena.plan import ArenaPlan, workload_of_plan, world_of_plan
from slurm_energy.evaluation.bounds import TraceOptions, clairvoyant_bound
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.world import Partition


def make_workload(*jobs: Job) -> Workload:
    return Workload(name="list", jobs=jobs)


def make_job(job_id: int = 1, units: float = 10.0, submitted: float = 0.0, **request: Any) -> Job:
    return Job(job_id=job_id, submitted_seconds=submitted, true_units=units, **request)


def test_one_job_pays_its_least_energy_and_the_base_until_it_could_have_ended() -> None:
    bound = clairvoyant_bound(make_world(), make_workload(make_job(submitted=5.0)), None, TraceOptions(stretches=0))
    # At the earliest it ends after 10 s at the high clock; at best it takes 10 units x 2 s x (100 - 20) W more.
    assert bound.min_end_seconds == pytest.approx(15.0)
    assert bound.base_joules == pytest.approx(15.0 * 80.0)
    assert bound.joules == pytest.approx(15.0 * 80.0 + 1600.0)
    assert (bound.units, bound.groups, bound.unrunnable_jobs) == (10.0, 1, 0)


def test_the_width_of_a_job_is_respected() -> None:
    jobs = make_workload(make_job(gpu_counts=(2,)), make_job(2, gpu_counts=(2,)), make_job(3, gpu_counts=(4,)))
    bound = clairvoyant_bound(make_world(), jobs, None, TraceOptions(stretches=0))
    assert (bound.groups, bound.min_end_seconds) == pytest.approx((2, 5.0))


def test_hosts_sleep_whenever_nothing_runs() -> None:
    world = make_world(make_pool(nodes=2, gpus_per_node=4, host=(52.0, 52.0), suspended_watts=12.0))
    bound = clairvoyant_bound(world, make_workload(make_job()), 1000.0)
    # 20 s at 100 W and a quarter of what being awake adds, (52 + 80 - 12) / 4 W, less the free device's 20 W.
    assert bound.joules == pytest.approx(1000.0 * 24.0 + 20.0 * (80.0 + 30.0))


def test_devices_that_are_cheap_but_few_are_not_enough_for_all() -> None:
    devices = (make_device("small", watts=(50.0,), seconds=(1.0,)), make_device("big", watts=(300.0,), seconds=(1.0,)))
    pools = (
        make_pool("cheap", device="small", gpus_per_node=1),
        make_pool("dear", device="big", gpus_per_node=4),
    )
    jobs = make_workload(*(make_job(number, units=100.0) for number in range(4)))
    with_room = clairvoyant_bound(make_world(*pools, devices=devices), jobs, 200.0, TraceOptions(stretches=0))
    bound = clairvoyant_bound(make_world(*pools, devices=devices), jobs, 200.0)
    assert with_room.joules == pytest.approx(200 * 100 + 400 * 30)
    assert bound.joules == pytest.approx(200 * 100 + 200 * 30 + 200 * 280)


def test_work_that_comes_late_cannot_use_devices_that_were_free_before() -> None:
    jobs = make_workload(make_job(1, units=1.0), make_job(2, units=150.0, submitted=150.0))
    world = make_world(make_pool(gpus_per_node=2))
    bounds = [clairvoyant_bound(world, jobs, 230.0, TraceOptions(stretches=stretches)) for stretches in (0, 1, 2, 4, 8)]
    joules = [bound.joules for bound in bounds]
    # From 143.75 s on, 2 devices have 172.5 s for 150 units: 300 s at the low clock, 150 s at the high one at 280 J.
    assert joules == sorted(joules)
    assert joules[0] == pytest.approx(joules[1]) == pytest.approx(230 * 40 + 151 * 160)
    assert joules[-1] == pytest.approx(230 * 40 + 160 + 150 * 280 - 120 * (172.5 - 150.0))


def test_an_open_end_is_as_late_as_the_devices_make_it() -> None:
    jobs = make_workload(*(make_job(number, units=100.0) for number in range(8)))
    bound = clairvoyant_bound(make_world(), jobs)
    # 800 units on 4 devices: 200 s at the high clock and 280 J each, or 400 s at the low one and 160 J each.
    assert bound.min_end_seconds == pytest.approx(400.0)
    assert bound.joules == pytest.approx(400 * 80 + 800 * 160)


def test_a_high_base_hurries_the_work() -> None:
    world = make_world(make_pool(host=(1000.0, 1000.0)))
    jobs = make_workload(*(make_job(number, units=100.0) for number in range(8)))
    bound = clairvoyant_bound(world, jobs)
    assert bound.min_end_seconds == pytest.approx(200.0)
    assert bound.joules == pytest.approx(200 * 1080 + 800 * 280)


def _linked(link: str) -> Job:
    request: dict[str, Any] = {link: (1, 99)}
    return make_job(2, gpu_counts=(1,), **request)


@pytest.mark.parametrize("link", ["after_ok", "after_any"])
def test_dependencies_put_jobs_one_after_the_other(link: str) -> None:
    jobs = make_workload(make_job(1, gpu_counts=(1,)), _linked(link))
    world = replace(make_world(), launch_seconds=3.0)
    assert clairvoyant_bound(world, jobs, None, TraceOptions(stretches=0)).min_end_seconds == pytest.approx(26.0)


def test_dependencies_in_a_circle_are_an_error() -> None:
    with pytest.raises(ValueRangeError, match="dependencies of workload list go in a circle"):
        clairvoyant_bound(make_world(), make_workload(make_job(1, after_ok=(2,)), make_job(2, after_ok=(1,))))


@pytest.mark.parametrize(
    ("request_", "joules"),
    [
        ({}, 100.0),
        ({"partitions": ("dear",)}, 300.0),
        ({"devices": ("big",)}, 300.0),
        ({"partitions": ("cheap",)}, 100.0),
    ],
)
def test_a_job_pays_the_least_among_the_places_that_it_asked_for(request_: dict[str, Any], joules: float) -> None:
    devices = (
        make_device("small", watts=(100.0,), seconds=(1.0,), free_watts=0.0),
        make_device("big", watts=(300.0,), seconds=(1.0,), free_watts=0.0),
    )
    world = make_world(make_pool("cheap", device="small"), make_pool("dear", device="big"), devices=devices)
    assert clairvoyant_bound(world, make_workload(make_job(units=1.0, **request_)), 10.0).joules == pytest.approx(
        joules
    )


def test_a_job_that_names_no_partition_stays_in_the_default_one() -> None:
    devices = (
        make_device("small", watts=(100.0,), seconds=(1.0,), free_watts=0.0),
        make_device("big", watts=(300.0,), seconds=(1.0,), free_watts=0.0),
    )
    world = make_world(make_pool("cheap", device="small"), make_pool("dear", device="big"), devices=devices)
    partitions = (world.partitions[0], Partition(name="dear", pools=("dear",), is_default=True))
    world = replace(world, partitions=partitions)
    assert clairvoyant_bound(world, make_workload(make_job(units=1.0)), 10.0).joules == pytest.approx(300.0)


def test_jobs_that_no_place_can_run_are_counted_and_left_out() -> None:
    jobs = make_workload(make_job(1), make_job(2, kind="genomics"), make_job(3, gpu_counts=(64,)))
    bound = clairvoyant_bound(make_world(), jobs, 100.0)
    assert (bound.unrunnable_jobs, bound.units) == (2, 10.0)


def test_only_the_work_that_was_done_is_owed() -> None:
    jobs = make_workload(make_job(1), make_job(3, units=30.0, fails_after_units=4.0), make_job(2, submitted=500.0))
    done = clairvoyant_bound(make_world(), jobs, 100.0, TraceOptions(processed_units=[10.0, 2.0, 0.0]))
    everything = clairvoyant_bound(make_world(), jobs, 600.0)
    assert done.joules == pytest.approx(100 * 80 + 12 * 160)
    assert everything.units == pytest.approx(24.0)


def test_an_empty_list_owes_the_base() -> None:
    bound = clairvoyant_bound(make_world(), make_workload(), 100.0)
    assert (bound.joules, bound.joules_per_unit) == pytest.approx((8000.0, inf))


def test_work_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueRangeError, match=r"work of workload list does not fit into 10 s in world small"):
        clairvoyant_bound(make_world(), make_workload(make_job(units=100.0)), 10.0)


def test_work_that_comes_after_the_horizon_is_an_error() -> None:
    with pytest.raises(ValueRangeError, match=r"submitted at 50 s is asked for within a horizon of 20 s"):
        clairvoyant_bound(make_world(), make_workload(make_job(submitted=50.0)), 20.0)


@pytest.mark.parametrize(
    ("horizon", "options", "message"),
    [
        (0.0, TraceOptions(), "horizon 0.0 s"),
        (nan, TraceOptions(), "horizon nan s"),
        (10.0, TraceOptions(stretches=-1), "-1 stretches"),
        (10.0, TraceOptions(processed_units=[1.0, 1.0]), "units of 2 jobs are given for 1 jobs"),
        (10.0, TraceOptions(processed_units=[nan]), "job 1: nan units"),
    ],
)
def test_what_cannot_be_is_named(horizon: float, options: TraceOptions, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        clairvoyant_bound(make_world(), make_workload(make_job()), horizon, options)


def test_a_trace_of_57585_jobs_is_bounded_in_seconds() -> None:
    jobs = make_workload(
        *(
            make_job(number, 50.0 + number % 977, 20.0 * number, gpu_counts=(1 + number % 8,))
            for number in range(57_585)
        )
    )
    before = thread_time()
    bound = clairvoyant_bound(make_world(make_pool(nodes=64, gpus_per_node=8)), jobs)
    assert (bound.groups, bound.stretches) == (8, 24)
    assert thread_time() - before < 20.0 * slowness()


@pytest.mark.slow
def test_the_whole_philly_trace_is_bounded_as_the_arena_runs_it(tmp_path: Path) -> None:
    """Work of 76 groups, each some nine orders of magnitude above a unit: the solver gave up on it as it stood."""
    plan = ArenaPlan(policies=("slurm-default",), world="philly-a100", workload=write_philly_jobs(tmp_path))
    world = world_of_plan(plan)
    workload = workload_of_plan(plan, world, 1)
    bound = clairvoyant_bound(world, workload)
    assert len(workload.jobs) == 57_585
    assert (bound.stretches, bound.unrunnable_jobs) == (TraceOptions().stretches, 0)
    coarse = clairvoyant_bound(world, workload, None, TraceOptions(stretches=0))
    assert coarse.joules <= bound.joules * (1.0 + 1e-9) and bound.joules < 2.0 * coarse.joules
