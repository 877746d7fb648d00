"""Carry out the ladder of trials in a running job: set the clock, let it settle, read, ask the detector, put it back.

The clock of a trial is in force for one window only. Before it is set, a mark in the spool says until when; whatever
becomes of this process in that time, repair puts the decided clock back once that time is over, and the epilog and the
next prolog restore as after any other lock. Clocks change only under the GPUs' locks, as hooks change them.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf
from typing import Any

from slurm_energy.device.gpu import Gpu, reading
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.domain.trials import OUTDATED, ClockTrial
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.clock_response import ClockAnswer
from slurm_energy.estimation.clock_trials import ClockTrials
from slurm_energy.node.context import HookContext
from slurm_energy.node.energy import GpuSamples
from slurm_energy.node.state import ActiveJob
from slurm_energy.node.trials.burst import Burst, BurstReader
from slurm_energy.node.trials.clock import LockResult, forget_mark, mark_trial, set_trial_clock
from slurm_energy.node.trials.detector import DetectorProcess
from slurm_energy.node.trials.progress_file import StepCount, StepCounter, slowdown_by_steps
from slurm_energy.node.trials.watch import WATCH_SECONDS, IdleTime, LoadWatch, load_of

MAX_CPU_SHARE = 0.005
"""Of one core, over the job's time so far: no trial begins that would take the sampler beyond it."""
DETECTOR_CPU_SECONDS = 0.6
"""Of one answer for one GPU, with the start of its process."""
FIRST_TICK_CPU_SECONDS = 0.002
"""Taken for a reading before one was made."""
MIN_UTILISATION = 0.2
"""A GPU that is less busy in a window says nothing of a clock."""
LOOK_SECONDS = 10.0
"""Between two looks whether a trial may begin, of device time."""
GOLDEN_RATIO = 0.6180339887
"""Multiples of it, without their whole part, fill the range from 0 to 1 evenly and in no regular order."""
BUSY_PAUSE_SECONDS = 1.0
"""Wall time until a clock is set again that could not be set."""
MAX_BUSY_SECONDS = 60.0
"""Wall time for which a hook may hold a GPU before trials end."""
LATE_SECONDS = 5.0
"""Wall time by which a window may end late: one that was held up longer is not used."""


class _Phase(Enum):
    IDLE = "no trial runs"
    SETTLING = "the clock settles"
    MEASURING = "a window is read"
    ANSWERING = "the detector works"


@dataclass(slots=True, kw_only=True)
class _Window:
    """One window that is measured, or was."""

    clock_mhz: int | None
    """None: the default clock."""
    begins_seconds: float
    ends_seconds: float
    """Monotonic times."""
    burst: Burst
    counts: list[StepCount] = field(default_factory=list)


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class TrialRun:
    """The trials of one job on one node."""

    def __init__(  # noqa: PLR0913  # each is one thing from outside
        self,
        context: HookContext,
        job: ActiveJob,
        gpus: Mapping[GpuUuid, Gpu],
        ladder: ClockTrials,
        counter: StepCounter | None,
        *,
        cpu: Callable[[], float],
        ask: Callable[[list[dict[str, Any]], float], DetectorProcess],
    ) -> None:
        """Store what is used; nothing is set or read yet.

        Args:
            context: The doors.
            job: The job; all of its GPUs here are of one type and may be tried.
            gpus: Their devices.
            ladder: Which clock to try when.
            counter: The steps that the job's program may count.
            cpu: Processor time of this process so far.
            ask: Starts the detector.
        """
        self._context = context
        self._job = job
        self._gpus = dict(gpus)
        self._ladder = ladder
        self._counter = counter
        self._cpu = cpu
        self._ask = ask
        self._reader = BurstReader(gpus, context.monotonic, job.time_scale)
        self._phase = _Phase.IDLE
        self._window: _Window | None = None
        self._default: _Window | None = None
        self._detector: DetectorProcess | None = None
        self._due_seconds = 0.0
        self._ticks = 0
        self._tick_cpu_seconds = FIRST_TICK_CPU_SECONDS
        self._answer_source = "power"
        self._watch: LoadWatch | None = None
        self._idle = IdleTime()
        self._stopped = self._leaving = False
        self._busy_since = 0.0
        self.locked_mhz = job.gpus[0].target_clock_mhz
        """The clock that is locked now; None: the default."""
        self.trials: list[ClockTrial] = []
        self.events: list[str] = []
        self.ended = False

    def step(self) -> float:
        """Do what is due; return after how many seconds of wall time it wants to be called again."""
        now = self._context.monotonic()
        if self.ended or now < self._due_seconds:
            return inf if self.ended else self._due_seconds - now
        if self._counter is not None:
            self._counter.look(now)
        match self._phase:
            case _Phase.IDLE:
                self._look(now)
            case _Phase.SETTLING:
                self._phase, self._due_seconds = _Phase.MEASURING, now
                if self._counter is not None and self._window is not None:
                    self._counter.window = self._window.counts
            case _Phase.MEASURING:
                self._measure(now)
            case _Phase.ANSWERING:
                self._take_answer(now)
        return inf if self.ended else max(self._due_seconds - self._context.monotonic(), 0.0)

    def stop(self, why: str, *, given_back: bool = False) -> None:
        """End all trials and go back to the clock that holds between them.

        Args:
            why: For the record; empty: the job is over, and its epilog restores.
            given_back: Whether another part has given the clock back already: then it stays so.
        """
        self._end_answering()
        self._phase, self._window, ended, self.ended = _Phase.IDLE, None, self.ended, True
        self._stopped = True
        if why and not ended:
            self.events.append(f"clock trials ended: {why}")
        if given_back:
            self.locked_mhz, self._leaving = None, False
            forget_mark(self._context, self._job)
        elif why and not ended:
            self._leaving = not self._return_to_running_clock()

    def follow_load(self, samples: Mapping[GpuUuid, GpuSamples]) -> None:
        """Take in the sampler's sums: at a kept clock, go back to the table's as soon as the job does other work.

        That holds after the last trial too; then trials may begin again, inside their number and cost.
        """
        if self.ended and self._leaving:  # a hook held the GPU at that moment
            self._leaving = not self._return_to_running_clock()
        self._idle.add(samples, self._elapsed(self._context.monotonic()))
        kept, watch = self._ladder.kept_clock_mhz, self._watch
        if watch is None or kept is None:
            return
        if self.locked_mhz != kept:
            watch.forget()
        elif watch.has_changed(samples):
            self._watch = None
            self._ladder.changed(WATCH_SECONDS)
            self._drop_answers()
            self.events.append(f"clock of {kept} MHz left: the job's power or utilisation changed")
            self._end_answering()
            self._phase, self._default, self.ended = _Phase.IDLE, None, self._stopped
            self._due_seconds = self._context.monotonic()
            self._leaving = not self._return_to_running_clock()

    @property
    def kept_clock_mhz(self) -> int | None:
        """The clock that trials led to; None: where the job began, or the default."""
        return self._ladder.kept_clock_mhz

    @property
    def decided_clock_left(self) -> bool:
        """Whether the default clock holds, since the decided one was found to break the bound."""
        return self._ladder.running_clock_mhz is None

    def _look(self, now: float) -> None:
        """Begin a window if the ladder wants one and the sampler may spend the time."""
        elapsed = (now - self._job.started_monotonic_seconds) * self._job.time_scale
        order = self._ladder.order(elapsed, self._seconds_left(now), idle_seconds=self._idle.seconds)
        if not order.measure_seconds:
            self._lose_default()
            self._due_seconds = now + LOOK_SECONDS / self._job.time_scale
            is_back = self._return_to_running_clock()
            self.ended = is_back and (self._ladder.done or len(self._ladder.trials) >= self._ladder.max_trials)
            return
        is_default = order.sm_clock_mhz is None
        if is_default and not self._may_spend(elapsed):
            self._return_to_running_clock()
            self._due_seconds = now + LOOK_SECONDS / self._job.time_scale
            return
        wall = (order.measure_seconds + self._ladder.settle_seconds) / self._job.time_scale
        result = self._set_for_window(order.sm_clock_mhz, now + wall)
        if result is LockResult.BUSY and (not self._busy_since or now - self._busy_since < MAX_BUSY_SECONDS):
            self._busy_since = self._busy_since or now
            self._due_seconds = now + BUSY_PAUSE_SECONDS
            return
        self._busy_since = 0.0
        if result is not LockResult.SET:
            self.stop("the clock could not be set")
            return
        begins = self._context.monotonic() + self._ladder.settle_seconds / self._job.time_scale
        self._window = _Window(
            clock_mhz=order.sm_clock_mhz,
            begins_seconds=begins,
            ends_seconds=begins + order.measure_seconds / self._job.time_scale,
            burst=Burst(self._reader),
        )
        self._phase, self._due_seconds = _Phase.SETTLING, begins

    def _measure(self, now: float) -> None:
        window = self._window
        if window is None or now > window.ends_seconds + LATE_SECONDS:
            self._give_up_window(now, "a window was held up")
            return
        cpu = self._cpu()
        first = not next(iter(window.burst.gpus.values())).seconds
        self._reader.timed(window.burst)
        is_last = now >= window.ends_seconds
        if first or is_last:
            window.burst.read_counters()
        self._tick_cpu_seconds = 0.9 * self._tick_cpu_seconds + 0.1 * (self._cpu() - cpu)
        if self._reader.is_too_slow:
            self.stop(f"a reading takes {self._reader.tick_seconds:.2f} s")
        elif not is_last:
            # Not at regular times: an energy counter that moves at regular ones would show a rhythm of its own.
            self._ticks += 1
            self._due_seconds = now + self._reader.tick_seconds * (0.8 + 0.4 * (self._ticks * GOLDEN_RATIO % 1.0))
        else:
            self._end_window(now, window)

    def _end_window(self, now: float, window: _Window) -> None:
        """Take a window that is complete."""
        self._phase, self._window, self._due_seconds = _Phase.IDLE, None, now
        self._listen_no_more()
        watts = _mean_watts(window)
        if window.clock_mhz is None:
            reached = [columns.busy_clock_mhz for columns in window.burst.gpus.values()]
            known = [clock for clock in reached if clock is not None]
            if watts is None or len(known) < len(reached) or not _is_busy(window):
                self._due_seconds = now + LOOK_SECONDS / self._job.time_scale
                self._ladder.measured_nothing()
                self._return_to_running_clock()
                return
            self._default = window
            if self._ladder.measured_default(self._elapsed(now), watts, min(known)):
                self._drop_answers()
            return
        self._return_to_running_clock()
        default, self._default = self._default, None
        if default is None or watts is None or not _is_busy(window):
            self._record(now, window, default, watts, {"unknown": "a GPU was idle, or its power was not read"})
            return
        self._window, self._default = window, default
        found = self._by_steps(default, window)
        if found is not None:
            self._answer_source = "progress"
            self._settle_answer(now, found)
            return
        self._answer_source = "power"
        pairs = [
            {"before": default.burst.gpus[uuid].as_trace(), "after": columns.as_trace()}
            for uuid, columns in window.burst.gpus.items()
        ]
        self._detector = self._ask(pairs, now)
        self._phase, self._due_seconds = _Phase.ANSWERING, now + 0.1

    def _take_answer(self, now: float) -> None:
        found = None if self._detector is None else self._detector.answer(now)
        if found is None:
            self._due_seconds = now + 0.1
            return
        self._detector = None
        self._settle_answer(now, found)

    def _settle_answer(self, now: float, found: dict[str, Any]) -> None:
        window, default = self._window, self._default
        self._phase, self._window, self._default, self._due_seconds = _Phase.IDLE, None, None, now
        if window is not None:
            self._record(now, window, default, _mean_watts(window), found)
        self._return_to_running_clock()

    def _record(
        self, now: float, window: _Window, default: _Window | None, watts: float | None, found: dict[str, Any]
    ) -> None:
        clock = window.clock_mhz
        if clock is None:
            return
        known = "slowdown" in found
        answer = ClockAnswer(slowdown=found["slowdown"], error=found["error"]) if known else None
        longer = found.get("longer_may_help") is True
        before = self._ladder.kept_clock_mhz
        held = (now - window.begins_seconds) * self._job.time_scale + self._ladder.settle_seconds
        seconds = held if "unknown" in found and watts is None else None
        self._ladder.measured(clock, self._elapsed(now), watts or 0.0, answer, longer_may_help=longer, seconds=seconds)
        if self._ladder.kept_clock_mhz != before:
            loads = {uuid: load_of(columns) for uuid, columns in window.burst.gpus.items()}
            self._watch = LoadWatch(loads) if self._ladder.kept_clock_mhz == clock else None
        job_gpu = self._job.gpus[0]
        default_watts = None if default is None else _mean_watts(default)
        with suppress(ValueRangeError):
            self.trials.append(
                ClockTrial(
                    gpu_type=job_gpu.gpu_type or "",  # type: ignore[arg-type]  # checked when the run was made
                    sm_clock_mhz=clock,
                    default_clock_mhz=job_gpu.saved.default_clock_mhz or self._ladder.clocks_mhz[-1],
                    at_seconds=self._elapsed(now),
                    watts=watts or 0.0,
                    default_watts=default_watts or 0.0,
                    slowdown=found["slowdown"] if known else None,
                    error=found["error"] if known else None,
                    kept=self._ladder.running_clock_mhz == clock and known,
                    source=self._answer_source if known else "",
                    reason="" if known else str(found["unknown"]),
                )
            )

    def _drop_answers(self) -> None:
        """Note for the record that all answers so far are of work that the job no longer does."""
        self.trials = [
            trial if trial.slowdown is None else replace(trial, kept=False, reason=OUTDATED) for trial in self.trials
        ]

    def _by_steps(self, default: _Window, window: _Window) -> dict[str, Any] | None:
        if not default.counts or not window.counts or window.clock_mhz is None:
            return None
        highest = max(self._ladder.clocks_mhz[-1] / window.clock_mhz - 1.0, 0.0)
        found = slowdown_by_steps(default.counts, window.counts, highest)
        if isinstance(found, str):
            return None  # the power may still tell
        return {"slowdown": found[0], "error": found[1]}

    def _end_answering(self) -> None:
        if self._detector is not None:
            self._detector.close()
        self._detector, self._window = None, None
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        if self._counter is not None:
            self._counter.window = None

    def _give_up_window(self, now: float, why: str) -> None:
        """Drop a window; it counts as a trial without an answer, and costs what its whole time may have cost."""
        self.events.append(f"clock trial given up: {why}")
        self._listen_no_more()
        window, default = self._window, self._default
        self._phase, self._window = _Phase.IDLE, None
        if window is not None and window.clock_mhz is not None:
            self._record(now, window, default, None, {"unknown": why})
        else:
            self._ladder.measured_nothing()
        self._lose_default()
        self._due_seconds = self._context.monotonic() + LOOK_SECONDS / self._job.time_scale
        self._return_to_running_clock()

    def _lose_default(self) -> None:
        self._default = None
        self._ladder.lost_reference()

    @property
    def _running_mhz(self) -> int | None:
        """The clock to lock between trials; None: the default."""
        running = self._ladder.running_clock_mhz
        return None if running == self._ladder.clocks_mhz[-1] else running

    def _return_to_running_clock(self) -> bool:
        """Set the clock that holds between trials, return whether it holds; a mark that stays makes repair do it."""
        running = self._running_mhz
        result = LockResult.SET if self.locked_mhz == running else self._set_clock(running)
        if result is LockResult.NOT_OURS:
            return True  # a hook restores it
        if result is not LockResult.SET:
            self._due_seconds = self._context.monotonic() + BUSY_PAUSE_SECONDS
            return False
        forget_mark(self._context, self._job)
        return True

    def _set_for_window(self, clock_mhz: int | None, ends_seconds: float) -> LockResult:
        """Mark a window and set its clock; a clock that holds anyway is neither marked nor set again."""
        if clock_mhz == self.locked_mhz == self._running_mhz:
            return LockResult.SET
        default_after = self._running_mhz is None
        if not mark_trial(self._context, self._job, ends_seconds, self.events, default_after=default_after):
            return LockResult.FAILED
        return LockResult.SET if clock_mhz == self.locked_mhz else self._set_clock(clock_mhz)

    def _set_clock(self, clock_mhz: int | None) -> LockResult:
        result, now_mhz = set_trial_clock(
            self._context, self._job, self._gpus, clock_mhz, self._running_mhz, self.events
        )
        if result in {LockResult.SET, LockResult.FAILED}:
            self.locked_mhz = now_mhz
        return result

    def _may_spend(self, elapsed_seconds: float) -> bool:
        """Return whether both windows and the answer keep the sampler inside its share of a core."""
        ticks = 2.0 * self._ladder.window_seconds / (self._reader.tick_seconds * self._job.time_scale)
        expected = ticks * self._tick_cpu_seconds + DETECTOR_CPU_SECONDS * len(self._gpus)
        return self._cpu() + expected <= MAX_CPU_SHARE * elapsed_seconds

    def _elapsed(self, now: float) -> float:
        return (now - self._job.started_monotonic_seconds) * self._job.time_scale

    def _seconds_left(self, now: float) -> float:
        """Return the device time until the job's limit; a deadline is in the bound that the decision gave."""
        minutes = self._job.time_limit_minutes
        return inf if minutes is None else 60.0 * minutes * self._job.time_scale - self._elapsed(now)


def make_trials(
    context: HookContext, job: ActiveJob, gpus: Mapping[GpuUuid, Gpu], counter: StepCounter | None
) -> TrialRun | None:
    """Return the trials of a job, None where none are to be made.

    All of its GPUs here must be one type's, with one bound, whole, and this job's alone.
    """
    bounds = {gpu.trial_bound for gpu in job.gpus}
    types = {(gpu.gpu_type, gpu.target_clock_mhz) for gpu in job.gpus}
    bound = next(iter(bounds), None)
    if len(bounds) != 1 or bound is None or len(types) != 1 or job.gpus[0].gpu_type is None:
        return None
    if not context.settings.node.set_clocks or any(gpu.uuid not in gpus or gpu.mig or gpu.shared for gpu in job.gpus):
        return None
    first = job.gpus[0]
    highest = first.saved.default_clock_mhz
    supported = reading(gpus[first.uuid].supported_sm_clocks_mhz) or ()
    clocks = [clock for clock in supported if highest is not None and clock <= highest]
    if not clocks or highest is None or not 0.0 < bound < 1.0:
        return None
    node = context.settings.node
    ladder = ClockTrials(
        clocks_mhz=clocks,
        table_clock_mhz=first.target_clock_mhz or clocks[-1],
        max_slowdown=bound,
        window_seconds=node.trial_window_seconds,
        settle_seconds=min(node.trial_window_seconds / 12.0, 5.0),
    )
    own = {gpu.uuid: gpus[gpu.uuid] for gpu in job.gpus}
    return TrialRun(context, job, own, ladder, counter, cpu=cpu_seconds, ask=DetectorProcess)


def _is_busy(window: _Window) -> bool:
    return all(columns.mean_utilisation >= MIN_UTILISATION for columns in window.burst.gpus.values())


def _mean_watts(window: _Window) -> float | None:
    """Return the mean power of one GPU."""
    watts = [columns.mean_watts() for columns in window.burst.gpus.values()]
    known = [value for value in watts if value is not None]
    return sum(known) / len(known) if known and len(known) == len(watts) else None
