"""Follow the repetitions of a program through its power: candidates for the period, and the time of every repetition.

A candidate is a peak of the autocorrelation. From it a template of one repetition is cut out of the trace, matched
against the whole trace (normalised cross-correlation), and the chain of matches whose distances stay near the period
is found by dynamic programming, as beat trackers of music do (Ellis, 2007). Matched stretches are averaged to a better
template, twice. The distances of the chain, not the candidate, are what is measured.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from slurm_energy.estimation.iterations.traces import Floats, Grid, finer, moving_mean

SHORTEST_PERIOD_SECONDS = 0.25
LONGEST_PERIOD_SECONDS = 16.0
MIN_PERIODS = 5.3
"""A trace holds at least this many periods (GPOEO)."""
CELLS_PER_PERIOD = 24
SMOOTHING = 0.13
"""Of the trace before matching, over the period."""
SHORTEST_TEMPLATE_SECONDS = 1.8
"""Fewer samples than this holds match anything."""
MAX_CANDIDATES = 6
MIN_PEAK = 0.12
"""Autocorrelation below this is noise."""
MIN_MATCH = 0.2
NARROWEST, WIDEST = 0.72, 1.35
"""Distances of two neighbours in a chain over the period."""
DEVIATION_COST = 10.0
BREAK_COST = 1.0
"""A chain that begins again after a stall or an evaluation loses as much as one perfect match."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chain:
    """The repetitions found with one template."""

    seconds: Floats
    """When each begins, ascending; relative to the grid's start."""
    matches: Floats
    """How well each fits the template, up to 1."""
    linked: NDArray[np.bool_]
    """Whether the distance to the one before is one period; the first is not."""
    template: Floats
    """Watts around their mean, in cells of `cell_seconds`."""
    cell_seconds: float
    period_seconds: float
    """Median distance of linked ones."""


def candidate_periods(grid: Grid) -> list[float]:
    """Return lags at which the power resembles itself, strongest first."""
    found: dict[float, float] = {}
    longest = min(LONGEST_PERIOD_SECONDS, grid.span_seconds / MIN_PERIODS)
    for window_seconds in (4.0, 40.0):
        similarity = autocorrelation(grid, min(window_seconds, grid.span_seconds / 3.0))
        first = max(2, int(SHORTEST_PERIOD_SECONDS / grid.step_seconds))
        last = min(int(longest / grid.step_seconds) + 1, similarity.size - 2)
        lags = np.arange(first, last)
        if lags.size == 0:
            continue
        here, left, right = similarity[lags], similarity[lags - 1], similarity[lags + 1]
        for lag in lags[(here >= left) & (here > right) & (here > MIN_PEAK)]:
            shift, height = _vertex(*similarity[lag - 1 : lag + 2])
            period = float((lag + shift) * grid.step_seconds)
            twin = next((other for other in found if abs(other / period - 1.0) < 0.03), None)
            if twin is None:
                found[period] = height
            else:
                found[twin] = max(found[twin], height)
    if not found:
        return []
    strongest = max(found.values())
    good = sorted((period for period in found if found[period] >= 0.45 * strongest), key=lambda period: -found[period])
    return good[:MAX_CANDIDATES]


def autocorrelation(grid: Grid, window_seconds: float) -> Floats:
    """Return the similarity of the trace with itself at each lag, without what is slower than the window."""
    watts = grid.watts - moving_mean(grid.watts, round(window_seconds / grid.step_seconds))
    # One spike must not be the whole similarity.
    bound = 6.0 * float(np.median(np.abs(watts))) + 1e-9
    watts = np.where(grid.missing, 0.0, np.clip(watts, -bound, bound))
    size = 1 << int(2 * watts.size - 1).bit_length()
    power = np.abs(np.fft.rfft(watts, size)) ** 2
    sums = np.fft.irfft(power, size)[: watts.size]
    overlap = watts.size - np.arange(watts.size)
    return np.asarray(sums / overlap / max(sums[0] / watts.size, 1e-12))


def follow(grid: Grid, period_seconds: float, template: Chain | None = None) -> Chain | None:
    """Return the chain of repetitions near a period, None when there is none.

    Args:
        grid: The trace.
        period_seconds: Where to look.
        template: A chain found at another clock: its template, stretched to this period, is what is looked for first.
    """
    signal, cell = _in_cells(grid, period_seconds)
    width = round(_template_seconds(period_seconds) / cell)
    if signal.size < width + 3 * period_seconds / cell:
        return None
    floor = 0.35 * float(signal.std()) + 1e-9
    gap = _gaps(grid, cell, signal.size - width + 1, width)
    if template is None:
        shape = _typical_stretch(signal, width, period_seconds / cell, floor)
    else:
        old = template.template
        shape = np.interp(np.linspace(0, old.size - 1, width), np.arange(old.size), old)
    chain = None
    for _ in range(3):
        match = np.where(gap, -1.0, _matches(signal, shape, floor))
        chain = _best_chain(match, period_seconds / cell)
        if chain is None:
            return None
        places, fits, linked = chain
        good = fits >= max(0.4, 0.7 * float(np.median(fits)))
        if good.sum() < 3:
            return None
        shape = _mean_stretch(signal, places[good], width)
        steps = np.diff(places)[linked[1:]]
        if steps.size < 3:
            return None
        period_seconds = float(np.median(steps)) * cell
    assert chain is not None
    return Chain(
        seconds=places * cell,
        matches=fits,
        linked=linked,
        template=shape,
        cell_seconds=cell,
        period_seconds=period_seconds,
    )


def _template_seconds(period_seconds: float) -> float:
    return period_seconds * max(1, round(SHORTEST_TEMPLATE_SECONDS / period_seconds))


def _in_cells(grid: Grid, period_seconds: float) -> tuple[Floats, float]:
    """Return the trace without slow changes at about CELLS_PER_PERIOD values a period, and their distance."""
    factor = max(1, round(grid.step_seconds / (period_seconds / CELLS_PER_PERIOD)))
    coarse = max(1, int(period_seconds / CELLS_PER_PERIOD / grid.step_seconds))
    watts = grid.watts - moving_mean(grid.watts, round(4.0 * max(period_seconds, 1.0) / grid.step_seconds))
    smooth = int(SMOOTHING * period_seconds / grid.step_seconds)
    watts = moving_mean(watts, smooth) if smooth >= 3 else watts
    if coarse > 1:
        watts = watts[: watts.size // coarse * coarse].reshape(-1, coarse).mean(axis=1)
        return watts, grid.step_seconds * coarse
    return finer(watts, factor), grid.step_seconds / factor


def _gaps(grid: Grid, cell: float, count: int, width: int) -> NDArray[np.bool_]:
    """Return which stretches hold a gap."""
    place = np.minimum((np.arange(count + width) * cell / grid.step_seconds).astype(int), grid.missing.size - 1)
    sums = np.concatenate(([0], np.cumsum(grid.missing[place])))
    return np.asarray(sums[width : width + count] > sums[:count])


def _matches(signal: Floats, shape: Floats, floor: float) -> Floats:
    """Return the correlation of the shape with every stretch; flat stretches match nothing."""
    width = shape.size
    centred = shape - shape.mean()
    sums = np.concatenate(([0.0], np.cumsum(signal)))
    squares = np.concatenate(([0.0], np.cumsum(signal**2)))
    mean = (sums[width:] - sums[:-width]) / width
    spread = np.sqrt(np.maximum((squares[width:] - squares[:-width]) / width - mean**2, 0.0))
    product = np.correlate(signal, centred, "valid") / width
    return np.asarray(product / (np.maximum(spread, floor) * max(float(centred.std()), 1e-9)))


def _typical_stretch(signal: Floats, width: int, period_cells: float, floor: float) -> Floats:
    """Return the stretch, of a few, that returns best in every period."""
    best, best_score = signal[:width], -1.0
    block = max(2, round(1.1 * period_cells))
    starts = np.linspace(0.04, 0.96, 8) * (signal.size - width)
    for start in starts.astype(int):
        shape = signal[start : start + width]
        match = _matches(signal, shape, floor)
        blocks = match[: match.size // block * block].reshape(-1, block).max(axis=1)
        score = float(np.median(blocks))
        if score > best_score:
            best, best_score = shape, score
    return best


def _mean_stretch(signal: Floats, places: Floats, width: int) -> Floats:
    starts = np.clip(np.round(places).astype(int), 0, signal.size - width)
    stretches = sliding_window_view(signal, width)[starts]
    return np.asarray((stretches - stretches.mean(axis=1, keepdims=True)).mean(axis=0))


def _vertex(left: float, here: float, right: float) -> tuple[float, float]:
    """Return place and height of the parabola's top over three neighbours."""
    bend = left - 2.0 * here + right
    shift = 0.0 if bend >= 0.0 else float(np.clip(0.5 * (left - right) / bend, -0.5, 0.5))
    return shift, float(here - 0.25 * (left - right) * shift)


def _peaks(match: Floats) -> tuple[Floats, Floats]:
    inner = match[1:-1]
    places = np.flatnonzero((inner >= match[:-2]) & (inner > match[2:]) & (inner > MIN_MATCH)) + 1
    left, here, right = match[places - 1], match[places], match[places + 1]
    bend = np.minimum(left - 2.0 * here + right, -1e-12)
    shift = np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return places + shift, np.minimum(here - 0.25 * (left - right) * shift, 1.0)


def _best_chain(match: Floats, period: float) -> tuple[Floats, Floats, NDArray[np.bool_]] | None:
    """Return places, fits and links of the chain with the highest sum of fits less deviations and breaks."""
    places, fits = _peaks(match)
    count = places.size
    if count < 4:
        return None
    score, before, linked = np.empty(count), np.full(count, -1), np.zeros(count, bool)
    reached = np.empty(count)  # the best score up to here
    best_end = np.empty(count, int)
    for place in range(count):
        low = int(np.searchsorted(places, places[place] - WIDEST * period))
        high = int(np.searchsorted(places, places[place] - NARROWEST * period, side="right"))
        value = 0.0
        if high > 0:
            value, before[place] = max(0.0, reached[high - 1] - BREAK_COST), best_end[high - 1]
            if reached[high - 1] - BREAK_COST <= 0.0:
                before[place] = -1
        if high > low:
            ratio = np.log((places[place] - places[low:high]) / period)
            sums = score[low:high] - DEVIATION_COST * ratio**2
            at = int(np.argmax(sums))
            if sums[at] > value:
                value, before[place], linked[place] = float(sums[at]), low + at, True
        score[place] = fits[place] + value
        earlier = reached[place - 1] if place else -np.inf
        reached[place] = max(earlier, score[place])
        best_end[place] = place if score[place] >= earlier else best_end[place - 1]
    chain = []
    place = int(best_end[-1])
    while place >= 0:
        chain.append(place)
        place = int(before[place])
    order = np.array(chain[::-1])
    return places[order], fits[order], linked[order]
