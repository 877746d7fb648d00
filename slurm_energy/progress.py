"""Seconds and joules of one training step, for the user of a job: `StepMeter` in the loop, or a callback for Lightning.

    meter = StepMeter()
    for batch in meter.steps(loader):
        train(batch)
    print(meter.summary())

It reads the energy counter of the GPUs that the process was given, at most once a second, and sets nothing. What
cannot be measured is None with the reason; an error of a GPU never reaches the loop.

Inside a Slurm job it also leaves the number of steps in a small file, where the node's sampler finds it: so the sampler
knows exactly how much slower the program runs at a lower clock, and `explain` shows what a step took. Rank 0 writes.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from os import environ
from typing import Any, Protocol, TypeVar

from slurm_energy.device.gpu import Gpu
from slurm_energy.device.nvml import NvmlDriver
from slurm_energy.errors import DeviceError

PROGRESS_FOLDER = "/dev/shm"  # noqa: S108  # where every user may write; the file is this user's alone
WRITE_SECONDS = 0.02
"""Between two writes of the number of steps."""
READ_SECONDS = 1.0
MIN_WINDOW_SECONDS = 5.0
"""Counters move every 0.1 s: a shorter window says little."""
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_Batch = TypeVar("_Batch")


class HasGpus(Protocol):
    """A driver that is open, or is opened as a context manager."""

    def __enter__(self) -> "HasGpus":
        """Open it."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        ...

    def gpus(self) -> Sequence[Gpu]:
        """Return every GPU that the process can see."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What steps took so far."""

    steps: int
    seconds_per_step: float | None
    joules_per_step: float | None
    """Of all GPUs of this process together."""
    gpus: int
    problem: str | None = None
    """Why there are no joules."""

    def __str__(self) -> str:
        if self.seconds_per_step is None:
            return f"{self.steps} steps: too few to say how long one takes"
        time_text = f"{self.steps} steps, {self.seconds_per_step:.3g} s each"
        if self.joules_per_step is None:
            return f"{time_text}; energy not known: {self.problem}"
        return f"{time_text}, {self.joules_per_step:.4g} J each on {self.gpus} GPU{'s' if self.gpus > 1 else ''}"


class StepFile:
    """The number of steps, in the first line of a file of 64 bytes at most; one that cannot be written is given up.

    The line is `STEPS SECONDS STEPS`, the time by the machine's monotonic clock. Any program may write it, also with
    `echo $steps > FILE`.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Store where the file is: $SLURM_ENERGY_PROGRESS, else by the job's number; without a job there is none."""
        job_id = environment.get("SLURM_JOB_ID", "")
        given = environment.get("SLURM_ENERGY_PROGRESS", "")
        by_number = f"{PROGRESS_FOLDER}/slurm-energy-progress.{job_id}" if _number(job_id) else ""
        is_first = environment.get("SLURM_PROCID", "0") == "0"
        self._path = (given or by_number) if is_first else ""
        self._descriptor = -1
        self._written_seconds = -WRITE_SECONDS

    def write(self, steps: int, now_seconds: float) -> None:
        """Write the number, unless that was done just now; no error of a file system reaches the caller."""
        if not self._path or now_seconds - self._written_seconds < WRITE_SECONDS:
            return
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
                os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{steps} {now_seconds:.6f} {steps}\n".encode("ascii"), 0)
        except OSError:
            self.close()
        self._written_seconds = now_seconds

    def close(self) -> None:
        """Leave the file: the sampler removes it when the job is over."""
        descriptor, self._descriptor, self._path = self._descriptor, -1, ""
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


class StepMeter:
    """Counts steps and reads counters beside them; close it, or use it as a context manager, to release the driver."""

    def __init__(
        self,
        *,
        driver: HasGpus | None = None,
        environment: Mapping[str, str] = environ,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store what is used; the driver is opened at the first step.

        Args:
            driver: Where GPUs are read; None: NVML.
            environment: Says which GPUs are this process'.
            monotonic: The time.
        """
        self._driver = driver
        self._environment = environment
        self._monotonic = monotonic
        self._file = StepFile(environment)
        self._open = ExitStack()
        self._gpus: tuple[Gpu, ...] = ()
        self._gpu_count = 0
        self._problem: str | None = None
        self._steps = -1
        self._first_seconds = self._last_seconds = 0.0
        self._first: tuple[int, float, float] | None = None
        self._last: tuple[int, float, float] | None = None

    def __enter__(self) -> "StepMeter":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the driver; what was measured stays."""
        self._open.close()
        self._file.close()
        self._gpus = ()

    def step(self) -> None:
        """Say that a step has ended; the first call begins the measurement."""
        now = self._monotonic()
        self._steps += 1
        self._last_seconds = now
        self._file.write(self._steps, now)
        if self._steps == 0:
            self._first_seconds = now
            self._find_gpus()
        if self._gpus and (self._last is None or now - self._last[1] >= READ_SECONDS):
            self._read(now)

    def steps(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield batches, one a step."""
        self.step()
        for batch in batches:
            yield batch
            self.step()

    def summary(self) -> StepSummary:
        """Return what steps took so far."""
        steps = max(self._steps, 0)
        seconds = (self._last_seconds - self._first_seconds) / steps if steps else None
        joules, problem = self._joules_per_step()
        return StepSummary(
            steps=steps,
            seconds_per_step=seconds,
            joules_per_step=joules,
            gpus=self._gpu_count,
            problem=problem,
        )

    def _joules_per_step(self) -> tuple[float | None, str | None]:
        if self._problem is not None:
            return None, self._problem
        if self._first is None or self._last is None or self._last[1] - self._first[1] < MIN_WINDOW_SECONDS:
            return None, f"steps of less than {MIN_WINDOW_SECONDS:.0f} s so far"
        if self._last[2] < self._first[2]:
            return None, "the energy counter was reset"
        return (self._last[2] - self._first[2]) / (self._last[0] - self._first[0]), None

    def _find_gpus(self) -> None:
        try:
            driver = self._open.enter_context(self._driver if self._driver is not None else NvmlDriver())
            self._gpus = own_gpus(driver.gpus(), self._environment)
            self._gpu_count = len(self._gpus)
        except DeviceError as error:
            self._problem = str(error)

    def _read(self, now: float) -> None:
        try:
            reading = self._steps, now, sum(gpu.energy_joules() for gpu in self._gpus)
        except DeviceError as error:
            self._problem, self._gpus = str(error), ()
            return
        self._first = self._first or reading
        self._last = reading


def own_gpus(visible: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use; numbers alone name a GPU only where they name all of them.

    Raises:
        DeviceError: there are none, they are slices, or it is not certain which they are.
    """
    names = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    count = len(names) or _number(environment.get("SLURM_GPUS_ON_NODE", ""))
    if names and all(name.startswith("GPU-") for name in names):
        found = tuple(gpu for gpu in visible if gpu.identity.uuid in names)
    elif count and count == len(visible):
        found = tuple(visible)
    else:
        raise DeviceError(f"which of {len(visible)} GPUs are this job's is not certain")
    if not found:
        raise DeviceError("this process has no GPU")
    if any(gpu.identity.mig_enabled for gpu in found):
        raise DeviceError("a slice of a GPU has no energy counter of its own")
    return found


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def lightning_callback(meter: StepMeter, report: Callable[[str], None] = print) -> Any:
    """Return a callback for Lightning's Trainer that counts batches and reports once at the end of the training.

    Raises:
        ImportError: neither lightning nor pytorch_lightning is installed.
    """
    base = _lightning().Callback

    class StepCallback(base):  # type: ignore[misc,valid-type]  # its base is known only now
        """Counts training batches."""

        def on_train_batch_end(self, *_arguments: object, **_named: object) -> None:
            """Count one."""
            meter.step()

        def on_train_end(self, *_arguments: object, **_named: object) -> None:
            """Report."""
            report(str(meter.summary()))

    return StepCallback()


def _lightning() -> Any:
    for name in _LIGHTNING:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImportError("Lightning is not installed: pip install lightning")
