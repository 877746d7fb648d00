"""What a candidate would save over the next four weeks and year, from a forecast of the cluster's load."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from slurm_energy.evaluation.gate.off_policy import saving_score
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageResult, StageVerdict, mean_interval

_WEEK = 7
_SMOOTHING = 0.3
"""Weight of the last day in the level."""
_MIN_SHARE = 0.05
"""Of a weekday: on one on which nothing ever ran, the first job says little of the level."""
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

    Exponential smoothing of the load over its weekday's usual share: a level without a trend. The interval is that of
    its errors in past forecasts. For more days than a quarter of the history, errors of the longest horizon that there
    is grow with the square root.
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
    """Return the mean load of the next days: the level that the last days come to, times the weekdays' usual shares."""
    load = np.maximum(np.asarray(gpu_hours, dtype=np.float64), 1e-3)
    weeks = len(load) // _WEEK
    rows = load[len(load) - weeks * _WEEK :].reshape(weeks, _WEEK)
    shares = np.median(rows / rows.mean(axis=1, keepdims=True), axis=0) if weeks >= 2 else np.ones(_WEEK)
    shares = np.maximum(shares / shares.mean(), _MIN_SHARE)
    # Both the weeks before and the days to come begin on the same weekday: whole weeks end with the last day known.
    weekday = np.arange(-len(load), 0) % _WEEK
    weights = (1.0 - _SMOOTHING) ** np.arange(len(load))[::-1]
    level = float((weights * load / shares[weekday]).sum() / weights.sum())
    return level * float(shares[np.arange(days) % _WEEK].mean())


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
    months = backtest(history.gpu_hours, 28)
    error_of_months = percentage_error(months)
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
        between = f" ({max(0.0, error.low):.1%} to {error.high:.1%})" if len(pairs) > 1 else ""
        notes.append(f"forecasts of {len(pairs)} past weeks were off by {error.mean:.1%} in the mean{between}")
        if error.mean > MAX_ERROR:
            notes.append(f"more than {MAX_ERROR:.0%}: read the figures as an order of magnitude")
    if error_of_months is not None:
        figures["forecast_error_ratio_4_weeks"] = error_of_months.mean
        notes.append(f"forecasts of {len(months)} past stretches of four weeks were off by {error_of_months.mean:.1%}")
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
