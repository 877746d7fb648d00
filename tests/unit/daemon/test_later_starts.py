"""Later starts: the hour of least price until a user's time, spread, bounded, and never a guess."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config import FacilityConfig
from slurm_energy.daemon.later_starts import LaterStart, LaterStarts, StartQuestion
from slurm_energy.domain.decision import EnergyDecision, RuntimeEstimate
from slurm_energy.domain.ids import DecisionId
from slurm_energy.domain.job import EnergyMode, EnergyOptions, GpuDemand, JobRequest

NOW = 1_772_323_200.0  # 2026-03-01T00:00:00Z
HOUR = 3600.0


def series(path: Path, *prices: float, column: str = "EUR_per_kwh") -> LaterStarts:
    """Return starts chosen by hourly prices from NOW on."""
    rows = [f"2026-03-{1 + at // 24:02d}T{at % 24:02d}:00:00+00:00,{price}" for at, price in enumerate(prices)]
    path.write_text("\n".join([f"starts_at,{column}", *rows]) + "\n")
    carbon = column != "EUR_per_kwh"
    found = LaterStarts(
        FacilityConfig(
            tariff_file="" if carbon else str(path),
            intensity_file=str(path) if carbon else "",
            later_starts="carbon" if carbon else "price",
        )
    )
    found.read()
    assert found.problem == ""
    return found


def question(**changes: object) -> StartQuestion:
    asked = StartQuestion(
        now_seconds=NOW,
        latest_seconds=NOW + 20 * HOUR,
        run_seconds=HOUR,
        gpus=4,
        cluster_gpus=64,
        decision_id=DecisionId("00000000abcd"),
    )
    return replace(asked, **changes)  # type: ignore[arg-type]


def decision(**changes: object) -> EnergyDecision:
    made = EnergyDecision(
        decision_id=DecisionId("00000000abcd"),
        policy="oracle",
        policy_version="1",
        mode=EnergyMode.BALANCED,
        decided_at_seconds=NOW,
        estimate=RuntimeEstimate(seconds=HOUR, upper_seconds=2 * HOUR, source="history"),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def job(latest_hours: float | None = 20.0, deadline_hours: float | None = None, **changes: object) -> JobRequest:
    options = EnergyOptions(
        start_before_seconds=None if latest_hours is None else NOW + latest_hours * HOUR,
        deadline_seconds=None if deadline_hours is None else NOW + deadline_hours * HOUR,
    )
    made = JobRequest(user_id=1000, gpus=(GpuDemand(count=4),), options=options, time_limit_minutes=120.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def begin_hours(found: EnergyDecision) -> float | None:
    return None if found.begins_at_seconds is None else (found.begins_at_seconds - NOW) / HOUR


@pytest.mark.parametrize("column", ["EUR_per_kwh", "grams_per_kwh"])
def test_the_cheapest_hour_until_then_is_chosen(tmp_path: Path, column: str) -> None:
    starts = series(tmp_path / "a.csv", 30, 29, 28, 10, 28, 5, 30, column=column)
    found = starts.chosen(question(latest_seconds=NOW + 4.5 * HOUR))
    assert isinstance(found, LaterStart)
    assert 3.0 <= (found.begins_at_seconds - NOW) / HOUR < 3.3
    assert found.saving == pytest.approx(1.0 - 10 / 30)
    later = starts.chosen(question())
    assert isinstance(later, LaterStart) and 5.0 <= (later.begins_at_seconds - NOW) / HOUR < 5.3


def test_what_the_file_does_not_hold_is_not_chosen(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 29, 28)  # until three o'clock: a run of two hours has to begin by one
    found = starts.chosen(question(run_seconds=2 * HOUR))
    assert isinstance(found, LaterStart)
    assert found.begins_at_seconds - NOW <= 1.25 * HOUR
    assert "not known" in str(starts.chosen(question(now_seconds=NOW + 50 * HOUR, latest_seconds=NOW + 60 * HOUR)))


def test_prices_that_rise_or_stay_begin_nothing_later(tmp_path: Path) -> None:
    for prices in ((10, 11, 12, 13), (10, 10, 10, 10), (10, 9.9, 9.9, 9.9), (0, 0, 0, 0)):
        assert isinstance(series(tmp_path / "a.csv", *prices).chosen(question(run_seconds=600.0)), str)


def test_negative_prices_are_the_cheapest(tmp_path: Path) -> None:
    found = series(tmp_path / "a.csv", 10, 5, -20, 5, 10).chosen(question())
    assert isinstance(found, LaterStart) and 2.0 <= (found.begins_at_seconds - NOW) / HOUR < 2.3


def test_many_jobs_are_spread_over_hours_and_inside_them(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 29, 10, 11, 12, 13, 14, 30, 30)
    begins = []
    for number in range(60):
        made = decision(decision_id=DecisionId(f"{number * 7919:08d}"))
        found = starts.applied(made, job(), cluster_gpus=64, is_submission=True)
        assert found.begins_at_seconds is not None
        begins.append(found.begins_at_seconds)
    by_hour = [sum(at <= (begin - NOW) / HOUR < at + 1 for begin in begins) for at in range(9)]
    assert max(by_hour) < 30 and sum(value > 0 for value in by_hour) >= 4
    assert len(set(begins)) > 50


def test_a_preview_leaves_no_trace(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 29, 10, 28, 30)
    first = [starts.applied(decision(), job(), 8, is_submission=False).begins_at_seconds for _ in range(20)]
    assert len(set(first)) == 1


def test_a_deadline_is_kept_by_the_upper_end_of_the_run_time(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 25, 24, 10, 5, 30, 30)
    free = begin_hours(starts.applied(decision(), job(), 64, is_submission=False))
    bound = begin_hours(starts.applied(decision(), job(deadline_hours=5.0), 64, is_submission=False))
    assert free is not None and free >= 4.0
    assert bound is not None and bound <= 3.0


@pytest.mark.parametrize(
    ("made", "asked", "why"),
    [
        (decision(mode=EnergyMode.OFF), job(), "mode off"),
        (decision(mode=EnergyMode.OBSERVE), job(), "mode observe"),
        (decision(), job(starts_later=True), "a begin of its own"),
        (decision(), job(reservation="maint"), "reservation"),
        (decision(estimate=None), job(time_limit_minutes=None), "how long it runs"),
    ],
)
def test_what_stands_against_it_is_said(tmp_path: Path, made: EnergyDecision, asked: JobRequest, why: str) -> None:
    found = series(tmp_path / "a.csv", 30, 10, 10, 10).applied(made, asked, 64, is_submission=True)
    assert found.begins_at_seconds is None
    assert why in found.notes[-1]


def test_a_job_that_names_no_time_is_left_as_it_is(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 10, 10, 10)
    assert starts.applied(decision(), job(None), 64, is_submission=True) == decision()


def test_the_line_says_when_and_what_for_and_the_announcement_has_no_digit(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 15, 30, 30)
    found = starts.applied(decision(message="a lower clock"), job(), 64, is_submission=True)
    assert "begins no sooner than 2026-03-01T01:" in found.message and "50 % less cost" in found.message
    assert found.announcement and not any(letter.isdigit() for letter in found.announcement)
    assert str(tmp_path / "a.csv") in found.notes[-1]


def test_a_file_that_goes_away_leaves_the_last_prices_and_is_named(tmp_path: Path) -> None:
    starts = series(tmp_path / "a.csv", 30, 10, 30)
    (tmp_path / "a.csv").unlink()
    starts.read()
    assert "a.csv" in starts.problem
    assert isinstance(starts.chosen(question()), LaterStart)


def test_a_site_without_series_or_with_the_switch_off_begins_nothing_later() -> None:
    for config in (FacilityConfig(), FacilityConfig(later_starts="price")):
        starts = LaterStarts(config)
        starts.read()
        found = starts.applied(decision(), job(), 64, is_submission=True)
        assert found.begins_at_seconds is None and "no later start" in found.notes[-1]


@given(
    prices=st.lists(st.floats(-50.0, 500.0), min_size=2, max_size=48),
    run=st.floats(1.0, 1e6),
    ahead=st.floats(-1e4, 3e5),
    gpus=st.integers(0, 1000),
)
def test_a_start_is_never_in_the_past_nor_after_the_users_time(
    tmp_path_factory: pytest.TempPathFactory, prices: list[float], run: float, ahead: float, gpus: int
) -> None:
    starts = series(tmp_path_factory.getbasetemp() / "p.csv", *prices)
    found = starts.chosen(question(run_seconds=run, latest_seconds=NOW + ahead, gpus=max(gpus, 1), cluster_gpus=gpus))
    if isinstance(found, LaterStart):
        assert NOW < found.begins_at_seconds <= NOW + ahead
        assert found.saving != 0.0
