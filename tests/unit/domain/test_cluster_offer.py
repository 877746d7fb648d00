"""What several clusters offer for a job, and which of them costs the least."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_energy.config import ClustersConfig
from slurm_energy.domain.cluster_offer import (
    ClusterOffer,
    InputData,
    choose_cluster,
    parse_clusters,
    parse_input_data,
)
from slurm_energy.domain.ids import GpuTypeName
from slurm_energy.domain.plain import from_plain, to_plain
from slurm_energy.errors import ValueRangeError

A100, A40 = GpuTypeName("a100-sxm4-40gb"), GpuTypeName("a40")


def make_offer(cluster: str = "a", **changes: Any) -> ClusterOffer:
    offer = ClusterOffer(
        cluster=cluster,
        version="1",
        now_seconds=1.7e9,
        partition="gpu",
        gpus=2,
        gpu_type=A100,
        default_seconds=1000.0,
        upper_seconds=1500.0,
        seconds_source="time-limit",
        gpu_watts=300.0,
        is_measured=False,
        wait_seconds=0.0,
    )
    return replace(offer, **changes)


def clusters(**changes: Any) -> ClustersConfig:
    return replace(ClustersConfig(waiting_watts=0.0), **changes)


def test_energy_is_of_gpus_their_host_and_the_building() -> None:
    offer = make_offer(
        slowdown=0.1, energy_change=-0.2, host_per_gpu_watt=1.2, host_constant_watts=50.0, pue=1.5, clock_mhz=1200
    )
    gpu, constant = 300.0 * 1000.0 * 0.8, 50.0 * 1100.0
    assert offer.joules == pytest.approx(2 * (gpu * 1.2 + constant) * 1.5)
    assert offer.run_seconds == pytest.approx(1100.0)


def test_the_least_energy_is_chosen_and_of_equal_ones_the_first_of_the_list() -> None:
    choice = choose_cluster([make_offer("a"), make_offer("b"), make_offer("c", pue=1.2)], clusters())
    assert [one.offer.cluster for one in choice.ranked] == ["a", "b", "c"]
    cheaper = choose_cluster([make_offer("a", pue=1.2), make_offer("b")], clusters())
    assert cheaper.best.offer.cluster == "b"


def test_waiting_has_its_price_for_each_gpu() -> None:
    offers = [make_offer("a", wait_seconds=3600.0), make_offer("b", pue=1.5)]
    assert choose_cluster(offers, clusters()).best.offer.cluster == "a"
    choice = choose_cluster(offers, clusters(waiting_watts=100.0))
    assert choice.best.offer.cluster == "b"
    assert choice.ranked[1].parts["time"] == pytest.approx(100.0 * 2 * 4600.0)


def test_a_start_that_is_not_known_goes_behind_all_that_are() -> None:
    choice = choose_cluster([make_offer("a", wait_seconds=None), make_offer("b", pue=3.0)], clusters())
    assert [one.offer.cluster for one in choice.ranked] == ["b", "a"]
    assert choice.ranked[1].end_seconds is None


def test_input_data_costs_energy_time_and_money_on_its_way_alone() -> None:
    config = clusters(wan_joules_per_gb=6750.0, wan_gbit_per_second=10.0, waiting_watts=1.0)
    choice = choose_cluster([make_offer("a", pue=1.01), make_offer("b")], config, parse_input_data("200GB@a"))
    at_b = choice.ranked[1]
    assert choice.best.offer.cluster == "a" and at_b.offer.cluster == "b"
    assert at_b.parts["data"] == pytest.approx(200 * 6750.0)
    assert at_b.transfer_seconds == pytest.approx(160.0)
    assert choice.best.parts["data"] == 0.0 and choice.best.transfer_seconds == 0.0


def test_prices_and_carbon_count_where_every_cluster_knows_its_own() -> None:
    dear = make_offer("a", price_per_kwh=0.40, currency="EUR", grams_per_kwh=30.0)
    cheap = make_offer("b", price_per_kwh=0.10, currency="EUR", grams_per_kwh=700.0)
    by_price = choose_cluster([dear, cheap], clusters(cost="price"))
    assert (by_price.best.offer.cluster, by_price.unit) == ("b", "EUR")
    by_carbon = choose_cluster([dear, cheap], clusters(cost="carbon"))
    assert (by_carbon.best.offer.cluster, by_carbon.unit) == ("a", "g")
    assert by_carbon.best.cost == pytest.approx(dear.joules / 3.6e6 * 30.0)
    mixed = choose_cluster([dear, replace(cheap, currency="USD")], clusters(cost="price"))
    assert mixed.unit == "J" and "tariff in the same currency" in mixed.notes[-1]


def test_the_cluster_that_knows_the_job_does_not_seem_cheaper_for_knowing_it() -> None:
    known = make_offer(
        "a", seconds_source="history", runs=7, default_seconds=600.0, upper_seconds=660.0, gpu_watts=150.0,
        is_measured=True, pue=1.3,
    )  # fmt: skip
    unknown = make_offer("b", default_seconds=48 * 60.0, upper_seconds=48 * 60.0, gpu_watts=290.0)
    choice = choose_cluster([unknown, known], clusters())
    assert choice.best.offer.cluster == "b"
    assert choice.best.offer.default_seconds == pytest.approx(600.0)
    assert choice.best.offer.gpu_watts == pytest.approx(150.0)
    assert "7 runs of this name on a" in choice.notes[0]


def test_what_one_cluster_knows_is_converted_to_the_other_ones_gpus() -> None:
    known = make_offer("a", seconds_source="history", runs=3, is_measured=True)
    other = make_offer("b", gpu_type=A40, default_seconds=9000.0, upper_seconds=9000.0)
    choice = choose_cluster([known, other], clusters(), relative=lambda _type, _reference: (2.0, 1.2))
    at_b = next(one.offer for one in choice.ranked if one.offer.cluster == "b")
    assert at_b.default_seconds == pytest.approx(2000.0)
    assert at_b.gpu_watts == pytest.approx(300.0 * 1.2 / 2.0)
    assert at_b.joules == pytest.approx(1.2 * known.joules)
    blind = choose_cluster([known, other], clusters())
    assert any("not comparable" in note for note in blind.notes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_watts", -1.0),
        ("gpu_watts", 1e9),
        ("default_seconds", -5.0),
        ("default_seconds", 1e300),
        ("wait_seconds", -0.1),
        ("pue", 0.1),
        ("price_per_kwh", -1e9),
        ("gpus", 0),
        ("gpus", 10**30),
        ("energy_change", -5.0),
        ("partition", "a b"),
        ("partition", "\x1b[31m"),
        ("gpu_type", "A/../B"),
        ("cluster", "-M"),
        ("cluster", "a,b"),
        ("currency", "€"),
        ("upper_seconds", 1.0),
        ("default_seconds", float("nan")),
        ("gpu_watts", float("inf")),
        ("gpus", True),
        ("runs", "many"),
        ("abilities", 7),
    ],
)
def test_an_offer_with_an_impossible_figure_is_refused_and_the_field_named(field: str, value: object) -> None:
    plain = {**to_plain(make_offer()), field: value}
    with pytest.raises(ValueRangeError, match=rf"{field}|GPU type|upper_seconds"):
        from_plain(ClusterOffer, plain, "offer")


def test_an_offer_comes_back_as_it_was() -> None:
    offer = make_offer(abilities=("clock",), message="x", price_per_kwh=-0.02, currency="EUR")
    assert from_plain(ClusterOffer, to_plain(offer)) == offer


def test_options_are_read_and_nonsense_is_refused() -> None:
    assert parse_clusters("a,b,a") == ("a", "b")
    assert parse_input_data("200GB@a, 1.5TB@b") == (
        InputData(gigabytes=200.0, cluster="a"),
        InputData(gigabytes=1500.0, cluster="b"),
    )
    for text in ("", "a,,b", "a;b", "-M", "a b", ",".join(f"c{n}" for n in range(33))):
        with pytest.raises(ValueRangeError, match="energy-clusters"):
            parse_clusters(text)
    for text in ("", "200@a", "200GB", "200GB@", "-1GB@a", "1e9GB@a", "999999999999PB@a", "nanGB@a", "1GB@a b"):
        with pytest.raises(ValueRangeError, match="energy-data"):
            parse_input_data(text)
