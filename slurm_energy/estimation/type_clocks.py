"""What the clocks of one GPU type do to a site's work: how likely each form of slowing down is, and how power falls.

Each program slows down in a form of its own (`ResponseForms`). How likely each form is on a GPU type, and how far power
falls with the clock, is learned from the clocks that were tried in the site's jobs, apart for work of low and of high
power; the package's measured programs are only where that begins. A job whose name was tried has its own forms.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, sqrt
from typing import NamedTuple

from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.trials import LearnedClock
from slurm_energy.energy_model.catalog import CATALOG, BoardLimits
from slurm_energy.energy_model.curves import WorkloadCurve, curve_source, curves_of
from slurm_energy.estimation.clock_response import FORMS, AnsweredWindow, ClockAnswer, ResponseForms
from slurm_energy.estimation.user_shares import within_share

POWER_SHARES = (0.15, 0.25, 0.4, 0.6, 0.8, 0.95)
"""Of the board's limit: kinds of work by their power at the default clock."""
MIN_RELATIVE_CLOCK = 0.6
"""No clock below is chosen by what other programs did."""
MAX_CLOCKS = 24
"""Of a GPU type that are weighed."""
_NEAR = 0.25
"""Standard deviation of the logarithm of power within which programs are alike."""
_PACKAGE_WEIGHT, _EVEN_WEIGHT = 0.5, 0.5
"""A measured program of the package in names of the site, and forms that are all as likely as the next."""
_UPPER = 1.645
"""Standard deviations below which nineteen of twenty lie."""
_HELD_BACK = 0.9
"""Share of the limit from which on the board's limit is taken to hold a program back."""
_FIXED_POWER, _FREE_POWER = 0.35, 0.6
"""Of a program that it does not: share of its power that does not fall with the clock, and how far the rest does at
first, as a power of the cube."""


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


class JobCurve(NamedTuple):
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


def type_clocks(
    gpu_type: GpuTypeName,
    tried: Mapping[tuple[object, str], Mapping[GpuTypeName, LearnedClock]],
    powers: Mapping[tuple[object, str, GpuTypeName], Sequence[float]],
    limits: BoardLimits,
    users: Collection[object],
) -> TypeClocks | None:
    """Return what is known of a GPU type; None where it has no clocks, no limit or nothing was measured.

    Args:
        gpu_type: The type.
        tried: What was tried, by user and group of jobs, and by GPU type.
        powers: Watts of one GPU in the runs of each user's group of jobs on each type.
        limits: Power limits of the site's boards.
        users: With recent runs on the type: none of them counts for more than his share.
    """
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


def job_curve(one: TypeClocks, at: int, learned: LearnedClock | None) -> JobCurve:
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
    return JobCurve(
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
