"""How long a job will run, as a distribution: from runs of its name, of its user and of the site, and from its limit.

The distribution is a mixture of what was seen: each run of the name counts once, newer ones more; all runs of the user
count as three runs together, and all of the site, as shares of their time limits, as two. So a name of one run has a
wide interval, a name of twenty nearly its own, and one job that hung for three days counts as one of twenty. Runs that
Slurm ended at their limit, or a user before their end, say only that the work takes longer (Kaplan and Meier,
Nonparametric estimation from incomplete observations, 1958). No run passes its time limit.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

UPPER_SHARE = 0.95
"""Of runs that end by the upper end; 0.9 at least is what is promised."""
LOWER_SHARE = 0.05
RUNS_PER_NAME, RUNS_PER_USER, RUNS_PER_SITE = 20, 200, 1_000
_USER_WEIGHT, _SITE_WEIGHT = 3.0, 2.0
_NEWER = 0.95
"""Weight of a run against that of the next newer one of its name."""
_POINTS = 20
"""How many points stand for all runs of a user, or of the site."""
_MAX_NAMES = 50_000
_MAX_SECONDS = 1e9
_UNKNOWN_SECONDS = 86_400.0

Point = tuple[float, float, bool]
"""Seconds, weight, and whether the run was ended before its work was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """How long one run took."""

    user: int | str
    name: str
    seconds: float
    limit_seconds: float | None = None
    cut_off: bool = False
    """Whether it was ended before its work was: at its limit, or cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """How long a run takes."""

    lower_seconds: float
    """One of twenty ends before."""
    seconds: float
    """One of two ends before."""
    upper_seconds: float
    """Nineteen of twenty end before."""
    runs: int
    """Of the same name and user behind it."""


@dataclass(slots=True)
class RunTimes:
    """What runs of a site took; the newest count."""

    _by_name: dict[tuple[int | str, str], deque[EndedRun]] = field(default_factory=dict)
    _by_user: dict[int | str, deque[EndedRun]] = field(default_factory=dict)
    _site: deque[EndedRun] = field(default_factory=lambda: deque(maxlen=RUNS_PER_SITE))
    _sketches: dict[int | str | None, tuple[int, list[Point]]] = field(default_factory=dict)
    """By user, None for the site: at how many runs it was made, and its points."""
    _added: int = 0

    def add(self, run: EndedRun) -> None:
        """Take one run, in the order in which they end; one without a time above 0 is left out."""
        if not (isfinite(run.seconds) and 0.0 < run.seconds <= _MAX_SECONDS):
            return
        key = run.user, run.name
        if key not in self._by_name and len(self._by_name) >= _MAX_NAMES:
            del self._by_name[next(iter(self._by_name))]
        self._by_name.setdefault(key, deque(maxlen=RUNS_PER_NAME)).append(run)
        self._by_user.setdefault(run.user, deque(maxlen=RUNS_PER_USER)).append(run)
        self._site.append(run)
        self._added += 1

    def estimate(self, user: int | str, name: str, limit_seconds: float | None = None) -> RunTime:
        """Return how long the next run of a name takes; wide where little is known, never an error."""
        limit = limit_seconds if limit_seconds is not None and 0.0 < limit_seconds < inf else None
        own = self._by_name.get((user, name), ()) if name else ()
        points = [(run.seconds, _NEWER**age, run.cut_off) for age, run in enumerate(reversed(own))]
        points += [(seconds, _USER_WEIGHT * weight, cut) for seconds, weight, cut in self._sketch(user)]
        scale = limit if limit is not None else _UNKNOWN_SECONDS
        shares = self._sketch(None) or [(0.1, 0.5, False), (1.0, 0.5, False)]
        points += [(share * scale, _SITE_WEIGHT * weight, cut) for share, weight, cut in shares]
        lower, middle, upper = quantiles(points, (LOWER_SHARE, 0.5, UPPER_SHARE))
        bound = limit if limit is not None else _MAX_SECONDS
        return RunTime(
            lower_seconds=min(lower, bound),
            seconds=min(middle, bound),
            upper_seconds=min(upper, bound),
            runs=len(own),
        )

    def _sketch(self, user: int | str | None) -> list[Point]:
        """Return the points of a user's runs in seconds, or of the site's as shares of their limits."""
        runs = self._site if user is None else self._by_user.get(user, ())
        if not runs:
            return []
        made, points = self._sketches.get(user, (-1, []))
        if made >= 0 and self._added - made < max(1, len(runs) // 4):
            return points
        if user is None:
            all_points = [(run.seconds / (run.limit_seconds or _UNKNOWN_SECONDS), 1.0, run.cut_off) for run in runs]
        else:
            all_points = [(run.seconds, 1.0, run.cut_off) for run in runs]
        shares = [(index + 0.5) / _POINTS for index in range(_POINTS)]
        points = [(value, 1.0 / _POINTS, False) for value in quantiles(all_points, shares)]
        self._sketches[user] = self._added, points
        return points


def run_times(runs: Iterable[EndedRun]) -> RunTimes:
    """Return what some runs say, given in the order in which they ended."""
    found = RunTimes()
    for run in runs:
        found.add(run)
    return found


def quantiles(points: Sequence[Point], shares: Sequence[float]) -> list[float]:
    """Return the values that given shares of the work stay below, ascending shares; at most the longest seen.

    Where the longest runs were cut off and the share is not reached, twice the longest counts.
    """
    found: list[float] = []
    at_risk = total = sum(weight for _, weight, _ in points)
    left, longest = 1.0, 0.0
    wanted = list(shares)
    for seconds, weight, cut in sorted(points, key=lambda point: (point[0], point[2])):
        longest = seconds
        if not cut and at_risk > 1e-12 * total:
            left *= max(0.0, 1.0 - weight / at_risk)
            while wanted and left <= 1.0 - wanted[0] + 1e-9:
                found.append(seconds)
                wanted.pop(0)
        at_risk -= weight
    return found + [2.0 * longest] * len(wanted)
