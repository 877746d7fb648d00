import contextlib
import re
import time
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.deadline import parse_deadline

NOW = datetime(2026, 5, 6, 13, 30, 20)
NOW_SECONDS = NOW.timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-07T09:00", datetime(2026, 5, 7, 9)),
        ("2026-05-07T09:00:30", datetime(2026, 5, 7, 9, 0, 30)),
        ("2026-05-07", datetime(2026, 5, 7)),
        ("2026-05-07 09:00", datetime(2026, 5, 7, 9)),
        ("14:00", datetime(2026, 5, 6, 14)),
        ("09:00", datetime(2026, 5, 7, 9)),
        ("9:00pm", datetime(2026, 5, 6, 21)),
        ("12:00am", datetime(2026, 5, 7)),
        ("now+90", NOW + timedelta(seconds=90)),
        ("now+2hours", NOW + timedelta(hours=2)),
        ("now+1day", NOW + timedelta(days=1)),
        ("now+3m", NOW + timedelta(minutes=3)),
        ("tomorrow", datetime(2026, 5, 7)),
        ("midnight", datetime(2026, 5, 7)),
        ("noon", datetime(2026, 5, 7, 12)),
        ("teatime", datetime(2026, 5, 6, 16)),
        ("tomorrow-09:00", datetime(2026, 5, 7, 9)),
        ("05/20/26-18:00", datetime(2026, 5, 20, 18)),
        ("12/31", datetime(2026, 12, 31)),
        ("03/01", datetime(2027, 3, 1)),
        ("0301", datetime(2027, 3, 1)),
        ("0507", datetime(2026, 5, 7)),
        ("030127", datetime(2027, 3, 1)),
    ],
)
def test_sbatchs_own_time_forms_are_read(text: str, moment: datetime) -> None:
    assert parse_deadline(text, NOW_SECONDS) == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "25:00",
        "13:00pm",
        "2026-02-30",
        "now-5",
        "now+5parsecs",
        "2020-01-01",
        "2099-01-01",
        "today",
        "$(id)",
        "9" * 400,
        "now+999999999weeks",
        "\uff12\uff10\uff13\uff10-01-01",
    ],
)
def test_anything_else_the_past_and_the_far_future_are_errors(text: str) -> None:
    with pytest.raises(ValueRangeError, match="deadline"):
        parse_deadline(text, NOW_SECONDS)


@pytest.mark.parametrize("text", ["2020-01-01", "now", "today", "05/06/26-08:00", "@1000", "@1"])
def test_a_time_that_has_passed_is_told_with_the_time_here(text: str) -> None:
    here = NOW.astimezone().isoformat(timespec="seconds")
    with pytest.raises(ValueRangeError, match=re.escape(f"deadline {text!r} has passed: it is {here} here")):
        parse_deadline(text, NOW_SECONDS)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_seconds_mean_the_same_in_every_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    assert parse_deadline(f"@{int(NOW_SECONDS) + 60}", NOW_SECONDS) == int(NOW_SECONDS) + 60.0
    monkeypatch.undo()
    time.tzset()


@given(st.text(max_size=40))
def test_any_text_is_a_time_to_come_or_our_own_error(text: str) -> None:
    with contextlib.suppress(ValueRangeError):
        assert parse_deadline(text, NOW_SECONDS) > NOW_SECONDS
