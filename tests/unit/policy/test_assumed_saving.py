"""What has not been measured is never said to be saved."""

from dataclasses import replace

import pytest
from guard_questions import decide
from policy_factory import make_config, make_job, make_node, make_snapshot

from slurm_energy.domain.ids import GpuTypeName, PartitionName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.curves import shipped_curves
from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.policy.guard.explanation import announcement

ASSUMED = sorted(
    name
    for name, curves in shipped_curves().items()
    if curves and curves[0].source == "model" and clock_table_of(name) is not None
)


def test_some_types_of_the_catalogue_are_assumed() -> None:
    assert ASSUMED


@pytest.mark.parametrize("gpu_type", ASSUMED)
def test_a_clock_of_an_assumed_type_promises_no_saving(gpu_type: str) -> None:
    config = make_config(gpu_types={"old": gpu_type}, saver_max_slowdown=0.2)
    decision = decide(make_job(max_slowdown=0.2), config=config, snapshot=make_snapshot(make_node("n1", "a100", "old")))
    (clock,) = decision.clocks
    assert clock.is_assumed
    assert "what it saves is not known" in decision.message and "less energy" not in decision.message
    assert "what it saves is not known of these GPUs" in decision.announcement
    assert not any(letter.isdigit() for letter in decision.announcement)


def test_what_other_programs_save_is_no_promise_for_a_job_of_an_unknown_kind() -> None:
    decision = decide(make_job())
    assert not decision.clocks[0].is_assumed and not decision.clocks[0].known_runs
    assert "what this job saves is not known (11 % for 4 % of time in the mean of other programs)" in decision.message
    assert "less energy" not in decision.message and "less energy" not in decision.announcement
    assert "what it saves for this job is not known" in decision.announcement


def test_what_earlier_runs_of_the_name_measured_is_said_with_their_number() -> None:
    learned = LearnedClock(
        sm_clock_mhz=1200, default_clock_mhz=1410, slowdown=0.01, error=0.005, energy_change=-0.17, runs=7
    )
    config = make_config()
    config = replace(config, policy=replace(config.policy, clock_trials="on"))
    decision = decide(make_job(), config=config, learned_clocks={GpuTypeName("a100-sxm4-80gb"): learned})
    assert decision.clocks[0].known_runs == 7
    assert "1200 of 1410 MHz: about 17 % less energy, 1 % longer, known from 7 runs" in decision.message
    assert "a lower GPU clock (less energy in earlier runs, somewhat longer run)" in decision.announcement
    assert not any(letter.isdigit() for letter in decision.announcement)


def test_another_partition_is_no_promise_where_tables_alone_compare() -> None:
    said = announcement((PartitionName("a40"),), (), None, observed=False)
    by_runs = announcement((PartitionName("a40"),), (), None, observed=False, by_own_runs=True)
    hinted = announcement(None, (), "new", observed=False)
    assert "what it saves for this job is not known" in said and "less energy in earlier runs" in by_runs
    assert "what it saves for this job is not known" in hinted
