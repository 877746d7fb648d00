"""The search for clocks on synthetic scores."""

from collections import Counter
from collections.abc import Mapping

import pytest

from slurm_energy.evaluation.arena.clock_sweep import MAX_CLOCKS, best_on_grid, best_on_grids


@pytest.mark.parametrize("size", [1, 2, 5, 12, 13, 117])
def test_every_bottom_of_a_valley_is_found_both_ends_among_them(size: int) -> None:
    for bottom in range(size):
        assert best_on_grid(size, lambda index: (index - bottom) ** 2) == bottom  # noqa: B023  # used at once


def test_of_two_valleys_the_deeper_one_is_found_though_the_search_begins_in_the_other() -> None:
    def score(index: int) -> float:
        return min(2.0 + abs(index - 10), 1.0 + abs(index - 47))

    assert best_on_grid(60, score, present=10) == 47


def test_the_present_clock_is_tried_so_that_the_score_never_rises() -> None:
    assert best_on_grid(117, lambda index: 0.0 if index == 40 else 1.0, present=40) == 40


def test_of_equal_scores_the_highest_clock_is_taken() -> None:
    assert best_on_grid(30, lambda _: 1.0, present=3) == 29
    assert best_on_grid(60, lambda index: 0.0 if 20 <= index <= 33 else 1.0) == 33


def test_each_clock_is_tried_once_and_few_are() -> None:
    asked: Counter[int] = Counter()

    def score(index: int) -> float:
        asked[index] += 1
        return abs(index - 50)

    best_on_grid(117, score, present=60)
    assert max(asked.values()) == 1
    assert len(asked) <= 3 * MAX_CLOCKS


def test_grids_that_depend_on_each_other_are_searched_in_rounds() -> None:
    def score(chosen: Mapping[str, int]) -> float:
        return (chosen["one"] - chosen["two"]) ** 2 + 20.0 * (chosen["two"] - 8) ** 2

    assert best_on_grids({"one": 10, "two": 10}, {"one": 0, "two": 0}, score) == {"one": 8, "two": 8}
