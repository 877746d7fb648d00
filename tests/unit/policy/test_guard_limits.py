from dataclasses import replace

import pytest
from guard_questions import clocks, decide, estimate
from policy_factory import (
    A100,
    NOW,
    make_config,
    make_job,
    make_node,
    make_partition,
    make_snapshot,
)

from slurm_energy.domain.decision import Reason, RuntimeEstimate
from slurm_energy.domain.job import EnergyMode


def test_time_limit_near_the_predicted_end_gives_a_higher_clock() -> None:
    limit_minutes = 100.0
    decision = decide(make_job(time_limit_minutes=limit_minutes), runtime=estimate(96.0 * 60))
    (clock,) = decision.clocks
    assert 1290 < clock.sm_clock_mhz < 1410
    assert 96.0 * (1.0 + clock.predicted_slowdown) <= limit_minutes * 0.98
    assert Reason.TIME_LIMIT in decision.reasons


@pytest.mark.parametrize("upper_minutes", [98.5, 100.0, 1e6, float("inf")])
def test_job_that_may_not_fit_its_limit_keeps_the_default_clock(upper_minutes: float) -> None:
    decision = decide(make_job(time_limit_minutes=100.0), runtime=estimate(upper_minutes * 60))
    assert decision.clocks == ()
    assert Reason.TIME_LIMIT in decision.reasons


def test_job_without_history_is_taken_to_need_the_sites_share_of_its_limit() -> None:
    tight = decide(make_job(mode=EnergyMode.SAVER), config=make_config(unknown_runtime_share=0.95))
    loose = decide(make_job(mode=EnergyMode.SAVER), config=make_config(unknown_runtime_share=0.5))
    assert tight.clocks[0].sm_clock_mhz > loose.clocks[0].sm_clock_mhz
    assert tight.estimate == RuntimeEstimate(seconds=34200.0, upper_seconds=34200.0, source="time-limit")
    assert Reason.TIME_LIMIT in tight.reasons


@pytest.mark.parametrize("source", ["user", "site"])
def test_habits_of_other_jobs_shorten_a_first_run_and_never_pass_the_sites_share_of_its_limit(source: str) -> None:
    long = RuntimeEstimate(seconds=3000.0, upper_seconds=6000.0, source=source, runs=9)
    short = RuntimeEstimate(seconds=500.0, upper_seconds=900.0, source=source, runs=9)
    job = make_job(time_limit_minutes=100.0, mode=EnergyMode.SAVER)
    assert clocks(decide(job, runtime=long)) == clocks(decide(job))
    assert clocks(decide(job, runtime=replace(long, source="history"))) == {}
    late = make_job(time_limit_minutes=100.0, deadline_seconds=NOW + 1000.0)
    assert clocks(decide(late)) == {} and clocks(decide(late, runtime=short)) != {}


@pytest.mark.parametrize(
    ("own", "default", "longest", "expected_minutes"),
    [(30.0, 60.0, 120.0, 30.0), (None, 60.0, 120.0, 60.0), (None, None, 120.0, 120.0)],
)
def test_time_limit_is_the_jobs_else_the_partitions_default_else_its_longest(
    own: float | None, default: float | None, longest: float, expected_minutes: float
) -> None:
    partition = make_partition("a100", is_default=True, default_time_minutes=default, max_time_minutes=longest)
    decision = decide(make_job(time_limit_minutes=own), snapshot=make_snapshot(partitions=(partition,)))
    assert decision.estimate is not None
    assert decision.estimate.seconds == pytest.approx(0.8 * 60 * expected_minutes)


def test_job_without_any_limit_may_take_the_whole_bound() -> None:
    partition = make_partition("a100", is_default=True, max_time_minutes=None)
    decision = decide(make_job(time_limit_minutes=None), snapshot=make_snapshot(partitions=(partition,)))
    assert clocks(decision) == {A100: 1290}
    assert decision.estimate is None


def test_deadline_gives_a_higher_clock() -> None:
    decision = decide(make_job(deadline_seconds=NOW + 1000.0), runtime=estimate(960.0))
    (clock,) = decision.clocks
    assert clock.sm_clock_mhz > 1290
    assert 960.0 * (1.0 + clock.predicted_slowdown) <= 1000.0
    assert Reason.DEADLINE in decision.reasons


def test_deadline_that_has_passed_keeps_the_default_clock() -> None:
    decision = decide(make_job(deadline_seconds=NOW - 1.0), runtime=estimate(10.0))
    assert decision.clocks == ()
    assert Reason.DEADLINE in decision.reasons


def test_job_with_a_deadline_that_has_to_wait_keeps_the_default_clock() -> None:
    full = make_snapshot(make_node("n1", "a100", "a100", allocated=4))
    decision = decide(make_job(deadline_seconds=NOW + 1e6), snapshot=full, runtime=estimate(10.0))
    assert decision.clocks == ()
    assert Reason.DEADLINE in decision.reasons


def test_job_of_unknown_length_with_a_deadline_keeps_the_default_clock() -> None:
    partition = make_partition("a100", is_default=True, max_time_minutes=None)
    config = make_config(unknown_runtime_share=0.0)
    job = make_job(time_limit_minutes=None, deadline_seconds=NOW + 1e6)
    decision = decide(job, snapshot=make_snapshot(partitions=(partition,)), config=config)
    assert decision.clocks == ()


def test_history_of_unknown_type_is_stretched_for_a_slower_gpu() -> None:
    job = make_job(partitions=("a100", "a40"), time_limit_minutes=100.0)
    full = make_snapshot(*[make_node(f"{name}-1", name, name, allocated=4) for name in ("a100", "a40")])
    decision = decide(job, runtime=estimate(50.0 * 60), snapshot=full)
    assert clocks(decision) == {A100: 1290}
    assert Reason.TIME_LIMIT in decision.reasons
