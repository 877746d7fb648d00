"""What is sampled during a run: energy and waiting jobs at an interval, carbon and cost of each region."""

from collections.abc import Mapping, Sequence
from math import inf

from slurm_energy.domain.units import JOULES_PER_KWH
from slurm_energy.twin.adapters.view import regional_series
from slurm_energy.twin.engine.execution import Execution
from slurm_energy.twin.engine.ledger import Ledger
from slurm_energy.twin.engine.waiting import Waiting
from slurm_energy.twin.world import Series, World

DAY_SECONDS = 86_400.0
_MAX_SAMPLES = 2048
_SLIVER = 1e-6


class Sampler:
    """Energy so far and waiting jobs at a regular interval, which doubles when the run grows long.

    Also what waits at each day's end, and carbon and cost whenever their series change.
    """

    def __init__(self, execution: Execution, waiting: Waiting, horizon_seconds: float) -> None:
        self.times: list[float] = [0.0]
        self.joules: list[float] = [0.0]
        self.waiting: list[int] = [0]
        self.waiting_at_day_end: list[int] = []
        self._execution = execution
        self._waiting = waiting
        self._interval = horizon_seconds / 1000.0 if 0.0 < horizon_seconds < inf else 60.0
        self._next_sample = self._interval
        self._next_day = DAY_SECONDS
        self.regional = RegionalTotals(execution.world, execution.ledger_of_pool)
        self.next_seconds = min(self._next_sample, self._next_day, self.regional.next_seconds)

    def sample(self, now: float) -> float:
        """Take every sample that is due, before the effect of events of this very time; return when the next one is."""
        while self._next_day <= now:
            self.waiting_at_day_end.append(self._waiting.count)
            self._next_day += DAY_SECONDS
        while self._next_sample <= now:
            self._take(self._next_sample)
            self._next_sample += self._interval
            if len(self.times) > _MAX_SAMPLES:
                for series in (self.times, self.joules, self.waiting):
                    del series[1::2]
                self._interval *= 2.0
                self._next_sample = self.times[-1] + self._interval
        if self.regional.next_seconds <= now:
            self.regional.account(now)
        self.next_seconds = min(self._next_sample, self._next_day, self.regional.next_seconds)
        return self.next_seconds

    def close(self, now: float) -> None:
        """Take the last sample."""
        self.sample(now)
        if len(self.times) > 1 and now - self.times[-1] < _SLIVER * self._interval:
            for series in (self.times, self.joules, self.waiting):
                series.pop()  # what rounding leaves of the last interval is too short for a mean
        if now > self.times[-1]:
            self._take(now)
        self.regional.account(now)

    def _take(self, time: float) -> None:
        self.times.append(time)
        self.joules.append(self._execution.total_joules(time))
        self.waiting.append(self._waiting.count)


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
        return gained * self._series.values[self._index] / JOULES_PER_KWH

    def _next(self) -> float:
        times = self._series.times_seconds
        return times[self._index + 1] if self._index + 1 < len(times) else inf
