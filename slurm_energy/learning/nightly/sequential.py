"""Tests that may be looked at every hour: whether the jobs of one policy do worse or better than those of another.

Each figure is the difference of two means with a confidence sequence: an interval that holds at all looks together
with the stated probability, so that looking often raises no more alarms. It is the normal mixture of Robbins (1970),
as in the mixture sequential probability ratio test (Johari et al. 2017): with a standard error s of the difference and
a mixing scale tau, the interval is the difference +- s sqrt((1 + r) (ln(1 + 1/r) + 2 ln(1/alpha))), r = (s / tau)^2.

Users differ in habits, and jobs of one user resemble each other. So each user is compared with itself: the days on
which the challenger decided its jobs with those of the live policy. Tested is the mean of these differences,
each weighed by how exactly it is known: as in a meta-analysis with random effects, by its jobs up to a limit, since a
user differs from day to day however many jobs there are. The standard error counts users, not jobs: it is the
cluster-robust one. With few users it is itself uncertain, and the interval is wider by Student's quantile.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import exp, inf, isfinite, log, sqrt
from typing import Any

FALSE_ALARMS = 0.05
"""Probability that a policy as good as the live one is ever called worse, over all figures and looks."""
MIN_USERS = 8
"""With jobs under both policies. With 4 or 5 a year of equal policies raised more false alarms than are allowed: the
standard error of so few users is too uncertain for the widened interval."""
MIN_JOBS = 20
"""Under each policy."""
MIN_MEASURED_SHARE = 0.8
"""Of the completed jobs in each group, that must have a reading of energy."""
MAX_SHARE_RISE = 0.01
"""Of jobs that did not complete, guard changes or late decisions, up to which a policy can be called better."""
_MAX_WEIGHT = 16.0
"""Of a user, in pairs of jobs: where a job's spread is four times that of a user's days (8 % and 2 %), no user counts
for more however many jobs it has. Without it the most diligent few decide, and so few say little surely."""
_OUTLIER = 1.5
"""Of a logarithm against what is usual for the job's name: farther out counts as that far. A job that hung for days is
one bad job, not a hundred."""


class CanaryVerdict(Enum):
    """What a test says of a challenger."""

    BETTER = "better"
    WORSE = "worse"
    NOT_ENOUGH = "not enough jobs"
    """To tell, by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOutcome:
    """One ended job of the time in which both policies decided."""

    user_id: int
    is_challenger: bool
    """Whether the challenger decided it."""
    energy: float | None
    """ln of its joules over those of its name's earlier runs, the ratio itself where it did not complete; None where
    one of them is not known."""
    seconds: float | None
    """The same of its run time."""
    turnaround: float | None = None
    """The same of the time from its submission to its end: with what it waited."""
    timed_out: bool = False
    guard_changed: bool = False
    late: bool = False
    """Whether the decision took longer than the site allows."""
    completed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of both groups: challenger minus live policy; below 0 is better."""

    name: str
    difference: float
    low: float
    high: float
    jobs: int
    live_jobs: int
    users: int
    """Who had jobs under both."""

    @property
    def is_better(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReport:
    """What is known of a challenger now, with everything that it rests on."""

    verdict: CanaryVerdict
    reason: str
    comparisons: tuple[Comparison, ...] = field(default=())

    def document(self) -> dict[str, Any]:
        """Return it for the history."""
        figures = [
            {
                "figure": one.name,
                "difference": one.difference if isfinite(one.difference) else None,
                "low": one.low if isfinite(one.low) else None,
                "high": one.high if isfinite(one.high) else None,
                "jobs": one.jobs,
                "live_jobs": one.live_jobs,
                "users": one.users,
            }
            for one in self.comparisons
        ]
        return {"verdict": self.verdict.value, "reason": self.reason, "figures": figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class _TestedFigure:
    """A figure that is tested."""

    name: str
    words: str
    scale: float
    """Mixing scale: differences of about this size are found soonest."""
    of: Callable[[CanaryOutcome], float | None]
    is_share: bool = False
    is_time: bool = False
    """Whether more of it may be the price of less energy, up to the bound."""


def _bounded(value: float | None) -> float | None:
    if value is None or not isfinite(value):
        return None
    return min(max(value, -_OUTLIER), _OUTLIER)


FIGURES = (
    _TestedFigure(
        name="energy", words="joules for the work of a name", scale=0.02, of=lambda job: _bounded(job.energy)
    ),
    _TestedFigure(
        name="seconds",
        words="run time for the work of a name",
        scale=0.02,
        of=lambda job: _bounded(job.seconds),
        is_time=True,
    ),
    _TestedFigure(
        name="turnaround",
        words="time from submission to end for the work of a name",
        scale=0.1,
        of=lambda job: _bounded(job.turnaround),
        is_time=True,
    ),
    _TestedFigure(
        name="timed_out",
        words="jobs that met their time limit",
        scale=0.1,
        of=lambda job: float(job.timed_out),
        is_share=True,
    ),
    _TestedFigure(
        name="not_completed",
        words="jobs that did not complete",
        scale=0.1,
        of=lambda job: float(not job.completed),
        is_share=True,
    ),
    _TestedFigure(
        name="guard_changed",
        words="answers that the guard changed",
        scale=0.1,
        of=lambda job: float(job.guard_changed),
        is_share=True,
    ),
    _TestedFigure(
        name="late", words="decisions that took too long", scale=0.1, of=lambda job: float(job.late), is_share=True
    ),
)


def radius_ratio(error_ratio: Any, alpha: float, log_of: Callable[[Any], Any] = log) -> Any:
    """Return half an interval's width in standard errors.

    Args:
        error_ratio: Standard error over the mixing scale, above 0; an array with numpy's `log`.
        alpha: Probability that any look's interval misses.
        log_of: Natural logarithm.
    """
    r = error_ratio * error_ratio
    return ((1.0 + r) * (log_of(1.0 + 1.0 / r) + 2.0 * log(1.0 / alpha))) ** 0.5


def few_users_factor(users: float) -> float:
    """Return by how much an interval is wider because its standard error is of a few users.

    Student's quantile over the normal one at four standard errors, about where alarms are raised.
    """
    freedom = users - 1.0
    if freedom < 1.0:
        return inf
    # P(|t| > q) of Student's t falls like (1 + q^2 / freedom)^(-(freedom + 1) / 2), the normal one like exp(-q^2 / 2).
    at = 4.0
    return sqrt(freedom * (exp(at * at / (freedom + 1.0)) - 1.0)) / at if at * at / (freedom + 1.0) < 50.0 else inf


def report_of(outcomes: Iterable[CanaryOutcome], *, max_slowdown: float, alpha: float = FALSE_ALARMS) -> CanaryReport:
    """Return what the jobs of both policies say of the challenger.

    Worse is what is worse in any figure; in time, what takes longer than the bound, or longer at all without drawing
    less energy. Better is only what draws less energy, with no more time than the bound; a challenger without readings
    of energy, or with too few jobs or users, is neither.

    Args:
        outcomes: Jobs that ended since the challenger decides some.
        max_slowdown: How much longer the work may take, in the mean.
        alpha: Probability of a false alarm over all looks and figures.
    """
    groups: dict[bool, list[CanaryOutcome]] = {True: [], False: []}
    for outcome in outcomes:
        groups[outcome.is_challenger].append(outcome)
    found = {figure.name: _compared(figure, groups, alpha / len(FIGURES)) for figure in FIGURES}
    comparisons = tuple(one for one in found.values() if one is not None)
    energy, seconds, turnaround = found["energy"], found["seconds"], found["turnaround"]
    bound = log(1.0 + max_slowdown)
    saves = energy is not None and energy.difference < 0.0
    worse = [
        (figure, one)
        for figure in FIGURES
        if (one := found[figure.name]) is not None and one.low > (bound if figure.is_time and saves else 0.0)
    ]
    if worse:
        reason = "; ".join(f"{figure.words}: {_range(one)}" for figure, one in worse)
        return CanaryReport(verdict=CanaryVerdict.WORSE, reason=reason, comparisons=comparisons)
    lack = _lack(groups)
    if lack or energy is None or seconds is None:
        reason = (
            lack
            or f"each policy needs {MIN_JOBS} measured jobs whose names ran before, of {MIN_USERS} users under both"
        )
        return CanaryReport(verdict=CanaryVerdict.NOT_ENOUGH, reason=reason, comparisons=comparisons)
    shares = [one for figure in FIGURES if figure.is_share and (one := found[figure.name]) is not None]
    risen = [one for one in shares if one.difference > MAX_SHARE_RISE]
    if risen:
        reason = "; ".join(f"{one.name.replace('_', ' ')} {_range(one)}" for one in risen)
        return CanaryReport(
            verdict=CanaryVerdict.NOT_ENOUGH, reason=f"more than before: {reason}", comparisons=comparisons
        )
    # Waiting is too noisy for its whole interval to be inside the bound.
    waits = turnaround is not None and turnaround.difference > bound
    if energy.is_better and seconds.high <= bound and not waits:
        return CanaryReport(
            verdict=CanaryVerdict.BETTER,
            reason=f"energy {_range(energy)}, run time {_range(seconds)}",
            comparisons=comparisons,
        )
    whole = "" if turnaround is None else f", submission to end {_range(turnaround)}"
    reason = f"energy {_range(energy)}, run time {_range(seconds)}{whole}: neither is clear"
    return CanaryReport(verdict=CanaryVerdict.NOT_ENOUGH, reason=reason, comparisons=comparisons)


def _lack(groups: Mapping[bool, Sequence[CanaryOutcome]]) -> str:
    for is_challenger, jobs in groups.items():
        completed = [job for job in jobs if job.completed]
        measured = sum(job.energy is not None and isfinite(job.energy) for job in completed)
        known = [job for job in completed if job.seconds is not None]
        if known and measured < MIN_MEASURED_SHARE * len(known):
            whose = "the challenger's" if is_challenger else "the live policy's"
            needed = f"at least {MIN_MEASURED_SHARE:.0%} must"
            return f"{measured} of {whose} {len(known)} completed jobs have a reading of energy: {needed}"
    return ""


def _range(one: Comparison) -> str:
    return f"{100.0 * one.difference:+.1f} % [{100.0 * one.low:+.1f}, {100.0 * one.high:+.1f}]"


def _compared(figure: _TestedFigure, groups: Mapping[bool, Sequence[CanaryOutcome]], alpha: float) -> Comparison | None:
    by_user: dict[int, dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    for is_challenger, members in groups.items():
        for member in members:
            value = figure.of(member)
            if value is not None:
                by_user[member.user_id][is_challenger].append(value)
    both = [values for values in by_user.values() if values[True] and values[False]]
    jobs = {is_challenger: sum(len(values[is_challenger]) for values in both) for is_challenger in (True, False)}
    if len(both) < MIN_USERS or min(jobs.values()) < MIN_JOBS:
        return None
    pairs = [(len(one[True]), sum(one[True]), len(one[False]), sum(one[False])) for one in both]
    difference, error, users = mean_difference(pairs)
    if figure.is_share:
        # A share that was 0 or 1 so far is not known exactly: as if there had been one case more on each side.
        error = max(
            error, sqrt(sum(_share_variance(sum(map(sum, (v[k] for v in both))), jobs[k]) for k in (True, False)))
        )
    if error <= 0.0:
        return None
    radius = error * radius_ratio(error / figure.scale, alpha) * few_users_factor(users)
    return Comparison(
        name=figure.name,
        difference=difference,
        low=difference - radius,
        high=difference + radius,
        jobs=jobs[True],
        live_jobs=jobs[False],
        users=len(both),
    )


def _share_variance(cases: float, jobs: int) -> float:
    share = (cases + 1.0) / (jobs + 2.0)
    return share * (1.0 - share) / jobs


def user_weight(jobs: Any, live_jobs: Any) -> Any:
    """Return what a user's difference counts, between 0 and a limit.

    Args:
        jobs: Of the user under the challenger, above 0; a number or an array.
        live_jobs: The same under the live policy.
    """
    pairs = jobs * live_jobs / (jobs + live_jobs)
    return pairs / (1.0 + pairs / _MAX_WEIGHT)


def mean_difference(users: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """Return the weighed mean of the users' differences, its standard error, and how many equal users they are worth.

    Args:
        users: Number and sum of each user's values under the challenger, and under the live policy; none is 0.
    """
    weights = [user_weight(n, m) for n, _, m, _ in users]
    differences = [total / n - other / m for n, total, m, other in users]
    whole, squares = sum(weights), sum(weight * weight for weight in weights)
    mean = sum(weight * one for weight, one in zip(weights, differences, strict=True)) / whole
    spread = sum((weight * (one - mean)) ** 2 for weight, one in zip(weights, differences, strict=True))
    count = len(users)
    return mean, sqrt(spread * count / max(1, count - 1)) / whole, whole * whole / squares
