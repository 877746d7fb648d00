"""Trials of clocks in jobs of the twin: the ladder that the sampler beside a real job runs, with drawn measurements.

The ladder sets clocks of a job that computes, so that what a window costs is in the job's time and energy. It sees what
a node would: mean watts with their noise, and of the slowdown what the detector answers. The detector is not run on
made traces here; its answers have the errors, and are left out as often, as was measured of it (`docs/explanation/
measuring-a-running-job.md`). The truth reaches the ladder in no other way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.random import Generator

from slurm_energy.domain.trials import ClockTrial
from slurm_energy.estimation.clock_response import ClockAnswer
from slurm_energy.estimation.iterations.slowdown import LONGER_HELPS, MAX_ERROR
from slurm_energy.policy.placement import JobTrials, Placement, TrialsOfJobs
from slurm_energy.twin.engine.events import Events
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.job import COMPUTING, STARTING, JobRun

MEDIAN_ERROR: Final = 0.0111
"""Standard error of a slowdown from two windows of 60 s, over programs: a lognormal distribution with this median and
the next spread. With the next two it gives the answered shares that were measured: errors up to 0.8 points in 28 % of
programs at 60 s and 60 % at 240 s, up to 3 points in 57 % and 84 %."""
ERROR_SPREAD: Final = 1.0
NEVER: Final = 0.15
"""Of programs: they do not repeat, or too little alike."""
NOT_IN_A_MINUTE: Final = 0.33
"""Of programs, those in it: windows of 60 s hold too few repetitions; of longer ones less."""
SMALLEST_ERROR: Final = 0.002
WIDENING: Final = 1.2
WRONG_ANSWERS: Final = 0.01
WRONG_BY: Final = 0.025
UNANSWERED: Final = 0.05
"""Of windows, by chance."""
WATTS_NOISE: Final = 0.005
LOOK_SECONDS: Final = 10.0
"""Between two looks of the sampler whether a trial may begin."""
WINDOW_CPU_SHARE: Final = 0.02
"""Of one core while a window is read: ten readings a second of 2 ms."""
DETECTOR_CPU_SECONDS: Final = 0.6
MAX_CPU_SHARE: Final = 0.005


class MeasuredProgram:
    """One program as the detector meets it: how much its repetitions vary is its own, each answer is drawn."""

    def __init__(self, rng: Generator) -> None:
        self._window_error = float(MEDIAN_ERROR * np.exp(rng.normal(0.0, ERROR_SPREAD)))
        self._place = float(rng.uniform())

    def watts(self, truth: float, rng: Generator) -> float:
        """Return the mean power of a window."""
        return truth * float(np.exp(rng.normal(0.0, WATTS_NOISE)))

    def answer(self, truth: float, window_seconds: float, rng: Generator) -> tuple[ClockAnswer | None, bool]:
        """Return the slowdown of two windows, None where it is not known, and whether longer windows may tell."""
        usual = self._window_error * (60.0 / window_seconds) ** 0.5
        longer_may_help = usual <= LONGER_HELPS * MAX_ERROR and self._place >= NEVER
        error = max(usual * float(rng.uniform(0.85, 1.15)), SMALLEST_ERROR)
        is_unseen = self._place < NEVER + (NOT_IN_A_MINUTE - NEVER) * (60.0 / window_seconds) ** 2
        if error > MAX_ERROR or rng.uniform() < UNANSWERED or is_unseen:
            return None, longer_may_help
        value = truth + float(rng.normal(0.0, error))
        if rng.uniform() < WRONG_ANSWERS:
            value = truth - WRONG_BY
        return ClockAnswer(slowdown=max(value, 0.0), error=WIDENING * error), longer_may_help


@dataclass(slots=True)
class _Trying:
    """The trials of one job that runs."""

    run: JobRun
    trials: JobTrials
    program: MeasuredProgram
    rng: Generator
    begun_seconds: float
    version: tuple[float, int]
    default_watts: float = 0.0
    cpu_seconds: float = 0.0


class RunningTrials:
    """The trials of all jobs of one run of the engine."""

    def __init__(
        self, execution: Execution, events: Events, source: TrialsOfJobs, changed: set[int], seed: int
    ) -> None:
        self._execution = execution
        self._changed = changed
        self._events = events
        self._source = source
        self._seed = seed
        self._programs: dict[int, MeasuredProgram] = {}
        self._begun: dict[int, tuple[float, int]] = {}

    def placed(self, run: JobRun, placement: Placement, now: float) -> None:
        """Begin the trials of a job that is being started, if it is to have any."""
        if placement.partner is not None:
            return
        trials = self._source.begin(run.job, placement)
        if trials is None:
            return

        def begin(then: float) -> None:
            self._begin(run, trials, then)

        self._events.add_call(now, begin, background=True)

    def _begin(self, run: JobRun, trials: JobTrials, now: float) -> None:
        if run.phase == STARTING:  # it is staged, or its node wakes
            self._events.add_call(now + LOOK_SECONDS, lambda then: self._begin(run, trials, then), background=True)
        version = (run.started_seconds, run.restarts)
        if run.phase != COMPUTING or len(run.allocation) > 1 or run.partner is not None:
            return
        if self._begun.get(run.job_id) == version:  # the scheduler asked twice
            return
        self._begun[run.job_id] = version
        device = self._execution.places[run.place].device.name
        key = crc32(f"{run.job.user}/{run.job.name}/{run.job.kind}/{device}".encode())
        if key not in self._programs:
            self._programs[key] = MeasuredProgram(np.random.default_rng([self._seed, key]))
        trying = _Trying(
            run=run,
            trials=trials,
            program=self._programs[key],
            rng=np.random.default_rng([self._seed, key, run.job_id, run.restarts]),
            begun_seconds=now,
            version=version,
        )
        self._step(trying, now)

    def _step(self, trying: _Trying, now: float) -> None:
        """Do what the ladder says."""
        run, ladder = trying.run, trying.trials.ladder
        if not self._continues(trying):
            return
        elapsed = now - trying.begun_seconds
        order = ladder.order(elapsed, run.limit_at_seconds - now)
        if not order.measure_seconds:
            self._set(trying, order.sm_clock_mhz, now)
            if ladder.done or len(ladder.trials) >= ladder.max_trials:
                return
            next_look = max(now + LOOK_SECONDS, trying.begun_seconds + order.not_before_seconds)
            self._events.add_call(next_look, lambda then: self._step(trying, then), background=True)
            return
        windows = order.measure_seconds if order.sm_clock_mhz is not None else 2.0 * order.measure_seconds
        cpu = WINDOW_CPU_SHARE * windows + DETECTOR_CPU_SECONDS
        if order.sm_clock_mhz is None and trying.cpu_seconds + cpu > MAX_CPU_SHARE * elapsed:
            self._set(trying, ladder.running_clock_mhz, now)
            next_look = trying.begun_seconds + (trying.cpu_seconds + cpu) / MAX_CPU_SHARE
            self._events.add_call(max(next_look, now + 1.0), lambda then: self._step(trying, then), background=True)
            return
        self._set(trying, order.sm_clock_mhz, now)
        end = now + ladder.settle_seconds + order.measure_seconds
        clock_mhz, seconds = order.sm_clock_mhz, order.measure_seconds

        def measured(then: float) -> None:
            self._measured(trying, clock_mhz, seconds, then)

        self._events.add_call(end, measured, background=True)

    def _measured(self, trying: _Trying, clock_mhz: int | None, seconds: float, now: float) -> None:
        """Take in a window that is over."""
        if not self._continues(trying):
            return
        trials, ladder, elapsed = trying.trials, trying.trials.ladder, now - trying.begun_seconds
        clock = trials.index_of(clock_mhz)
        times, powers = self._truth(trying.run)
        watts = trying.program.watts(powers[clock] / trying.run.gpus, trying.rng)
        trying.cpu_seconds += WINDOW_CPU_SHARE * seconds
        if clock_mhz is None:
            reached = min(index for index, power in enumerate(powers) if power >= powers[-1] * (1.0 - 1e-6))
            trying.default_watts = watts
            ladder.measured_default(elapsed, watts, trials.clocks_mhz[reached])
        else:
            trying.cpu_seconds += DETECTOR_CPU_SECONDS
            answer, longer = trying.program.answer(times[clock] / times[-1] - 1.0, seconds, trying.rng)
            ladder.measured(clock_mhz, elapsed, watts, answer, longer_may_help=longer)
            trials.records.append(self._record(trying, clock_mhz, elapsed, watts, answer))
            self._set(trying, ladder.running_clock_mhz, now)
        self._step(trying, now)

    def _record(
        self, trying: _Trying, clock_mhz: int, at_seconds: float, watts: float, answer: ClockAnswer | None
    ) -> ClockTrial:
        known = answer is not None
        return ClockTrial(
            gpu_type=trying.trials.gpu_type,
            sm_clock_mhz=clock_mhz,
            default_clock_mhz=trying.trials.clocks_mhz[-1],
            at_seconds=at_seconds,
            watts=watts,
            default_watts=trying.default_watts,
            slowdown=None if answer is None else answer.slowdown,
            error=None if answer is None else answer.error,
            kept=known and trying.trials.ladder.running_clock_mhz == clock_mhz,
            source="power" if known else "",
            reason="" if known else "not answered",
        )

    def _continues(self, trying: _Trying) -> bool:
        """Return whether the job computes as it did when its trials began."""
        run = trying.run
        return run.phase == COMPUTING and (run.started_seconds, run.restarts) == trying.version and run.partner is None

    def _set(self, trying: _Trying, clock_mhz: int | None, now: float) -> None:
        clock = trying.trials.index_of(clock_mhz)
        if trying.run.set_clock != clock:
            self._execution.pace.set_clock(trying.run, clock, now)
            if self._execution.world.power_budget_watts is not None:
                self._changed.add(trying.run.place)  # a job that waited for power may start now

    def _truth(self, run: JobRun) -> tuple[Sequence[float], Sequence[float]]:
        """Return time per unit and power at each clock of the job's place."""
        rows = self._execution.tables.rows(run.job.kind, run.job.gpu_counts)
        column = rows.column[run.gpus]
        count = rows.num_clocks[run.place]
        return rows.seconds[run.place][column][:count], rows.watts[run.place][column][:count]
