"""Two jobs on one GPU: their speeds, their power, and what happens when one comes, leaves, fails or changes clock."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
from small_worlds import (
    Answers,
    Beside,
    FirstFit,
    ended,
    joules,
    make_device,
    make_job,
    make_load,
    make_pool,
    make_world,
    run_jobs,
    started,
    states,
)

from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Placement
from slurm_energy.twin.engine.job import Job
from slurm_energy.twin.world import Outage, World
from slurm_energy.twin.world.device_model import DeviceModel, PairSpeed, Thermal


def sharing_device() -> DeviceModel:
    """Return a device on which `heavy` (200 W) and `light` (100 W) reach 0.8 and 0.6 together, at 240 W."""
    loads = {"heavy": make_load(), "light": make_load(watts=(40.0, 60.0, 100.0))}
    pairs = {("heavy", "light"): PairSpeed(speed=0.8, partner_speed=0.6, watts=240.0)}
    return make_device(loads=loads, pairs=pairs)


def sharing_world(**changes: Any) -> World:
    pool = make_pool(gpus_per_node=1, jobs_per_gpu=2)
    return make_world(pool, devices=[sharing_device()], **changes)


def heavy(job_id: int, submitted: float = 0.0, units: float = 80.0, **changes: Any) -> Job:
    return make_job(job_id, submitted, units, kind="heavy", shareable=True, **changes)


def light(job_id: int, submitted: float = 0.0, units: float = 60.0, **changes: Any) -> Job:
    return replace(heavy(job_id, submitted, units), kind="light", **changes)


def test_two_jobs_that_start_together_split_speed_and_power() -> None:
    outcome = run_jobs(sharing_world(), [heavy(1), light(2)], Beside())
    assert (started(outcome), ended(outcome)) == ({1: 0.0, 2: 0.0}, {1: 100.0, 2: 100.0})
    assert joules(outcome) == {1: pytest.approx(160.0 * 100.0), 2: pytest.approx(80.0 * 100.0)}
    assert outcome.joules_by_component["idle"] == 0.0
    assert outcome.total_joules == pytest.approx(24_000.0)


def test_the_one_that_stays_gets_the_whole_gpu_again() -> None:
    outcome = run_jobs(sharing_world(), [heavy(1, units=80.0), light(2, submitted=20.0, units=12.0)], Beside())
    assert ended(outcome) == {1: pytest.approx(20.0 + 20.0 + 44.0), 2: pytest.approx(40.0)}
    assert joules(outcome)[1] == pytest.approx(20.0 * 200.0 + 20.0 * 160.0 + 44.0 * 200.0)
    assert joules(outcome)[2] == pytest.approx(20.0 * 80.0)
    assert outcome.balance_error < 1e-12


def test_the_first_may_leave_before_the_second() -> None:
    outcome = run_jobs(sharing_world(), [heavy(1, units=16.0), light(2, units=60.0)], Beside())
    assert ended(outcome) == {1: pytest.approx(20.0), 2: pytest.approx(20.0 + 48.0)}
    assert joules(outcome)[2] == pytest.approx(20.0 * 80.0 + 48.0 * 100.0)
    assert outcome.balance_error < 1e-12


def test_a_gpu_that_was_shared_is_free_for_the_next_job() -> None:
    jobs = [heavy(1, units=16.0), light(2, units=12.0), make_job(3, submitted=1.0, units=5.0, kind="heavy")]
    outcome = run_jobs(sharing_world(), jobs, Beside())
    assert started(outcome)[3] == pytest.approx(max(ended(outcome)[1], ended(outcome)[2]))
    assert states(outcome) == {1: "COMPLETED", 2: "COMPLETED", 3: "COMPLETED"}


@pytest.mark.parametrize(
    "second",
    [
        replace(heavy(2), kind="heavy"),
        replace(light(2), shareable=False),
        replace(light(2), gpu_counts=(2,), partitions=()),
    ],
)
def test_kinds_or_requests_that_may_not_share_wait(second: Job) -> None:
    outcome = run_jobs(sharing_world(), [heavy(1), second], Beside())
    assert started(outcome)[2] in {80.0, float("inf")}


def test_a_third_job_does_not_join_two() -> None:
    outcome = run_jobs(sharing_world(), [heavy(1), light(2), light(3, submitted=1.0)], Beside())
    assert started(outcome)[3] == pytest.approx(100.0)


def test_a_pool_for_one_job_per_gpu_lets_none_join() -> None:
    world = make_world(make_pool(gpus_per_node=1), devices=[sharing_device()])
    outcome = run_jobs(world, [heavy(1), light(2)], Beside())
    assert started(outcome)[2] == 80.0
    assert outcome.clamped == 0


def test_the_second_runs_at_the_first_one_s_clock() -> None:
    rule = Beside(clock=1)
    outcome = run_jobs(sharing_world(), [heavy(1, units=40.0), light(2, units=30.0)], rule)
    assert outcome.clock.tolist() == [1, 1]
    assert ended(outcome) == {1: pytest.approx(100.0), 2: pytest.approx(100.0)}
    pair_watts = 240.0 * (100.0 + 60.0) / (200.0 + 100.0)
    assert outcome.total_joules == pytest.approx(100.0 * pair_watts)


def test_a_change_of_clock_concerns_both() -> None:
    rule = Answers(
        place=Beside().place,
        control=lambda view: {1: 1} if view.now_seconds == 50.0 else {},
        control_interval_seconds=50.0,
    )
    outcome = run_jobs(sharing_world(), [heavy(1), light(2)], rule)
    assert outcome.clock.tolist() == [1, 1]
    assert ended(outcome) == {1: pytest.approx(150.0), 2: pytest.approx(150.0)}
    assert outcome.total_joules == pytest.approx(50.0 * 240.0 + 100.0 * 128.0)


def test_both_jobs_of_a_failed_gpu_are_requeued() -> None:
    world = sharing_world(outages=(Outage(pool="pool", at_seconds=10.0, until_seconds=20.0, gpus=1),))
    outcome = run_jobs(world, [heavy(1), light(2)], Beside())
    assert outcome.restarts.tolist() == [1, 1]
    assert ended(outcome) == {1: pytest.approx(120.0), 2: pytest.approx(120.0)}
    assert outcome.balance_error < 1e-12


def test_both_jobs_of_a_failed_node_are_requeued() -> None:
    world = sharing_world(outages=(Outage(pool="pool", at_seconds=10.0, until_seconds=20.0, nodes=1),))
    outcome = run_jobs(world, [heavy(1), light(2)], Beside())
    assert outcome.restarts.tolist() == [1, 1]
    assert outcome.units_lost.tolist() == [pytest.approx(8.0), pytest.approx(6.0)]
    assert outcome.balance_error < 1e-12


def test_a_time_limit_holds_beside_a_neighbour() -> None:
    outcome = run_jobs(sharing_world(), [heavy(1), light(2, time_limit_seconds=50.0)], Beside())
    assert states(outcome)[2] == "TIMEOUT"
    assert ended(outcome) == {1: pytest.approx(50.0 + 40.0), 2: 50.0}
    assert outcome.units.tolist()[1] == pytest.approx(30.0)


def test_a_job_that_launches_beside_another_slows_nobody_yet() -> None:
    outcome = run_jobs(
        sharing_world(launch_seconds=10.0), [heavy(1, units=50.0), light(2, submitted=20.0, units=60.0)], Beside()
    )
    computed = 20.0 + (50.0 - 20.0) / 0.8
    assert ended(outcome)[1] == pytest.approx(10.0 + computed)
    assert outcome.balance_error < 1e-12


def test_a_job_that_still_launches_when_its_neighbour_leaves_holds_the_gpu_at_free_power() -> None:
    outcome = run_jobs(
        sharing_world(launch_seconds=10.0), [heavy(1, units=20.0), light(2, submitted=25.0, units=60.0)], Beside()
    )
    assert ended(outcome) == {1: 30.0, 2: 95.0}
    assert outcome.total_joules == pytest.approx(10 * 10 + 20 * 200 + 5 * 10 + 60 * 100)
    assert outcome.balance_error < 1e-12


def test_cpus_of_the_first_are_given_back_when_the_second_leaves_last() -> None:
    pool = make_pool(gpus_per_node=1, jobs_per_gpu=2, cpus_per_node=8)
    world = make_world(pool, devices=[sharing_device()])
    jobs = [
        heavy(1, units=16.0, cpus=8),
        light(2, units=60.0, cpus=1),
        heavy(3, submitted=1.0, units=5.0, cpus=8, partitions=("pool",)),
    ]
    jobs[2].shareable = False
    outcome = run_jobs(world, jobs, Beside())
    assert states(outcome) == {1: "COMPLETED", 2: "COMPLETED", 3: "COMPLETED"}


def test_a_partner_that_is_not_there_lets_the_job_wait_and_counts() -> None:
    rule = Answers(place=lambda job, view: Placement(0, 1, -1, partner=99))
    outcome = run_jobs(sharing_world(), [heavy(1)], rule)
    assert (outcome.state, outcome.clamped) == (["PENDING"], 1)


@pytest.mark.parametrize(
    ("limit", "start", "head_starts"), [(20.0, 2.0, 100.0), (98.0, 2.0, 100.0), (99.0, 180.0, 100.0)]
)
def test_a_job_joins_another_behind_a_blocked_head_only_if_the_gpu_is_free_no_later(
    limit: float, start: float, head_starts: float
) -> None:
    """The first job may stay until 100 s and stays until then; the head needs its GPU."""
    jobs = [
        heavy(1, units=500.0, time_limit_seconds=100.0),
        replace(heavy(2, submitted=1.0, units=80.0), shareable=False),
        light(3, submitted=2.0, units=1_000.0, time_limit_seconds=limit),
    ]
    assert started(run_jobs(sharing_world(), jobs, Beside())) == {1: 0.0, 2: head_starts, 3: start}


def test_a_head_waits_for_both_jobs_of_a_shared_gpu() -> None:
    """The GPU is free at 200 s, when the second leaves it, so a job of 190 s on the other GPU delays no job."""
    world = make_world(make_pool(gpus_per_node=2, jobs_per_gpu=2), devices=[sharing_device()])
    jobs = [
        heavy(1, units=500.0, time_limit_seconds=100.0),
        replace(light(2, units=500.0, time_limit_seconds=200.0), name="beside 1"),
        replace(heavy(3, submitted=1.0, units=160.0), gpu_counts=(2,), shareable=False),
        replace(heavy(4, submitted=2.0, units=190.0, time_limit_seconds=190.0), shareable=False),
    ]

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        return Placement(0, 1, -1, partner=1) if job.job_id == 2 else FirstFit().place(job, view)

    assert started(run_jobs(world, jobs, Answers(place=place))) == {1: 0.0, 2: 0.0, 3: 200.0, 4: 2.0}


def test_two_jobs_on_one_gpu_heat_it_together() -> None:
    """240 W heat to 121 degrees; at the limit of 85 both fall to the middle clock, which takes 128 W."""
    thermal = Thermal(resistance_kelvin_per_watt=0.4, time_constant_seconds=100.0)
    pool = make_pool(gpus_per_node=1, jobs_per_gpu=2)
    world = make_world(pool, devices=[replace(sharing_device(), thermal=thermal)])
    throttles = 100.0 * log((121.0 - 29.0) / (121.0 - 85.0))
    outcome = run_jobs(world, [heavy(1, units=80.0), light(2, units=60.0)], Beside())
    assert ended(outcome)[1] == pytest.approx(throttles + (80.0 - 0.8 * throttles) / 0.4)
