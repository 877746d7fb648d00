"""What a facility adds to measured joules: the building's share (PUE), the price of a kWh and the CO2 of a kWh.

Prices and intensities are steps in time, read from CSV files whose rows may be of unequal length:

    starts_at,EUR_per_kwh,source
    2026-03-01T00:00:00+01:00,0.21,contract 4711
    2026-03-01T06:00:00+01:00,0.29,contract 4711

A row holds until the next one starts, the last one for as long as the row before it; a single row holds always.
"""

import csv
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from math import inf, isfinite
from pathlib import Path

from slurm_energy.config import FacilityConfig
from slurm_energy.domain.units import JOULES_PER_KWH
from slurm_energy.errors import ConfigError, ValueRangeError

MAX_GRAMS_PER_KWH = 2500.0
"""Lignite is under 1400 at the plant: a value above this is in another unit."""
MAX_PRICE_PER_KWH = 1e5
"""In any currency; below zero down to the same, as spot prices are."""
GRAMS_COLUMN = "grams_per_kwh"
WATTS_COLUMN = "watts"
MAX_WATTS = 1e9
"""Of a cluster: the largest draw some 10^8."""
_PRICE_COLUMN = re.compile(r"([A-Z]{3})_per_kwh\Z")


@dataclass(frozen=True, slots=True)
class StepSeries:
    """A value that changes in steps."""

    starts_seconds: tuple[float, ...]
    """Ascending Unix times at which a value begins to hold."""
    values: tuple[float, ...]
    end_seconds: float
    """Unix time from which nothing is known any more."""
    _sums: tuple[float, ...] = ()
    """Integral of the value from the first start up to each start."""

    def __post_init__(self) -> None:
        if not self.starts_seconds or len(self.starts_seconds) != len(self.values):
            raise ValueRangeError(
                f"{len(self.starts_seconds)} starts for {len(self.values)} values: one each is needed"
            )
        if any(later <= earlier for earlier, later in pairwise((*self.starts_seconds, self.end_seconds))):
            raise ValueRangeError("the starts of a series must ascend")
        steps = (
            value * (later - earlier)
            for value, (earlier, later) in zip(self.values, pairwise(self.starts_seconds), strict=False)
        )
        object.__setattr__(self, "_sums", tuple(accumulate(steps, initial=0.0)))

    @property
    def is_constant(self) -> bool:
        """Whether one value holds always."""
        return len(self.values) == 1 and self.starts_seconds[0] == -inf and self.end_seconds == inf

    def mean(self, from_seconds: float, to_seconds: float) -> float | None:
        """Return the mean over a time (the value at a moment, if both are one); None where a part is not known."""
        if from_seconds < self.starts_seconds[0] or to_seconds > self.end_seconds:
            return None
        if self.is_constant:
            return self.values[0]
        if to_seconds <= from_seconds:
            return self.values[self._at(from_seconds)]
        mean = (self._integral(to_seconds) - self._integral(from_seconds)) / (to_seconds - from_seconds)
        # Two long sums were taken from each other: what is left is still no more than the largest step.
        steps = self.values[self._at(from_seconds) : self._at(to_seconds) + 1]
        return min(max(mean, min(steps)), max(steps))

    def _at(self, seconds: float) -> int:
        return bisect_right(self.starts_seconds, seconds) - 1

    def _integral(self, seconds: float) -> float:
        index = self._at(seconds)
        return self._sums[index] + self.values[index] * (seconds - self.starts_seconds[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facility:
    """What turns joules at the node into money and CO2."""

    pue: float = 1.0
    """Energy of the whole building over that of its computers."""
    price: StepSeries | None = None
    """Of a kWh."""
    currency: str | None = None
    intensity: StepSeries | None = None
    """Grams of CO2-equivalent of a kWh."""
    sources: tuple[str, ...] = ()
    """Where prices and intensities come from."""

    @property
    def is_constant(self) -> bool:
        """Whether neither price nor intensity depends on the time."""
        return all(series is None or series.is_constant for series in (self.price, self.intensity))

    def cost(self, joules: float, from_seconds: float, to_seconds: float) -> float | None:
        """Return the price of energy drawn evenly over a time; None where it is not known."""
        return self._weighted(self.price, joules, from_seconds, to_seconds)

    def co2_grams(self, joules: float, from_seconds: float, to_seconds: float) -> float | None:
        """Return the CO2 of energy drawn evenly over a time; None where it is not known."""
        return self._weighted(self.intensity, joules, from_seconds, to_seconds)

    def _weighted(self, series: StepSeries | None, joules: float, begin: float, end: float) -> float | None:
        mean = None if series is None else series.mean(begin, max(begin, end))
        return None if mean is None else joules * self.pue / JOULES_PER_KWH * mean


def site_facility(config: FacilityConfig) -> Facility:
    """Return what the site's settings and files say.

    Raises:
        ConfigError: a file cannot be read, or is no such table.
    """
    price, currency, intensity = None, None, None
    sources: tuple[str, ...] = ()
    if config.tariff_file:
        price, currency, sources = read_price(_text(config.tariff_file), config.tariff_file)
    if config.intensity_file:
        intensity, of_co2 = read_intensity(_text(config.intensity_file), config.intensity_file)
        sources = (*sources, *of_co2)
    return Facility(
        pue=config.pue, price=price, currency=currency, intensity=intensity, sources=tuple(dict.fromkeys(sources))
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def read_price(text: str, name: str) -> tuple[StepSeries, str, tuple[str, ...]]:
    """Return prices, their currency and their sources from a tariff file.

    Raises:
        ConfigError: the file is no such table.
    """
    columns, rows = _table(text, name)
    column = next((found for found in columns if _PRICE_COLUMN.match(found)), None)
    if column is None:
        raise ConfigError(f"{name} needs a column such as EUR_per_kwh, it has {', '.join(columns)[:200]}")
    series, sources = _series(rows, column, name, (-MAX_PRICE_PER_KWH, MAX_PRICE_PER_KWH))
    return series, column[:3], sources


def read_intensity(text: str, name: str) -> tuple[StepSeries, tuple[str, ...]]:
    """Return intensities and their sources from a file with a column `grams_per_kwh`.

    Raises:
        ConfigError: the file is no such table.
    """
    columns, rows = _table(text, name)
    if GRAMS_COLUMN not in columns:
        raise ConfigError(f"{name} needs a column {GRAMS_COLUMN}, it has {', '.join(columns)[:200]}")
    return _series(rows, GRAMS_COLUMN, name, (0.0, MAX_GRAMS_PER_KWH))


def read_budget(text: str, name: str) -> StepSeries:
    """Return a power budget in W from a file with a column `watts`.

    Raises:
        ConfigError: the file is no such table.
    """
    columns, rows = _table(text, name)
    if WATTS_COLUMN not in columns:
        raise ConfigError(f"{name} needs a column {WATTS_COLUMN}, it has {', '.join(columns)[:200]}")
    return _series(rows, WATTS_COLUMN, name, (0.0, MAX_WATTS))[0]


def _table(text: str, name: str) -> tuple[Sequence[str], list[dict[str, str]]]:
    reader = csv.DictReader(text.splitlines())
    rows = list(reader)
    columns = reader.fieldnames or ()
    if "starts_at" not in columns or not rows:
        raise ConfigError(f"{name} needs a head with starts_at and at least one row")
    return columns, rows


def _series(
    rows: Sequence[dict[str, str]], column: str, name: str, bounds: tuple[float, float]
) -> tuple[StepSeries, tuple[str, ...]]:
    found: list[tuple[float, float]] = []
    for line, row in enumerate(rows, start=2):
        where = f"{name} line {line}"
        value = _number(row.get(column), f"{where}: {column}")
        if not bounds[0] <= value <= bounds[1]:
            raise ConfigError(f"{where}: {column} {value:g} is not between {bounds[0]:g} and {bounds[1]:g}")
        found.append((_moment(row.get("starts_at"), where), value))
    for line, (earlier, later) in enumerate(pairwise(found), start=3):
        if later[0] <= earlier[0]:
            raise ConfigError(f"{name} line {line}: starts_at is not after that of the line before")
    sources = tuple(dict.fromkeys((row.get("source") or name).strip() for row in rows))
    starts, values = tuple(start for start, _ in found), tuple(value for _, value in found)
    if len(found) == 1:
        return StepSeries((-inf,), values, inf), sources
    return StepSeries(starts, values, starts[-1] + starts[-1] - starts[-2]), sources


def _number(text: str | None, what: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = inf
    if not isfinite(value):
        raise ConfigError(f"{what} {str(text)[:40]!r} is not a number")
    return value


def _moment(text: str | None, where: str) -> float:
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise ConfigError(f"{where}: starts_at {str(text)[:40]!r} is not such as 2026-03-01T06:00:00+01:00") from None
    if moment.tzinfo is None:
        # An hour that occurs twice a year would be ambiguous.
        raise ConfigError(
            f"{where}: starts_at {str(text)[:40]!r} has no offset from UTC: write 2026-03-01T06:00:00+01:00"
        )
    return moment.timestamp()
