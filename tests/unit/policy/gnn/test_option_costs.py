"""The clock and the partition of the least cost, against a plain loop over everything that may be chosen."""

from dataclasses import replace
from itertools import product

import pytest
from served_cluster import A100, H100, V100, context_of, lab, node, site, submitted

from slurm_energy.config import Config
from slurm_energy.domain.cluster import ClusterSnapshot
from slurm_energy.domain.decision import RuntimeEstimate
from slurm_energy.energy_model.operating_point import OperatingPoint, clock_table_of
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.comparison import TypeComparison
from slurm_energy.policy.gnn.option_costs import (
    Costs,
    OptionChoice,
    OptionPrices,
    clock_by_type,
    least_joules,
    option_choices,
)
from slurm_energy.policy.gnn.serving_options import ServedOption, served_options
from slurm_energy.policy.gnn.shown import Shown
from slurm_energy.policy.site_limits import site_board_limits

HOUR = RuntimeEstimate(seconds=3600.0, upper_seconds=4000.0, source="history")
LIMITS = site_board_limits(site())
FREE = OptionPrices(time_watts=0.0, slowdown_joules=0.0, waking=1.0, scarcity=())


def options_of(
    snapshot: ClusterSnapshot | None = None, config: Config | None = None, gpus: int = 2
) -> tuple[ServedOption, ...]:
    snapshot = snapshot or lab()
    graph = ClusterGraph()
    graph.update(snapshot)
    shown = Shown(graph.partition_index, graph.facts, graph.members.sums(graph.nodes.store))
    context = context_of(submitted(gpus), snapshot, config or site(), HOUR)
    found = served_options(submitted(gpus), context, shown, with_clocks=False)
    return tuple(one for one in found if one.types)


def chosen(options: tuple[ServedOption, ...], prices: OptionPrices) -> tuple[OptionChoice, ...]:
    scarcity = prices.scarcity or (0.0,) * len(options)
    return option_choices(options, replace(prices, scarcity=scarcity), TypeComparison(limits=LIMITS))


def enumerated(served: ServedOption, prices: OptionPrices, scarcity: float) -> tuple[float, int]:
    """Return the least cost of an option of one type and its clock, worked out one clock at a time."""
    (one,) = served.types
    table = clock_table_of(one.gpu_type, power_limit_watts=LIMITS.watts(one.gpu_type))
    assert table is not None
    found = []
    for point in table.points:
        if point.slowdown <= one.room:
            seconds = one.seconds_full * (1.0 + point.slowdown)
            watts_of_all = one.joules_full / one.seconds_full
            cost = one.joules_full * (1.0 + point.energy_change) + prices.time_watts * seconds
            cost += prices.slowdown_joules * point.slowdown + scarcity * watts_of_all * seconds
            found.append((cost, -point.sm_clock_mhz))
    cost, clock = min(found)
    return cost, -clock


@pytest.mark.parametrize(
    ("time_watts", "slowdown", "scarcity"), [*product((0.0, 40.0), (0.0, 0.3, 3.0), (0.0, 1.0, 9.0))]
)
def test_every_option_has_the_clock_of_the_least_cost_and_the_cheapest_comes_first(
    time_watts: float, slowdown: float, scarcity: float
) -> None:
    options = options_of(config=site(max_slowdown=1.5))
    assert len(options) >= 2
    prices = OptionPrices(
        time_watts=time_watts,
        slowdown_joules=slowdown * least_joules(options, TypeComparison(limits=LIMITS)),
        waking=1.0,
        scarcity=tuple(scarcity * place for place in range(len(options))),
    )
    choices = chosen(options, prices)
    expected = {
        served.candidate.partition.name: enumerated(served, prices, price)
        for served, price in zip(options, prices.scarcity, strict=True)
    }
    for choice in choices:
        cost, clock = expected[choice.served.candidate.partition.name]
        point = choice.dearest.point
        assert point is not None
        assert choice.total == pytest.approx(cost, rel=1e-12)
        assert point.sm_clock_mhz == clock
    assert [choice.total for choice in choices] == sorted(choice.total for choice in choices)


def test_without_prices_the_least_energy_inside_the_bound_is_chosen() -> None:
    for bound in (0.05, 0.2, 1.0):
        options = options_of(config=site(max_slowdown=bound, routing_open=False))
        (choice,) = chosen(options, FREE)
        table = clock_table_of(A100, power_limit_watts=LIMITS.watts(A100))
        assert table is not None
        assert choice.dearest.point == table.best(bound)
        assert choice.total == pytest.approx(least_joules(options, TypeComparison(limits=LIMITS)), rel=1e-12)


def test_dearer_slowdown_and_scarcer_gpus_never_lower_the_clock() -> None:
    options = options_of(config=site(max_slowdown=1.5, routing_open=False))
    least = least_joules(options, TypeComparison(limits=LIMITS))
    prices = [replace(FREE, slowdown_joules=price * least) for price in (0.0, 0.1, 0.3, 1.0, 10.0)]
    clocks = [point(chosen(options, price)[0]).sm_clock_mhz for price in prices]
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[-1] == point(chosen(options, FREE)[0]).default_clock_mhz
    clocks = [
        point(chosen(options, replace(FREE, scarcity=(price,)))[0]).sm_clock_mhz for price in (0.0, 0.5, 1.0, 5.0)
    ]
    assert clocks == sorted(clocks) and clocks[0] < clocks[-1]


def point(choice: OptionChoice) -> OperatingPoint:
    assert choice.dearest.point is not None
    return choice.dearest.point


def test_waiting_and_waking_are_paid_once_whatever_the_clock() -> None:
    plain = options_of(config=site(routing_open=False))
    woken = tuple(replace(one, option=replace(one.option, wait_seconds=100.0, wake_joules=5000.0)) for one in plain)
    prices = replace(FREE, time_watts=7.0, waking=2.0)
    (before,), (after,) = chosen(plain, prices), chosen(woken, prices)
    assert after.dearest.point == before.dearest.point
    assert after.total - before.total == pytest.approx(7.0 * 100.0 + 2.0 * 5000.0, rel=1e-9)
    assert after.dearest.costs.waking == 10_000.0


def test_a_dear_partition_gives_way_to_the_next() -> None:
    options = options_of(config=site(max_slowdown=1.9))
    names = [str(one.candidate.partition.name) for one in options]
    first = str(chosen(options, FREE)[0].served.candidate.partition.name)
    prices = replace(FREE, scarcity=tuple(10.0 if name == first else 0.0 for name in names))
    assert chosen(options, prices)[0].served.candidate.partition.name != first


def test_a_type_that_nobody_measured_at_several_clocks_stays_at_its_highest() -> None:
    snapshot = lab(nodes=(node("a100-1", "a100", "h100"),))
    (choice,) = chosen(options_of(snapshot, site(routing_open=False)), replace(FREE, slowdown_joules=1.0))
    assert (choice.dearest.gpu_type, choice.dearest.point) == (H100, None)
    assert choice.dearest.costs == choice.dearest.full


def test_an_option_of_several_types_costs_what_its_dearest_does() -> None:
    snapshot = lab(nodes=(node("n1", "a100", "a100"), node("n2", "a100", "v100")))
    (choice,) = chosen(options_of(snapshot, site(routing_open=False)), FREE)
    assert {one.gpu_type for one in choice.types} == {A100, V100}
    assert choice.total == max(one.costs.total for one in choice.types)


def test_of_several_partitions_a_type_has_the_highest_clock() -> None:
    names = ("a100", "v100")
    snapshot = lab(nodes=(node("n1", "a100", "a100"), node("n2", "v100", "a100")))
    options = options_of(snapshot, site(max_slowdown=1.5))
    assert [str(one.candidate.partition.name) for one in options] == list(names)
    choices = chosen(options, replace(FREE, scarcity=(0.0, 5.0)))
    low, high = (point(choice) for choice in choices)
    assert low.sm_clock_mhz < high.sm_clock_mhz
    assert clock_by_type(choices) == clock_by_type(choices[::-1]) == {A100: high}


def test_parts_add_up() -> None:
    assert Costs(energy=1.0, time=2.0, slowdown=4.0, waking=8.0, scarcity=16.0).total == 31.0
