"""How long a job will run, as a distribution: from ended runs of its name, else from its user's and the site's habits.

A name's runs give a middle and a spread of the logarithm. How far the next run is from the middle, in spreads, is
counted at the end of every run, and the quantiles of those counts, apart by how many runs the name had, are what the
next estimate reaches to (split conformal prediction: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random
World, 2005). So a site whose names say much has narrow estimates and one whose names say nothing wide ones, and the
share of runs that pass the upper end is what was asked for, whatever the distribution. Runs that Slurm ended at their
limit, or a user before their end, say only that the work takes longer (Kaplan and Meier, Nonparametric estimation from
incomplete observations, 1958). A name that never ran is estimated by shares of the time limit: its user's, else the
site's.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp, hypot, inf, isfinite, log, sqrt
from statistics import NormalDist, median

from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.domain.ids import GpuTypeName

LOWER_SHARE, UPPER_SHARE = 0.05, 0.96
"""Of runs that end before the lower and the upper end; 0.9 at least is what is promised of the upper one."""
RUNS_PER_NAME = 20
_KEPT_RUNS = 60
"""Of a name, so that there are some that had ended when one of many at once was submitted."""
NAME, USER, SITE = "history", "user", "site"
"""What an estimate is from: runs of the name; other jobs of the user; other jobs of the site."""
_NEWER = 0.95
"""Weight of a run against that of the next newer one of its name."""
_TYPICAL_SPREAD = 0.5
"""Of the logarithm of run times of one name, before any name is seen: assumed."""
_SPREAD_RUNS = 2.0
"""How many runs the typical spread counts beside a name's own."""
_MAX_APART = 1.5
"""Of the logarithm: what is further from the middle, as a job that hung for days, counts as if it were so far."""
_STEPS = (1, 2, 3, 5, 10)
"""Numbers of runs from which on distances are counted apart."""
_COUNTED = 400
"""Newest distances of each step that count."""
_PRIOR_DISTANCES = tuple(1.3 * NormalDist().inv_cdf((index + 0.5) / 20.0) for index in range(20))
"""That count beside those found."""
_OTHER_NAMES = 50
"""Newest names of a user, or 20 times as many of the site, that stand for one that never ran."""
_MIN_OTHER_NAMES = 3
_OTHER_SPREAD = 1.2
"""Of the logarithm of shares of the time limit, before any is seen: assumed."""
_LIMIT_MATTERS = log(1.5)
"""Change of a name's time limit, as a logarithm, from which on it is evidence."""
_LIMIT_PULL = 0.25
"""By how much of it the run is taken to be longer, and less certain."""
_MIN_SECONDS, _MAX_SECONDS = 0.01, 1e9
_UNKNOWN_LIMIT_SECONDS = 86_400.0
"""What shares are of where there is no time limit."""
_LOOKED_EACH = 200
"""Runs between two looks at all of them together, where single estimates are asked for."""

Point = tuple[float, float, bool]
"""Value, weight, and whether the run was ended before its work was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """How long one run took at the default clock."""

    user: int | str
    name: str
    """Its job's name, or the word under which its runs are put together (`job_groups`)."""
    seconds: float
    limit_seconds: float | None = None
    cut_off: bool = False
    """Whether it was ended before its work was: at its limit, or cancelled."""
    gpu_type: GpuTypeName | None = None
    """On which it took so long; None where it is not known, or not one type."""
    gpus: int | None = None
    """How many it had; None where it is not known."""
    submitted_at_seconds: float = inf
    """What had ended by then is what its estimate could rest on; infinite where it is not known: all runs before."""
    ended_at_seconds: float = 0.0
    real_seconds: float | None = None
    """How long it took at the clock that it had; None: as long as at the default one."""
    slowdown: float = 0.0
    """Ratio by which its clock made it longer, measured in it or predicted."""

    @property
    def is_sound(self) -> bool:
        """Whether the time is a number that a job can take."""
        return isfinite(self.seconds) and _MIN_SECONDS <= self.seconds <= _MAX_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """The distribution of one job's run time: its logarithm about a middle, in spreads."""

    log_middle: float
    spread: float
    low: float
    """Spreads from the middle to what one of twenty runs stays below."""
    high: float
    """Spreads from the middle to what nineteen of twenty stay below."""
    runs: int
    """Ended runs of the same user and name behind it; of other jobs where those are `source`."""
    source: str = NAME
    gpu_type: GpuTypeName | None = None
    gpus: int | None = None
    """With which it takes so long; None where it is not known."""
    log_limit: float | None = None
    """Of the time limit of these runs; where other jobs are the source, of 1 s: they are shares of a limit."""

    def for_limit(self, limit_seconds: float | None) -> "RunTime":
        """Return the distribution for a job of this time limit; another one than before is evidence."""
        if self.log_limit is None or limit_seconds is None or not 0.0 < limit_seconds < inf:
            return self
        moved = log(limit_seconds) - self.log_limit
        if self.source == NAME:
            if abs(moved) < _LIMIT_MATTERS:
                return self
            moved *= _LIMIT_PULL
        return RunTime(
            log_middle=self.log_middle + moved,
            spread=hypot(self.spread, moved) if self.source == NAME else self.spread,
            low=self.low,
            high=self.high,
            runs=self.runs,
            source=self.source,
            gpu_type=self.gpu_type,
            gpus=self.gpus,
        )

    def quantiles(self, limit_seconds: float | None = None) -> tuple[float, float, float]:
        """Return the seconds that one of 20 runs, one of two and 19 of 20 stay below; within the limit."""
        own = self.for_limit(limit_seconds)
        bound = limit_seconds if limit_seconds is not None and 0.0 < limit_seconds < inf else _MAX_SECONDS
        lower, middle, upper = (
            min(max(exp(min(own.log_middle + own.spread * distance, 30.0)), _MIN_SECONDS), bound)
            for distance in (own.low, 0.0, own.high)
        )
        return lower, middle, upper

    def estimate(self, limit_seconds: float | None = None) -> RuntimeEstimate:
        """Return middle and upper end as a decision takes them."""
        _, middle, upper = self.quantiles(limit_seconds)
        return RuntimeEstimate(
            seconds=middle,
            upper_seconds=upper,
            source=self.source,
            gpu_type=self.gpu_type,
            gpus=self.gpus,
            runs=self.runs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeModel:
    """What all runs of a site say of the next one of any name."""

    typical_spread: float = _TYPICAL_SPREAD
    reach: Mapping[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    """By source and step of the number of runs: spreads to the lower and upper end."""
    users: Mapping[int | str, RunTime] = field(default_factory=dict)
    """Of a name that never ran: shares of the time limit."""
    site: RunTime | None = None

    def of_runs(self, runs: Sequence[EndedRun]) -> RunTime:
        """Return the distribution of the next run of a name.

        Args:
            runs: Of the name, in the order in which they ended, at least one; the last 20 count, as if on one GPU type.
        """
        newest = [run for run in runs if run.is_sound][-RUNS_PER_NAME:]
        middle, spread = _middle(newest, self.typical_spread)
        low, high = self.reach.get((NAME, _step(len(newest))), _PRIOR_REACH)
        types, counts = {run.gpu_type for run in newest}, {run.gpus for run in newest}
        limits = [
            run.limit_seconds for run in newest if run.limit_seconds is not None and 0.0 < run.limit_seconds < inf
        ]
        return RunTime(
            log_middle=middle,
            spread=spread,
            low=low,
            high=high,
            runs=len(newest),
            gpu_type=types.pop() if len(types) == 1 else None,
            gpus=counts.pop() if len(counts) == 1 else None,
            log_limit=log(median(limits)) if limits else None,
        )

    def of_other_jobs(self, user: int | str) -> RunTime | None:
        """Return that of a name that never ran, as shares of its time limit; None where nothing is known."""
        return self.users.get(user, self.site)


class RunTimes:
    """Takes runs in the order in which they ended, and counts how far each is from what was expected."""

    def __init__(self) -> None:
        self._model: RunTimeModel | None = None
        self._since_model = 0
        self._names: dict[tuple[int | str, str], deque[EndedRun]] = {}
        self._spreads: deque[float] = deque(maxlen=2_000)
        self._typical = _TYPICAL_SPREAD
        self._distances: dict[tuple[str, int], deque[tuple[float, bool]]] = {}
        self._shares: dict[int | str, deque[tuple[float, bool]]] = {}
        self._site_shares: deque[tuple[float, bool]] = deque(maxlen=20 * _OTHER_NAMES)

    @property
    def names(self) -> Mapping[tuple[int | str, str], Sequence[EndedRun]]:
        """The last runs of each user and name."""
        return self._names

    def add(self, run: EndedRun) -> None:
        """Take one run; one without a time above 0 is left out, and so is one without a name.

        It is compared with what was known when it was submitted: of runs that ended before, short ones are many.
        """
        if not run.is_sound or not run.name:
            return
        self._since_model += 1
        key = run.user, run.name
        known = self._names.get(key)
        if known is None:
            self._first_run(run)
            known = self._names[key] = deque(maxlen=_KEPT_RUNS)
        before = [one for one in known if one.ended_at_seconds <= run.submitted_at_seconds][-RUNS_PER_NAME:]
        if before:
            model = RunTimeModel(typical_spread=self._typical)
            expected = model.of_runs(before).for_limit(run.limit_seconds)
            self._count((NAME, _step(len(before))), run, expected)
            if len(before) >= 2:
                self._spreads.append(abs(log(run.seconds) - expected.log_middle) * 1.4826)
                if len(self._spreads) % 50 == 0:
                    self._typical = _typical(self._spreads)
        known.append(run)

    def model(self) -> RunTimeModel:
        """Return what the runs say together."""
        reach = {key: _reach(counted) for key, counted in self._distances.items()}
        users = {
            user: _of_shares(shares, USER, reach)
            for user, shares in self._shares.items()
            if len(shares) >= _MIN_OTHER_NAMES
        }
        enough = len(self._site_shares) >= _MIN_OTHER_NAMES
        return RunTimeModel(
            typical_spread=_typical(self._spreads),
            reach=reach,
            users=users,
            site=_of_shares(self._site_shares, SITE, reach) if enough else None,
        )

    def estimate(self, user: int | str, name: str, limit_seconds: float | None = None) -> RuntimeEstimate:
        """Return how long the next run of a name takes; wide where little is known, never an error."""
        if self._model is None or self._since_model >= min(_LOOKED_EACH, 1 + len(self._site_shares) // 4):
            self._model, self._since_model = self.model(), 0
        own = self._names.get((user, name))
        if own:
            return self._model.of_runs(tuple(own)).estimate(limit_seconds)
        found = self._model.of_other_jobs(user) or _NOTHING
        has_limit = limit_seconds is not None and 0.0 < limit_seconds < inf
        return found.estimate(limit_seconds if has_limit else _UNKNOWN_LIMIT_SECONDS)

    def _first_run(self, run: EndedRun) -> None:
        """Count the first run of a name as a share of its limit, for other names of the user and of the site."""
        limit = run.limit_seconds
        if limit is None or not 0.0 < limit < inf:
            return
        own = self._shares.setdefault(run.user, deque(maxlen=_OTHER_NAMES))
        for source, shares in ((USER, own), (SITE, self._site_shares)):
            # Of the site, one in ten: a middle over a thousand shares is not looked for at each of them.
            is_looked_at = source == USER or len(shares) < _OTHER_NAMES or self._since_model % 10 == 0
            if len(shares) >= _MIN_OTHER_NAMES and is_looked_at:
                self._count((source, 0), run, _of_shares(shares, source, {}).for_limit(limit))
        share = log(run.seconds) - log(limit), run.cut_off
        own.append(share)
        self._site_shares.append(share)

    def _count(self, key: tuple[str, int], run: EndedRun, expected: RunTime) -> None:
        distance = (log(run.seconds) - expected.log_middle) / expected.spread
        self._distances.setdefault(key, deque(maxlen=_COUNTED)).append((distance, run.cut_off))


def run_times(runs: Iterable[EndedRun]) -> RunTimes:
    """Return what some runs say, given in the order in which they ended."""
    fit = RunTimes()
    for run in runs:
        fit.add(run)
    return fit


def quantiles(points: Sequence[Point], shares: Sequence[float]) -> list[float]:
    """Return the values that given shares of the work stay below, ascending shares.

    Where the largest were cut off and a share is not reached, the largest counts.
    """
    found: list[float] = []
    at_risk = total = sum(weight for _, weight, _ in points)
    left, largest = 1.0, 0.0
    wanted = list(shares)
    for value, weight, cut in sorted(points, key=lambda point: (point[0], point[2])):
        largest = value
        if not cut and at_risk > 1e-12 * total:
            left *= max(0.0, 1.0 - weight / at_risk)
            while wanted and left <= 1.0 - wanted[0] + 1e-9:
                found.append(value)
                wanted.pop(0)
        at_risk -= weight
    return found + [largest] * len(wanted)


def _middle(runs: Sequence[EndedRun], typical_spread: float) -> tuple[float, float]:
    """Return middle and spread of the logarithm of a name's runs."""
    points = [(log(run.seconds), _NEWER**age, run.cut_off) for age, run in enumerate(reversed(runs))]
    ((middle),) = quantiles(points, (0.5,))
    squares, weights = _SPREAD_RUNS * typical_spread**2, _SPREAD_RUNS
    for value, weight, cut in points:
        if not (cut and value <= middle):
            squares += weight * min(abs(value - middle), _MAX_APART) ** 2
            weights += weight
    return middle, sqrt(squares / weights)


def _of_shares(
    shares: deque[tuple[float, bool]], source: str, reach: Mapping[tuple[str, int], tuple[float, float]]
) -> RunTime:
    points = [(share, 1.0, cut) for share, cut in shares]
    low, middle, high = quantiles(points, (0.16, 0.5, 0.84))
    own = 0.5 * (high - low)
    spread = (_SPREAD_RUNS * _OTHER_SPREAD + len(points) * own) / (_SPREAD_RUNS + len(points))
    reached = reach.get((source, 0), _PRIOR_REACH)
    return RunTime(
        log_middle=middle,
        spread=max(spread, 0.05),
        low=reached[0],
        high=reached[1],
        runs=len(points),
        source=source,
        log_limit=0.0,
    )


def _step(runs: int) -> int:
    return next((step for step in reversed(_STEPS) if runs >= step), _STEPS[0])


def _reach(counted: Iterable[tuple[float, bool]]) -> tuple[float, float]:
    points = [(distance, 1.0, cut) for distance, cut in counted]
    points += [(distance, 1.0, False) for distance in _PRIOR_DISTANCES]
    low, high = quantiles(points, (LOWER_SHARE, UPPER_SHARE))
    return min(low, 0.0), max(high, 0.0)


def _typical(spreads: deque[float]) -> float:
    """Return the middle of what runs of one name were apart, drawn to what is assumed."""
    known = list(islice(reversed(spreads), 500))
    known += [_TYPICAL_SPREAD] * max(5, 20 - len(known))
    return max(median(known), 0.02)


_PRIOR_REACH = _reach(())
_NOTHING = RunTime(
    log_middle=log(0.3),
    spread=_OTHER_SPREAD,
    low=_PRIOR_REACH[0],
    high=_PRIOR_REACH[1],
    runs=0,
    source=SITE,
    log_limit=0.0,
)
"""Of a time limit, where no run is known at all."""
