"""What a candidate would save over the next four weeks and year, from a forecast of the cluster's load."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from slurm_energy.evaluation.gate.off_policy import saving_score
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageResult, StageVerdict, mean_interval

FloatArray = NDArray[np.float64]
_WEEK = 7
_WINDOWS = (1, 3, 7, 14)
"""Days over which the load before a forecast is looked at."""
MIN_DAYS = 28
MAX_ERROR = 0.15
"""Mean absolute percentage error above which the forecast counts for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHistory:
    """A cluster's load by day."""

    gpu_hours: tuple[float, ...]
    """Of each day, the oldest first."""
    watts_per_gpu: float
    """Mean draw of a GPU in use, its share of the host included."""
    price_per_kwh: float | None = None
    carbon_grams_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A load to come."""

    gpu_hours: FigureInterval
    """In all."""
    days: int


def forecast(gpu_hours: Sequence[float], days: int) -> Forecast:
    """Return the load of the next days in all.

    A ridge regression (scikit-learn) of the mean load of the days to come on that of the last 1, 3, 7 and 14 days, all
    as logarithms over the last week's mean, so that without evidence the last week goes on. The interval is that of
    its errors in past forecasts. For more days than half of the history, errors of the longest horizon that there is
    grow with the square root.
    """
    known = max(_WEEK, min(days, len(gpu_hours) // 4))
    errors = [log(past / real) for past, real in backtest(gpu_hours, known)]
    spread = float(np.std(errors)) if len(errors) > 1 else 0.5
    spread *= sqrt(days / known)
    mean = _mean_ahead(gpu_hours, known)
    return Forecast(
        gpu_hours=FigureInterval(
            mean=mean * days, low=mean * days * exp(-1.96 * spread), high=mean * days * exp(1.96 * spread)
        ),
        days=days,
    )


def backtest(gpu_hours: Sequence[float], days: int = _WEEK) -> list[tuple[float, float]]:
    """Return forecast and real mean load of each past stretch of so many days, forecast from what was before it."""
    found = []
    for start in range(MIN_DAYS, len(gpu_hours) - days + 1, days):
        real = float(np.mean(gpu_hours[start : start + days]))
        if real > 0.0:
            found.append((_mean_ahead(gpu_hours[:start], days), real))
    return found


def percentage_error(pairs: Sequence[tuple[float, float]]) -> FigureInterval | None:
    """Return the mean absolute percentage error of forecasts as a ratio, None without any."""
    return mean_interval([abs(made / real - 1.0) for made, real in pairs]) if pairs else None


def _mean_ahead(gpu_hours: Sequence[float], days: int) -> float:
    load = np.maximum(np.asarray(gpu_hours, dtype=np.float64), 1e-3)
    most = max(_WINDOWS)
    starts = range(most, len(load) - days + 1)
    last_week = float(load[-_WEEK:].mean())
    if len(starts) < _WEEK:
        return last_week
    rows = np.array([_features(load[:start]) for start in starts])
    targets = np.array(
        [np.log(load[start : start + days].mean() / load[start - _WEEK : start].mean()) for start in starts]
    )
    model = Ridge(alpha=1.0).fit(rows, targets)
    change = float(model.predict(_features(load)[None, :])[0])
    return last_week * exp(min(1.0, max(-1.0, change)))


def _features(load: FloatArray) -> FloatArray:
    week = np.log(load[-_WEEK:].mean())
    return np.array([np.log(load[-window:].mean()) - week for window in _WINDOWS if window != _WEEK])


def impact_result(history: LoadHistory | None, saving: FigureInterval | None) -> StageResult:
    """Return what a saving comes to in energy, money and carbon."""
    if history is None or len(history.gpu_hours) < MIN_DAYS + _WEEK or saving is None:
        return StageResult(
            stage="impact",
            verdict=StageVerdict.NOT_JUDGED,
            summary=f"a forecast needs {MIN_DAYS + _WEEK} days of load and a saving in the twin",
        )
    pairs = backtest(history.gpu_hours)
    error = percentage_error(pairs)
    figures: dict[str, float] = {}
    intervals: dict[str, FigureInterval] = {"saving in the twin": saving}
    for name, days in (("4 weeks", 28), ("a year", 365)):
        load = forecast(history.gpu_hours, days).gpu_hours
        kwh = _product(load, saving, history.watts_per_gpu / 1000.0)
        intervals[f"kWh saved in {name}"] = kwh
        if history.price_per_kwh is not None:
            figures[f"money_saved_{days}_days"] = kwh.mean * history.price_per_kwh
        if history.carbon_grams_per_kwh is not None:
            figures[f"carbon_kg_saved_{days}_days"] = kwh.mean * history.carbon_grams_per_kwh / 1000.0
    notes = []
    month, year = (intervals[f"kWh saved in {name}"].mean for name in ("4 weeks", "a year"))
    text = f"{month:,.0f} kWh in 4 weeks, {year:,.0f} kWh in a year"
    if error is not None:
        figures["forecast_error_ratio"] = error.mean
        intervals["error of weekly forecasts"] = error
        notes.append(f"forecasts of {len(pairs)} past weeks were off by {error.mean:.1%} in the mean")
        if error.mean > MAX_ERROR:
            notes.append(f"more than {MAX_ERROR:.0%}: read the figures as an order of magnitude")
    return StageResult(
        stage="impact",
        verdict=StageVerdict.PASSED,
        summary=text,
        score=saving_score(saving),
        figures=figures,
        intervals=intervals,
        series={
            "forecast": tuple(made for made, _ in pairs),
            "real": tuple(real for _, real in pairs),
        },
        notes=tuple(notes),
    )


def _product(load: FigureInterval, saving: FigureInterval, kw: float) -> FigureInterval:
    """Return an energy with the relative errors of both of its factors."""
    mean = load.mean * saving.mean * kw
    load_error = load.mean * kw * saving.error
    saving_error = saving.mean * kw * load.error
    reach = 1.96 * sqrt(load_error**2 + saving_error**2)
    return FigureInterval(mean=mean, low=mean - reach, high=mean + reach)
