import pytest
from guard_questions import asking, clocks, decide
from policy_factory import (
    A40,
    A100,
    make_config,
    make_job,
    make_node,
    make_snapshot,
)

from slurm_energy.domain.decision import Reason
from slurm_energy.domain.ids import GpuTypeName


def test_clock_that_the_gpu_lacks_is_moved_to_a_supported_one() -> None:
    decision = decide(make_job(), policy=asking(1334))
    assert clocks(decision) == {A100: 1335}
    assert Reason.CLOCK_TABLE in decision.reasons


@pytest.mark.parametrize("mhz", [1, 210, 855, 1100])
def test_clock_too_low_for_the_bound_becomes_the_best_one_inside(mhz: int) -> None:
    decision = decide(make_job(), policy=asking(mhz))
    assert clocks(decision) == {A100: 1290}
    assert Reason.SLOWDOWN_BOUND in decision.reasons


def test_prediction_of_the_policy_does_not_count() -> None:
    decision = decide(make_job(), policy=asking(1320, predicted_slowdown=-1.0, predicted_energy_change=-0.99))
    assert decision.clocks[0].predicted_slowdown > 0.0
    assert decision.clocks[0].predicted_energy_change > -0.2


@pytest.mark.parametrize("mhz", [1410, 9999])
def test_default_clock_is_no_change(mhz: int) -> None:
    assert decide(make_job(), policy=asking(mhz)).clocks == ()


def test_clock_that_saves_too_little_stays_at_the_default() -> None:
    decision = decide(make_job(), config=make_config(min_energy_saving=0.3))
    assert decision.clocks == ()
    assert Reason.NO_SAVING in decision.reasons


def test_type_without_measured_curves_gets_no_clock_and_says_so() -> None:
    snapshot = make_snapshot(make_node("h1", "a100", "h100"))
    decision = decide(make_job(), policy=asking(1200, GpuTypeName("h100-sxm5-80gb")), snapshot=snapshot)
    assert decision.clocks == ()
    assert Reason.UNKNOWN_GPU_TYPE in decision.reasons
    assert any("unknown" in note for note in decision.notes)


def test_gres_type_outside_the_catalogue_is_named_in_a_note() -> None:
    decision = decide(make_job(), snapshot=make_snapshot(make_node("n1", "a100", "mi300x")))
    assert decision.clocks == ()
    assert Reason.UNKNOWN_GPU_TYPE in decision.reasons
    assert any("mi300x" in note for note in decision.notes)


def test_sites_mapping_of_gres_types_comes_first() -> None:
    config = make_config(gpu_types={"big": "a40", "gpu": "a100-sxm4-80gb"})
    snapshot = make_snapshot(make_node("n1", "a100", "big"), make_node("n2", "a100", None))
    decision = decide(make_job(), snapshot=snapshot, config=config)
    assert clocks(decision) == {A40: 1455, A100: 1290}
    assert decision.message.startswith("big at 1455 of 1740 MHz")


def test_clock_of_a_type_the_job_cannot_land_on_is_dropped() -> None:
    assert decide(make_job(), policy=asking(1335, A40)).clocks == ()


def test_type_asked_for_by_name_is_the_only_one_that_gets_a_clock() -> None:
    snapshot = make_snapshot(make_node("n1", "a100", "a100"), make_node("n2", "a100", "a40"))
    assert clocks(decide(make_job(gpu_type="a40"), snapshot=snapshot)) == {A40: 1455}
    assert clocks(decide(make_job(), snapshot=snapshot)) == {A100: 1290, A40: 1455}
