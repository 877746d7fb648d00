"""Intervals over seeds and paired differences."""

import numpy as np
import pytest
from scipy import stats

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.summary import Estimate, estimate, paired_difference_percent


def test_one_seed_has_no_interval() -> None:
    assert estimate([3.0]) == Estimate(mean=3.0, low=None, high=None, seeds=1)


def test_no_value_has_no_estimate() -> None:
    assert estimate([]) is None


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert estimate([2.0, 2.0, 2.0]) == Estimate(mean=2.0, low=2.0, high=2.0, seeds=3)


@pytest.mark.parametrize("count", [3, 7, 8, 30])
def test_an_interval_holds_its_mean_and_is_the_same_each_time(count: int) -> None:
    values = np.random.default_rng(1).normal(10.0, 1.0, count).tolist()
    found = estimate(values)
    assert found is not None and found.low is not None and found.high is not None
    assert found.low < found.mean < found.high
    assert estimate(values) == found


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5, 8, 12, 40])
def test_intervals_cover_the_truth_about_as_often_as_they_say_with_few_seeds_too(count: int) -> None:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        found = estimate(random.normal(0.0, 1.0, count).tolist())
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= 0.0 <= found.high
    assert covered >= 180  # 190 are asked; a plain bootstrap of 5 comes to some 168, of 2 to 100


def test_an_interval_of_normal_figures_is_about_students() -> None:
    values = np.random.default_rng(1).normal(10.0, 1.0, 12)
    found = estimate(values.tolist())
    assert found is not None and found.low is not None and found.high is not None
    half = stats.t.ppf(0.975, 11) * values.std(ddof=1) / np.sqrt(12.0)
    assert 0.5 * (found.high - found.low) == pytest.approx(half, rel=0.05)


def test_an_interval_of_skewed_figures_leans_to_the_long_side() -> None:
    found = estimate([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0])
    assert found is not None and found.low is not None and found.high is not None
    assert found.high - found.mean > 1.5 * (found.mean - found.low)


def test_a_difference_is_taken_seed_by_seed() -> None:
    found = paired_difference_percent([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert found is not None
    assert [found.mean, found.low, found.high] == pytest.approx([10.0, 10.0, 10.0])


def test_a_reference_of_nothing_gives_no_difference() -> None:
    assert paired_difference_percent([1.0, 2.0], [0.0, 1.0]) is None


def test_values_of_other_seeds_are_refused() -> None:
    with pytest.raises(EvaluationError, match="2 values cannot be paired with 1"):
        paired_difference_percent([1.0, 2.0], [1.0])


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(EvaluationError, match="not all finite"):
        estimate([1.0, float("nan")])
