import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.device.gpu import SavedSettings
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, QualityFlag
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.node.energy import Ending, GpuSamples, HostSamples, gpu_energy, host_energy
from slurm_energy.node.state import SavedGpu

SETTINGS = SavedSettings(
    power_limit_watts=400.0,
    application_clock_mhz=None,
    lowest_clock_mhz=210,
    highest_clock_mhz=1410,
    site_clock_mhz=None,
)


def saved(counter: float | None = 1000.0, name: str = "NVIDIA A100-SXM4-80GB", **more: Any) -> SavedGpu:
    return SavedGpu(uuid=GpuUuid("GPU-0"), name=name, gpu_type=None, saved=SETTINGS, counter_joules=counter, **more)


def measure(
    end: float | None,
    *,
    seconds: float = 100.0,
    samples: dict[str, Any] | None = None,
    gpu: SavedGpu | None = None,
    board: float = 400.0,
    truncated: bool = False,
) -> GpuEnergy:
    ending = Ending(window_seconds=seconds, counter_joules=end, counter_seconds=seconds, truncated=truncated)
    return gpu_energy(gpu or saved(), ending, None if samples is None else GpuSamples(**samples), board)


def test_both_sources_are_kept_and_agree() -> None:
    row = measure(21_000.0, samples={"polled_joules": 19_000.0, "sampled_seconds": 98.0})
    assert (row.joules, row.source, row.flags) == (20_000.0, EnergySource.COUNTER, ())
    assert (row.counter_joules, row.polled_joules) == (20_000.0, 19_000.0)


def test_sources_that_differ_by_more_than_a_fifth_are_flagged() -> None:
    row = measure(1187.0, seconds=5.0, samples={"polled_joules": 327.0, "sampled_seconds": 5.0})
    assert (row.joules, row.counter_joules, row.polled_joules) == (187.0, 187.0, 327.0)
    assert row.flags == (QualityFlag.SOURCES_DISAGREE,)


def test_sources_are_compared_as_power_when_samples_began_late() -> None:
    row = measure(21_000.0, samples={"polled_joules": 12_000.0, "sampled_seconds": 60.0})
    assert row.flags == ()


@pytest.mark.parametrize(("sampled", "flags"), [(1.6, ()), (2.5, (QualityFlag.SOURCES_DISAGREE,))])
def test_sources_of_a_short_job_are_compared_only_when_samples_cover_most_of_it(
    sampled: float, flags: tuple[QualityFlag, ...]
) -> None:
    for scale in (1.0, 60.0):
        seconds = 3.0 * scale
        samples = {"polled_joules": 390.0 * sampled * scale, "sampled_seconds": sampled * scale}
        assert measure(1000.0 + 200.0 * seconds, seconds=seconds, samples=samples).flags == flags


def test_missing_counter_takes_the_samples() -> None:
    gpu = saved(counter=None, counter_problem="not supported", flags=(QualityFlag.COUNTER_UNSUPPORTED,))
    row = measure(None, seconds=10.0, gpu=gpu, samples={"polled_joules": 2000.0, "sampled_seconds": 9.9})
    assert (row.joules, row.source, row.coverage_seconds) == (2000.0, EnergySource.POLLED, 9.9)
    assert row.flags == (QualityFlag.COUNTER_UNSUPPORTED,)


def test_samples_of_half_the_job_do_not_stand_in() -> None:
    gpu = saved(counter=None, counter_problem="not supported")
    row = measure(None, gpu=gpu, samples={"polled_joules": 9000.0, "sampled_seconds": 50.0})
    assert row.joules is None and row.reason is not None and "50 of 100 s" in row.reason
    assert QualityFlag.INCOMPLETE in row.flags and row.polled_joules == 9000.0


def test_counter_that_fell_between_heartbeats_is_a_reset_though_it_ended_higher() -> None:
    row = measure(1500.0, samples={"polled_joules": 20_000.0, "sampled_seconds": 99.0, "counter_fell": True})
    assert (row.joules, row.source, row.flags) == (20_000.0, EnergySource.POLLED, (QualityFlag.COUNTER_RESET,))


def test_reset_without_samples_is_unknown() -> None:
    row = measure(10.0)
    assert row.joules is None and row.flags == (QualityFlag.COUNTER_RESET,) and row.source is EnergySource.NONE


def test_counter_that_stands_still_while_power_flows_is_stuck() -> None:
    row = measure(1000.0, samples={"polled_joules": 7100.0, "sampled_seconds": 99.0})
    assert (row.joules, row.flags) == (7100.0, (QualityFlag.COUNTER_STUCK,))
    assert measure(1000.0).joules is None


@pytest.mark.parametrize(("end", "joules"), [(1001.0, 1.0), (1000.0, None)])
def test_job_of_five_milliseconds_is_below_resolution(end: float, joules: float | None) -> None:
    row = measure(end, seconds=0.005)
    assert row.joules == joules and QualityFlag.BELOW_RESOLUTION in row.flags


def test_more_than_the_board_can_draw_is_kept_out() -> None:
    row = measure(1000.0 + 400.0 * 1.3 * 100.0, samples={"polled_joules": 20_000.0, "sampled_seconds": 99.0})
    assert row.joules is None and row.flags == (QualityFlag.IMPLAUSIBLE,) and row.polled_joules == 20_000.0


def test_gh200_counter_is_the_module_and_no_processor_is_added() -> None:
    row = measure(1000.0 + 90_000.0, gpu=saved(name="NVIDIA GH200 480GB"), board=700.0)
    assert (row.scope, row.joules) == (EnergyScope.MODULE, 90_000.0)
    host = host_energy(HostSamples(joules=5.0, sampled_seconds=100.0), 100.0, (row,), truncated=False)
    assert host.joules is None and host.reason is not None and "module" in host.reason


def test_mig_slice_gets_no_figure() -> None:
    row = measure(21_000.0, gpu=saved(mig=True, flags=(QualityFlag.MIG,)))
    assert (row.joules, row.scope, row.counter_joules) == (None, EnergyScope.MIG_ESTIMATE, None)
    assert row.flags == (QualityFlag.MIG,)


@given(
    slices=st.lists(st.integers(1, 7), min_size=1, max_size=7).filter(lambda found: sum(found) <= 7),
    board=st.floats(min_value=0.0, max_value=35_000.0),
)
def test_slices_of_a_board_have_together_no_more_than_the_board_and_all_of_it_if_all_are_held(
    slices: list[int], board: float
) -> None:
    rows = [measure(1000.0 + board, gpu=saved(mig=True, mig_share=held / 7.0)) for held in slices]
    if any(row.joules is None for row in rows):  # the counter stood still
        assert all(row.reason is not None for row in rows)
        return
    total = sum(row.joules or 0.0 for row in rows)
    assert total <= board * (1.0 + 1e-9)
    assert total == pytest.approx(board * sum(slices) / 7.0)
    assert {(row.source, row.scope) for row in rows} == {(EnergySource.MODEL, EnergyScope.MIG_ESTIMATE)}


def test_shared_gpu_takes_its_share_of_the_samples() -> None:
    samples = {"polled_joules": 20_000.0, "sampled_seconds": 100.0, "share_joules": 14_000.0, "shared_seconds": 60.0}
    row = measure(21_000.0, samples=samples)
    assert (row.joules, row.scope, row.counter_joules) == (14_000.0, EnergyScope.SHARED_ESTIMATE, 20_000.0)
    assert row.flags == (QualityFlag.SHARED_GPU,)


def test_truncated_reading_says_so() -> None:
    row = measure(11_000.0, seconds=50.0, truncated=True)
    assert (row.joules, row.flags) == (10_000.0, (QualityFlag.TRUNCATED,))


def test_truncated_job_takes_the_samples_when_the_counter_was_last_read_long_before() -> None:
    ending = Ending(window_seconds=100.0, counter_joules=2000.0, counter_seconds=10.0, truncated=True)
    row = gpu_energy(saved(), ending, GpuSamples(polled_joules=9500.0, sampled_seconds=98.0), 400.0)
    assert (row.joules, row.source, row.coverage_seconds) == (9500.0, EnergySource.POLLED, 98.0)
    assert (row.counter_joules, row.flags) == (1000.0, (QualityFlag.TRUNCATED,))


def test_host_without_samples_is_unknown() -> None:
    host = host_energy(None, 10.0, (), truncated=False)
    assert host.joules is None and host.reason == "the processors were not sampled"


def test_host_on_a_shared_node_is_marked() -> None:
    host = host_energy(HostSamples(joules=50.0, sampled_seconds=100.0, shared=True), 100.0, (), truncated=False)
    assert (host.joules, host.flags) == (50.0, (QualityFlag.NODE_SHARED,))


number = st.floats(min_value=0.0, max_value=1e9, allow_nan=False)
seconds = st.floats(min_value=0.0, max_value=1e7, allow_nan=False)


@given(
    start=st.none() | number,
    end=st.none() | number,
    window=seconds,
    polled=st.floats(min_value=0.0, max_value=2999.0),
    covered=seconds,
    share=st.floats(min_value=0.0, max_value=1.0),
    shared=st.booleans(),
    mig=st.booleans(),
    fell=st.booleans(),
    truncated=st.booleans(),
    board=st.none() | st.floats(min_value=1.0, max_value=2000.0),
)
def test_energy_is_never_negative_and_unknown_always_has_a_reason(
    *,
    start: float | None,
    end: float | None,
    window: float,
    polled: float,
    covered: float,
    share: float,
    shared: bool,
    mig: bool,
    fell: bool,
    truncated: bool,
    board: float | None,
) -> None:
    samples = GpuSamples(
        polled_joules=polled * covered,
        sampled_seconds=covered,
        share_joules=share * polled * covered,
        shared_seconds=covered if shared else 0.0,
        counter_fell=fell,
    )
    ending = Ending(window_seconds=window, counter_joules=end, counter_seconds=window, truncated=truncated)
    row = gpu_energy(saved(counter=start, mig=mig), ending, samples, board)
    assert (row.joules is None) == (row.reason is not None)
    if row.joules is not None:
        assert math.isfinite(row.joules) and row.joules >= 0.0
        assert row.joules <= 3150.0 * max(row.coverage_seconds, 1.0)
    assert row.counter_joules is None or row.counter_joules >= 0.0
