"""Price rules that may put two jobs on one GPU."""

from random import Random

import pytest
from rule_factory import A30, H100, L4, FakeRun, FakeView, make_job, make_view

from slurm_energy.policy.jobs import PartnerOffer
from slurm_energy.policy.placement import Placement, PlacementRule
from slurm_energy.policy.registry import create_rule

GOOD = PartnerOffer(job_id=7, place=1, speed=0.8, partner_speed=0.9, watts=125.0, partner_watts=105.0)
"""On an L4 that draws 105 W with its job and 125 W with both."""
TEXTS = ["price:share=1", "adaptive-price:share=1"]


def shared_view(*offers: PartnerOffer) -> FakeView:
    view = make_view(devices=(H100, L4, A30), totals=(16, 16, 16))
    view.offers = list(offers)
    view.running = [FakeRun(offer.job_id, place=offer.place, gpus=1, clock=7) for offer in offers]
    return view


def begun(text: str, view: FakeView) -> PlacementRule:
    rule = create_rule(text)
    rule.begin(view, Random(1))
    return rule


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_shares_the_gpu_where_that_costs_less_at_the_partners_clock(text: str) -> None:
    view = shared_view(GOOD)
    assert begun(text, view).place(make_job(), view) == Placement(1, 1, 7, partner=7)


@pytest.mark.parametrize("text", ["price", "adaptive-price"])
def test_nobody_shares_unless_told(text: str) -> None:
    view = shared_view(GOOD)
    placement = begun(text, view).place(make_job(), view)
    assert isinstance(placement, Placement) and placement.partner is None


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "offer",
    [
        GOOD._replace(speed=0.5, partner_speed=0.5),
        GOOD._replace(watts=400.0),
        GOOD._replace(speed=0.2, partner_speed=0.85),
    ],
    ids=["no faster together", "too much power", "too slow"],
)
def test_a_poor_offer_is_left(text: str, offer: PartnerOffer) -> None:
    view = shared_view(offer)
    placement = begun(text, view).place(make_job(), view)
    assert isinstance(placement, Placement) and placement.partner is None


@pytest.mark.parametrize("text", TEXTS)
def test_the_cheapest_of_several_offers_is_taken(text: str) -> None:
    view = shared_view(
        GOOD._replace(job_id=1, watts=140.0), GOOD._replace(job_id=2), GOOD._replace(job_id=3, speed=0.7)
    )
    placement = begun(text, view).place(make_job(), view)
    assert isinstance(placement, Placement) and placement.partner == 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_without_room_may_still_share(text: str) -> None:
    view = shared_view(GOOD)
    view.free_gpus = [0, 0, 0]
    placement = begun(text, view).place(make_job(), view)
    assert isinstance(placement, Placement) and placement.partner == 7


@pytest.mark.parametrize("text", TEXTS)
def test_sharing_keeps_the_jobs_own_bounds(text: str) -> None:
    view = shared_view(GOOD)
    rule = begun(text, view)
    for bounds in ({"max_slowdown": 0.2}, {"time_limit_seconds": 4000.0}, {"deadline_seconds": 4000.0}):
        placement = rule.place(make_job(**bounds), view)
        assert isinstance(placement, Placement) and placement.partner is None
    placement = rule.place(make_job(max_slowdown=0.3), view)
    assert isinstance(placement, Placement) and placement.partner == 7


def test_a_price_on_devices_speaks_for_sharing() -> None:
    offer = GOOD._replace(watts=250.0)
    view = shared_view(offer)
    rule = begun("adaptive-price:share=1,k=5000", view)
    before = rule.place(make_job(), view)
    view.num_waiting = 1
    rule.route(make_job(), view)
    after = rule.place(make_job(), view)
    assert isinstance(before, Placement) and isinstance(after, Placement)
    assert (before.partner, after.partner) == (None, 7)
