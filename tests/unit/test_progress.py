"""Seconds and joules a step, on GPUs that only a test has."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.progress import StepMeter, StepSummary, lightning_callback, own_gpus


@dataclass
class CountingGpu:
    """250 W from the start of its clock."""

    clock: "Clock"
    uuid: str = "GPU-a"
    mig: bool = False
    broken: bool = False
    reads: int = 0

    @property
    def identity(self) -> GpuIdentity:
        return GpuIdentity(
            index=0, uuid=GpuUuid(self.uuid), name="a", minor_number=0, gpu_type=None, mig_enabled=self.mig
        )

    def energy_joules(self) -> float:
        self.reads += 1
        if self.broken:
            raise DeviceError("lost")
        return 1000.0 + 250.0 * self.clock.now


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class OwnDriver:
    """A driver of given GPUs."""

    devices: list[CountingGpu] = field(default_factory=list)
    closed: bool = False

    def __enter__(self) -> "OwnDriver":
        return self

    def __exit__(self, *exception: object) -> None:
        self.closed = True

    def gpus(self) -> list[CountingGpu]:
        return self.devices


def measured(seconds_a_step: float, steps: int, **gpu: object) -> tuple[StepSummary, OwnDriver]:
    clock = Clock()
    driver = OwnDriver([CountingGpu(clock, **gpu)])  # type: ignore[arg-type]
    with StepMeter(driver=driver, environment={"CUDA_VISIBLE_DEVICES": "0"}, monotonic=clock) as meter:  # type: ignore[arg-type]
        for _ in meter.steps(range(steps)):
            clock.now += seconds_a_step
    return meter.summary(), driver


def test_a_step_has_its_seconds_and_joules_and_the_counter_is_read_once_a_second() -> None:
    summary, driver = measured(0.25, 100)

    assert summary == StepSummary(steps=100, seconds_per_step=0.25, joules_per_step=62.5, gpus=1)
    assert str(summary) == "100 steps, 0.25 s each, 62.5 J each on 1 GPU"
    assert driver.devices[0].reads == 26
    assert driver.closed


def test_a_short_run_has_seconds_and_no_joules() -> None:
    summary, _ = measured(0.25, 4)

    assert (summary.seconds_per_step, summary.joules_per_step) == (0.25, None)
    assert "less than 5 s" in str(summary)


def test_no_step_is_no_division() -> None:
    assert str(measured(1.0, 0)[0]) == "0 steps: too few to say how long one takes"


@pytest.mark.parametrize(("gpu", "reason"), [({"broken": True}, "lost"), ({"mig": True}, "slice")])
def test_what_a_gpu_does_not_tell_never_reaches_the_loop(gpu: dict[str, object], reason: str) -> None:
    summary, _ = measured(0.5, 20, **gpu)

    assert (summary.steps, summary.joules_per_step) == (20, None)
    assert reason in str(summary)


@pytest.mark.parametrize(
    ("environment", "uuids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, ["GPU-b"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["GPU-a", "GPU-b"]),
        ({"SLURM_GPUS_ON_NODE": "2"}, ["GPU-a", "GPU-b"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"SLURM_GPUS_ON_NODE": "1"}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-c"}, None),
        ({}, None),
    ],
)
def test_joules_of_gpus_that_are_not_certainly_its_own_are_not_given(
    environment: dict[str, str], uuids: list[str] | None
) -> None:
    visible = [CountingGpu(Clock(), "GPU-a"), CountingGpu(Clock(), "GPU-b")]
    if uuids is None:
        with pytest.raises(DeviceError):
            own_gpus(visible, environment)  # type: ignore[arg-type]
    else:
        assert [gpu.identity.uuid for gpu in own_gpus(visible, environment)] == uuids  # type: ignore[arg-type]


def test_lightning_counts_batches_and_reports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = ModuleType("lightning.pytorch")
    lightning.Callback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)
    clock = Clock()
    lines: list[str] = []
    meter = StepMeter(driver=OwnDriver(), environment={}, monotonic=clock)  # type: ignore[arg-type]

    callback = lightning_callback(meter, lines.append)
    for _ in range(3):
        callback.on_train_batch_end("trainer", "module", outputs=None)
        clock.now += 2.0
    callback.on_train_end("trainer", "module")

    assert lines == ["2 steps, 2 s each; energy not known: which of 0 GPUs are this job's is not certain"]


def counted(tmp_path: Path, clock: Clock, **environment: str) -> tuple[StepMeter, Path]:
    file = tmp_path / "steps"
    return StepMeter(
        driver=OwnDriver(),  # type: ignore[arg-type]  # only a part of a GPU is read
        environment={"SLURM_JOB_ID": "7", "SLURM_ENERGY_PROGRESS": str(file), **environment},
        monotonic=clock,
    ), file


def test_the_number_of_steps_stands_in_a_file_of_the_user_alone(tmp_path: Path) -> None:
    clock = Clock(now=50.0)
    meter, file = counted(tmp_path, clock)
    for _ in meter.steps(range(3)):
        clock.now += 0.5
    assert file.read_bytes() == b"3 51.500000 3\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_file_is_written_at_most_fifty_times_a_second(tmp_path: Path) -> None:
    clock = Clock()
    meter, file = counted(tmp_path, clock)
    for _ in meter.steps(range(100)):
        clock.now += 0.001
    assert int(file.read_bytes().split()[0]) in range(80, 101)
    clock.now += 1.0
    meter.step()
    assert file.read_bytes().startswith(b"101 ")


@pytest.mark.parametrize("environment", [{"SLURM_PROCID": "3"}, {"SLURM_ENERGY_PROGRESS": "", "SLURM_JOB_ID": ""}])
def test_other_ranks_and_programs_outside_a_job_write_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    meter, file = counted(tmp_path, Clock(), **environment)
    meter.step()
    assert not file.exists()


def test_a_file_that_cannot_be_written_never_reaches_the_loop(tmp_path: Path) -> None:
    clock = Clock()
    meter, file = counted(tmp_path, clock)
    file.symlink_to(tmp_path / "elsewhere")
    meter.step()
    clock.now += 1.0
    meter.step()
    assert not (tmp_path / "elsewhere").exists()
    meter, _ = counted(tmp_path, clock, SLURM_ENERGY_PROGRESS=str(tmp_path / "none" / "steps"))
    meter.step()
    assert meter.summary().steps == 0
