"""What the estimates are compared with: simpler estimators of rates that see the same measurements."""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

import numpy as np

from research.estimates.data import GAVEL_SHEETS
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.work import MeasuredRun
from slurm_energy.estimation.gaussian_process import FloatArray
from slurm_energy.estimation.rates import MeasuredRate, RatePlace, Work
from slurm_energy.estimation.run_groups import group_runs
from slurm_energy.estimation.work_model import work_estimates

Entry = tuple[Work, RatePlace]
_RANK, _RIDGE, _ROUNDS = 2, 0.3, 25
_NEAREST = 3
_NOT_KNOWN = -20.0
"""Below every figure: a tree sees at once that there is none."""


class Baseline(Protocol):
    """An estimator that is fitted again to what is measured."""

    def __call__(self, measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
        """Return the logarithm of the rate of each wanted entry."""


def mean_of_name(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return the mean of what the name did elsewhere, of all where it did nothing."""
    by_name: dict[str, list[float]] = {}
    for row in measured:
        by_name.setdefault(row.work.name, []).append(float(np.log(row.value)))
    overall = fmean(value for values in by_name.values() for value in values)
    return np.array([fmean(by_name.get(work.name, [overall])) for work, _ in wanted])


def nearest_names(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return the mean of the three names that are most alike in text and have run on the same place."""
    by_place: dict[RatePlace, list[tuple[str, float]]] = {}
    for row in measured:
        by_place.setdefault(row.place, []).append((row.work.name, float(np.log(row.value))))
    overall = fmean(float(np.log(row.value)) for row in measured)
    found = []
    for work, place in wanted:
        alike = sorted(by_place.get(place, []), key=lambda one: -_text_similarity(work.name, one[0]))[:_NEAREST]
        weights = [_text_similarity(work.name, name) + 1e-6 for name, _ in alike]
        found.append(float(np.average([value for _, value in alike], weights=weights)) if alike else overall)
    return np.array(found)


def matrix_completion(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return rows and columns of rank two fitted by alternating ridge regression: names and places."""
    names = {
        name: i for i, name in enumerate(dict.fromkeys([r.work.name for r in measured] + [w.name for w, _ in wanted]))
    }
    places = {place: i for i, place in enumerate(dict.fromkeys([r.place for r in measured] + [p for _, p in wanted]))}
    values, seen = np.zeros((len(names), len(places))), np.zeros((len(names), len(places)), dtype=bool)
    for row in measured:
        where = names[row.work.name], places[row.place]
        values[where], seen[where] = np.log(row.value), True
    overall = values[seen].mean()
    centred = np.where(seen, values - overall, 0.0)
    rng = np.random.default_rng(0)
    left = np.hstack(
        [np.zeros((len(names), 1)), np.ones((len(names), 1)), 0.1 * rng.standard_normal((len(names), _RANK))]
    )
    right = np.hstack(
        [np.ones((len(places), 1)), np.zeros((len(places), 1)), 0.1 * rng.standard_normal((len(places), _RANK))]
    )
    for _ in range(_ROUNDS):
        for side, other, mask, target, free in (
            (left, right, seen, centred, [0, *range(2, 2 + _RANK)]),
            (right, left, seen.T, centred.T, [1, *range(2, 2 + _RANK)]),
        ):
            fixed = [c for c in range(2 + _RANK) if c not in free]
            for i in range(len(side)):
                basis = other[mask[i]]
                rest = target[i][mask[i]] - basis[:, fixed] @ side[i, fixed]
                normal = basis[:, free].T @ basis[:, free] + _RIDGE * np.eye(len(free))
                side[i, free] = np.linalg.solve(normal, basis[:, free].T @ rest)
    full = overall + left @ right.T
    return np.array([full[names[work.name], places[place]] for work, place in wanted])


def gradient_boosting(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return boosted trees over batch size, family, data sheet, place, and the name's rates on other types."""
    from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415  # only this comparison needs it

    table = RateFeatures(measured)
    model = GradientBoostingRegressor(n_estimators=100, max_features=0.5, random_state=0)
    shown = np.nan_to_num(table.matrix([(r.work, r.place) for r in measured]), nan=_NOT_KNOWN)
    model.fit(shown, np.log([r.value for r in measured]))
    return np.asarray(model.predict(np.nan_to_num(table.matrix(wanted), nan=_NOT_KNOWN)), dtype=np.float64)


def names_distribution(measured: Sequence[MeasuredRate], wanted: Sequence[Entry]) -> FloatArray:
    """Return the normal distribution over names (`work_model`), for one GPU; NaN elsewhere."""
    runs = [
        MeasuredRun(
            user=0,
            name=r.work.name,
            gpu_type=GpuTypeName(r.place.gpu_type),
            gpus=1,
            seconds=1e4 / r.value,
            watts=100.0,
            ended_at_seconds=day * 86_400.0,
        )
        for r in measured
        if r.place.gpus == 1
        for day in (1, 2)
    ]
    known = {name.name: estimate for name, estimate in work_estimates(group_runs(runs))}
    found = []
    for work, place in wanted:
        estimate = known.get(work.name)
        if estimate is None or place.gpus != 1 or place.gpu_type not in estimate.gpu_types:
            found.append(np.nan)
            continue
        found.append(np.log(1e4) - estimate.log_seconds[estimate.gpu_types.index(GpuTypeName(place.gpu_type))])
    return np.array(found)


class RateFeatures:
    """Features of entries: numbers, NaN where one is not known."""

    def __init__(self, measured: Sequence[MeasuredRate], *, own_rates: bool = True) -> None:
        """Keep what is measured.

        Args:
            measured: Entries that are shown.
            own_rates: Whether a job's own rates on other types are among the features.
        """
        self._families = {f: i for i, f in enumerate(sorted({r.work.family for r in measured}))}
        self._rates = {(r.work.name, r.place): float(np.log(r.value)) for r in measured if own_rates}
        self._types = sorted({r.place.gpu_type for r in measured})

    def matrix(self, entries: Sequence[Entry]) -> FloatArray:
        """Return the features, [entries, features]."""
        return np.array([self._row(work, place) for work, place in entries])

    def _row(self, work: Work, place: RatePlace) -> list[float]:
        sheet = GAVEL_SHEETS[place.gpu_type]
        family = [float(self._families.get(work.family, -1) == i) for i in range(len(self._families))]
        batch = np.log2(work.batch_size) if work.batch_size else np.nan
        elsewhere = [
            np.nan if kind == place.gpu_type else self._rates.get((work.name, place._replace(gpu_type=kind)), np.nan)
            for kind in self._types
        ]
        single = [
            np.nan if kind == place.gpu_type else self._rates.get((work.name, RatePlace(kind)), np.nan)
            for kind in self._types
        ]
        numbers = [batch, np.log(sheet.single_tflops), np.log(sheet.gigabytes_per_second), np.log2(place.gpus)]
        types = [float(kind == place.gpu_type) for kind in self._types]
        return [*numbers, float(place.spread), *types, *family, *elsewhere, *single]


def _text_similarity(one: str, other: str) -> float:
    """Return the share of three-letter pieces that both texts have."""
    pieces, others = ({text[i : i + 3] for i in range(max(1, len(text) - 2))} for text in (one.lower(), other.lower()))
    return len(pieces & others) / max(1, len(pieces | others))


BASELINES: dict[str, Baseline] = {
    "mean of the name": mean_of_name,
    "nearest names by text": nearest_names,
    "matrix completion": matrix_completion,
    "gradient boosting": gradient_boosting,
    "distribution over names": names_distribution,
}
