"""What a site asks of a clock: whose slowdown the bound is held against, and how much energy a longer run must buy.

A bound of 5 % means that no job takes longer (`each-job`: the slowest of all measured programs keeps it), or that jobs
do not in the mean (`mean`). A user's own bound is always that of his job. Beside the bound, a clock must be worth its
time: as a mean over the measured programs it saves `policy.min_saving_per_slowdown` per cent of energy for one per cent
of time; or, where the site states what both cost, it makes a job cheaper.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from slurm_energy.config import Config
from slurm_energy.domain.job import JobRequest
from slurm_energy.energy_model.operating_point import ClockTable, OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTerms:
    """A site's terms for one job; the defaults ask for the bound alone, of each job."""

    by_mean: bool = False
    """Whether the mean over programs keeps the bound, and not each."""
    min_saving_per_slowdown: float = 0.0
    """Ratio of energy saved to time added, both as ratios; 0: none is asked for. Without prices."""
    price_per_gpu_hour: float = 0.0
    price_per_kwh: float = 0.0
    """With what the building adds; in the same money. Prices count where both are above 0."""

    @property
    def by_price(self) -> bool:
        """Whether cost decides."""
        return self.price_per_gpu_hour > 0.0 and self.price_per_kwh > 0.0

    def min_ratio(self, default_watts: float | None) -> float:
        """Return the least ratio of energy saved to time added; by price, the one at which the costs are equal.

        Args:
            default_watts: What a GPU draws at its default clock; None where that is not known.
        """
        if not self.by_price:
            return self.min_saving_per_slowdown
        kilowatts = (default_watts or 0.0) / 1000.0
        return self.price_per_gpu_hour / (kilowatts * self.price_per_kwh) if kilowatts > 0.0 else float("inf")

    def is_worth_its_time(self, slowdown: float, energy_change: float, default_watts: float | None) -> bool:
        """Return whether a clock saves enough for the time that it adds."""
        ratio = self.min_ratio(default_watts)
        if ratio <= 0.0:
            return True
        return -energy_change >= (ratio * slowdown if slowdown > 0.0 else 0.0)

    def sentence(self, default_watts: float | None) -> str:
        """Return what is asked for, in words."""
        if not self.by_price:
            return (
                f"1 % of time must save {self.min_saving_per_slowdown:g} % of energy (policy.min_saving_per_slowdown)"
            )
        return f"by the site's prices 1 % of time costs as much as {self.min_ratio(default_watts):.3g} % of energy"


EACH_JOB = ClockTerms()


def site_terms(config: Config) -> ClockTerms:
    """Return the site's terms."""
    policy = config.policy
    return ClockTerms(
        by_mean=policy.slowdown_bound == "mean",
        min_saving_per_slowdown=policy.min_saving_per_slowdown,
        price_per_gpu_hour=policy.price_per_gpu_hour,
        price_per_kwh=policy.price_per_kwh * config.facility.pue,
    )


def clock_terms(job: JobRequest, config: Config) -> ClockTerms:
    """Return the terms for a job: the site's, but its user's own bound is that of this job."""
    terms = site_terms(config)
    return replace(terms, by_mean=False) if terms.by_mean and job.options.max_slowdown is not None else terms


def price_faults(config: Config) -> Iterator[str]:
    """Yield what is wrong with the prices."""
    hour, kwh = config.policy.price_per_gpu_hour, config.policy.price_per_kwh
    if (hour > 0.0) != (kwh > 0.0):
        yield (
            f"policy.price_per_gpu_hour is {hour:g} and policy.price_per_kwh is {kwh:g}: cost can decide only where "
            "both are above 0, in the same money; give both or neither"
        )


@lru_cache(maxsize=1024)
def measured_by(table: ClockTable, terms: ClockTerms) -> ClockTable:
    """Return all points of a table, each with the slowdown that the bound is held against."""
    if not terms.by_mean:
        return table
    return ClockTable([replace(point, slowdown=point.mean_slowdown) for point in table.points])


@lru_cache(maxsize=1024)
def worth_their_time(table: ClockTable, terms: ClockTerms, default_watts: float | None) -> ClockTable:
    """Return a table without clocks that save too little for their time; by price without those below the cheapest.

    The default clock is always one of them.
    """
    points = [one for one in table.points if _is_kept(one, terms, default_watts)]
    if terms.by_price:
        ratio = terms.min_ratio(default_watts)
        cheapest = min(points, key=lambda one: (_cost(one, ratio), -one.sm_clock_mhz))
        points = [one for one in points if one.sm_clock_mhz >= cheapest.sm_clock_mhz]
    return table if len(points) == len(table.points) else ClockTable(points)


def _is_kept(point: OperatingPoint, terms: ClockTerms, default_watts: float | None) -> bool:
    is_default = point.sm_clock_mhz == point.default_clock_mhz
    return is_default or terms.is_worth_its_time(point.mean_slowdown, point.energy_change, default_watts)


def _cost(point: OperatingPoint, ratio: float) -> float:
    """Return what a clock adds to a job's cost, as a share of that of its energy."""
    slowdown = point.mean_slowdown
    return point.energy_change + (ratio * slowdown if slowdown > 0.0 else 0.0)
