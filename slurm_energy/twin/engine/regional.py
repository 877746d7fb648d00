"""Carbon and cost of a run: each region's energy between two changes of its series, times the value that held."""

from collections.abc import Mapping, Sequence
from math import inf

from slurm_energy.twin.engine.ledger import Ledger
from slurm_energy.twin.view import regional_series
from slurm_energy.twin.world import Series, World

_JOULES_PER_KWH = 3.6e6


class RegionalTotal:
    """The sum over regions of energy times a quantity per kWh; regions without a series count as 0.

    Ledgers hold no history, so every change must be accounted before the first event at or after its time.
    """

    def __init__(self, series_by_region: Mapping[str, Series], ledger_by_region: Mapping[str, Ledger]) -> None:
        self._parts = [
            _Part(series, ledger)
            for region, ledger in ledger_by_region.items()
            if (series := regional_series(series_by_region, region)) is not None
        ]
        self.total = 0.0
        """Grams for g/kWh, money for money/kWh; up to the time accounted last."""
        self.next_seconds = min((part.next_seconds for part in self._parts), default=inf)

    def account(self, now: float) -> None:
        """Count the energy up to a time, which no event has passed."""
        self.total += sum(part.account(now) for part in self._parts)
        self.next_seconds = min((part.next_seconds for part in self._parts), default=inf)


class RegionalTotals:
    """Carbon and cost of a world that has series of them."""

    def __init__(self, world: World, ledger_of_pool: Sequence[Ledger]) -> None:
        by_region = {pool.region: ledger for pool, ledger in zip(world.pools, ledger_of_pool, strict=True)}
        self._carbon = RegionalTotal(world.carbon_grams_per_kwh, by_region) if world.carbon_grams_per_kwh else None
        self._cost = RegionalTotal(world.price_per_kwh, by_region) if world.price_per_kwh else None
        self._all = [total for total in (self._carbon, self._cost) if total is not None]
        self.next_seconds = min((total.next_seconds for total in self._all), default=inf)

    def account(self, now: float) -> None:
        """Count everything up to a time."""
        for total in self._all:
            total.account(now)
        self.next_seconds = min((total.next_seconds for total in self._all), default=inf)

    @property
    def carbon_grams(self) -> float | None:
        """Emissions in g, None in a world without carbon intensity."""
        return None if self._carbon is None else self._carbon.total

    @property
    def cost(self) -> float | None:
        """Cost in the unit of the prices, None in a world without prices."""
        return None if self._cost is None else self._cost.total


class _Part:
    """One region's energy and series."""

    __slots__ = ("_index", "_joules", "_ledger", "_series", "next_seconds")

    def __init__(self, series: Series, ledger: Ledger) -> None:
        self._series = series
        self._ledger = ledger
        self._joules = 0.0
        self._index = 0
        while self._next() <= 0.0:
            self._index += 1
        self.next_seconds = self._next()

    def account(self, now: float) -> float:
        """Return energy times value since the last account, and move on."""
        found = 0.0
        while self.next_seconds <= now:
            found += self._until(self.next_seconds)
            self._index += 1
            self.next_seconds = self._next()
        return found + self._until(now)

    def _until(self, time: float) -> float:
        joules = self._ledger.total_at(time)
        gained, self._joules = joules - self._joules, joules
        return gained * self._series.values[self._index] / _JOULES_PER_KWH

    def _next(self) -> float:
        times = self._series.times_seconds
        return times[self._index + 1] if self._index + 1 < len(times) else inf
