import numpy as np
import pytest
from gate_samples import make_stage

from slurm_energy.errors import ConfigError
from slurm_energy.evaluation.gate.fusion import (
    PastOutcome,
    calibrated,
    correlation,
    fused,
    fusion_result,
    pairwise_weights,
    shapley_values,
)
from slurm_energy.evaluation.gate.sheet import StageVerdict


def test_consistent_preferences_give_their_own_ratios() -> None:
    found = pairwise_weights(("a", "b", "c"), {"a/b": 2.0, "b/c": 3.0, "a/c": 6.0})
    assert found.weights["a"] / found.weights["b"] == pytest.approx(2.0)
    assert found.weights["a"] / found.weights["c"] == pytest.approx(6.0)
    assert found.consistency_ratio == pytest.approx(0.0, abs=1e-9)


def test_saatys_example_has_its_weights_and_consistency_ratio() -> None:
    found = pairwise_weights(("a", "b", "c"), {"a/b": 1 / 3, "a/c": 5.0, "b/c": 7.0})
    assert [round(weight, 3) for weight in found.weights.values()] == [0.279, 0.649, 0.072]
    assert found.consistency_ratio == pytest.approx(0.056, abs=0.002)


@pytest.mark.parametrize(
    ("preferences", "message"),
    [
        ({"a/b": 9.0, "b/c": 9.0, "c/a": 9.0}, "contradict one another"),
        ({"a/d": 2.0}, "is not of two of a, b, c"),
        ({"a/b": 10.0}, "not between 1/9 and 9"),
    ],
)
def test_preferences_that_cannot_be_are_named(preferences: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairwise_weights(("a", "b", "c"), preferences)


def test_shapley_values_add_up_and_are_the_squares_for_scores_that_do_not_go_together() -> None:
    values = shapley_values((0.5, 0.3, 0.2), np.eye(3))
    assert sum(values) == pytest.approx(1.0)
    assert [value / values[0] for value in values] == pytest.approx([1.0, 0.36, 0.16])


def test_two_scores_that_say_the_same_share_what_one_would_have() -> None:
    same = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    values = shapley_values((1.0, 1.0, 2.0), same)
    assert values == pytest.approx((0.25, 0.25, 0.5))


def test_correlation_of_few_candidates_is_drawn_to_none() -> None:
    assert correlation([[0.1, 0.1], [0.9, 0.9]], 2).tolist() == np.eye(2).tolist()
    rows = [[step / 10.0, step / 10.0] for step in range(10)]
    assert correlation(rows, 2)[0, 1] == pytest.approx(0.5)


def test_value_follows_what_came_of_past_candidates() -> None:
    assert calibrated(0.7, ()) == pytest.approx(0.7)
    failed = [PastOutcome(scores={}, raw=0.7, success=0.0)] * 10
    held = [PastOutcome(scores={}, raw=0.7, success=1.0)] * 10
    assert calibrated(0.7, failed) < 0.4
    assert 0.7 < calibrated(0.7, held) < 1.0
    assert 0.0 < calibrated(0.0, ()) < calibrated(1.0, ()) < 1.0


def test_parts_that_failed_before_lower_the_value() -> None:
    stages = [make_stage("twin", 0.8), make_stage("impact", 0.6)]
    outcomes = [PastOutcome(scores={}, raw=0.7, success=0.0, parts=("weights.json",))] * 3
    weights, network = (fused(stages, {}, outcomes, parts) for parts in (("weights.json",), ("network",)))
    assert weights is not None
    assert network is not None
    assert weights.value < network.value


def test_fused_value_below_the_bound_stops() -> None:
    found = fused([make_stage("twin", 0.2), make_stage("sandbox", 0.4)], {"twin/sandbox": 3.0}, ())
    assert found is not None
    assert found.raw == pytest.approx(0.25)
    assert fusion_result(found, 0.5).verdict is StageVerdict.STOPPED
    assert fusion_result(found, 0.2).verdict is StageVerdict.PASSED
    assert fused([make_stage("logic", None)], {}, ()) is None


def test_one_preference_among_five_criteria_contradicts_nothing() -> None:
    found = pairwise_weights(("a", "b", "c", "d", "e"), {"a/b": 9.0})
    assert found.consistency_ratio == 0.0
    assert found.weights["a"] / found.weights["b"] == pytest.approx(9.0)
    assert found.weights["c"] == pytest.approx(found.weights["d"]) == pytest.approx(found.weights["e"])
    assert found.weights["a"] / found.weights["c"] == pytest.approx(3.0)


def test_pair_that_is_not_compared_follows_from_those_that_are() -> None:
    found = pairwise_weights(("a", "b", "c"), {"a/b": 2.0, "b/c": 3.0})
    assert found.weights["a"] / found.weights["c"] == pytest.approx(6.0)
    assert found.consistency_ratio == 0.0
