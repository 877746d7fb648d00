"""Which clock a running job tries next, and which it keeps: a state machine without time, files or devices.

The caller runs each `Order` (sets the clock, lets it settle, measures a window) and says what came of it. The default
clock is measured before each trial, so that a job that changes by itself is not judged by an old reference. A clock
is kept when its slowdown with its error stays inside the user's bound and it needs the least energy. No answer:
the table's clock stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_energy.domain.trials import CAUTION
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.clock_response import AnsweredWindow, ClockAnswer, ResponseForms, slowdown_at

AIM_SHARE = 0.9
"""Of the bound: 4.5 % for 5 %."""
WINDOW_SECONDS = 60.0
SETTLE_SECONDS = 5.0
MAX_TRIALS = 8
MAX_COST_SHARE = 0.01
"""All trials so far cost at most this share of the time in which the job has worked, the next one at its worst too."""
REFERENCE_SECONDS = 300.0
"""How long a measurement of the default clock is a reference."""
MAX_DRIFT = 0.10
"""Power at the default clock that changed by more makes all that was learned old."""
LARGEST_STEP = 0.85
"""No trial goes below this share of the last one's clock."""
LOWEST_SHARE = 0.5
"""No trial goes below this share of the clock that the board reaches: a later phase of the program that the clock alone
paces takes at most twice as long until it is noticed."""
MIN_PROMISE = 0.006
"""Trials end when no clock promises more: its relative distance from the running one, times its chance to be kept."""
MARGIN_SECONDS = 900.0
"""No trial begins nearer to the time limit or deadline."""
MAX_UNKNOWN = 2
MAX_WINDOW_FACTOR = 4.0
"""By which a window grows at most, in steps of two, for a program that repeats but varies too much."""
MAX_WORSE = 2
MAX_REPEATS = 3
"""Further windows at a clock from which a sure answer is hoped for."""
SURE_ERROR = 0.012
"""Of an answer; one that is less sure has the next window twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do next."""

    sm_clock_mhz: int | None
    """To set; None: the default."""
    measure_seconds: float = 0.0
    """Window to measure after settling; 0: run on, and ask again later."""
    not_before_seconds: float = 0.0
    """Elapsed time before which asking again leads to nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One clock that was tried, for the record."""

    sm_clock_mhz: int
    at_seconds: float
    """Of the job's elapsed time."""
    watts: float
    answer: ClockAnswer | None
    """None: not known."""
    kept: bool
    worst: float
    """Slowdown at this clock of work that the clock alone paces."""
    watts_ratio: float
    """Power over that at the default clock."""


@dataclass(slots=True, kw_only=True)
class ClockTrials:
    """The trials of one job on GPUs of one type.

    Attributes:
        clocks_mhz: Settable clocks, ascending; the highest is the default.
        table_clock_mhz: Where the job runs while nothing is known.
        max_slowdown: The user's bound.
        window_seconds: How long each clock is measured.
        settle_seconds: How long it settles before.
        max_trials: How many clocks are tried at most.
    """

    clocks_mhz: Sequence[int]
    table_clock_mhz: int
    max_slowdown: float
    window_seconds: float = WINDOW_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    max_trials: int = MAX_TRIALS
    kept_clock_mhz: int | None = None
    trials: list[Trial] = field(default_factory=list)
    cost_seconds: float = 0.0
    done: bool = False
    _first_window_seconds: float = 0.0
    _kept_energy: float = 1.0
    _bad_table: bool = False
    _reference_watts: float | None = None
    _reference_at: float = 0.0
    _reached_mhz: float = 0.0
    _unknown: int = 0
    _worse: int = 0
    _candidate_of: tuple[int, int, float] = (-1, 0, 0.0)
    _next_mhz: int | None = None
    _first: int = 0
    """Number of trials that drift made old."""

    def __post_init__(self) -> None:
        if not self.clocks_mhz or list(self.clocks_mhz) != sorted(set(self.clocks_mhz)):
            raise ValueRangeError("clocks of trials: one or more, ascending")
        if not 0.0 <= self.max_slowdown < 1.0:
            raise ValueRangeError(f"slowdown bound {self.max_slowdown} is not 0 to 1")
        self._first_window_seconds = self.window_seconds

    @property
    def running_clock_mhz(self) -> int | None:
        """Where the job runs between trials; None: at its default clock."""
        if self.kept_clock_mhz is not None:
            return self.kept_clock_mhz
        return None if self._bad_table else self.table_clock_mhz

    def order(self, elapsed_seconds: float, seconds_left: float, *, idle_seconds: float = 0.0) -> Order:
        """Return what to do now.

        Args:
            elapsed_seconds: Since the job's start.
            seconds_left: Until its time limit or deadline, the nearer.
            idle_seconds: Of the time elapsed, when the job did nothing, as while it is suspended.
        """
        run_on = Order(sm_clock_mhz=self.running_clock_mhz)
        window = self.window_seconds
        if self.done or len(self.trials) >= self.max_trials or seconds_left < MARGIN_SECONDS:
            return run_on
        is_fresh = self._reference_watts is not None and elapsed_seconds - self._reference_at <= REFERENCE_SECONDS
        # Before the first reference the clock that the board really reaches is not known: the highest one then.
        clock = self._candidate() if self._reached_mhz else self.table_clock_mhz
        if clock is None:
            self.done = True
            return Order(sm_clock_mhz=self.running_clock_mhz)
        highest_cost = (window + self.settle_seconds) * self._harm(clock)
        earliest = (self.cost_seconds + highest_cost) / MAX_COST_SHARE + idle_seconds
        if elapsed_seconds < earliest:
            return Order(sm_clock_mhz=self.running_clock_mhz, not_before_seconds=earliest)
        return Order(sm_clock_mhz=clock if is_fresh else None, measure_seconds=window)

    def measured_default(self, at_seconds: float, watts: float, reached_mhz: float) -> bool:
        """Take in a window at the default clock; the clock that the board reached may be below the one set.

        Returns:
            Whether the job has changed, so that all that was learned before is old.
        """
        old = self._reference_watts
        changed = old is not None and abs(watts / old - 1.0) > MAX_DRIFT
        if changed:
            self._begin_again()
        self._reference_watts, self._reference_at = watts, at_seconds
        self._reached_mhz = min(max(reached_mhz, self.clocks_mhz[0]), self.clocks_mhz[-1])
        return changed

    def changed(self, seconds: float) -> None:
        """Take in that the job does other work than the kept clock was measured for, since about so many seconds.

        Its time at the kept clock counts as the cost of a trial whose slowdown is not known. Trials begin again.
        """
        if self.kept_clock_mhz is not None:
            self.cost_seconds += seconds * self._worst(self.kept_clock_mhz)
        self._begin_again()
        self._reference_watts, self.done = None, False

    def _begin_again(self) -> None:
        """Forget what was learned: the job has changed. The number of trials and their cost stay."""
        self._first = len(self.trials)
        self.kept_clock_mhz, self._kept_energy, self._bad_table = None, 1.0, False
        self._unknown = self._worse = 0
        self.window_seconds = self._first_window_seconds

    def lost_reference(self) -> None:
        """Take in that the window at the default clock is gone: it is measured again before the next trial."""
        self._reference_at = float("-inf")

    def measured_nothing(self) -> None:
        """Take in a window at the default clock that says nothing: after two of them trials end."""
        self._unknown += 1
        self.done = self.done or self._unknown >= MAX_UNKNOWN

    def measured(
        self,
        sm_clock_mhz: int,
        at_seconds: float,
        watts: float,
        answer: ClockAnswer | None,
        *,
        longer_may_help: bool = False,
        seconds: float | None = None,
    ) -> None:
        """Take in a window at a lower clock; None: the slowdown is not known, or not from a window of this length.

        Args:
            sm_clock_mhz: The clock.
            at_seconds: Elapsed time of the job.
            watts: Mean power of one GPU.
            answer: The slowdown, None where it is not known.
            longer_may_help: Whether it may be known from a longer window.
            seconds: For how long the clock was in force; None: for the window and its settling.
        """
        seconds = max(seconds or 0.0, self.window_seconds + self.settle_seconds)
        harm = self._harm(sm_clock_mhz)
        self.cost_seconds += seconds * (harm if answer is None else min(max(answer.upper, 0.0), harm))
        trial = Trial(
            sm_clock_mhz=sm_clock_mhz,
            at_seconds=at_seconds,
            watts=watts,
            answer=answer,
            kept=False,
            worst=self._worst(sm_clock_mhz),
            watts_ratio=watts / (self._reference_watts or watts or 1.0),
        )
        self.trials.append(trial)
        if answer is not None:
            self._unknown = 0
            self._choose(sm_clock_mhz)
            self.trials[-1] = replace(trial, kept=self.running_clock_mhz == sm_clock_mhz)
        if answer is None or answer.error > SURE_ERROR:
            longest = self._first_window_seconds * MAX_WINDOW_FACTOR
            if (longer_may_help or answer is not None) and self.window_seconds < longest:
                self.window_seconds = min(2.0 * self.window_seconds, longest)
            elif answer is None:
                self._unknown += 1
                self.done = self._unknown >= MAX_UNKNOWN
        # What is measured again starts from a new reference.
        self.lost_reference()

    def _choose(self, sm_clock_mhz: int) -> None:
        """Keep or leave the clock that was measured last, by all answers there are."""
        here = self._slowdown(sm_clock_mhz)
        if here is None:
            return
        energy = self._energy(sm_clock_mhz, here)
        if sm_clock_mhz == self.table_clock_mhz and self.kept_clock_mhz is None:
            # Where the job runs anyway: others must need less, and it is left only when it surely breaks the bound.
            self._bad_table = here.slowdown - 2.0 * here.error > self.max_slowdown
            self._kept_energy = 1.0 if self._bad_table else min(energy, 1.0)
            return
        if here.upper > self.max_slowdown:
            if sm_clock_mhz == self.kept_clock_mhz:  # a second window was less favourable than the first
                self.kept_clock_mhz, self._kept_energy = None, 1.0
            return
        if energy >= self._kept_energy and sm_clock_mhz != self.kept_clock_mhz:
            self._worse += 1
            self.done = self._worse >= MAX_WORSE
            return
        self.kept_clock_mhz, self._kept_energy, self._worse = sm_clock_mhz, energy, 0

    def _energy(self, sm_clock_mhz: int, slowdown: ClockAnswer) -> float:
        """Return the energy of the same work over that at the default clock."""
        ratios = [trial.watts_ratio for trial in self._recent if trial.sm_clock_mhz == sm_clock_mhz]
        return sum(ratios) / len(ratios) * (1.0 + slowdown.slowdown)

    @property
    def _recent(self) -> list[Trial]:
        """Trials of the work that the job does now."""
        return self.trials[self._first :]

    def _slowdown(self, sm_clock_mhz: int) -> ClockAnswer | None:
        """Return what all answers together say of a clock."""
        return slowdown_at(self._worst(sm_clock_mhz), self._windows)

    def _worst(self, sm_clock_mhz: int) -> float:
        """Return the slowdown of work that the clock alone paces."""
        return max((self._reached_mhz or self.clocks_mhz[-1]) / sm_clock_mhz - 1.0, 0.0)

    def _harm(self, sm_clock_mhz: int) -> float:
        """Return how much slower than between trials such work is at a clock; 0 where the job runs anyway."""
        running = self.running_clock_mhz
        return max(self._worst(sm_clock_mhz) - (0.0 if running is None else self._worst(running)), 0.0)

    def _candidate(self) -> int | None:
        """Return the next clock to try, None where none promises enough; the same until something is measured."""
        state = (len(self.trials), self._first, self._reached_mhz)
        if self._candidate_of != state:
            self._candidate_of, self._next_mhz = state, self._best_promise()
        return self._next_mhz

    def _best_promise(self) -> int | None:
        """Return the clock below the running one with the best product of chance to be kept and clock that is saved."""
        windows = [trial for trial in self._recent if trial.answer is not None]
        if not windows:
            first = self._reached_mhz / (1.0 + AIM_SHARE * self.max_slowdown)
            if self.table_clock_mhz < self._reached_mhz:
                first = min(first, self.table_clock_mhz)
            return self._settable(first)
        forms = ResponseForms.after(self._windows)
        error = min(trial.answer.error for trial in windows[-2:] if trial.answer is not None)
        running = self.running_clock_mhz or self.clocks_mhz[-1]
        from_worst = self._worst(running)
        lowest = LARGEST_STEP / (1.0 + max(trial.worst for trial in windows)) * self._reached_mhz
        lowest = max(lowest, LOWEST_SHARE * self._reached_mhz)
        best, best_promise = None, MIN_PROMISE
        for clock in reversed(self.clocks_mhz):
            if clock >= min(running, self._reached_mhz) or clock < lowest - 1e-6:
                continue
            promise = (self._worst(clock) - from_worst) * self._chance(clock, forms, error)
            if promise > best_promise:
                best, best_promise = clock, promise
        return best

    def _chance(self, sm_clock_mhz: int, forms: ResponseForms, error: float) -> float:
        """Return how likely one more window at a clock shows that it keeps the bound."""
        tried = [trial for trial in self._recent if trial.sm_clock_mhz == sm_clock_mhz and trial.answer is not None]
        if tried and (here := self._slowdown(sm_clock_mhz)) is not None:
            if self._energy(sm_clock_mhz, here) >= self._kept_energy:
                return 0.0
            left = min(self.max_trials - len(self.trials), MAX_REPEATS)
            error = here.error * float(len(tried) / (len(tried) + left)) ** 0.5
        return forms.chance_within(self._worst(sm_clock_mhz), self.max_slowdown - CAUTION * error)

    @property
    def _windows(self) -> list[AnsweredWindow]:
        return [AnsweredWindow(worst=one.worst, answer=one.answer) for one in self._recent if one.answer is not None]

    def _settable(self, sm_clock_mhz: float) -> int:
        """Return the settable clock next above, so that a bound that was aimed at holds."""
        return next((clock for clock in self.clocks_mhz if clock >= sm_clock_mhz - 1e-6), self.clocks_mhz[-1])
