"""Clocks by what a site's own jobs measured, where its slowdown bound holds in the mean over jobs.

Each program slows down in a form of its own (`ResponseForms`). How likely each form is on a GPU type, and how far power
falls with the clock, is learned from the clocks that were tried in the site's jobs, apart for work of low and of high
power; the package's measured programs are only where that begins. A job whose name was tried has its own forms.

One number for the site, the price of a job's time in watts of a GPU, then chooses all clocks: each job has the clock of
least energy plus price times slowdown. Jobs that hardly slow down get lower clocks, those that slow down much higher
ones, and no other clocks save more energy at the same mean slowdown (equal marginal savings). The price is the lowest
at which recent jobs keep the bound, over jobs and over GPU time, with the doubt that is left.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, hypot, log, sqrt
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.curves import WorkloadCurve, curve_source, curves_of
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint
from slurm_energy.estimation.clock_response import FORMS, AnsweredWindow, ClockAnswer, ResponseForms
from slurm_energy.estimation.decided_runs import MIN_RUNS, DecidedRun, UsedBound, used_bound
from slurm_energy.estimation.job_groups import job_group
from slurm_energy.estimation.limit_habits import LimitedRun, LimitHabits
from slurm_energy.estimation.user_shares import within_share

POWER_SHARES = (0.15, 0.25, 0.4, 0.6, 0.8, 0.95)
"""Of the board's limit: kinds of work by their power at the default clock."""
MIN_RELATIVE_CLOCK = 0.6
"""No clock below is chosen by what other programs did."""
MAX_CLOCKS = 24
"""Of a GPU type that are weighed."""
MAX_RATIO_OF_BOUND = 2.0
"""No job is expected to take longer than so many times the bound, whatever others leave."""
RECENT_SECONDS = 14 * 86_400.0
MAX_NAMES = 200
"""Of a GPU type, whose trials count: those of the latest runs."""
_NEAR = 0.25
"""Standard deviation of the logarithm of power within which programs are alike."""
_PACKAGE_WEIGHT, _EVEN_WEIGHT = 0.5, 0.5
"""A measured program of the package in names of the site, and forms that are all as likely as the next."""
_DOUBT = 1.0
"""Standard deviations of the mean slowdown that count beside it."""
_PRICES = tuple(4.0 * 1.12**number for number in range(70))
"""Watts per slowdown of 1."""
_MAX_MORE, _MAX_LESS = 1.25, 2.0
"""By how much the plan allows more or less than the bound, for what was measured: runs from before the profile was
switched on are among those that are counted at first."""
_NEVER = 1e9
_UPPER = 1.645
"""Standard deviations below which nineteen of twenty lie."""
_HELD_BACK = 0.9
"""Share of the limit from which on the board's limit is taken to hold a program back."""
_FIXED_POWER, _FREE_POWER = 0.35, 0.6
"""Of a program that it does not: share of its power that does not fall with the clock, and how far the rest does at
first, as a power of the cube."""


_MAX_TABLES = 256
"""Kept at once of those that jobs asked for."""
_Question = tuple[GpuTypeName, float | None, LearnedClock | None, float]


class _Member(NamedTuple):
    """A program of which something is known on a GPU type."""

    log_share: float
    """Of its power at the default clock in the board's limit."""
    weight: float
    forms: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerClass:
    """Work of about one power on a GPU type."""

    forms: tuple[float, ...]
    """Weight of each of `FORMS`; they add up to 1."""
    power: float
    """Of the usual ratio of power, that is its own: 1 is as usual, 0 does not fall with the clock."""
    programs: float
    """That it rests on, nearer ones and those of the site counting more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeClocks:
    """What clocks of one GPU type do to the site's work."""

    default_clock_mhz: int
    clocks_mhz: tuple[int, ...]
    """Ascending, the default one last."""
    usual_power: tuple[float, ...]
    """Power at each, over that at the default clock, of programs that load the board up to its limit."""
    limit_watts: float
    classes: tuple[PowerClass, ...]
    """By `POWER_SHARES`, and last of work of unknown power."""
    is_assumed: bool
    """Whether all of it is from another type's programs."""

    def power_at(self, at: int) -> tuple[float, ...]:
        """Return the power that is usual in a class: work that the limit does not hold back falls at once."""
        return _usual_of(at, self.usual_power, self.clocks_mhz)

    def class_of(self, watts: float | None) -> int:
        """Return the place of work of a power in `classes`."""
        if watts is None or watts <= 0.0:
            return len(self.classes) - 1
        share = log(watts / self.limit_watts)
        return min(range(len(POWER_SHARES)), key=lambda at: abs(log(POWER_SHARES[at]) - share))


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


class _Curve(NamedTuple):
    """What each clock does to one job."""

    slowdown: tuple[float, ...]
    doubt: tuple[float, ...]
    highest: tuple[float, ...]
    """Slowdown in nineteen of twenty cases by clocks tried in runs of the name; else of what the clock alone paces."""
    power: tuple[float, ...]
    """Over that at the default clock."""

    def best(self, watts: float, price: float) -> int:
        """Return the place of the clock of least energy and time; of equals the highest."""
        costs = [watts * (p * (1.0 + s) - 1.0) + price * s for s, p in zip(self.slowdown, self.power, strict=True)]
        return min(range(len(costs)), key=lambda at: (round(costs[at], 9), -at))


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
        found = _type_clocks(gpu_type, tried, powers, limits, users)
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
        most = _MAX_MORE if used.is_measured else 1.0
        aim = bound * min(max(ratio, 1.0 / _MAX_LESS), most) if bound == bounds[0] else bound
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


def _type_clocks(
    gpu_type: GpuTypeName,
    tried: Mapping[tuple[object, str], Mapping[GpuTypeName, LearnedClock]],
    powers: Mapping[tuple[object, str, GpuTypeName], Sequence[float]],
    limits: BoardLimits,
    users: Collection[object],
) -> TypeClocks | None:
    row, limit = CATALOG.get(gpu_type), limits.known_watts(gpu_type)
    if row is None or row.default_sm_clock_mhz is None or not row.sm_clocks_mhz or limit is None:
        return None
    default = row.default_sm_clock_mhz
    curves = [curve.on_board(limit) for curve in curves_of(gpu_type)]
    own = [
        (user, clocks[gpu_type], powers.get((user, group, gpu_type), ()))
        for (user, group), clocks in tried.items()
        if gpu_type in clocks and clocks[gpu_type].default_clock_mhz == default
    ]
    if not curves and not own:
        return None
    low = max([MIN_RELATIVE_CLOCK * default, *(curve.low_clock_mhz for curve in curves)])
    every = [clock for clock in row.sm_clocks_mhz if low <= clock <= default]
    step = max(1, -(-len(every) // MAX_CLOCKS))
    clocks_mhz = tuple(every[::-1][::step][::-1])
    usual = _usual_power(curves, clocks_mhz, default)
    package = [_package_member(curve, clocks_mhz, default, limit) for curve in curves]
    number = len({*users, *(user for user, _, _ in own)})
    seen: list[tuple[_Member, object, LearnedClock]] = []
    for user, learned, watts in own:
        share = log(max(sum(watts) / len(watts), 1.0) / limit) if watts else 0.0
        forms = _forms_after(learned)
        seen.append((_Member(share, min(3.0, float(learned.runs)), forms), user, learned))
    classes = []
    for at, share_of_limit in enumerate((*POWER_SHARES, None)):
        near: list[tuple[_Member, LearnedClock | None, float]] = [
            (one, None, _weight(one, share_of_limit)) for one in package
        ]
        near += _within_shares(seen, share_of_limit, number, _EVEN_WEIGHT + sum(weight for _, _, weight in near))
        total = _EVEN_WEIGHT + sum(weight for _, _, weight in near)
        mixed = [_EVEN_WEIGHT / total / len(FORMS)] * len(FORMS)
        first = 1.0 if _is_held_back(at) else _FREE_POWER
        falls, base = (_EVEN_WEIGHT + sum(weight for _, found, weight in near if found is None)) * first, None
        for one, found, weight in near:
            if weight > 1e-3:
                mixed = [so_far + weight / total * form for so_far, form in zip(mixed, one.forms, strict=True)]
            if found is not None:
                base = _usual_of(at, usual, clocks_mhz) if base is None else base
                falls += weight * _power_of(found, clocks_mhz, base, first)
        classes.append(
            PowerClass(
                forms=tuple(mixed),
                power=falls / total,
                programs=total - _EVEN_WEIGHT,
            )
        )
    return TypeClocks(
        default_clock_mhz=default,
        clocks_mhz=clocks_mhz,
        usual_power=usual,
        limit_watts=limit,
        classes=tuple(classes),
        is_assumed=not own and curve_source(gpu_type) == "assumed",
    )


def _weight(one: _Member, share: float | None) -> float:
    """Return how much a program counts for work of a power."""
    return one.weight if share is None else one.weight * exp(-0.5 * ((one.log_share - log(share)) / _NEAR) ** 2)


def _within_shares(
    seen: Sequence[tuple[_Member, object, LearnedClock]], share_of_limit: float | None, users: int, others: float
) -> list[tuple[_Member, LearnedClock | None, float]]:
    """Return how much each tried program counts for work of a power: no user's more than his share of all."""
    weights = [_weight(one, share_of_limit) for one, _, _ in seen]
    sums: dict[object, float] = {}
    for (_, user, _), weight in zip(seen, weights, strict=True):
        sums[user] = sums.get(user, 0.0) + weight
    fair = within_share(sums, users, others)
    return [
        (one, found, weight * fair[user] / sums[user] if sums[user] > 0.0 else 0.0)
        for (one, user, found), weight in zip(seen, weights, strict=True)
    ]


def _usual_power(curves: Sequence[WorkloadCurve], clocks_mhz: Sequence[int], default: int) -> tuple[float, ...]:
    """Return power over that at the default clock: of measured programs, else three quarters with the clock cubed."""
    if not curves:
        return tuple(0.25 + 0.75 * (clock / default) ** 3 for clock in clocks_mhz)
    found = []
    for clock in clocks_mhz:
        found.append(sum(_ratio(curve, clock) for curve in curves) / len(curves))
    return tuple(found)


def _ratio(curve: WorkloadCurve, clock: int) -> float:
    high = curve.high_clock_mhz
    at = min(clock, high)
    return curve.joules(at) / (1.0 + curve.slowdown(at)) / curve.joules(high)


def _usual_of(at: int, usual: tuple[float, ...], clocks_mhz: tuple[int, ...]) -> tuple[float, ...]:
    if _is_held_back(at):
        return usual
    return tuple(_FIXED_POWER + (1.0 - _FIXED_POWER) * (clock / clocks_mhz[-1]) ** 3 for clock in clocks_mhz)


def _is_held_back(at: int) -> bool:
    """Return whether the board's limit holds work of a class back."""
    return at >= len(POWER_SHARES) or POWER_SHARES[at] >= _HELD_BACK


def _package_member(curve: WorkloadCurve, clocks_mhz: Sequence[int], default: int, limit: float) -> _Member:
    picked = [clock for clock in clocks_mhz if clock < default][:: max(1, len(clocks_mhz) // 5)]
    windows = [
        AnsweredWindow(
            worst=default / clock - 1.0,
            answer=ClockAnswer(slowdown=curve.slowdown(min(clock, curve.high_clock_mhz)), error=0.01),
        )
        for clock in picked
    ]
    forms = tuple(weight for _, _, weight in ResponseForms.after(windows).forms)
    return _Member(log(max(curve.watts(curve.high_clock_mhz), 1.0) / limit), _PACKAGE_WEIGHT, forms)


@lru_cache(maxsize=1024)
def _forms_after(learned: LearnedClock) -> tuple[float, ...]:
    """Return how likely each form is after what was tried, where all were as likely as the next before."""
    return tuple(weight for _, _, weight in ResponseForms.after(_windows(learned)).forms)


def _windows(learned: LearnedClock) -> tuple[AnsweredWindow, ...]:
    return tuple(
        AnsweredWindow(
            worst=one.default_clock_mhz / one.sm_clock_mhz - 1.0,
            answer=ClockAnswer(slowdown=one.slowdown, error=one.error),
        )
        for one in (learned, *learned.others)
        if one.sm_clock_mhz < one.default_clock_mhz
    )


def _power_of(learned: LearnedClock, clocks_mhz: Sequence[int], usual: Sequence[float], first: float) -> float:
    """Return by what power the usual ratios must be taken to be a program's own.

    Args:
        learned: What was tried.
        clocks_mhz: Of the usual ratios.
        usual: Power at each over that at the default clock.
        first: What it is taken to be before.
    """
    above, below = 0.005 * first, 0.005
    for one in (learned, *learned.others):
        ratio = (1.0 + one.energy_change) / (1.0 + one.slowdown)
        at = min(range(len(clocks_mhz)), key=lambda place: abs(clocks_mhz[place] - one.sm_clock_mhz))
        base = log(max(usual[at], 0.05))
        above += base * log(max(ratio, 0.05))
        below += base * base
    return min(max(above / below, 0.0), 2.0)


def _curve(one: TypeClocks, at: int, learned: LearnedClock | None) -> _Curve:
    """Return what clocks do to work of a class, of a name of which some were tried."""
    kind = one.classes[at]
    weights, power, own = kind.forms, kind.power, None
    if learned is not None:
        own = _forms_after(learned)
        product = [mine * form for mine, form in zip(weights, own, strict=True)]
        total = sum(product)
        weights = tuple(value / total for value in product) if total > 0.0 else weights
        power = _power_of(learned, one.clocks_mhz, one.power_at(at), power)
    worsts = [max(one.default_clock_mhz / clock - 1.0, 0.0) for clock in one.clocks_mhz]
    begins, own_begins = _begins(weights), None if own is None else _begins(own)
    found = [_slowdown_by(begins, worst) for worst in worsts]
    highest = []
    for worst, (mean, doubt) in zip(worsts, found, strict=True):
        # What other programs did is no promise: until its own clocks were tried, it may be one that the clock paces.
        mine, my_doubt = (worst, 0.0) if own_begins is None else _slowdown_by(own_begins, worst)
        highest.append(min(max(mine + _UPPER * my_doubt, mean + _UPPER * doubt), worst))
    return _Curve(
        slowdown=tuple(mean for mean, _ in found),
        doubt=tuple(doubt for _, doubt in found),
        highest=tuple(highest),
        power=tuple(ratio**power for ratio in one.power_at(at)),
    )


def _begins(weights: Sequence[float]) -> Mapping[float, tuple[float, float]]:
    """Return the sums of weight times share, and of it times share, of the forms that begin at each place."""
    found: dict[float, tuple[float, float]] = {}
    for weight, (share, begin) in zip(weights, FORMS, strict=True):
        first, second = found.get(begin, (0.0, 0.0))
        found[begin] = first + weight * share, second + weight * share * share
    return found


def _slowdown_by(begins: Mapping[float, tuple[float, float]], worst: float) -> tuple[float, float]:
    """Return the mean slowdown at a clock by the weights of all forms, and its standard deviation."""
    mean = square = 0.0
    for begin, (first, second) in begins.items():
        if worst > begin:
            mean += first * (worst - begin)
            square += second * (worst - begin) ** 2
    return mean, sqrt(max(square - mean * mean, 0.0))


def _job_table(one: TypeClocks, at: int, watts: float | None, learned: LearnedClock | None, price: float) -> ClockTable:
    curve = _curve(one, at, learned)
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

    curve: _Curve
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
            curve=_curve(types[name], at, learned),
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


def _mean(groups: Sequence[_Group], price: float, most: float) -> tuple[float, float]:
    """Return the mean slowdown over jobs or GPU time, whichever is most, and its standard deviation."""
    means = [0.0] * 4
    doubts: dict[tuple[GpuTypeName, int], float] = {}
    for one in groups:
        at = one.curve.best(one.watts, price)
        while one.curve.slowdown[at] > most and at < len(one.curve.slowdown) - 1:
            at += 1
        means = [mean + share * one.curve.slowdown[at] for mean, share in zip(means, one.shares, strict=True)]
        # Work of one class is wrong in one direction: the less the more programs are known.
        doubt = max(one.shares) * one.curve.doubt[at] / sqrt(1.0 + one.programs)
        doubts[one.place] = doubts.get(one.place, 0.0) + doubt
    return max(means), hypot(*doubts.values())
