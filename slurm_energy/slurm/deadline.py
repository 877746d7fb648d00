"""The deadline a user wrote, in the forms that sbatch's own --deadline and --begin take."""

import re
from datetime import datetime, timedelta

from slurm_energy.errors import ValueRangeError

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?\Z", re.ASCII | re.IGNORECASE)
_UNIX = re.compile(r"@(\d{1,11})\Z", re.ASCII)
_OFFSET = re.compile(r"now\+(\d{1,9})\s*([a-z]*)\Z", re.ASCII | re.IGNORECASE)
_ISO_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})\Z", re.ASCII)
_US_DATE = re.compile(r"(\d{1,2})[/.](\d{1,2})(?:[/.](\d{2}|\d{4}))?\Z", re.ASCII)
_DIGITS_DATE = re.compile(r"(\d{2})(\d{2})(\d{2})?\Z", re.ASCII)
_WORDS = {"midnight": (0, 0), "noon": (12, 0), "fika": (15, 0), "teatime": (16, 0)}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_HORIZON_SECONDS = 10 * 366 * 86_400


def parse_deadline(text: str, now_seconds: float, option: str = "deadline") -> float:
    """Return the Unix time that the text names, in this machine's time zone; `@SECONDS` names it in every zone.

    The submit host's plugin sends `@SECONDS`, since what its user wrote means the time there. Accepts
    `YYYY-MM-DD[THH:MM[:SS]]`, `MM/DD[/YY]`, `MMDD[YY]`, `HH:MM[:SS][am|pm]`, `now+COUNT[UNIT]`, `today`, `tomorrow`,
    `midnight`, `noon`, `fika` and `teatime`, a date and a time joined by `T`, `-` or a space. A time or a date without
    a year is the next one to come.

    Args:
        text: What the user wrote.
        now_seconds: Unix time.
        option: What it was written for, for messages.

    Raises:
        ValueRangeError: the text is none of these, lies in the past or more than ten years ahead.
    """
    word = text.strip()
    try:
        moment = _unix(word) or _offset(word, now_seconds) or _moment(word, datetime.fromtimestamp(now_seconds))
        seconds = moment if isinstance(moment, float) else moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueRangeError(
            f"{option} {text[:64]!r} is not YYYY-MM-DD[THH:MM[:SS]], HH:MM[:SS], now+COUNT[UNIT] or a word sbatch knows"
        ) from None
    if seconds <= now_seconds:
        here = datetime.fromtimestamp(now_seconds).astimezone().isoformat(timespec="seconds")
        raise ValueRangeError(f"{option} {text[:64]!r} has passed: it is {here} here")
    if not seconds < now_seconds + _HORIZON_SECONDS:
        raise ValueRangeError(f"{option} {text[:64]!r} is more than ten years ahead")
    return seconds


def _unix(word: str) -> float | None:
    match = _UNIX.match(word)
    return None if match is None else float(match.group(1))


def _offset(word: str, now_seconds: float) -> float | None:
    if word.lower() == "now":
        return now_seconds
    match = _OFFSET.match(word)
    if match is None:
        return None
    unit = match.group(2).lower().removesuffix("s") or "second"
    names = [name for name in _UNITS if name.startswith(unit)]
    if len(names) != 1:
        raise ValueError
    return now_seconds + int(match.group(1)) * float(_UNITS[names[0]])


def _moment(word: str, now: datetime) -> datetime:
    clock = _clock(word)
    if clock is not None:
        candidate = now.replace(hour=clock[0], minute=clock[1], second=clock[2], microsecond=0)
        return candidate if candidate > now else candidate + timedelta(days=1)
    for separator in ("T", "t", " ", "-"):
        date_text, found, time_text = word.rpartition(separator)
        time_of_day = _clock(time_text) if found else None
        if time_of_day is not None:
            day = _date(date_text, now)
            return day.replace(hour=time_of_day[0], minute=time_of_day[1], second=time_of_day[2])
    return _date(word, now)


def _clock(word: str) -> tuple[int, int, int] | None:
    if word.lower() in _WORDS:
        return (*_WORDS[word.lower()], 0)
    match = _CLOCK.match(word)
    if match is None:
        return None
    hour, minute, second = int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)
    half = (match.group(4) or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour, minute, second


def _date(word: str, now: datetime) -> datetime:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word.lower() in {"today", "tomorrow"}:
        return today + timedelta(days=1 if word.lower() == "tomorrow" else 0)
    iso, us = _ISO_DATE.match(word), _US_DATE.match(word) or _DIGITS_DATE.match(word)
    if iso is not None:
        return datetime(int(iso.group(1)), int(iso.group(2)), int(iso.group(3)))
    if us is None:
        raise ValueError
    month, day, year = int(us.group(1)), int(us.group(2)), us.group(3)
    if year is None:
        this_year = datetime(now.year, month, day)
        return this_year if this_year >= today else datetime(now.year + 1, month, day)
    return datetime(int(year) + (2000 if len(year) == 2 else 0), month, day)
