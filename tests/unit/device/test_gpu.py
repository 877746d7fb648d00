import re
from pathlib import Path

import pytest
from node_bench import Clock, FakeGpu

from slurm_energy.device import nvml
from slurm_energy.device.gpu import SavedSettings, lock_clock, restore_settings, save_settings
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.errors import DeviceError, DeviceNotSupported, DevicePermissionDenied

SAVED = SavedSettings(
    power_limit_watts=400.0,
    application_clock_mhz=1410,
    lowest_clock_mhz=210,
    highest_clock_mhz=1410,
    site_clock_mhz=None,
)


class DeafGpu(FakeGpu):
    """Takes every request and does nothing."""

    def sm_clock_mhz(self) -> int:
        return 1400


@pytest.fixture
def deaf() -> DeafGpu:
    return DeafGpu(clock=Clock())


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(clock=Clock())


@pytest.fixture
def pauses() -> list[float]:
    return []


def test_saving_reads_and_sets_nothing(gpu: FakeGpu) -> None:
    assert save_settings(gpu, gpu.clocks, None) == SAVED
    assert set(gpu.calls) == {"power_limit_watts", "application_clock_mhz"}


def test_settings_a_device_does_not_tell_are_none(gpu: FakeGpu) -> None:
    gpu.faults = {"power_limit_watts": DeviceNotSupported("x"), "application_clock_mhz": DeviceNotSupported("x")}
    saved = save_settings(gpu, (), None)
    assert (saved.power_limit_watts, saved.application_clock_mhz, saved.default_clock_mhz) == (None, None, None)


def test_site_lock_is_the_default_clock(gpu: FakeGpu) -> None:
    assert save_settings(gpu, gpu.clocks, 1200).default_clock_mhz == 1200


def test_lock_is_verified(gpu: FakeGpu, pauses: list[float]) -> None:
    outcome = lock_clock(gpu, 210, 1275, pauses.append)
    assert (outcome.applied_clock_mhz, outcome.flags, gpu.lock) == (1275, (), (210, 1275))
    assert "sm_clock_mhz" in gpu.calls


def test_clock_that_does_not_follow_is_unverified(deaf: DeafGpu, pauses: list[float]) -> None:
    outcome = lock_clock(deaf, 210, 1275, pauses.append)
    assert (outcome.applied_clock_mhz, outcome.flags) == (1275, (QualityFlag.CLOCK_UNVERIFIED,))
    assert outcome.event is not None and "1400 MHz" in outcome.event
    assert deaf.calls.count("lock_sm_clock") == 2
    assert sum(pauses) < 0.1


def test_lock_of_which_only_the_retry_fails_stays_known(deaf: DeafGpu, pauses: list[float]) -> None:
    def fail_from_now_on() -> None:
        deaf.faults["lock_sm_clock"] = DeviceError("lost")

    deaf.on_change = fail_from_now_on
    assert lock_clock(deaf, 210, 1275, pauses.append).applied_clock_mhz == 1275


@pytest.mark.parametrize(
    ("error", "flags"),
    [
        (DevicePermissionDenied("x"), {QualityFlag.CLOCK_REFUSED, QualityFlag.NO_PERMISSION}),
        (DeviceNotSupported("x"), {QualityFlag.CLOCK_REFUSED}),
    ],
)
def test_sure_refusal_is_not_tried_again(
    gpu: FakeGpu, pauses: list[float], error: DeviceError, flags: set[QualityFlag]
) -> None:
    gpu.faults["lock_sm_clock"] = error
    outcome = lock_clock(gpu, 210, 1275, pauses.append)
    assert (set(outcome.flags), outcome.applied_clock_mhz, outcome.in_force) == (flags, None, False)
    assert gpu.calls.count("lock_sm_clock") == 1


def test_unclear_failure_may_have_left_a_lock(gpu: FakeGpu, pauses: list[float]) -> None:
    gpu.faults["lock_sm_clock"] = DeviceError("timeout")
    assert lock_clock(gpu, 210, 1275, pauses.append).in_force


def test_clock_that_was_never_touched_stays_untouched(gpu: FakeGpu, pauses: list[float]) -> None:
    gpu.lock = (210, 900)
    assert restore_settings(gpu, SAVED, clock_changed=False, pause=pauses.append).restored
    assert gpu.lock == (210, 900) and "set_power_limit" not in gpu.calls


def test_site_lock_is_put_back(gpu: FakeGpu, pauses: list[float]) -> None:
    saved = save_settings(gpu, gpu.clocks, 1200)
    gpu.lock = (210, 900)
    restore_settings(gpu, saved, clock_changed=True, pause=pauses.append)
    assert gpu.lock == (210, 1200)


def test_power_limit_that_somebody_else_set_during_the_job_stays(gpu: FakeGpu, pauses: list[float]) -> None:
    gpu.limit_watts, gpu.lock = 300.0, (210, 900)
    assert restore_settings(gpu, SAVED, clock_changed=True, pause=pauses.append).restored
    assert gpu.calls == ["unlock_sm_clock"]
    assert gpu.limit_watts == 300.0


def test_power_limit_that_cannot_be_read_any_more_is_no_failure(gpu: FakeGpu, pauses: list[float]) -> None:
    gpu.faults["power_limit_watts"] = DeviceNotSupported("power limit: not supported")
    outcome = restore_settings(gpu, SAVED, clock_changed=True, pause=pauses.append)
    assert (outcome.restored, outcome.events, pauses) == (True, (), [])


def test_clock_that_cannot_be_given_back_is_a_failure(gpu: FakeGpu, pauses: list[float]) -> None:
    gpu.faults["unlock_sm_clock"] = DeviceError("GPU is lost")
    outcome = restore_settings(gpu, SAVED, clock_changed=True, pause=pauses.append)
    assert not outcome.restored and len(outcome.events) == 2


def test_power_limits_and_memory_and_application_clocks_are_never_set() -> None:
    source = Path(nvml.__file__).read_text(encoding="utf-8")
    setters = set(re.findall(r"nvmlDevice(?:Set|Reset)\w+", source))
    assert setters == {
        "nvmlDeviceSetGpuLockedClocks",
        "nvmlDeviceResetGpuLockedClocks",
    }
