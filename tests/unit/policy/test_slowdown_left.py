"""What a bound leaves to the clock where the partition is open to choice as well."""

import pytest
from guard_questions import clocks, decide
from policy_factory import A100, make_config, make_job, make_node, make_partition, make_snapshot

from slurm_energy.energy_model.operating_point import clock_table_of
from slurm_energy.policy.site.type_bound import slowdown_left

TABLE = clock_table_of(A100, power_limit_watts=500.0)
BOUNDS = sorted({0.05, 0.2, *(point.slowdown for point in TABLE.points)} if TABLE else ())


def test_the_fastest_type_is_left_the_whole_bound() -> None:
    assert [slowdown_left(1.0, bound) for bound in BOUNDS] == BOUNDS


@pytest.mark.parametrize("bound", [0.0, 0.05, 0.2, 0.7, 2.0])
def test_a_type_as_slow_as_the_bound_is_left_nothing_and_a_slower_one_breaks_it(bound: float) -> None:
    assert slowdown_left(1.0 + bound, bound) == 0.0
    assert slowdown_left((1.0 + bound) * 1.000001, bound) < 0.0
    assert slowdown_left(1.0 + bound / 2.0, bound) == pytest.approx((1.0 + bound) / (1.0 + bound / 2.0) - 1.0)


def test_a_clock_exactly_on_the_bound_is_taken_with_routing_as_without() -> None:
    nodes = [make_node(f"n{number}", name, "a100") for number, name in enumerate(("one", "two"))]
    snapshot = make_snapshot(*nodes, partitions=(make_partition("one", is_default=True), make_partition("two")))
    for bound in (bound for bound in BOUNDS if bound <= 2.0):
        config = make_config(max_slowdown=bound)
        alone, routed = (
            clocks(decide(make_job(partitions=names), snapshot=snapshot, config=config))
            for names in (("one",), ("one", "two"))
        )
        assert routed == alone, bound
