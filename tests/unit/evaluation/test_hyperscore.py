from math import exp, log

import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.evaluation.hyperscore import hyperscore


def test_score_of_the_papers_example_follows_its_formula_and_not_its_figure() -> None:
    assert hyperscore(0.95) == pytest.approx(107.78, abs=5e-3)


def test_score_is_the_formula_at_other_settings() -> None:
    sigma = 1.0 / (1.0 + exp(-(4.0 * log(0.5) + 0.3)))
    assert hyperscore(0.5, beta=4.0, gamma=0.3, kappa=1.5) == pytest.approx(100.0 * (1.0 + sigma**1.5))


def test_score_grows_with_the_value_from_100_to_its_most() -> None:
    scores = [hyperscore(step / 100.0) for step in range(1, 101)]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(100.0, abs=1e-6)
    assert scores[-1] == pytest.approx(100.0 * (1.0 + 1.0 / 9.0))


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (0.0, {}),
        (1.01, {}),
        (float("nan"), {}),
        (0.5, {"beta": 3.9}),
        (0.5, {"beta": 6.1}),
        (0.5, {"kappa": 1.4}),
        (0.5, {"kappa": float("nan")}),
        (0.5, {"gamma": float("inf")}),
    ],
)
def test_setting_out_of_its_range_is_named(value: float, changes: dict[str, float]) -> None:
    with pytest.raises(ValueRangeError, match="of a HyperScore is not between"):
        hyperscore(value, **changes)
