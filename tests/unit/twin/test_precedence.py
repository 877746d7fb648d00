"""Dependencies and arrays: who may start when, and what becomes of jobs whose parents fail."""

import pytest
from small_worlds import make_job, make_pool, make_world, run_jobs, started, states

from slurm_energy.policy.placement import Discipline
from slurm_energy.twin.engine.job import Job, JobRun
from slurm_energy.twin.engine.waiting import Precedence
from slurm_energy.twin.world import FailureRates, Outage


def test_a_chain_runs_in_order_without_gaps() -> None:
    jobs = [make_job(1, units=10.0), make_job(2, units=20.0, after_ok=(1,)), make_job(3, units=5.0, after_ok=(2,))]
    outcome = run_jobs(make_world(), jobs)
    assert started(outcome) == {1: 0.0, 2: 10.0, 3: 30.0}
    assert outcome.eligible_seconds.tolist() == [0.0, 10.0, 30.0]


def test_a_diamond_waits_for_both_branches() -> None:
    jobs = [
        make_job(1, units=10.0),
        make_job(2, units=5.0, after_ok=(1,)),
        make_job(3, units=50.0, after_ok=(1,)),
        make_job(4, units=1.0, after_ok=(2, 3)),
    ]
    assert started(run_jobs(make_world(), jobs)) == {1: 0.0, 2: 10.0, 3: 10.0, 4: 60.0}


def test_a_child_may_be_submitted_before_its_parent() -> None:
    jobs = [make_job(2, units=5.0, after_ok=(1,)), make_job(1, submitted=10.0, units=10.0)]
    assert started(run_jobs(make_world(), jobs)) == {2: 20.0, 1: 10.0}


def test_a_child_of_a_job_that_is_done_starts_at_once() -> None:
    jobs = [make_job(1, units=5.0), make_job(2, submitted=30.0, units=5.0, after_ok=(1,))]
    assert started(run_jobs(make_world(), jobs)) == {1: 0.0, 2: 30.0}


def test_after_any_does_not_ask_how_the_parent_ended() -> None:
    jobs = [make_job(1, units=100.0, time_limit_seconds=20.0), make_job(2, units=5.0, after_any=(1,))]
    outcome = run_jobs(make_world(), jobs)
    assert states(outcome) == {1: "TIMEOUT", 2: "COMPLETED"}
    assert started(outcome)[2] == 20.0


@pytest.mark.parametrize("submitted", [0.0, 50.0])
def test_descendants_of_a_failed_parent_are_cancelled_whenever_they_come(submitted: float) -> None:
    jobs = [
        make_job(1, units=100.0, fails_after_units=30.0),
        make_job(2, submitted=submitted, after_ok=(1,)),
        make_job(3, submitted=submitted, after_ok=(2,)),
        make_job(4, submitted=submitted, units=5.0, after_any=(3,)),
    ]
    outcome = run_jobs(make_world(), jobs)
    assert states(outcome) == {1: "FAILED", 2: "CANCELLED", 3: "CANCELLED", 4: "COMPLETED"}
    assert started(outcome)[4] == max(submitted, 30.0)
    assert outcome.ended_seconds.tolist()[1] == max(submitted, 30.0)


@pytest.mark.parametrize("submitted", [0.0, 50.0])
def test_a_child_of_a_rejected_job_is_cancelled(submitted: float) -> None:
    jobs = [make_job(1, gpus=9), make_job(2, submitted=submitted, after_ok=(1,))]
    assert states(run_jobs(make_world(), jobs)) == {1: "REJECTED", 2: "CANCELLED"}


def test_a_child_named_twice_under_one_parent_waits_for_it_once() -> None:
    jobs = [make_job(1, units=10.0), make_job(2, units=5.0, after_ok=(1, 1), after_any=(1,))]
    assert started(run_jobs(make_world(), jobs)) == {1: 0.0, 2: 10.0}


def test_a_parent_that_never_comes_is_waited_for_until_the_end() -> None:
    jobs = [make_job(1, units=10.0), make_job(2, after_ok=(77,))]
    outcome = run_jobs(make_world(), jobs)
    assert states(outcome) == {1: "COMPLETED", 2: "PENDING"}
    assert outcome.end_seconds == 10.0


def test_a_run_with_random_failures_ends_although_a_child_can_never_start() -> None:
    world = make_world(make_pool(nodes=4), failures=FailureRates(node_mtbf_seconds=500.0, mean_repair_seconds=2_000.0))
    jobs = [make_job(1, units=100.0, fails_after_units=1.0), make_job(2, submitted=400.0, after_ok=(1,))]
    outcome = run_jobs(world, jobs, seed=3)
    assert states(outcome) == {1: "FAILED", 2: "CANCELLED"}


def test_a_run_with_random_failures_ends_although_a_parent_never_comes() -> None:
    world = make_world(make_pool(nodes=30), failures=FailureRates(node_mtbf_seconds=500.0, mean_repair_seconds=2_000.0))
    jobs = [make_job(1, submitted=800.0, units=1.0), make_job(2, submitted=800.0, after_ok=(77,))]
    assert states(run_jobs(world, jobs)) == {1: "COMPLETED", 2: "PENDING"}


def test_a_long_chain_whose_head_fails_is_cancelled_to_its_end() -> None:
    chain = [make_job(1, units=10.0, fails_after_units=1.0)]
    chain += [make_job(number, after_ok=(number - 1,)) for number in range(2, 3_000)]
    outcome = run_jobs(make_world(), chain)
    assert outcome.state == ["FAILED"] + ["CANCELLED"] * 2_998


def test_a_parent_that_is_requeued_keeps_its_child_waiting() -> None:
    world = make_world(outages=(Outage(pool="pool", at_seconds=5.0, until_seconds=20.0, nodes=1),))
    jobs = [make_job(1, units=10.0), make_job(2, units=1.0, after_any=(1,))]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 30.0}


def test_tasks_of_an_array_run_no_more_at_once_than_its_limit() -> None:
    world = make_world(make_pool(gpus_per_node=8))
    jobs = [make_job(number, units=10.0 + number, array_id=1, array_limit=2) for number in range(5)]
    jobs.append(make_job(9, units=3.0))
    assert started(run_jobs(world, jobs)) == {0: 0.0, 1: 0.0, 2: 10.0, 3: 11.0, 4: 22.0, 9: 0.0}


def test_arrays_do_not_count_each_other_s_tasks() -> None:
    jobs = [make_job(number, units=10.0, array_id=number % 2, array_limit=1) for number in range(4)]
    assert started(run_jobs(make_world(), jobs)) == {0: 0.0, 1: 0.0, 2: 10.0, 3: 10.0}


def test_a_task_that_failed_or_ran_out_of_time_frees_its_slot() -> None:
    jobs = [
        make_job(1, units=10.0, array_id=1, array_limit=1, fails_after_units=4.0),
        make_job(2, units=90.0, array_id=1, array_limit=1, time_limit_seconds=6.0),
        make_job(3, units=10.0, array_id=1, array_limit=1),
    ]
    assert started(run_jobs(make_world(), jobs)) == {1: 0.0, 2: 4.0, 3: 10.0}


def test_a_cancelled_task_takes_no_slot() -> None:
    jobs = [
        make_job(1, units=10.0, fails_after_units=1.0),
        make_job(2, after_ok=(1,), array_id=1, array_limit=1),
        make_job(3, submitted=5.0, units=10.0, array_id=1, array_limit=1),
    ]
    outcome = run_jobs(make_world(), jobs)
    assert states(outcome)[2] == "CANCELLED"
    assert started(outcome)[3] == 5.0


def test_a_rejected_task_takes_no_slot() -> None:
    jobs = [make_job(number, units=10.0, gpus=9 if number == 1 else 1, array_id=1, array_limit=1) for number in (1, 2)]
    jobs.append(make_job(3, units=10.0, after_any=(2,)))
    outcome = run_jobs(make_world(), jobs)
    assert states(outcome) == {1: "REJECTED", 2: "COMPLETED", 3: "COMPLETED"}


def test_a_requeued_task_keeps_its_slot() -> None:
    world = make_world(outages=(Outage(pool="pool", at_seconds=5.0, until_seconds=20.0, nodes=1),))
    jobs = [make_job(number, units=10.0, array_id=1, array_limit=1) for number in (1, 2)]
    assert started(run_jobs(world, jobs)) == {1: 0.0, 2: 30.0}


def test_an_array_and_its_dependencies_end_together() -> None:
    jobs = [make_job(number, units=10.0, array_id=5, array_limit=2) for number in range(1, 5)]
    jobs.append(make_job(9, units=1.0, after_ok=(1, 2, 3, 4)))
    assert started(run_jobs(make_world(discipline=Discipline(backfill="none")), jobs))[9] == 20.0


def held(runs: dict[int, JobRun], precedence: Precedence, *jobs: Job) -> None:
    for job in jobs:
        run = runs[job.job_id] = JobRun(job)
        precedence.add(run)


def test_criticality_is_the_share_of_a_delay_that_reaches_the_end_of_the_graph() -> None:
    runs: dict[int, JobRun] = {}
    precedence = Precedence(runs)
    held(
        runs,
        precedence,
        make_job(1),
        *(make_job(number, after_ok=(1,)) for number in range(2, 6)),
        make_job(6, after_ok=(2, 3, 4, 5)),
        make_job(7),
    )
    assert [precedence.criticality(number) for number in range(1, 8)] == [1.0, 0.25, 0.25, 0.25, 0.25, 1.0, 1.0]


def test_criticality_of_a_chain_is_1_and_a_cycle_ends() -> None:
    runs: dict[int, JobRun] = {}
    precedence = Precedence(runs)
    held(
        runs,
        precedence,
        make_job(1),
        make_job(2, after_ok=(1,)),
        make_job(3, after_ok=(2,)),
        make_job(4, after_ok=(5,)),
        make_job(5, after_ok=(4,)),
    )
    assert precedence.criticality(1) == precedence.criticality(2) == 1.0
    assert 0.0 <= precedence.criticality(4) <= 1.0
