"""Whether a job should share a GPU with one that runs, in the measure of the price rules."""

from collections.abc import Sequence
from typing import NamedTuple

from slurm_energy.policy.placement import ClusterView, OptionTable, PartnerOffer, Placement, WaitingJob
from slurm_energy.policy.rules.bounds import Bounds


class Prices(NamedTuple):
    """What time costs."""

    job_watts: float
    """V: of a job, for as long as it runs."""
    device_watts: Sequence[float]
    """mu: of one device by place, for as long as it is held."""


def with_partner(
    job: WaitingJob, view: ClusterView, own: Placement | None, prices: Prices, bounds: Bounds | None
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


def _own_score(table: OptionTable, own: Placement, prices: Prices) -> float:
    where = (own.place, table.count_index(own.gpus), own.clock)
    held = prices.job_watts + own.gpus * prices.device_watts[own.place]
    return float(table.seconds_per_unit[where] * (table.watts[where] - table.free_watts[where] + held))


def _shared_score(offer: PartnerOffer, table: OptionTable, clock: int, free_watts: float, prices: Prices) -> float:
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
