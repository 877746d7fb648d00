"""Nodes that sleep when idle and must wake for a job. A node: 4 GPUs, 100 W host idle, 140 W host busy."""

from typing import Any

import pytest
from small_worlds import Answers, FirstFit, ended, joules, make_job, make_pool, make_world, run_jobs, started

from slurm_energy.errors import ValueRangeError
from slurm_energy.policy.jobs import WaitingJob
from slurm_energy.policy.placement import ClusterView, Discipline, Placement
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.world import Outage, SuspendSettings, World

SETTINGS = SuspendSettings(idle_seconds=60.0, resume_seconds=30.0, suspended_watts=5.0, resume_watts=250.0)
AWAKE_IDLE = 100.0 + 4 * 10.0


def sleepy(nodes: int = 1, settings: SuspendSettings = SETTINGS, **changes: Any) -> World:
    pool = make_pool(nodes=nodes, suspend=settings, host_idle_watts=100.0, host_busy_watts=140.0)
    return make_world(pool, **changes)


def parts(outcome: Outcome) -> dict[str, float]:
    assert outcome.balance_error < 1e-12
    return dict(outcome.joules_by_component)


def test_an_idle_node_is_suspended_after_a_while() -> None:
    outcome = run_jobs(sleepy(), [], horizon_seconds=3_660.0)
    assert parts(outcome) == {
        "idle": pytest.approx(60.0 * 40.0),
        "host": pytest.approx(60.0 * 100.0),
        "suspended": pytest.approx(3_600.0 * 5.0),
        "waking": 0.0,
    }
    assert outcome.suspended_node_hours == pytest.approx(1.0)


def test_a_node_that_is_used_before_stays_awake() -> None:
    jobs = [make_job(number, submitted=50.0 * number, units=1.0) for number in range(5)]
    assert run_jobs(sleepy(), jobs).suspended_node_hours == 0.0


def test_the_timer_starts_anew_when_the_last_job_leaves() -> None:
    outcome = run_jobs(sleepy(), [make_job(1, submitted=30.0, units=10.0)], horizon_seconds=200.0)
    assert outcome.suspended_node_hours * 3_600.0 == pytest.approx(200.0 - 100.0)


def test_a_job_waits_for_its_node_to_wake() -> None:
    outcome = run_jobs(sleepy(), [make_job(1, submitted=100.0, units=40.0, gpus=4)])
    assert (started(outcome), ended(outcome)) == ({1: 100.0}, {1: 140.0})
    assert joules(outcome) == {1: pytest.approx(10.0 * 800.0)}
    assert parts(outcome) == {
        "idle": pytest.approx(60.0 * 40.0),
        "host": pytest.approx(60.0 * 100.0 + 10.0 * 140.0),
        "suspended": pytest.approx(40.0 * 5.0),
        "waking": pytest.approx(30.0 * 250.0),
    }


def test_a_wake_in_no_time_and_for_nothing_changes_nothing() -> None:
    free = SuspendSettings(idle_seconds=0.0, resume_seconds=0.0, suspended_watts=140.0, resume_watts=0.0)
    jobs = [make_job(number, submitted=10.0 * number, units=5.0, gpus=number % 4 + 1) for number in range(8)]
    outcome = run_jobs(sleepy(settings=free), jobs)
    awake = run_jobs(make_world(make_pool(host_idle_watts=100.0, host_busy_watts=140.0)), jobs)
    assert ended(outcome) == ended(awake)
    assert outcome.total_joules == pytest.approx(awake.total_joules)
    assert outcome.balance_error < 1e-12


def test_a_second_job_joins_the_node_that_wakes_and_waits_no_longer_than_it() -> None:
    jobs = [make_job(1, submitted=100.0, units=40.0), make_job(2, submitted=120.0, units=40.0)]
    outcome = run_jobs(sleepy(2), jobs)
    assert ended(outcome) == {1: 170.0, 2: 170.0}
    assert parts(outcome)["waking"] == pytest.approx(30.0 * 250.0)


def test_a_job_over_two_nodes_of_which_one_sleeps_holds_the_other_at_free_power() -> None:
    jobs = [make_job(1, units=400.0, gpus=4), make_job(2, submitted=100.0, units=80.0, gpus=8)]
    outcome = run_jobs(sleepy(2), jobs)
    assert (started(outcome)[2], ended(outcome)[2]) == (100.0, 140.0)
    assert joules(outcome)[2] == pytest.approx(30.0 * 4 * 10.0 + 10.0 * 1_600.0)
    assert parts(outcome) == {
        "idle": pytest.approx(60.0 * 40.0),
        "host": pytest.approx(100.0 * 140.0 + 60.0 * 100.0 + 30.0 * 140.0 + 10.0 * 280.0),
        "suspended": pytest.approx(40.0 * 5.0),
        "waking": pytest.approx(30.0 * 250.0),
    }


def test_staging_begins_when_the_node_is_awake_and_costs_once() -> None:
    pool = make_pool(suspend=SETTINGS, link_gigabytes_per_second=10.0, link_joules_per_gigabyte=5.0)
    outcome = run_jobs(make_world(pool), [make_job(1, submitted=100.0, units=10.0, input_gigabytes=50.0)])
    assert ended(outcome) == {1: pytest.approx(100.0 + 30.0 + 5.0 + 10.0)}
    assert joules(outcome) == {1: pytest.approx(5.0 * 30.0 + 250.0 + 2_000.0)}
    assert parts(outcome)["waking"] == pytest.approx(7_500.0)


def test_a_limit_counts_from_when_the_node_is_awake() -> None:
    """As Slurm does: a job is configuring, not running, while its nodes boot."""
    outcome = run_jobs(
        sleepy(), [make_job(1, submitted=100.0, units=40.0, time_limit_seconds=10.0)], horizon_seconds=300.0
    )
    assert (outcome.state, ended(outcome)) == (["TIMEOUT"], {1: 140.0})
    assert joules(outcome) == {1: pytest.approx(2_000.0)}
    assert parts(outcome) == {
        "idle": pytest.approx(60.0 * 40.0 + 10.0 * 30.0 + 60.0 * 40.0),
        "host": pytest.approx(60.0 * 100.0 + 10.0 * 110.0 + 60.0 * 100.0),
        "suspended": pytest.approx((40.0 + 100.0) * 5.0),
        "waking": pytest.approx(7_500.0),
    }


def test_backfill_counts_the_boot_of_a_job_s_nodes_to_its_run() -> None:
    """Both jobs run from 130 s, when the node is awake: a second limit of 50 s is inside the first, 51 s is not."""
    for seconds, start in ((50.0, 105.0), (51.0, 190.0)):
        jobs = [
            make_job(1, submitted=100.0, units=150.0, gpus=3, time_limit_seconds=50.0),
            make_job(2, submitted=101.0, units=40.0, gpus=4, time_limit_seconds=10.0),
            make_job(3, submitted=105.0, units=1.0, time_limit_seconds=seconds),
        ]
        assert started(run_jobs(sleepy(), jobs)) == {1: 100.0, 2: 180.0, 3: start}


def test_a_node_that_fails_while_it_wakes_draws_nothing_and_its_job_goes_elsewhere() -> None:
    world = sleepy(outages=(Outage(pool="pool", at_seconds=110.0, until_seconds=200.0, nodes=1),))
    outcome = run_jobs(world, [make_job(1, submitted=100.0, units=40.0, gpus=4)])
    assert (ended(outcome), outcome.restarts.tolist()) == ({1: 210.0}, [1])
    assert joules(outcome) == {1: pytest.approx(8_000.0)}
    assert parts(outcome)["waking"] == pytest.approx(10.0 * 250.0)
    assert parts(outcome)["suspended"] == pytest.approx(40.0 * 5.0)


def test_a_node_that_fails_while_it_sleeps_draws_nothing() -> None:
    world = sleepy(outages=(Outage(pool="pool", at_seconds=110.0, until_seconds=200.0, nodes=1),))
    outcome = run_jobs(world, [], horizon_seconds=300.0)
    assert parts(outcome) == {
        "idle": pytest.approx((60.0 + 60.0) * 40.0),
        "host": pytest.approx((60.0 + 60.0) * 100.0),
        "suspended": pytest.approx((50.0 + 40.0) * 5.0),
        "waking": 0.0,
    }


def test_the_other_node_of_a_job_that_failed_before_its_node_woke_boots_to_the_end() -> None:
    world = sleepy(2, outages=(Outage(pool="pool", at_seconds=110.0, nodes=1),))
    outcome = run_jobs(world, [make_job(1, submitted=100.0, units=80.0, gpus=8)], horizon_seconds=300.0)
    assert outcome.state == ["PENDING"]
    assert joules(outcome) == {1: 0.0}
    assert parts(outcome) == {
        "idle": pytest.approx((120.0 + 60.0) * 40.0),
        "host": pytest.approx((120.0 + 60.0) * 100.0),
        "suspended": pytest.approx((80.0 + 110.0) * 5.0),
        "waking": pytest.approx((10.0 + 30.0) * 250.0),
    }


def test_a_gpu_that_breaks_in_a_sleeping_node_is_missed_when_it_wakes() -> None:
    world = sleepy(outages=(Outage(pool="pool", at_seconds=80.0, until_seconds=1_000.0, gpus=1),))
    outcome = run_jobs(world, [make_job(1, submitted=100.0, units=30.0, gpus=3)], horizon_seconds=140.0)
    assert parts(outcome)["idle"] == pytest.approx(60.0 * 40.0)
    assert parts(outcome)["host"] == pytest.approx(60.0 * 100.0 + 10.0 * 130.0)


def test_rules_see_what_waking_would_cost() -> None:
    seen: dict[float, list[float]] = {}

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen[view.now_seconds] = [view.wakeup_joules(0, gpus) for gpus in (1, 4, 5, 8)]
        return FirstFit().place(job, view)

    jobs = [make_job(1, units=400.0, gpus=4), make_job(2, submitted=90.0, units=1.0)]
    run_jobs(sleepy(2), jobs, Answers(place=place))
    assert seen == {0.0: [0.0] * 4, 90.0: [7_500.0, 7_500.0, 7_500.0, 7_500.0]}


def test_free_devices_of_sleeping_nodes_are_free_in_the_view() -> None:
    seen = []

    def place(job: WaitingJob, view: ClusterView) -> Placement | None:
        seen.append((list(view.free_gpus), view.power_watts))
        return FirstFit().place(job, view)

    run_jobs(sleepy(2), [make_job(1, submitted=100.0)], Answers(place=place))
    assert seen == [([8], 10.0)]


def test_a_node_whose_last_job_leaves_while_another_waits_is_not_suspended() -> None:
    settings = SuspendSettings(idle_seconds=0.0, resume_seconds=30.0, suspended_watts=5.0, resume_watts=250.0)
    jobs = [make_job(1, units=40.0, gpus=4), make_job(2, submitted=0.0, units=40.0, gpus=4)]
    outcome = run_jobs(sleepy(settings=settings, discipline=Discipline(backfill="none")), jobs)
    assert ended(outcome) == {1: 10.0, 2: 20.0}


@pytest.mark.parametrize("name", ["idle_seconds", "resume_seconds", "suspended_watts", "resume_watts"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_suspend_setting_that_cannot_be_is_refused(name: str, value: float) -> None:
    values = {"idle_seconds": 1.0, "resume_seconds": 1.0, "suspended_watts": 1.0, "resume_watts": 1.0, name: value}
    with pytest.raises(ValueRangeError, match=name):
        SuspendSettings(**values)
