"""A price of devices for each place, moved by what arrivals would take."""

import pytest
from rule_factory import make_job, make_view
from test_total_cost_rule import prices

from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts
from slurm_energy.policy.rules.scarcity import PlacePrices


def test_a_price_rises_where_more_is_asked_for_than_there_is() -> None:
    view = make_view()  # 16, 128 and 512 devices
    found = PlacePrices(view.places)
    for hour in range(1, 5):
        found.move(0, 3.0 * 16 * 3600.0, 100.0, 3600.0 * hour)  # three times what the place has
    steps = [0.05 / (1.0 + hour / 12.0) for hour in range(1, 5)]
    assert found.dual_watts.tolist() == pytest.approx([2.0 * 100.0 * sum(steps), 0.0, 0.0])
    full, half = found.charged_watts([0, 0, 0]), found.charged_watts([8, 0, 0])
    assert full.tolist() == pytest.approx([0.75 * 2.0 * 100.0 * sum(steps), 0.0, 0.0])
    assert half.tolist() == pytest.approx([full[0] / 4.0, 0.0, 0.0])
    assert not found.charged_watts([16, 128, 512]).any()


def test_a_price_falls_back_to_nothing_and_is_never_below() -> None:
    found = PlacePrices(make_view().places)
    found.move(1, 1e9, 100.0, 60.0)
    high = found.dual_watts[1]
    assert high == 300.0  # the ceiling
    found.move(0, 0.0, 100.0, 3600.0)
    assert found.dual_watts[1] < high
    found.move(0, 0.0, 100.0, 1e9)
    assert found.dual_watts.tolist() == [0.0, 0.0, 0.0]


def test_a_job_wants_the_cheapest_place_whether_or_not_it_has_room() -> None:
    view, job = make_view(), make_job(gpu_counts=(1,))
    options = CostTable(view.options(job), PlaceCosts.of(view.places))
    wanted = options.wanted(1000.0, prices(), (0, 1, 2))
    assert wanted is not None
    place, device_seconds = wanted
    dear = prices()
    dear.device_watts[place] = 1e6
    elsewhere = options.wanted(1000.0, dear, (0, 1, 2))
    assert elsewhere is not None and elsewhere[0] != place
    assert options.wanted(1000.0, dear, (place,)) is not None
    assert options.wanted(1000.0, prices(), ()) is None
    longer = options.wanted(2000.0, prices(), (0, 1, 2))
    assert longer is not None
    assert longer == pytest.approx((place, 2.0 * device_seconds))
