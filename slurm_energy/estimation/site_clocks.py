"""Clocks by what a site's own jobs measured, where its slowdown bound holds in the mean over jobs.

What each clock does to work of a GPU type is in `TypeClocks`. One number for the site, the price of a job's time in
watts of a GPU, then chooses all clocks: each job has the clock of least energy plus price times slowdown. Jobs that
hardly slow down get lower clocks, those that slow down much higher ones, and no other clocks save more energy at the
same mean slowdown (equal marginal savings). The price is the lowest at which recent jobs keep the bound, over jobs and
over GPU time, with the doubt that is left.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, sqrt
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.curves import curves_of
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.estimation.decided_runs import MIN_RUNS, DecidedRun, UsedBound, used_bound
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.limit_habits import LimitedRun, LimitHabits
from slurm_energy.estimation.type_clocks import POWER_SHARES, JobCurve, TypeClocks, job_curve, type_clocks
from slurm_energy.estimation.user_shares import within_share

MAX_RATIO_OF_BOUND = 2.0
"""No job is expected to take longer than so many times the bound, whatever others leave."""
RECENT_SECONDS = 14 * 86_400.0
MAX_NAMES = 200
"""Of a GPU type, whose trials count: those of the latest runs."""
_DOUBT = 1.0
"""Standard deviations of the mean slowdown that count beside it."""
_PRICES = tuple(4.0 * 1.12**number for number in range(70))
"""Watts per slowdown of 1."""
_MAX_MORE, _MAX_LESS = 1.25, 2.0
"""By how much the plan allows more or less than the bound, for what was measured: runs from before the profile was
switched on are among those that are counted at first."""
_NEVER = 1e9
_MAX_TABLES = 256
"""Kept at once of those that jobs asked for."""
_Question = tuple[GpuTypeName, float | None, LearnedClock | None, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteClocks:
    """What decides clocks where the bound is held in the mean."""

    types: Mapping[GpuTypeName, TypeClocks] = field(default_factory=dict)
    prices: Mapping[float, float] = field(default_factory=dict)
    """Watts per slowdown of 1, by the bound."""
    expected_slowdown: float = 0.0
    """Mean of recent jobs at the price of the first bound."""
    slowdown_doubt: float = 0.0
    """Standard deviation of it."""
    used: UsedBound = field(default_factory=UsedBound)
    """What jobs that ran under these clocks used of the bound."""
    runs: int = 0
    """Recent ones that it rests on."""
    limits: LimitHabits = field(default_factory=LimitHabits)
    _tables: dict[_Question, ClockTable] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Those that were asked for lately; they go with what they were made of."""

    def price(self, max_slowdown: float) -> float:
        """Return the price for a bound: of the nearest that was worked out, in proportion."""
        if not self.prices or max_slowdown <= 0.0:
            return _NEVER
        nearest = min(self.prices, key=lambda bound: abs(bound - max_slowdown))
        return self.prices[nearest] * nearest / max_slowdown

    def table(
        self, gpu_type: GpuTypeName, watts: float | None, learned: LearnedClock | None, max_slowdown: float
    ) -> ClockTable | None:
        """Return the clocks of a GPU type for one job, those below its best left out; None where none is known.

        Args:
            gpu_type: The type.
            watts: Of one GPU at the default clock, by runs of the job's name; None where there are none.
            learned: What was tried in runs of its name.
            max_slowdown: The bound of the mean.
        """
        one = self.types.get(gpu_type)
        if one is None:
            return None
        question = gpu_type, watts, learned, max_slowdown
        table = self._tables.get(question)
        if table is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            table = _job_table(one, one.class_of(watts), watts, learned, self.price(max_slowdown))
            self._tables[question] = table
        return table


class EndedJobs(NamedTuple):
    """Runs that tell how limits and the bound are kept."""

    timed: Iterable[LimitedRun] = ()
    """With their limits."""
    decided: Iterable[DecidedRun] = ()
    """Those whose clocks were decided, with what these cost them."""


_NONE_ENDED = EndedJobs()


def site_clocks(
    learned: Iterable[tuple[object, str, Mapping[GpuTypeName, LearnedClock]]],
    runs: Sequence[MeasuredRun],
    bounds: Sequence[float],
    limits: BoardLimits,
    now_seconds: float,
    ended: EndedJobs = _NONE_ENDED,
) -> SiteClocks:
    """Return what the site's runs and the clocks that were tried in them say.

    Args:
        learned: What was tried, by user, group of jobs and GPU type.
        runs: Measured ones, at any clock that was decided.
        bounds: Of the mean slowdown.
        limits: Power limits of the site's boards.
        now_seconds: Unix time, or the twin's.
        ended: What ended runs say of limits and of clocks that were decided.
    """
    tried = _newest(learned)
    recent = [run for run in runs if now_seconds - run.ended_at_seconds <= RECENT_SECONDS]
    powers: dict[tuple[object, str, GpuTypeName], list[float]] = {}
    for run in runs:
        powers.setdefault((run.user, job_group(run.name, run.script_key), run.gpu_type), []).append(run.watts)
    names = {*(run.gpu_type for run in recent), *(name for clocks in tried.values() for name in clocks)}
    types: dict[GpuTypeName, TypeClocks] = {}
    for gpu_type in sorted(names | {name for name in CATALOG if curves_of(name)}):
        users = {run.user for run in recent if run.gpu_type == gpu_type}
        found = type_clocks(gpu_type, tried, powers, limits, users)
        if found is not None:
            types[gpu_type] = found
    groups = _groups(types, tried, recent)
    used = used_bound(run for run in ended.decided if now_seconds - run.ended_at_seconds <= RECENT_SECONDS)
    prices: dict[float, float] = {}
    expected, doubt = 0.0, 0.0
    for bound in bounds:
        # What limits, users' bounds and trials leave of the plan: the next plan makes up for it. Predictions alone say
        # when it was too much, never when it was too little.
        ratio = 1.0 if used.slowdown is None else bound / used.slowdown
        max_more = _MAX_MORE if used.is_measured else 1.0
        aim = bound * min(max(ratio, 1.0 / _MAX_LESS), max_more) if bound == bounds[0] else bound
        prices[bound], mean, error = _price(groups, bound, aim)
        if bound == bounds[0]:
            expected, doubt = mean, error
    return SiteClocks(
        types=types,
        prices=prices,
        expected_slowdown=expected,
        slowdown_doubt=doubt,
        used=used,
        runs=len(recent),
        limits=LimitHabits.of(ended.timed),
    )


def _newest(
    learned: Iterable[tuple[object, str, Mapping[GpuTypeName, LearnedClock]]],
) -> Mapping[tuple[object, str], Mapping[GpuTypeName, LearnedClock]]:
    """Return what was tried in the latest runs of each type, of each user's names one in turn."""
    by_type: dict[GpuTypeName, list[tuple[float, str, tuple[object, str], LearnedClock]]] = {}
    for user, group, clocks in learned:
        for gpu_type, clock in clocks.items():
            at = -clock.measured_at_seconds
            by_type.setdefault(gpu_type, []).append((at, f"{user}/{group}", (user, group), clock))
    found: dict[tuple[object, str], dict[GpuTypeName, LearnedClock]] = {}
    for gpu_type, rows in by_type.items():
        turns: Counter[object] = Counter()
        placed = []
        for row in sorted(rows, key=lambda row: row[:2]):
            user = row[2][0]
            placed.append((turns[user], row))
            turns[user] += 1
        for _, (_, _, key, clock) in sorted(placed, key=lambda one: (one[0], *one[1][:2]))[:MAX_NAMES]:
            found.setdefault(key, {})[gpu_type] = clock
    return found


def _job_table(one: TypeClocks, at: int, watts: float | None, learned: LearnedClock | None, price: float) -> ClockTable:
    curve = job_curve(one, at, learned)
    best = curve.best(watts or one.limit_watts * (POWER_SHARES[at] if at < len(POWER_SHARES) else 0.75), price)
    points = []
    for place in range(best, len(one.clocks_mhz)):
        clock = one.clocks_mhz[place]
        slowdown = curve.slowdown[place]
        points.append(
            OperatingPoint(
                sm_clock_mhz=clock,
                default_clock_mhz=one.default_clock_mhz,
                slowdown=round(slowdown, 9),
                worst_slowdown=round(curve.highest[place], 9),
                mean_slowdown=round(slowdown, 9),
                energy_change=round(curve.power[place] * (1.0 + slowdown) - 1.0, 9),
                source="model" if one.is_assumed else "measured",
            )
        )
    return ClockTable(points)


class _Group(NamedTuple):
    """Recent runs that get one clock."""

    curve: JobCurve
    watts: float
    shares: tuple[float, ...]
    """Of jobs, of GPU time, and of both where no user has more than his share."""
    programs: float
    """That their class rests on."""
    place: tuple[GpuTypeName, int]


def _groups(
    types: Mapping[GpuTypeName, TypeClocks],
    tried: Mapping[tuple[object, str], Mapping[GpuTypeName, LearnedClock]],
    runs: Sequence[MeasuredRun],
) -> list[_Group]:
    """Return the recent runs together that have the same curve; of a site without runs, one of each kind of work."""
    found: dict[tuple[GpuTypeName, int, LearnedClock | None], list[float]] = {}
    runs = [run for run in runs if run.gpu_type in types]
    job_shares, time_shares = _user_factors(runs)
    for run in runs:
        one = types[run.gpu_type]
        learned = tried.get((run.user, job_group(run.name, run.script_key)), {}).get(run.gpu_type)
        sums = found.setdefault((run.gpu_type, one.class_of(run.watts), learned), [0.0] * 5)
        seconds = run.gpus * run.seconds
        fair_job, fair_seconds = job_shares[run.user], seconds * time_shares[run.user]
        for at, value in enumerate((1.0, seconds, fair_job, fair_seconds, seconds * run.watts)):
            sums[at] += value
    if len(runs) < MIN_RUNS:
        found = {
            (name, len(one.classes) - 1, None): [1.0, 1.0, 1.0, 1.0, 0.75 * one.limit_watts]
            for name, one in types.items()
        }
    totals = [sum(sums[at] for sums in found.values()) for at in range(4)]
    return [
        _Group(
            curve=job_curve(types[name], at, learned),
            watts=joules / values[1],
            shares=tuple(value / total for value, total in zip(values, totals, strict=True)),
            programs=types[name].classes[at].programs + (0.0 if learned is None else 3.0),
            place=(name, at),
        )
        for (name, at, learned), (*values, joules) in found.items()
    ]


def _user_factors(runs: Sequence[MeasuredRun]) -> tuple[Mapping[object, float], Mapping[object, float]]:
    """Return by what each user's jobs, and his GPU time, count less, so that he has no more than his share."""
    jobs: dict[object, float] = {}
    seconds: dict[object, float] = {}
    for run in runs:
        jobs[run.user] = jobs.get(run.user, 0.0) + 1.0
        seconds[run.user] = seconds.get(run.user, 0.0) + run.gpus * run.seconds
    fair_jobs, fair_seconds = within_share(jobs, len(jobs)), within_share(seconds, len(jobs))
    return (
        {user: fair_jobs[user] / value for user, value in jobs.items()},
        {user: fair_seconds[user] / value for user, value in seconds.items()},
    )


def _price(groups: Sequence[_Group], bound: float, aim: float) -> tuple[float, float, float]:
    """Return the lowest price that keeps the bound, the mean slowdown at it and its standard deviation."""
    if not groups:
        return _NEVER, 0.0, 0.0
    for price in _PRICES:
        mean, doubt = _mean(groups, price, MAX_RATIO_OF_BOUND * bound)
        if mean + _DOUBT * doubt <= aim:
            return price, mean, doubt
    return _NEVER, 0.0, 0.0


def _mean(groups: Sequence[_Group], price: float, max_slowdown: float) -> tuple[float, float]:
    """Return the mean slowdown over jobs or GPU time, whichever is most, and its standard deviation."""
    means = [0.0] * 4
    doubts: dict[tuple[GpuTypeName, int], float] = {}
    for one in groups:
        at = one.curve.best(one.watts, price)
        while one.curve.slowdown[at] > max_slowdown and at < len(one.curve.slowdown) - 1:
            at += 1
        means = [mean + share * one.curve.slowdown[at] for mean, share in zip(means, one.shares, strict=True)]
        # Work of one class is wrong in one direction: the less the more programs are known.
        doubt = max(one.shares) * one.curve.doubt[at] / sqrt(1.0 + one.programs)
        doubts[one.place] = doubts.get(one.place, 0.0) + doubt
    return max(means), hypot(*doubts.values())
