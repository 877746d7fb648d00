"""The order of the queue, and what partitions and time limits refuse or end."""

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
    started,
    states,
)

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement
from slurm_energy.twin.engine.job import check_job
from slurm_energy.twin.world import Partition

SJF = Discipline(order="sjf", backfill="easy")
ONE = make_pool(gpus_per_node=1)


def test_the_shortest_estimate_goes_first() -> None:
    jobs = [
        make_job(1, units=10.0),
        make_job(2, submitted=1.0, units=30.0),
        make_job(3, submitted=2.0, units=5.0, estimated_units=40.0),
        make_job(4, submitted=3.0, units=20.0),
    ]
    assert started(run_jobs(make_world(ONE, discipline=SJF), jobs)) == {1: 0.0, 4: 10.0, 2: 30.0, 3: 60.0}


def test_the_shortest_run_goes_first_whatever_its_units_are() -> None:
    loads = {"training": make_load(), "slow": make_load(seconds_per_unit=(400.0, 200.0, 100.0))}
    jobs = [make_job(1, units=10.0), make_job(2, 1.0, units=1.0, kind="slow"), make_job(3, 2.0, units=20.0)]
    world = make_world(ONE, devices=[make_device(loads=loads)], discipline=SJF)
    assert started(run_jobs(world, jobs)) == {1: 0.0, 3: 10.0, 2: 30.0}


def test_a_short_job_does_not_pass_a_head_that_it_would_delay_under_sjf() -> None:
    jobs = [
        make_job(1, units=300.0, gpus=3),
        make_job(2, submitted=1.0, units=40.0, gpus=4),
        make_job(3, submitted=2.0, units=200.0),
    ]
    assert started(run_jobs(make_world(discipline=SJF), jobs)) == {1: 0.0, 2: 100.0, 3: 110.0}


@pytest.mark.parametrize("order", ["fifo", "sjf"])
def test_a_higher_priority_goes_first(order: str) -> None:
    discipline = Discipline(order="sjf" if order == "sjf" else "fifo", backfill="none")
    jobs = [
        make_job(1, units=10.0),
        make_job(2, submitted=1.0, units=1.0),
        make_job(3, submitted=2.0, units=10.0, priority=5.0),
        make_job(4, submitted=3.0, units=10.0, priority=-1.0),
    ]
    assert started(run_jobs(make_world(ONE, discipline=discipline), jobs)) == {1: 0.0, 3: 10.0, 2: 20.0, 4: 21.0}


def test_a_rule_may_bring_its_own_discipline() -> None:
    rule = FirstFit()
    rule.discipline = SJF
    jobs = [make_job(1, units=10.0), make_job(2, 1.0, units=30.0), make_job(3, 2.0, units=20.0)]
    assert started(run_jobs(make_world(ONE), jobs, rule)) == {1: 0.0, 3: 10.0, 2: 30.0}


def test_a_job_over_its_limit_ends_exactly_then_with_the_energy_until_then() -> None:
    outcome = run_jobs(make_world(), [make_job(1, submitted=5.0, units=100.0, time_limit_seconds=60.0)])
    assert states(outcome) == {1: "TIMEOUT"}
    assert ended(outcome) == {1: 65.0}
    assert joules(outcome) == {1: pytest.approx(60.0 * 200.0)}
    assert outcome.units.tolist() == [pytest.approx(60.0)]


def test_a_job_that_needs_exactly_its_limit_completes() -> None:
    outcome = run_jobs(make_world(), [make_job(1, units=60.0, time_limit_seconds=60.0)])
    assert (states(outcome), ended(outcome)) == ({1: "COMPLETED"}, {1: 60.0})


def test_the_limit_counts_from_the_start_of_the_allocation() -> None:
    outcome = run_jobs(make_world(launch_seconds=15.0), [make_job(1, units=100.0, time_limit_seconds=60.0)])
    assert ended(outcome) == {1: 60.0}
    assert joules(outcome) == {1: pytest.approx(15.0 * 10.0 + 45.0 * 200.0)}


def test_a_limit_that_ends_before_the_first_instruction() -> None:
    outcome = run_jobs(make_world(launch_seconds=15.0), [make_job(1, units=100.0, time_limit_seconds=10.0)])
    assert (states(outcome), ended(outcome)) == ({1: "TIMEOUT"}, {1: 10.0})
    assert joules(outcome) == {1: pytest.approx(10.0 * 10.0)}
    assert outcome.units.tolist() == [0.0]


def test_a_lower_clock_does_not_move_the_limit() -> None:
    world = make_world()
    rule = Answers(control=lambda view: {1: 0}, control_interval_seconds=10.0)
    outcome = run_jobs(world, [make_job(1, units=50.0, time_limit_seconds=60.0)], rule)
    assert (states(outcome), ended(outcome)) == ({1: "TIMEOUT"}, {1: 60.0})
    assert outcome.units.tolist() == [pytest.approx(10.0 + 50.0 / 4.0)]


def test_a_job_fails_by_itself_after_so_much_work() -> None:
    outcome = run_jobs(make_world(), [make_job(1, units=100.0, fails_after_units=25.0)])
    assert (states(outcome), ended(outcome)) == ({1: "FAILED"}, {1: 25.0})
    assert outcome.units.tolist() == [25.0]


def partitioned(**changes: Any) -> Partition:
    return Partition(name="short", pools=("pool",), **changes)


@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({"max_time_seconds": 3_600.0}, {"time_limit_seconds": 3_601.0}),
        ({"max_gpus_per_job": 2}, {"gpus": 3}),
        ({}, {"gpus": 5}),
        ({}, {"kind": "unknown"}),
        ({}, {"devices": ("h100",)}),
        ({}, {"partitions": ("other",)}),
    ],
)
def test_a_request_that_no_partition_allows_is_rejected_at_submission(
    changes: dict[str, Any], job: dict[str, Any]
) -> None:
    world = make_world(make_pool(), partitions=(partitioned(**changes),))
    outcome = run_jobs(world, [make_job(1, submitted=7.0, **job), make_job(2, submitted=8.0)])
    assert states(outcome) == {1: "REJECTED", 2: "COMPLETED"}
    assert ended(outcome)[1] == 7.0
    assert outcome.place.tolist() == [-1, 0]
    assert outcome.energy_joules[0] == 0.0


def test_a_malleable_job_is_held_to_the_partition_s_devices_per_job() -> None:
    world = make_world(make_pool(), partitions=(partitioned(max_gpus_per_job=2),))
    outcome = run_jobs(world, [make_job(1, units=10.0, gpus=(1, 2, 4))])
    assert outcome.gpus.tolist() == [2]
    assert ended(outcome) == {1: 5.0}


def test_a_job_without_a_limit_gets_the_partition_s() -> None:
    world = make_world(make_pool(), partitions=(partitioned(max_time_seconds=60.0),))
    outcome = run_jobs(world, [make_job(1, units=100.0)])
    assert (states(outcome), ended(outcome)) == ({1: "TIMEOUT"}, {1: 60.0})


def test_a_job_goes_to_the_default_partition_unless_it_asks_for_others() -> None:
    pools = (make_pool("a"), make_pool("b"))
    world = make_world(
        *pools,
        partitions=(Partition(name="a", pools=("a",)), Partition(name="b", pools=("b",), is_default=True)),
    )
    outcome = run_jobs(world, [make_job(1), make_job(2, partitions=("a",)), make_job(3, partitions=("a", "b"))])
    assert outcome.place.tolist() == [1, 0, 0]


def slowest(job: WaitingJob, view: ClusterView) -> Placement:
    return Placement(0, 1, 0)


@pytest.mark.parametrize(
    ("limits", "clock"),
    [
        ({}, 0),
        ({"deadline_seconds": 1_000.0}, 0),
        ({"deadline_seconds": 399.0}, 1),
        ({"deadline_seconds": 199.0}, 2),
        ({"deadline_seconds": 99.0}, 0),  # lost at any clock: then energy decides
        ({"time_limit_seconds": 250.0}, 1),
        ({"max_slowdown": 0.5}, 2),
        ({"max_slowdown": 1.0}, 1),
    ],
)
def test_a_clock_that_breaks_a_bound_is_raised(limits: dict[str, Any], clock: int) -> None:
    outcome = run_jobs(make_world(), [make_job(1, units=100.0, **limits)], Answers(place=slowest))
    assert outcome.clock.tolist() == [clock]
    assert outcome.clamped == (clock != 0)


def test_a_deadline_counts_from_the_start_that_the_job_really_has() -> None:
    jobs = [make_job(1, units=400.0, gpus=4), make_job(2, units=50.0, deadline_seconds=260.0)]
    rule = Answers(place=lambda job, view: Placement(0, job.gpu_counts[0], 2 if job.job_id == 1 else 0))
    outcome = run_jobs(make_world(discipline=Discipline(backfill="none")), jobs, rule)
    assert started(outcome)[2] == 100.0
    assert outcome.clock.tolist()[1] == 1
    assert ended(outcome)[2] == 200.0
    assert outcome.deadline_seconds.tolist()[1] == 260.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"submitted": -1.0}, "submit time -1.0"),
        ({"submitted": float("nan")}, "submit time nan"),
        ({"units": -1.0}, "work -1.0"),
        ({"units": float("inf")}, "work inf"),
        ({"gpus": ()}, "device counts"),
        ({"gpus": (2, 1)}, "device counts"),
        ({"gpus": 0}, "device counts"),
        ({"time_limit_seconds": 0.0}, "time limit 0.0"),
        ({"time_limit_seconds": float("nan")}, "time limit nan"),
        ({"checkpoint_units": 0.0}, "0.0 units between checkpoints"),
        ({"cpus": -1}, "cpus=-1"),
        ({"memory_gib": float("nan")}, "memory_gib=nan"),
        ({"input_gigabytes": -0.5}, "input_gigabytes=-0.5"),
        ({"array_limit": -1}, "array_limit=-1"),
        ({"ingress": -1}, "ingress=-1"),
        ({"max_slowdown": -0.1}, "max_slowdown=-0.1"),
        ({"fails_after_units": float("nan")}, "fails_after_units=nan"),
        ({"priority": float("nan")}, "priority nan"),
        ({"estimated_units": float("inf")}, "estimate inf"),
        ({"deadline_seconds": float("nan")}, "nan is no number"),
    ],
)
def test_a_job_that_cannot_be_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueRangeError, match=f"job 9.*{named}"):
        check_job(make_job(9, **changes))
