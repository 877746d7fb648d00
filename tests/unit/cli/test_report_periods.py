"""Periods of reports follow this machine's calendar."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import click
import pytest

from slurm_energy.cli.calendar import calendar_bounds
from slurm_energy.domain.report import CalendarStep


@pytest.fixture(autouse=True)
def paris(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_the_day_on_which_an_hour_occurs_twice_has_25_hours() -> None:
    bounds = calendar_bounds("day", at("2026-10-24T00:00+02:00"), at("2026-10-27T00:00+01:00"), 0.0)
    assert [(later - earlier) / 3600.0 for earlier, later in pairwise(bounds)] == [24.0, 25.0, 24.0]


def test_the_day_on_which_an_hour_is_left_out_has_23() -> None:
    bounds = calendar_bounds("day", at("2026-03-29T00:00+01:00"), at("2026-03-30T00:00+02:00"), 0.0)
    assert [(later - earlier) / 3600.0 for earlier, later in pairwise(bounds)] == [23.0]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("month", ["2026-01-15T10:00+01:00", "2026-02-01T00:00+01:00", "2026-03-01T00:00+01:00", "2026-03-03T00:00Z"]),
        ("week", ["2026-02-25T00:00+01:00", "2026-03-02T00:00+01:00", "2026-03-03T00:00Z"]),
    ],
)
def test_the_outer_periods_are_cut_where_the_report_is(step: CalendarStep, expected: list[str]) -> None:
    bounds = calendar_bounds(step, at(expected[0]), at(expected[-1]), 0.0)
    assert [datetime.fromtimestamp(bound, UTC) for bound in bounds] == [
        datetime.fromisoformat(text) for text in expected
    ]


def test_without_a_beginning_twelve_months_are_shown_up_to_now() -> None:
    now = at("2026-11-30T18:00+01:00")
    bounds = calendar_bounds("month", None, None, now)
    assert (bounds[0], bounds[-1], len(bounds)) == (at("2025-12-01T00:00+01:00"), now, 13)


def test_too_many_periods_and_none_are_refused() -> None:
    with pytest.raises(click.UsageError, match="over 800 periods"):
        calendar_bounds("day", 0.0, at("2026-03-01T00:00Z"), 0.0)
    with pytest.raises(click.UsageError, match="not before"):
        calendar_bounds("day", 100.0, 100.0, 0.0)
