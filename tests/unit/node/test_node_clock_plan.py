from dataclasses import replace

import pytest
from node_bench import A100_CLOCKS, entry

from slurm_energy.device.gpu import GpuIdentity, SavedSettings
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.domain.job import EnergyMode
from slurm_energy.node.clock_plan import ClockPlan, entry_for_count, nearest_clock, plan_clock, read_entry


def plan(
    mhz: int,
    *,
    supported: tuple[int, ...] = A100_CLOCKS,
    site: int | None = None,
    mig: bool = False,
    shared: bool = False,
    mode: EnergyMode = EnergyMode.BALANCED,
    gpu_type: str | None = "a100-sxm4-80gb",
    assumed_watts: int | None = None,
    real_watts: float | None = 400.0,
) -> ClockPlan:
    gpu = GpuIdentity(
        index=0,
        uuid=GpuUuid("GPU-0"),
        name="A100",
        minor_number=0,
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
    )
    watts = None if assumed_watts is None else {"a100-sxm4-80gb": assumed_watts}
    decision = DecisionEntry.decode(entry({"a100-sxm4-80gb": mhz}, mode, watts=watts))
    saved = SavedSettings(
        power_limit_watts=real_watts,
        application_clock_mhz=None,
        lowest_clock_mhz=None,
        highest_clock_mhz=None,
        site_clock_mhz=site,
    )
    return plan_clock(decision, gpu, supported, saved, mig=mig, shared=shared)


def test_supported_clock_is_taken_as_it_is() -> None:
    assert plan(1275) == ClockPlan(asked_mhz=1275, target_mhz=1275)


@pytest.mark.parametrize(("asked", "target"), [(1234, 1230), (1238, 1245), (211, 210), (1237, 1230)])
def test_clock_between_two_steps_snaps_to_the_nearest(asked: int, target: int) -> None:
    assert plan(asked) == ClockPlan(asked_mhz=asked, target_mhz=target)


def test_of_two_equally_near_the_faster_is_taken() -> None:
    assert nearest_clock(105, (90, 120)) == 120


@pytest.mark.parametrize("asked", [1, 209, 1411, 9999])
def test_clock_outside_the_table_is_refused(asked: int) -> None:
    refused = plan(asked)
    assert (refused.target_mhz, refused.flags) == (None, (QualityFlag.CLOCK_REFUSED,))
    assert refused.event is not None and f"clock {asked} MHz" in refused.event and "210 to 1410" in refused.event


def test_gpu_that_names_no_clock_is_refused() -> None:
    assert plan(1275, supported=()).flags == (QualityFlag.CLOCK_REFUSED,)


@pytest.mark.parametrize("mode", [EnergyMode.OFF, EnergyMode.OBSERVE])
def test_off_and_observe_ask_for_nothing(mode: EnergyMode) -> None:
    assert plan(1275, mode=mode) == ClockPlan()


@pytest.mark.parametrize(("mig", "shared"), [(True, False), (False, True)])
def test_clock_that_is_not_the_jobs_alone_stays(mig: bool, shared: bool) -> None:
    result = plan(1275, mig=mig, shared=shared)
    assert (result.asked_mhz, result.target_mhz) == (1275, None) and result.event is not None


@pytest.mark.parametrize("gpu_type", [None, "a40"])
def test_type_without_a_row_gets_no_clock(gpu_type: str | None) -> None:
    result = plan(1275, gpu_type=gpu_type)
    assert result.target_mhz is None and result.event is not None


def test_default_clock_needs_no_lock() -> None:
    assert plan(1410) == ClockPlan(asked_mhz=1410)


def test_site_lock_is_not_exceeded() -> None:
    assert plan(1350, site=1200) == ClockPlan(asked_mhz=1350)
    assert plan(1100, site=1200).target_mhz == 1095


@pytest.mark.parametrize("real_watts", [500.0, 408.1])
def test_board_of_a_higher_limit_than_assumed_keeps_its_default_clock(real_watts: float) -> None:
    kept = plan(1260, assumed_watts=400, real_watts=real_watts)
    assert (kept.asked_mhz, kept.target_mhz, kept.flags) == (1260, None, (QualityFlag.CLOCK_REFUSED,))
    assert kept.event == (
        f"GPU-0: board limit {real_watts:g} W is above the 400 W that the decision assumed: default clock kept; "
        "set gpu_power_limits_watts"
    )


@pytest.mark.parametrize("real_watts", [392.0, 400.0, 408.0, None])
def test_board_of_about_the_assumed_limit_or_one_that_does_not_tell_gets_its_clock(real_watts: float | None) -> None:
    assert plan(1260, assumed_watts=400, real_watts=real_watts) == ClockPlan(asked_mhz=1260, target_mhz=1260)


def test_board_of_a_lower_limit_gets_its_clock_and_it_is_told() -> None:
    lower = plan(1260, assumed_watts=400, real_watts=300.0)
    assert (lower.target_mhz, lower.flags) == (1260, ())
    assert lower.event is not None and "300 W is below the 400 W" in lower.event


def test_entry_without_an_assumed_limit_is_applied_on_any_board() -> None:
    assert plan(1260, real_watts=9_000.0).target_mhz == 1260


def test_board_limit_does_not_matter_where_no_clock_would_be_set() -> None:
    assert plan(1410, assumed_watts=400, real_watts=500.0) == ClockPlan(asked_mhz=1410)


def test_malformed_entry_is_none_with_an_event() -> None:
    events: list[str] = []
    assert read_entry("v=1;id=xx", events) is None and len(events) == 1
    assert read_entry(None, events) is None and len(events) == 1


@pytest.mark.parametrize(
    ("decided", "held", "on_one_node", "keeps"),
    [
        (4, 4, True, True),
        (2, 4, True, False),
        (4, 2, True, False),
        (None, 2, True, True),
        (8, 4, False, True),
        (2, 4, False, False),
    ],
)
def test_clocks_and_trials_of_another_number_of_gpus_are_left_out(
    decided: int | None, held: int, on_one_node: bool, keeps: bool
) -> None:
    given = DecisionEntry.decode(entry({"a100-sxm4-80gb": 1100}, EnergyMode.BALANCED))
    given = replace(given, gpus=decided, trial_bounds={GpuTypeName("a100-sxm4-80gb"): 0.1})
    events: list[str] = []
    found = entry_for_count(given, held, events, on_one_node=on_one_node)
    assert found is not None
    assert (bool(found.clocks_mhz), bool(found.trial_bounds), events == []) == (keeps, keeps, keeps)
