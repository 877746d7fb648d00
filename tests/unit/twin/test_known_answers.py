"""Runs that can be followed by hand. A device: 1 unit/s and 200 W at the highest clock, 10 W free."""

import pytest
from small_worlds import (
    FirstFit,
    ended,
    joules,
    make_job,
    make_pool,
    make_world,
    run_jobs,
    started,
    states,
)

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.engine.job import Workload
from slurm_energy.twin.world import Outage

FIFO = Discipline(order="fifo", backfill="none")


def test_one_job_runs_from_its_submission_and_everything_is_accounted() -> None:
    outcome = run_jobs(make_world(), [make_job(1, submitted=50.0, units=100.0, gpus=2)])
    assert started(outcome) == {1: 50.0}
    assert ended(outcome) == {1: 100.0}
    assert states(outcome) == {1: "COMPLETED"}
    assert joules(outcome) == {1: pytest.approx(2 * 200.0 * 50.0)}
    assert outcome.joules_by_component["idle"] == pytest.approx(10.0 * (4 * 50.0 + 2 * 50.0))
    assert outcome.total_joules == pytest.approx(20_000.0 + 3_000.0)
    assert outcome.end_seconds == 100.0
    assert outcome.gpu_seconds.tolist() == [100.0]
    assert outcome.units.tolist() == [100.0]
    assert outcome.total_gpus == 4


def test_a_job_that_comes_at_time_0_starts_at_time_0() -> None:
    outcome = run_jobs(make_world(), [make_job(1, submitted=0.0, units=7.0)])
    assert (started(outcome), ended(outcome)) == ({1: 0.0}, {1: 7.0})


def test_two_jobs_that_both_need_the_node_run_one_after_the_other() -> None:
    jobs = [make_job(1, units=40.0, gpus=4), make_job(2, submitted=1.0, units=80.0, gpus=4)]
    outcome = run_jobs(make_world(discipline=FIFO), jobs)
    assert started(outcome) == {1: 0.0, 2: 10.0}
    assert ended(outcome) == {1: 10.0, 2: 30.0}
    assert joules(outcome) == {1: pytest.approx(8_000.0), 2: pytest.approx(16_000.0)}
    assert outcome.joules_by_component["idle"] == 0.0


def test_devices_that_a_job_leaves_are_there_for_one_that_comes_at_the_same_time() -> None:
    jobs = [make_job(1, units=40.0, gpus=4), make_job(2, submitted=10.0, units=40.0, gpus=4)]
    assert started(run_jobs(make_world(), jobs)) == {1: 0.0, 2: 10.0}


def test_a_job_of_no_work_takes_no_time_and_no_energy() -> None:
    outcome = run_jobs(make_world(), [make_job(1, submitted=5.0, units=0.0), make_job(2, submitted=5.0, units=10.0)])
    assert ended(outcome) == {1: 5.0, 2: 15.0}
    assert states(outcome)[1] == "COMPLETED"
    assert joules(outcome)[1] == 0.0
    assert outcome.balance_error < 1e-12


def test_jobs_of_no_work_pass_one_another_through_a_full_node() -> None:
    jobs = [make_job(number, units=0.0, gpus=4) for number in range(1, 6)]
    outcome = run_jobs(make_world(), jobs)
    assert set(outcome.state) == {"COMPLETED"}
    assert outcome.ended_seconds.tolist() == [0.0] * 5


def test_a_workload_without_jobs_ends_at_once() -> None:
    outcome = run_jobs(make_world(), [])
    assert (outcome.end_seconds, outcome.total_joules, outcome.balance_error) == (0.0, 0.0, 0.0)
    assert len(outcome.state) == len(outcome.job_id) == 0


def test_a_workload_without_jobs_still_draws_idle_power_until_the_horizon() -> None:
    outcome = run_jobs(make_world(), [], horizon_seconds=3_600.0)
    assert outcome.total_joules == pytest.approx(4 * 10.0 * 3_600.0)
    assert outcome.sample_watts == pytest.approx(40.0)


def test_the_horizon_counts_a_running_job_in_part() -> None:
    outcome = run_jobs(
        make_world(), [make_job(1, units=100.0), make_job(2, submitted=1.0, gpus=4)], horizon_seconds=30.0
    )
    assert outcome.state == ["RUNNING", "PENDING"]
    assert outcome.units.tolist() == [pytest.approx(30.0), 0.0]
    assert outcome.energy_joules.tolist() == [pytest.approx(6_000.0), 0.0]
    assert outcome.run_seconds.tolist() == [30.0, 0.0]
    assert outcome.end_seconds == 30.0
    assert outcome.balance_error < 1e-12


@pytest.mark.parametrize("horizon", [-1.0, float("inf"), float("nan")])
def test_a_horizon_that_cannot_be_is_refused(horizon: float) -> None:
    with pytest.raises(ValueRangeError, match="horizon"):
        run_jobs(make_world(), [], horizon_seconds=horizon)


def test_a_job_id_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="job 1 comes twice"):
        run_jobs(make_world(), [make_job(1), make_job(1)])


def test_jobs_out_of_order_are_refused() -> None:
    with pytest.raises(ValueRangeError, match=r"job 2 .* 5\.0 s.* 9\.0 s"):
        run_jobs(make_world(), [make_job(1, submitted=9.0), make_job(2, submitted=5.0)])


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ((-1.0, 2.0), "job 0 is submitted at -1.0"),
        ((0.0, 5.0, 4.0, 6.0), "job 2 is submitted at 4.0 s.*from 5.0 s up"),
        ((1.0, float("nan"), 2.0), "job 1 is submitted at nan"),
        ((1.0, float("inf")), "job 1 is submitted at inf"),
    ],
)
def test_the_job_is_named_that_is_out_of_order(times: tuple[float, ...], named: str) -> None:
    with pytest.raises(ValueRangeError, match=named):
        Workload(name="jobs", jobs=tuple(make_job(number, time) for number, time in enumerate(times)))


def test_one_node_with_one_device_serves_jobs_in_the_order_of_submission() -> None:
    world = make_world(make_pool(gpus_per_node=1), discipline=FIFO)
    outcome = run_jobs(world, [make_job(number, submitted=float(number), units=10.0) for number in range(1, 5)])
    assert started(outcome) == {1: 1.0, 2: 11.0, 3: 21.0, 4: 31.0}


def test_nothing_starts_when_all_nodes_are_down_from_the_start() -> None:
    world = make_world(make_pool(nodes=3), outages=(Outage(pool="pool", at_seconds=0.0, nodes=3),))
    outcome = run_jobs(world, [make_job(1), make_job(2, submitted=10.0)])
    assert outcome.state == ["PENDING", "PENDING"]
    assert outcome.total_joules == 0.0


@pytest.mark.parametrize("interval", [0.0, 30.0])
def test_a_run_ends_although_jobs_wait_for_nodes_that_never_come_back(interval: float) -> None:
    world = make_world(
        make_pool(nodes=2),
        outages=(Outage(pool="pool", at_seconds=25.0, nodes=2),),
        backfill_interval_seconds=interval,
    )
    outcome = run_jobs(world, [make_job(1), make_job(2, submitted=50.0)])
    assert outcome.state == ["PENDING", "PENDING"]
    assert outcome.restarts.tolist() == [1, 0]
    assert outcome.units_lost.tolist() == [pytest.approx(25.0), 0.0]
    assert outcome.joules_by_component["idle"] == pytest.approx(7 * 10.0 * 25.0)


def test_jobs_start_when_nodes_that_were_down_come_back() -> None:
    world = make_world(
        make_pool(nodes=2, host_idle_watts=50.0, host_busy_watts=50.0),
        outages=(Outage(pool="pool", at_seconds=0.0, until_seconds=100.0, nodes=2),),
    )
    outcome = run_jobs(world, [make_job(1, units=10.0, gpus=4)])
    assert started(outcome) == {1: 100.0}
    assert outcome.joules_by_component["host"] == pytest.approx(2 * 50.0 * 2.5)


def test_a_lower_clock_takes_longer_and_draws_less() -> None:
    outcome = run_jobs(make_world(), [make_job(1, units=10.0)], FirstFit(clock=1))
    assert ended(outcome) == {1: 20.0}
    assert joules(outcome) == {1: pytest.approx(2_000.0)}
    assert outcome.clock.tolist() == [1]


def test_samples_add_up_to_the_total() -> None:
    jobs = [make_job(number, submitted=97.0 * number, units=333.0, gpus=1 + number % 4) for number in range(40)]
    outcome = run_jobs(make_world(), jobs)
    energy = float((outcome.sample_watts * (outcome.sample_seconds[1:] - outcome.sample_seconds[:-1])).sum())
    assert energy == pytest.approx(outcome.total_joules, rel=1e-12)
    assert outcome.sample_seconds[-1] == outcome.end_seconds


def test_the_queue_at_the_end_of_each_day_is_counted() -> None:
    day = 86_400.0
    jobs = [
        make_job(1, units=4 * 2.5 * day, gpus=4),
        make_job(2, submitted=1.0, gpus=4),
        make_job(3, 1.5 * day, gpus=4),
    ]
    assert run_jobs(make_world(), jobs).waiting_at_day_end == (1, 2)


def test_launch_time_is_spent_on_the_allocation_while_its_devices_draw_as_free_ones() -> None:
    outcome = run_jobs(make_world(launch_seconds=5.0), [make_job(1, units=10.0)])
    assert ended(outcome) == {1: 15.0}
    assert joules(outcome) == {1: pytest.approx(5.0 * 10.0 + 10.0 * 200.0)}
    assert outcome.gpu_seconds.tolist() == [15.0]


def test_a_run_of_many_samples_keeps_few_of_them() -> None:
    jobs = [make_job(number, submitted=600.0 * number, units=1.0) for number in range(600)]
    outcome = run_jobs(make_world(), jobs)
    assert len(outcome.sample_seconds) <= 2_050
    energy = float((outcome.sample_watts * (outcome.sample_seconds[1:] - outcome.sample_seconds[:-1])).sum())
    assert energy == pytest.approx(outcome.total_joules, rel=1e-9)
