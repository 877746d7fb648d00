import csv
import lzma
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from slurm_energy.evaluation.gate.impact import LoadHistory, backtest, forecast, impact_result, percentage_error
from slurm_energy.evaluation.gate.sheet import FigureInterval, StageVerdict

SAVING = FigureInterval(mean=0.05, low=0.04, high=0.06)
PHILLY = Path(__file__).parents[3] / "data/measured/philly_trace/philly_jobs.csv.xz"


def weekly_load(days: int, growth: float = 0.0, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    shape = (1.0, 1.1, 1.1, 1.0, 0.9, 0.5, 0.4)
    return [1000.0 * shape[day % 7] * (1.0 + growth) ** day * float(random.normal(1.0, 0.05)) for day in range(days)]


def philly_gpu_hours() -> list[float]:
    """Return the GPU-hours of each day of the trace that is wholly in it."""
    with lzma.open(PHILLY, "rt") as file:
        rows = [(datetime.fromisoformat(row["submit_time"]).timestamp() / 86400.0, row) for row in csv.DictReader(file)]
    first = int(min(start for start, _ in rows)) + 1
    days = int(max(start for start, _ in rows)) - first
    load = np.zeros(days)
    for start, row in rows:
        end, gpus = start + float(row["duration_s"]) / 86400.0, int(row["num_gpus"])
        for day in range(max(0, int(start) - first), min(days, int(end) - first + 1)):
            load[day] += 24.0 * gpus * max(0.0, min(end, first + day + 1.0) - max(start, first + day))
    return [float(hours) for hours in load]


def test_forecast_of_a_load_that_repeats_itself_is_within_five_per_cent() -> None:
    load = weekly_load(140)
    error = percentage_error(backtest(load))
    assert error is not None
    assert error.mean < 0.05
    ahead = forecast(load, 28)
    assert ahead.gpu_hours.low < 28 * 857.0 < ahead.gpu_hours.high


def test_forecasts_of_the_past_use_only_what_came_before() -> None:
    load = weekly_load(70)
    changed = load[:63] + [99_999.0] * 7
    assert [made for made, _ in backtest(load)] == [made for made, _ in backtest(changed)]


def test_year_is_less_certain_than_four_weeks() -> None:
    load = weekly_load(140)
    month, year = (forecast(load, days).gpu_hours for days in (28, 365))
    assert (year.high - year.low) / year.mean > (month.high - month.low) / month.mean


def test_impact_is_load_times_saving_in_energy_money_and_carbon() -> None:
    history = LoadHistory(
        gpu_hours=tuple(weekly_load(140)), watts_per_gpu=400.0, price_per_kwh=0.2, carbon_grams_per_kwh=300.0
    )
    result = impact_result(history, SAVING)
    kwh = result.intervals["kWh saved in 4 weeks"]
    assert kwh.mean == pytest.approx(28 * 857.0 * 0.4 * 0.05, rel=0.05)
    assert result.figures["money_saved_28_days"] == pytest.approx(0.2 * kwh.mean)
    assert result.figures["carbon_kg_saved_28_days"] == pytest.approx(0.3 * kwh.mean)
    assert kwh.low < kwh.mean < kwh.high
    error = result.intervals["error of weekly forecasts"]
    assert any(f"{error.mean:.1%} in the mean ({error.low:.1%} to {error.high:.1%})" in note for note in result.notes)


def test_impact_without_a_month_of_load_or_without_a_twin_is_not_judged() -> None:
    assert impact_result(None, SAVING).verdict is StageVerdict.NOT_JUDGED
    assert (
        impact_result(LoadHistory(gpu_hours=(1.0,) * 30, watts_per_gpu=1.0), SAVING).verdict is StageVerdict.NOT_JUDGED
    )
    assert impact_result(LoadHistory(gpu_hours=(1.0,) * 60, watts_per_gpu=1.0), None).verdict is StageVerdict.NOT_JUDGED


@pytest.mark.slow
def test_philly_weeks_are_forecast_no_worse_than_the_page_says() -> None:
    load = philly_gpu_hours()
    error = percentage_error(backtest(load[13:-2]))
    assert error is not None
    print(f"philly: weekly forecasts off by {error.mean:.1%} ({error.low:.1%} to {error.high:.1%})")
    assert 0.15 < error.mean < 0.35
