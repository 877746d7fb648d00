"""What is held back, what is said of it by the rest, and how far that is off."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.estimates.data import GAVEL_SHEETS
from slurm_energy.estimation.gaussian_process import FloatArray, GaussianProcess, Interval, left_out
from slurm_energy.estimation.rates import (
    Beside,
    MeasuredNeighbour,
    MeasuredRate,
    RateModel,
    RatePlace,
    Work,
    fit_neighbours,
    fit_rates,
)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """One question: rows that are not shown, and those of them that are asked for."""

    hidden: Mask
    asked: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How far estimates were off."""

    mean_error: float
    """Mean absolute relative error."""
    median_error: float
    covered: float | None
    """Share of the measured values within the 90 % interval; None for an estimator without one."""
    num: int


def score(measured: Sequence[float], estimated: Sequence[Interval] | FloatArray) -> Score:
    """Return the score of intervals, or of logarithms without an interval."""
    values = np.asarray(measured)
    if isinstance(estimated, np.ndarray):
        middles, covered = np.exp(estimated), None
    else:
        middles = np.array([one.middle for one in estimated])
        covered = float(np.mean([one.lower <= v <= one.upper for one, v in zip(estimated, values, strict=True)]))
    error = np.abs(middles / values - 1.0)
    known = np.isfinite(error)
    return Score(
        mean_error=float(error[known].mean()) if known.any() else float("nan"),
        median_error=float(np.median(error[known])) if known.any() else float("nan"),
        covered=covered,
        num=int(known.sum()),
    )


RateEstimator = Callable[[Sequence[MeasuredRate], Sequence[tuple[Work, RatePlace]]], Sequence[Interval] | FloatArray]


def by_similarity(measured: Sequence[MeasuredRate], wanted: Sequence[tuple[Work, RatePlace]]) -> Sequence[Interval]:
    """Return what is served: a Gaussian process."""
    return fit_rates(measured, GAVEL_SHEETS).estimates(wanted)


def judge_rates(rows: Sequence[MeasuredRate], questions: Sequence[HeldBack], estimator: RateEstimator) -> Score:
    """Return how far an estimator of rates is off, fitted again for each question."""
    values: list[float] = []
    estimated: list[Interval] = []
    logs: list[float] = []
    for question in questions:
        shown = [row for row, hidden in zip(rows, question.hidden, strict=True) if not hidden]
        asked = [row for row, one in zip(rows, question.asked, strict=True) if one]
        found = estimator(shown, [(row.work, row.place) for row in asked])
        values += [row.value for row in asked]
        if isinstance(found, np.ndarray):
            logs += found.tolist()
        else:
            estimated += found
    return score(values, np.array(logs) if logs else estimated)


def judge_left_out_rates(
    rows: Sequence[MeasuredRate], questions: Sequence[HeldBack], model: RateModel | None = None
) -> Score:
    """Return how far what is served is off, from one fit to all rows by algebra.

    What is left out has no part in the estimates; only what doubts are multiplied by has seen all rows.
    """
    model = fit_rates(rows, GAVEL_SHEETS) if model is None else model
    assert model.process is not None
    types = [row.place.gpu_type for row in rows]
    return _left_out_score(model.process, model.doubt_factors, [row.value for row in rows], types, questions)


def judge_neighbours(rows: Sequence[MeasuredNeighbour], questions: Sequence[HeldBack]) -> Score:
    """Return how far the estimates of speeds beside a neighbour are off, fitted again for each question."""
    values: list[float] = []
    estimated: list[Interval] = []
    for question in questions:
        model = fit_neighbours([row for row, hidden in zip(rows, question.hidden, strict=True) if not hidden])
        asked = [row for row, one in zip(rows, question.asked, strict=True) if one]
        estimated += model.estimates([row.beside for row in asked])
        values += [row.value for row in asked]
    return score(values, estimated)


def judge_left_out_neighbours(rows: Sequence[MeasuredNeighbour], questions: Sequence[HeldBack]) -> Score:
    """Return the same from one fit to all rows, by algebra; only what doubts are multiplied by has seen all rows."""
    model = fit_neighbours(rows)
    assert model.process is not None
    types = [row.beside.gpu_type for row in rows]
    values = [row.value for row in rows]
    return _left_out_score(model.process, model.doubt_factors, values, types, questions, max_log=0.0)


def _left_out_score(
    process: GaussianProcess,
    factors: Mapping[str, float],
    values: Sequence[float],
    types: Sequence[str],
    questions: Sequence[HeldBack],
    max_log: float = 30.0,
) -> Score:
    asked_values: list[float] = []
    estimated: list[Interval] = []
    for question in questions:
        mean, doubt = left_out(process, question.hidden)
        asked = question.asked[question.hidden]
        places = np.flatnonzero(question.hidden)[asked]
        for middle, spread, place in zip(mean[asked].tolist(), doubt[asked].tolist(), places.tolist(), strict=True):
            estimated.append(Interval(log_middle=min(middle, max_log), log_doubt=spread * factors[types[place]]))
            asked_values.append(values[place])
    return score(asked_values, estimated)


def type_never_seen(rows: Sequence[MeasuredRate], gpu_types: Sequence[str]) -> Iterator[HeldBack]:
    """Yield each job type on each GPU type, as if it had never run there; it has run on the others."""
    for name in dict.fromkeys(row.work.name for row in rows):
        for kind in gpu_types:
            hidden = np.array([row.work.name == name and row.place.gpu_type == kind for row in rows])
            if hidden.any():
                yield HeldBack(hidden=hidden, asked=hidden)


def family_never_seen(rows: Sequence[MeasuredRate], gpu_types: Sequence[str]) -> Iterator[HeldBack]:
    """Yield each family on each GPU type, as if none of its job types had ever run there."""
    for family in dict.fromkeys(row.work.family for row in rows):
        for kind in gpu_types:
            hidden = np.array([row.work.family == family and row.place.gpu_type == kind for row in rows])
            if hidden.any():
                yield HeldBack(hidden=hidden, asked=hidden)


def gpu_type_never_seen(rows: Sequence[MeasuredRate], gpu_types: Sequence[str]) -> Iterator[HeldBack]:
    """Yield each GPU type, of which only the data sheet is known."""
    for kind in gpu_types:
        hidden = np.array([row.place.gpu_type == kind for row in rows])
        yield HeldBack(hidden=hidden, asked=hidden)


def never_run(rows: Sequence[MeasuredRate]) -> Iterator[HeldBack]:
    """Yield each job type, as if it had never run: only family and batch size are known."""
    for name in dict.fromkeys(row.work.name for row in rows):
        hidden = np.array([row.work.name == name for row in rows])
        yield HeldBack(hidden=hidden, asked=hidden)


def one_run(rows: Sequence[MeasuredRate], gpu_types: Sequence[str], *, elsewhere: bool) -> Iterator[HeldBack]:
    """Yield each job type with a single measurement, on one GPU.

    Args:
        rows: All measurements.
        gpu_types: Where the measurement is.
        elsewhere: Whether the job type has run nowhere else and the other GPU types are asked for; else it has run on
            the other types, and what it does with more GPUs on this one is asked for.
    """
    for name in dict.fromkeys(row.work.name for row in rows):
        for kind in gpu_types:
            mine = np.array([row.work.name == name for row in rows])
            here = np.array([row.place.gpu_type == kind for row in rows])
            single = np.flatnonzero(mine & here & np.array([row.place.gpus == 1 for row in rows]))
            hidden = mine.copy() if elsewhere else mine & here
            hidden[single] = False
            asked = hidden & ~here if elsewhere else hidden
            if len(single) and asked.any():
                yield HeldBack(hidden=hidden, asked=asked)


def pair_never_seen(rows: Sequence[MeasuredNeighbour]) -> Iterator[HeldBack]:
    """Yield each pair, as if it had run together nowhere."""
    pairs = [frozenset({row.beside.work.name, row.beside.neighbour.name}) for row in rows]
    for pair in dict.fromkeys(pairs):
        hidden = np.array([one == pair for one in pairs])
        yield HeldBack(hidden=hidden, asked=hidden)


def neighbour_never_seen(
    rows: Sequence[MeasuredNeighbour], gpu_types: Sequence[str], known_pairs: int = 0
) -> Iterator[HeldBack]:
    """Yield each job type on each GPU type, as if it had shared a GPU there with nothing, or with few."""
    for name in dict.fromkeys(row.beside.work.name for row in rows):
        for kind in gpu_types:
            hidden = np.array([_is_of(row.beside, name, kind) for row in rows])
            partners = list(
                dict.fromkeys(
                    ({row.beside.work.name, row.beside.neighbour.name} - {name} or {name}).pop()
                    for row, one in zip(rows, hidden, strict=True)
                    if one
                )
            )
            if known_pairs == 0:
                if hidden.any():
                    yield HeldBack(hidden=hidden, asked=hidden)
                continue
            for partner in partners[:: max(1, len(partners) // 3)][:3]:
                rest = hidden & np.array(
                    [{row.beside.work.name, row.beside.neighbour.name} != {name, partner} for row in rows]
                )
                if rest.any():
                    yield HeldBack(hidden=rest, asked=rest)


def few_pairs_given(rows: Sequence[MeasuredNeighbour], given: int, draws: int) -> Iterator[HeldBack]:
    """Yield draws of all pairs but a few."""
    pairs = [frozenset({row.beside.work.name, row.beside.neighbour.name}) for row in rows]
    different = list(dict.fromkeys(pairs))
    for seed in range(draws):
        chosen = np.random.default_rng(seed).permutation(len(different))[:given]
        shown = {different[index] for index in chosen}
        hidden = np.array([pair not in shown for pair in pairs])
        yield HeldBack(hidden=hidden, asked=hidden)


def _is_of(beside: Beside, name: str, gpu_type: str) -> bool:
    return beside.gpu_type == gpu_type and name in {beside.work.name, beside.neighbour.name}
