"""Feature columns of many rows at once; entry by entry the same as `Feature.scaled`."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.schema import LARGEST, Feature

UNKNOWN = float("nan")
"""What a raw row holds where nobody tells; becomes 0."""


def raw(value: float | None) -> float:
    """Return a value for a raw row; NaN for None."""
    return UNKNOWN if value is None else value


class Scaler:
    """The forms and scales of some columns, ready for whole arrays."""

    def __init__(self, features: Sequence[Feature]) -> None:
        self.names = tuple(feature.name for feature in features)
        self.width = len(self.names)
        self._scale = np.array([feature.scale for feature in features], dtype=np.float64)
        self._flags = np.array([feature.form == "flag" for feature in features], dtype=bool)
        self._logs = np.array([feature.form == "log" for feature in features], dtype=bool)

    def scaled(self, rows: Sequence[Sequence[float]] | NDArray[np.float64]) -> Floats:
        """Return the columns of raw rows; what is not finite becomes 0.

        Args:
            rows: Values in the units of the schema, [rows, width]; no rows are allowed.
        """
        values = np.asarray(rows, dtype=np.float64).reshape(-1, self.width)
        finite = np.isfinite(values)
        values = np.where(finite, values, 0.0)
        scaled = values / self._scale
        logs = self._logs
        scaled[:, logs] = np.log1p(np.maximum(scaled[:, logs], 0.0)) / 4.0
        scaled[:, self._flags] = values[:, self._flags] != 0.0
        return np.clip(scaled, -LARGEST, LARGEST).astype(np.float32)
