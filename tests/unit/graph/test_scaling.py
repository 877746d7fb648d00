import numpy as np
import pytest

from slurm_energy.graph.columns import Scaler, raw
from slurm_energy.graph.schema import EDGES, VERTICES, Feature

ALL = [*VERTICES.values(), *(features for features in EDGES.values() if features)]
VALUES = [0.0, 1.0, -3.0, 0.25, 1e9, -1e9, float("nan"), float("inf"), float("-inf")]


@pytest.mark.parametrize("features", ALL)
def test_many_rows_are_scaled_as_each_value_by_itself(features: tuple[Feature, ...]) -> None:
    scaled = Scaler(features).scaled([[value] * len(features) for value in VALUES])
    expected = [[feature.scaled(value) for feature in features] for value in VALUES]
    np.testing.assert_allclose(scaled, np.array(expected), rtol=1e-6)


def test_no_rows_keep_the_width() -> None:
    assert Scaler(VERTICES["gpu"]).scaled([]).shape == (0, len(VERTICES["gpu"]))


def test_a_missing_value_becomes_zero() -> None:
    features = VERTICES["cluster"]
    assert not Scaler(features).scaled([[raw(None)] * len(features)]).any()
