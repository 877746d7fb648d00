"""Clocks tried in jobs of the twin: what trials cost and find is in the jobs, and in the next run of the name."""

from dataclasses import replace

import pytest

from slurm_energy.config import Config
from slurm_energy.evaluation.contenders import create_contender
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.twin.adapters.served import ServedPolicy
from slurm_energy.twin.engine import trials
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.engine.outcome import Outcome
from slurm_energy.twin.engine.simulation import run
from slurm_energy.twin.world.file import shipped_world

WORLD = shipped_world("philly-a100")
HOURS = 3600.0


def streams(count: int, **changes: object) -> tuple[Job, ...]:
    """Return runs of one name, one after the other, on A40: memory alone paces them at half of the clocks."""
    return tuple(
        Job(
            job_id=number + 1,
            submitted_seconds=20.0 * HOURS * number,
            true_units=8_000.0,
            kind="stream",
            name="stream-a",
            user="u",
            partitions=("a40",),
            **changes,  # type: ignore[arg-type]  # values by name
        )
        for number in range(count)
    )


def played(rule: PlacementRule, jobs: tuple[Job, ...], seed: int = 3) -> Outcome:
    return run(WORLD, Workload(name="jobs", jobs=jobs), rule, seed=seed)


@pytest.fixture
def _sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the detector see every program well."""
    monkeypatch.setattr(trials, "MEDIAN_ERROR", 0.004)
    monkeypatch.setattr(trials, "ERROR_SPREAD", 0.0)
    monkeypatch.setattr(trials, "NEVER", 0.0)
    monkeypatch.setattr(trials, "NOT_IN_A_MINUTE", 0.0)


@pytest.mark.usefixtures("_sure")
def test_a_job_that_waits_for_memory_ends_at_a_clock_far_below_the_tables_and_keeps_its_bound() -> None:
    without = played(create_contender("daemon/oracle"), streams(1))
    with_trials = played(create_contender("daemon/oracle:trials=on"), streams(1))
    assert with_trials.clock[0] < without.clock[0] - 3
    assert with_trials.energy_joules[0] < 0.93 * without.energy_joules[0]
    assert with_trials.run_seconds[0] <= 1.06 * played(create_contender("fcfs"), streams(1)).run_seconds[0]


@pytest.mark.usefixtures("_sure")
def test_the_next_run_of_the_name_begins_with_what_the_last_one_learned_and_another_name_does_not() -> None:
    rule = create_contender("daemon/oracle:trials=on")
    first, second, other = streams(3)
    outcome = played(rule, (first, second, replace(other, name="other")))
    assert outcome.energy_joules[1] < outcome.energy_joules[0]
    assert isinstance(rule, ServedPolicy)
    assert played(rule, (first, second)).energy_joules[:2].tolist() == outcome.energy_joules[:2].tolist()
    assert outcome.energy_joules[2] > outcome.energy_joules[1]


def test_a_program_that_is_never_answered_keeps_the_tables_clock_and_pays_for_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "NEVER", 1.0)
    monkeypatch.setattr(trials, "NOT_IN_A_MINUTE", 1.0)
    without, tried = (
        played(create_contender(f"daemon/oracle:exchange=0{more}"), streams(1, max_slowdown=0.1))
        for more in ("", ",trials=on")
    )
    assert tried.clock[0] == without.clock[0]
    # Windows at the default clock need more energy; of the time at most 1 % is lost.
    assert tried.energy_joules[0] > without.energy_joules[0]
    assert tried.run_seconds[0] <= 1.01 * without.run_seconds[0]


def test_without_the_switch_nothing_is_tried() -> None:
    assert create_contender("daemon/oracle").trials is None
    assert create_contender("daemon/oracle:trials=off").trials is None
    assert Config().policy.clock_trials == "off"


def test_two_runs_with_trials_are_the_same_and_another_seed_is_not() -> None:
    rule = create_contender("daemon/oracle:trials=on")
    one, two, other = (played(rule, streams(4), seed) for seed in (1, 1, 2))
    assert one.energy_joules.tolist() == two.energy_joules.tolist()
    assert one.energy_joules.tolist() != other.energy_joules.tolist()


def test_a_job_that_shares_its_gpu_or_is_cut_off_by_its_limit_raises_nothing() -> None:
    jobs = streams(3, time_limit_seconds=1.5 * HOURS, shareable=True)
    outcome = played(create_contender("daemon/oracle:trials=on"), jobs)
    assert set(outcome.state) <= {"TIMEOUT", "COMPLETED"}
