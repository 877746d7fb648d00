"""Which clock a running job tries next, and which it keeps: a state machine without time, files or devices.

The caller runs each `Order` (sets the clock, lets it settle, measures a window) and says what came of it. The default
clock is measured before each trial, so that a job that changes by itself is not judged by an old reference. A clock
is kept when its slowdown with its error stays inside the user's bound and it needs the least energy. No answer:
the table's clock stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slurm_energy.domain.trials import CAUTION
from slurm_energy.errors import ValueRangeError

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
CLOSE_CLOCKS = 2
"""Trials end when the next clock is this few settable clocks away."""
MIN_SENSITIVITY = 0.02
MARGIN_SECONDS = 900.0
"""No trial begins nearer to the time limit or deadline."""
MAX_UNKNOWN = 2
MAX_WINDOW_FACTOR = 4.0
"""By which a window grows at most, in steps of two, for a program that repeats but varies too much."""
MAX_WORSE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAnswer:
    """A slowdown against the default clock, from the detector or from the program's own progress."""

    slowdown: float
    error: float
    """Standard error."""

    @property
    def upper(self) -> float:
        """What it exceeds in one case of 15."""
        return self.slowdown + CAUTION * self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do next."""

    sm_clock_mhz: int | None
    """To set; None: the default."""
    measure_seconds: float = 0.0
    """Window to measure after settling; 0: run on, and ask again later."""


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
        highest_cost = (window + self.settle_seconds) * self._worst(clock)
        if self.cost_seconds + highest_cost > MAX_COST_SHARE * (elapsed_seconds - idle_seconds):
            return run_on
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
        worst = self._worst(sm_clock_mhz)
        self.cost_seconds += seconds * (worst if answer is None else min(max(answer.upper, 0.0), worst))
        kept = answer is not None and self._keep(sm_clock_mhz, watts, answer)
        self.trials.append(
            Trial(sm_clock_mhz=sm_clock_mhz, at_seconds=at_seconds, watts=watts, answer=answer, kept=kept)
        )
        if answer is None:
            longest = self._first_window_seconds * MAX_WINDOW_FACTOR
            if longer_may_help and self.window_seconds < longest:
                self.window_seconds = min(2.0 * self.window_seconds, longest)
            else:
                self._unknown += 1
                self.done = self._unknown >= MAX_UNKNOWN
        # What is measured again starts from a new reference.
        self.lost_reference()

    def _keep(self, sm_clock_mhz: int, watts: float, answer: ClockAnswer) -> bool:
        self._unknown = 0
        energy = watts * (1.0 + answer.slowdown) / (self._reference_watts or watts)
        if sm_clock_mhz == self.table_clock_mhz and self.kept_clock_mhz is None:
            # Where the job runs anyway: others must need less, and it is left only when it surely breaks the bound.
            self._bad_table = answer.slowdown - 2.0 * answer.error > self.max_slowdown
            self._kept_energy = 1.0 if self._bad_table else min(energy, 1.0)
            return not self._bad_table
        if answer.upper > self.max_slowdown:
            return False
        if energy >= self._kept_energy:
            self._worse += 1
            self.done = self._worse >= MAX_WORSE
            return False
        self.kept_clock_mhz, self._kept_energy, self._worse = sm_clock_mhz, energy, 0
        return True

    def _worst(self, sm_clock_mhz: int) -> float:
        """Return the slowdown of work that the clock alone paces."""
        return max((self._reached_mhz or self.clocks_mhz[-1]) / sm_clock_mhz - 1.0, 0.0)

    def _candidate(self) -> int | None:
        """Return the next clock to try, by secant steps in the relative slowdown of the clock; None: none is left."""
        known = [(self._worst(t.sm_clock_mhz), t.answer) for t in self.trials[self._first :] if t.answer is not None]
        tried = {trial.sm_clock_mhz for trial in self.trials[self._first :] if trial.answer is not None}
        if not known:
            first = self._reached_mhz / (1.0 + AIM_SHARE * self.max_slowdown)
            if self.table_clock_mhz < self._reached_mhz:
                first = min(first, self.table_clock_mhz)
            return self._settable(first)
        aim = AIM_SHARE * self.max_slowdown
        here, answer = known[-1]
        sensitivity = max(answer.slowdown / here if here > 0.0 else 1.0, MIN_SENSITIVITY)
        for there, other in known[:-1]:
            if abs(here - there) > 1e-6:
                sensitivity = max(sensitivity, (answer.slowdown - other.slowdown) / (here - there))
        wanted = here + (aim - answer.slowdown - 0.5 * answer.error) / sensitivity
        lowest = max(LARGEST_STEP / (1.0 + here), LOWEST_SHARE) * self._reached_mhz
        clock = self._settable(max(self._reached_mhz / (1.0 + max(wanted, 0.0)), lowest))
        places = [abs(self.clocks_mhz.index(clock) - self.clocks_mhz.index(one)) for one in tried]
        is_higher = clock > (self.running_clock_mhz or self.clocks_mhz[-1])
        return None if min(places) < CLOSE_CLOCKS or clock >= self._reached_mhz or is_higher else clock

    def _settable(self, sm_clock_mhz: float) -> int:
        """Return the settable clock next above, so that a bound that was aimed at holds."""
        return next((clock for clock in self.clocks_mhz if clock >= sm_clock_mhz - 1e-6), self.clocks_mhz[-1])
