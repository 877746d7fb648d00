"""What has not been measured is never said to be saved."""

import pytest
from guard_questions import decide
from policy_factory import make_config, make_job, make_node, make_snapshot

from slurm_energy.energy_model.curves import shipped_curves
from slurm_energy.energy_model.operating_point import clock_table_of

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


def test_a_clock_of_a_measured_type_says_what_it_saves() -> None:
    decision = decide(make_job())
    assert not decision.clocks[0].is_assumed
    assert "less energy" in decision.message and "less energy" in decision.announcement
