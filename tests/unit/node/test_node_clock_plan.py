import pytest
from node_bench import A100_CLOCKS, entry

from slurm_energy.device.base import GpuIdentity
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.domain.job import EnergyMode
from slurm_energy.node.clock_plan import ClockPlan, nearest_clock, plan_clock, read_entry


def plan(
    mhz: int,
    *,
    supported: tuple[int, ...] = A100_CLOCKS,
    site: int | None = None,
    mig: bool = False,
    shared: bool = False,
    mode: EnergyMode = EnergyMode.BALANCED,
    gpu_type: str | None = "a100-sxm4-80gb",
) -> ClockPlan:
    gpu = GpuIdentity(
        index=0,
        uuid=GpuUuid("GPU-0"),
        name="A100",
        minor_number=0,
        gpu_type=None if gpu_type is None else GpuTypeName(gpu_type),
    )
    decision = DecisionEntry.decode(entry({"a100-sxm4-80gb": mhz}, mode))
    return plan_clock(decision, gpu, supported, site, mig=mig, shared=shared)


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


def test_malformed_entry_is_none_with_an_event() -> None:
    events: list[str] = []
    assert read_entry("v=1;id=xx", events) is None and len(events) == 1
    assert read_entry(None, events) is None and len(events) == 1
