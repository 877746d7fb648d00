"""How much slower a program runs at a lower clock, from its power at both clocks, or why that is not known.

Two pieces of evidence are needed. The time of one repetition of the power's pattern says how fast something repeats;
but a timer of the host (a progress line, a check of health) repeats as before while the work itself becomes slower.
So counters of work must say the same: see `Trace.work_rates`.
"""

from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.estimation.iterations.beats import Chain, candidate_periods, follow
from slurm_energy.estimation.iterations.repetitions import Repetitions, Unknown, judge, mean_step
from slurm_energy.estimation.iterations.traces import Floats, Grid, Trace, moving_mean, regular

MAX_ERROR = 0.03
"""A slowdown is answered only when its standard error is at most this (3 points). What one answer is too unsure for,
several together may show: whether they do is for who asks."""
LONGER_HELPS = 2.2
"""A window four times as long halves the error; one of more than this times the largest answers nothing either."""
FLOOR_ERROR = 0.0015
WIDENING = 1.2
"""By which the stated error is larger than the one worked out: 8 % of made programs' truths were beyond twice that."""
MIN_SIGNAL_SHARE = 0.004
"""Power that changes by less than this of its mean is constant."""
MIN_ALIKE = 0.75
"""Correlation of the templates at both clocks."""
DEFAULT_MAX_SLOWDOWN = 0.6
SLACK = 0.03
BLOCKS = 12
MAX_PAIRS = 3
MAX_RESERVE = 0.02
"""An answer of hardly any slowdown stands when counters of work exclude, at 1 %, that it is more by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Time for the same work after over before, less 1."""

    value: float
    error: float
    """Standard error; the truth is within twice of it in 19 of 20 cases."""
    period_seconds: float
    """Of one repetition before."""
    repetitions: int
    """Counted on the side that has fewer."""

    @property
    def upper(self) -> float:
        """The slowdown that is exceeded in one case of 40."""
        return self.value + 2.0 * self.error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """The same repetition in both windows."""

    one: Repetitions
    other: Repetitions
    value: float
    error: float

    @classmethod
    def of(cls, one: Repetitions, other: Repetitions) -> "_Pair":
        """Return the slowdown and its error; how much repetitions vary is learned from both windows together."""
        freedom = one.count + other.count - 2
        variance = (one.variance * (one.count - 1) + other.variance * (other.count - 1)) / freedom
        placing = (one.placing * (one.count - 1) + other.placing * (other.count - 1)) / freedom
        placing = float(np.clip(placing, 0.0, 0.495 * variance))
        periods, squares = [], 0.0
        for side in (one, other):
            period, error = mean_step(np.diff(side.chain.seconds), side.good, variance, placing)
            periods.append(period)
            squares += (error / period) ** 2
        ratio = periods[1] / periods[0]
        error = ratio * float(np.sqrt(squares * freedom / max(freedom - 2.0, 1.0) + FLOOR_ERROR**2))
        return cls(one=one, other=other, value=ratio - 1.0, error=error)


def slowdown_between(before: Trace, after: Trace, *, max_error: float = MAX_ERROR) -> Slowdown | Unknown:
    """Return how much longer the same work takes after a change of the clock, or why that is not known.

    Args:
        before: A window of at least 20 s (60 s and more is better), 10 samples a second, at the first clock.
        after: A window as long at the second, lower clock, once the clock has settled. Where both know their clock,
            the slowdown is looked for between none and the ratio of the clocks.
        max_error: Largest standard error that is an answer.

    Counters in `work_rates` of both traces are compulsory: without one that counts, nothing is answered.
    """
    grids = regular(before), regular(after)
    if grids[0] is None or grids[1] is None:
        return Unknown(reason="too few samples")
    first = _measured(grids[0])
    if isinstance(first, Unknown):
        return first
    highest = _highest_slowdown(before, after)
    pairs = []
    reason = "no repetition of the first window returns in the second"
    for one in first[:MAX_PAIRS]:
        other = _again(grids[1], one, highest)
        if isinstance(other, Unknown):
            reason = other.reason
        else:
            pairs.append(_Pair.of(one, other))
    if not pairs:
        return Unknown(reason=reason)
    best = min(pairs, key=lambda pair: pair.error * (1.0 + 4.0 / min(pair.one.count, pair.other.count)))
    apart = 0.0
    for pair in pairs:
        difference = abs(pair.value - best.value)
        if difference > 3.0 * float(np.hypot(best.error, pair.error)) + 0.01:
            return Unknown(reason="two repetitions in the power disagree")
        if pair.error <= 2.0 * best.error:
            apart = max(apart, difference)
    # Multiples of one period hold the same time: where they say different things, places in the trace are wrong.
    best = replace(best, error=float(np.hypot(best.error, 0.5 * apart)))
    if best.error > max_error:
        reason = f"repetitions vary too much: standard error {100.0 * best.error:.1f} points"
        return Unknown(reason=reason, longer_may_help=best.error <= LONGER_HELPS * max_error)
    if not -SLACK - 2.0 * best.error <= best.value <= highest + SLACK + 2.0 * best.error:
        return Unknown(reason=f"{100.0 * best.value:.1f} % is no slowdown that the clocks can make")
    witnessed = _witness(before, after, best, highest)
    if isinstance(witnessed, Unknown):
        return witnessed
    return Slowdown(
        value=min(max(best.value, 0.0), highest),
        error=WIDENING * witnessed,
        period_seconds=best.one.period,
        repetitions=min(best.one.count, best.other.count),
    )


def _highest_slowdown(before: Trace, after: Trace) -> float:
    if not before.sm_clock_mhz or not after.sm_clock_mhz:
        return DEFAULT_MAX_SLOWDOWN
    return max(before.sm_clock_mhz / after.sm_clock_mhz - 1.0, 0.0)


def _measured(grid: Grid) -> list[Repetitions] | Unknown:
    """Return the repetitions that pass, the one with the smallest error first."""
    slow = moving_mean(grid.watts, round(15.0 / grid.step_seconds))
    if float((grid.watts - slow).std()) < MIN_SIGNAL_SHARE * abs(float(grid.watts.mean())):
        return Unknown(reason="power is constant")
    candidates = candidate_periods(grid)
    found: list[Repetitions] = []
    unknown = Unknown(reason="power does not repeat")
    for period in candidates:
        chain = follow(grid, period)
        if chain is None or any(abs(chain.period_seconds / known.period - 1.0) < 0.02 for known in found):
            continue
        judged = judge(grid, chain)
        if isinstance(judged, Unknown):
            unknown = judged
        else:
            found.append(judged)
    if not found:
        return unknown
    found.sort(key=lambda one: -one.fit)
    best = [one for one in found if one.fit >= 0.9 * found[0].fit]
    return sorted(best, key=lambda one: one.error / one.period)


def _again(grid: Grid, one: Repetitions, highest: float) -> Repetitions | Unknown:
    """Return the same repetition in the other window."""
    low, high = one.period * (1.0 - SLACK), one.period * (1.0 + highest + SLACK)
    starts = [period for period in candidate_periods(grid) if low * 0.98 <= period <= high * 1.02]
    starts += [one.period * (1.0 + part * highest) for part in (0.0, 0.5, 1.0)]
    best: Repetitions | None = None
    reason = "the repetition of the first window does not return in the second"
    seen: list[float] = []
    for start in starts:
        if any(abs(start / other - 1.0) < 0.01 for other in seen):
            continue
        chain = follow(grid, start, one.chain)
        if chain is None:
            continue
        seen.append(chain.period_seconds)
        judged = judge(grid, chain)
        if isinstance(judged, Unknown):
            reason = judged.reason
            continue
        if not low * 0.98 <= judged.period <= high * 1.02 or _alike(one.chain, chain) < MIN_ALIKE:
            continue
        if best is None or judged.fit > best.fit + 0.02 or (judged.fit > best.fit - 0.02 and judged.error < best.error):
            best = judged
    return best or Unknown(reason=reason)


def _alike(one: Chain, other: Chain) -> float:
    """Return the correlation of two templates, the second stretched to the first."""
    size = one.template.size
    stretched = np.interp(np.linspace(0, other.template.size - 1, size), np.arange(other.template.size), other.template)
    best = 0.0
    for shift in range(-size // 8, size // 8 + 1):
        a, b = one.template[max(0, shift) : size + min(0, shift)], stretched[max(0, -shift) : size - max(0, shift)]
        if a.std() > 0 and b.std() > 0:
            best = max(best, float(np.corrcoef(a, b)[0, 1]))
    return best


def _witness(before: Trace, after: Trace, pair: _Pair, highest: float) -> float | Unknown:
    """Return the error that the counters of work leave, or why they do not bear the slowdown out.

    A repetition of the work does the same work at both clocks: what a counter counts in one must not change. In one of
    a timer it falls as the work slows down.
    """
    value, error = pair.value, pair.error
    stretched = value >= max(3.0 * error, 0.01, 0.2 * highest)
    reserve = float("inf")
    for name in before.work_rates.keys() & after.work_rates.keys():
        counted = [
            _work_per_repetition(trace, trace.work_rates[name], side)
            for trace, side in ((before, pair.one), (after, pair.other))
        ]
        if counted[0] is None or counted[1] is None:
            continue
        (was, was_spread), (now, now_spread) = counted[0], counted[1]
        spread = float(np.hypot(was_spread, now_spread))
        if spread == 0.0 and was == now:
            continue  # a counter that stands
        missing = was / now - 1.0
        allowed = 2.5 * spread + 0.006 + (0.25 * value if stretched else 0.0)
        if abs(missing) > allowed:
            return Unknown(reason=f"power speaks of {100.0 * value:.1f} %, {name} of {100.0 * missing:.1f} points more")
        reserve = min(reserve, max(missing, 0.0) + 2.33 * spread)
    if reserve == float("inf"):
        return Unknown(reason="no counter of work beside the power: it may be a timer of the host")
    if stretched:
        return error
    if reserve > MAX_RESERVE:
        return Unknown(reason="counters of work vary too much: it may be a timer of the host", longer_may_help=True)
    return max(error, reserve / 2.33)


def _work_per_repetition(trace: Trace, values: Floats, side: Repetitions) -> tuple[float, float] | None:
    """Return what a counter counts in a repetition, and its relative standard error; None when it says nothing."""
    begin = float(np.nanmin(trace.seconds))
    good = side.good.copy()
    # Counters are averages too: beside a stall they have something of it.
    calm = good & np.concatenate(([True], good[:-1])) & np.concatenate((good[1:], [True]))
    if calm.sum() >= 0.6 * good.sum():
        good = calm
    steps = np.diff(side.chain.seconds)[good]
    starts = side.chain.seconds[:-1][good] + begin
    times, counter = np.asarray(trace.seconds, float), np.asarray(values, float)
    read = np.isfinite(times) & np.isfinite(counter) & (counter >= 0.0)
    times, counter = times[read], counter[read]
    owner = np.searchsorted(starts, times, side="right") - 1
    inside = (owner >= 0) & (times < (starts + steps)[np.maximum(owner, 0)])
    block = np.arange(starts.size) * min(BLOCKS, starts.size) // starts.size
    blocks = []
    for number in np.unique(block):
        mine = inside & (block[owner] == number)
        if mine.sum() < 3:
            return None
        blocks.append(float(counter[mine].mean() * steps[block == number].mean()))
    if len(blocks) < 4:
        return None
    mean, spread = _trimmed(np.array(blocks))
    return (mean, spread / mean) if mean > 0.0 else None


def _trimmed(values: Floats) -> tuple[float, float]:
    """Return the mean without the highest and lowest sixth, and its standard error (Tukey and McLaughlin, 1963)."""
    ordered, cut = np.sort(values), values.size // 6
    kept = ordered[cut : values.size - cut]
    limited = np.clip(values, kept[0], kept[-1])
    share = kept.size / values.size
    return float(kept.mean()), float(limited.std(ddof=1)) / (share * float(np.sqrt(values.size)))
