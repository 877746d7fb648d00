"""Rules that take the option of the least score: the score makes the rule.

A table's options are sorted once by their score, so that a decision is a short walk.
"""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np

from slurm_energy.policy.jobs import PartnerOffer, WaitingJob
from slurm_energy.policy.placement import (
    Capabilities,
    Capability,
    ClusterView,
    FloatArray,
    OptionTable,
    Placement,
    PlacementRule,
)
from slurm_energy.policy.rules.tables import Bounds, Prepared, active_joules, bounds_of, cost, slowdowns


class Option(NamedTuple):
    """One way of running a job."""

    place: int
    gpus: int
    placement: Placement
    seconds: float
    """Per unit of work."""
    slowdown: float
    """Over the default clock of the same place and count."""
    score: float
    """Per unit of work: what to make small."""
    joule_score: float
    """Score of one more joule per unit, such as for waking a node."""
    level: int
    """What comes before the score: options of a lower level are always better."""


class Ranking:
    """Options of one table, the least score first; equal scores in the order of place, count, clock."""

    __slots__ = ("_best_clock", "_every_clock", "_fastest")

    def __init__(
        self,
        table: OptionTable,
        score: FloatArray,
        joule_score: FloatArray | None = None,
        *,
        fewest_first: bool = False,
    ) -> None:
        """Sort the options.

        Args:
            table: The options.
            score: What to make small, [places, counts, clocks]; infinite for what must never be chosen.
            joule_score: What one joule per unit adds to the score, same shape; None for 1.
            fewest_first: Whether fewer devices come before any score.
        """
        ratio = slowdowns(table)
        self._every_clock = [
            Option(
                place=place,
                gpus=table.gpu_counts[count],
                placement=Placement(place, table.gpu_counts[count], clock),
                seconds=float(table.seconds_per_unit[place, count, clock]),
                slowdown=float(ratio[place, count, clock]),
                score=float(score[place, count, clock]),
                joule_score=1.0 if joule_score is None else float(joule_score[place, count, clock]),
                level=count if fewest_first else 0,
            )
            for place, count, clock in np.argwhere(np.isfinite(table.seconds_per_unit) & np.isfinite(score)).tolist()
        ]
        self._fastest = sorted(self._every_clock, key=_seconds)
        self._every_clock.sort(key=_rank)
        first = {(option.place, option.gpus): option for option in reversed(self._every_clock)}
        self._best_clock = sorted(first.values(), key=_rank)

    def choose(
        self, room: Sequence[int], view: ClusterView, bounds: Bounds | None, wake_units: float
    ) -> Placement | None:
        """Return the option with the least score among those with room, None when there is none.

        Bounds that no option can keep give way: first the deadline, then the time limit, for which the fastest option
        is taken. The slowdown bound always holds, since the default clock keeps it.

        Args:
            room: By place, the most devices that the job could start with.
            view: The cluster.
            bounds: Of the job.
            wake_units: Work over which the energy of waking nodes is spread; 0 leaves that energy out.
        """
        if bounds is None:
            return self._walk(self._best_clock, room, view, wake_units)
        slowdown, limit, deadline = bounds
        found = self._walk(self._every_clock, room, view, wake_units, slowdown, deadline)
        if found is None and deadline < limit:
            found = self._walk(self._every_clock, room, view, wake_units, slowdown, limit)
        return self.fastest(room, view) if found is None else found

    def fastest(self, room: Sequence[int], view: ClusterView) -> Placement | None:
        """Return the fastest option with room."""
        return self._walk(self._fastest, room, view, 0.0)

    @staticmethod
    def _walk(
        options: Sequence[Option],
        room: Sequence[int],
        view: ClusterView,
        units: float,
        slowdown: float = inf,
        seconds: float = inf,
    ) -> Placement | None:
        """Return the best of some options in their order; waking counts when `units` is above 0."""
        best, least, best_level = None, inf, 0
        for place, gpus, placement, takes, ratio, score, joule_score, level in options:
            if room[place] < gpus or takes > seconds or ratio > slowdown:
                continue
            if units <= 0.0:
                return placement
            if best is not None and (score >= least or level > best_level):
                break
            joules = view.wakeup_joules(place, gpus)
            if joules <= 0.0:
                return placement
            total = score + joule_score * joules / units
            if total < least:
                best, least, best_level = placement, total, level
        return best


def _seconds(option: Option) -> float:
    return option.seconds


def _rank(option: Option) -> tuple[int, float]:
    return option.level, option.score


class ScoredRule(PlacementRule):
    """Least score among the options with room, within the job's bounds; subclasses rank the options of a table."""

    def __init__(self, *, wake: bool = True) -> None:
        """Store the settings.

        Args:
            wake: Whether the energy of waking suspended nodes counts, spread over the job's estimated work.
        """
        self._wake = wake
        self._rankings = Prepared(self.ranking)

    def begin(self, view: ClusterView, random: Random) -> None:  # noqa: ARG002  # the hook's form
        """Forget the tables of the last run."""
        self._rankings.forget()

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option with the least score."""
        ranking = self._rankings.of(view.options(job))
        wake_units = self.units(job) if self._wake else 0.0
        return ranking.choose(view.room(job), view, self.bounds(job, view.now_seconds), wake_units)

    def bounds(self, job: WaitingJob, now_seconds: float) -> Bounds | None:
        """Return what the job's bounds leave if it starts now."""
        return bounds_of(job, now_seconds)

    def units(self, job: WaitingJob) -> float:
        """Return the job's work as far as the rule knows it."""
        return job.estimated_units

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options in the rule's order."""
        raise NotImplementedError


class EdpRule(ScoredRule):
    """Least (n T P) T^exponent: the energy-delay product of the run, or ED2P with exponent 2 (Horowitz et al. 1994)."""

    name = "edp"

    def __init__(self, *, exponent: float = 1.0, wake: bool = True) -> None:
        super().__init__(wake=wake)
        self._exponent = exponent

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by energy x delay, both per unit of work."""
        delay = np.power(table.seconds_per_unit, self._exponent)
        return Ranking(table, table.joules_per_unit * delay, delay)


class GreedyRule(ScoredRule):
    """Fewest devices, then the least n T P; more devices only where time limit or deadline needs them."""

    name = "greedy"

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by count, then by joules per unit."""
        return Ranking(table, table.joules_per_unit, fewest_first=True)


class PriceRule(ScoredRule):
    """Least n T (P - free) + V T over all places, counts and clocks with room; V in W."""

    name = "price"

    def __init__(self, *, v: float = 20.0, wake: bool = True, share: bool = False) -> None:
        """Store the settings.

        Args:
            v: Price of time in W.
            wake: Whether the energy of waking suspended nodes counts.
            share: Whether a job may share a GPU with a running one.
        """
        super().__init__(wake=wake)
        self._watts, self._share = v, share
        self._prices = SharingPrices(v, ())

    @property
    def uses(self) -> Capabilities:
        """A partner on the same GPU with `share`."""
        return super().uses | ({Capability.SHARED_GPU} if self._share else set())

    def begin(self, view: ClusterView, random: Random) -> None:
        """Forget the tables of the last run."""
        super().begin(view, random)
        self._prices = SharingPrices(self._watts, [0.0] * len(view.places))

    def place(self, job: WaitingJob, view: ClusterView) -> Placement | None:
        """Return the option with the least price."""
        own = super().place(job, view)
        if not self._share:
            return own
        return with_partner(job, view, own, self._prices, self.bounds(job, view.now_seconds))

    def ranking(self, table: OptionTable) -> Ranking:
        """Return the options by active joules plus the price of their time."""
        return Ranking(table, active_joules(table) + cost(table, self._watts))


class SharingPrices(NamedTuple):
    """What time costs."""

    job_watts: float
    """V: of a job, for as long as it runs."""
    device_watts: Sequence[float]
    """mu: of one device by place, for as long as it is held."""


def with_partner(
    job: WaitingJob, view: ClusterView, own: Placement | None, prices: SharingPrices, bounds: Bounds | None
) -> Placement | None:
    """Return `own`, or the shared placement that is cheaper; also a shared one when the job has no room of its own.

    Sharing holds no further device. Of a unit of the job, which takes T / speed, it costs the power that the GPU draws
    more, the price of the job's time, and what the partner pays for the share of its speed that it loses: its power
    and both prices. Two jobs that together do no more than one alone never share.
    """
    offers = [offer for offer in view.partners(job) if offer.speed + offer.partner_speed > 1.0]
    if not offers:
        return own
    table = view.options(job)
    clocks = {running.job_id: running.clock for running in view.running_jobs()}
    best, least = own, _own_score(table, own, prices) if own is not None else float("inf")
    for offer in offers:
        if offer.job_id not in clocks or not _keeps(offer, table, clocks[offer.job_id], bounds):
            continue
        score = _shared_score(offer, table, clocks[offer.job_id], view.places[offer.place].free_watts, prices)
        if score < least:
            best, least = Placement(offer.place, 1, clocks[offer.job_id], offer.job_id), score
    return best


def _own_score(table: OptionTable, own: Placement, prices: SharingPrices) -> float:
    where = (own.place, table.count_index(own.gpus), own.clock)
    held = prices.job_watts + own.gpus * prices.device_watts[own.place]
    return float(table.seconds_per_unit[where] * (table.watts[where] - table.free_watts[where] + held))


def _shared_score(
    offer: PartnerOffer, table: OptionTable, clock: int, free_watts: float, prices: SharingPrices
) -> float:
    lost = (1.0 - offer.partner_speed) * (
        offer.partner_watts - free_watts + prices.job_watts + prices.device_watts[offer.place]
    )
    rate = offer.watts - offer.partner_watts + prices.job_watts + lost
    return float(table.seconds_per_unit[offer.place, table.count_index(1), clock] / offer.speed * rate)


def _keeps(offer: PartnerOffer, table: OptionTable, clock: int, bounds: Bounds | None) -> bool:
    """Return whether the shared run keeps the job's bounds."""
    if bounds is None:
        return True
    alone = table.seconds_per_unit[offer.place, table.count_index(1)]
    takes = alone[clock] / offer.speed
    return bool(takes <= bounds.slowdown * alone.min() and takes <= bounds.deadline_seconds_per_unit)
