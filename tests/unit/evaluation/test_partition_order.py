"""Which order of its partitions costs a site the least."""

import pytest

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation import partition_order
from slurm_energy.evaluation.arena.plan import ArenaPlan, world_of_plan
from slurm_energy.evaluation.partition_order import OrderFigures, best_order, order_sentences, tried_orders

MORNING = ArenaPlan(policies=(), world="mixed-hidden", horizon_seconds=7200.0, drain=True)


def figures(order: str, joules: float, seconds: float) -> OrderFigures:
    return OrderFigures(order=tuple(order), joules_per_unit=joules, turnaround_seconds=seconds)


def test_every_order_is_run_and_the_worlds_own_comes_first() -> None:
    found = tried_orders(MORNING)
    assert len({one.order for one in found}) == len(found) == 24
    assert found[0].order == tuple(one.name for one in world_of_plan(MORNING).partitions)
    assert len({round(one.joules_per_unit, 3) for one in found}) > 1
    shortest = min(one.turnaround_seconds for one in found)
    assert best_order(found).turnaround_seconds <= 1.05 * shortest


def test_an_order_that_makes_jobs_late_is_not_recommended() -> None:
    tried = (figures("abc", 100.0, 1000.0), figures("bac", 80.0, 1040.0), figures("cab", 60.0, 1300.0))
    assert best_order(tried).order == ("b", "a", "c")
    first, second, third, fourth = order_sentences(tried)
    assert "b, a, c" in first and "-20.0% energy, +4.0% turnaround" in second
    assert "a, b, c: +0.0% energy" in third and "PriorityTier" in fourth


def test_where_jobs_name_one_partition_each_the_order_is_worth_nothing() -> None:
    (line,) = order_sentences((figures("ab", 100.0, 1000.0), figures("ba", 100.0, 1000.0)))
    assert "worth nothing here" in line


def test_too_many_partitions_are_refused_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_order, "MAX_PARTITIONS", 3)
    with pytest.raises(EvaluationError, match="4 partitions have 24 orders: at most 3 can be tried"):
        tried_orders(MORNING)
