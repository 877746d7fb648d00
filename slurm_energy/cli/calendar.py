"""Days, weeks and months of this machine's calendar as Unix times: what is stored is UTC, what is shown is local."""

from datetime import date, datetime, timedelta

import click

from slurm_energy.domain.report import CalendarStep
from slurm_energy.wire.messages import MAX_PERIODS

_SHOWN = {"day": 31, "week": 13, "month": 12}
"""Periods where no beginning is given."""


def calendar_bounds(step: CalendarStep, since: float | None, until: float | None, now: float) -> tuple[float, ...]:
    """Return where each period begins and where the last one ends; the outer two are cut at `since` and `until`.

    Each moment is in exactly one period: a day has 25 hours when an hour occurs twice at the end of summer time.

    Raises:
        click.UsageError: nothing lies between, or too many periods do.
    """
    end = now if until is None else until
    if since is None:
        first = _begin(datetime.fromtimestamp(end).date(), step)
        for _ in range(_SHOWN[step] - 1):
            first = _begin(first - timedelta(days=1), step)
        begin = _seconds(first)
    else:
        begin = since
    if begin >= end:
        raise click.UsageError("--since is not before --until")
    bounds = [begin]
    day = _next(_begin(datetime.fromtimestamp(begin).date(), step), step)
    while (bound := _seconds(day)) < end:
        if bound > begin:
            bounds.append(bound)
        day = _next(day, step)
        if len(bounds) > MAX_PERIODS:
            raise click.UsageError(f"over {MAX_PERIODS} periods: take longer ones, or a shorter time")
    return (*bounds, end)


def _begin(day: date, step: CalendarStep) -> date:
    if step == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if step == "week" else day


def _next(begin: date, step: CalendarStep) -> date:
    if step == "month":
        return (begin + timedelta(days=31)).replace(day=1)
    return begin + timedelta(days=7 if step == "week" else 1)


def _seconds(day: date) -> float:
    return datetime(day.year, day.month, day.day).timestamp()  # this machine's own calendar
