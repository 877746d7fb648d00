"""Linear programmes over activities: their matrices, and the one door to the solver."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.bounds.activities import Activities

FloatArray = NDArray[np.float64]
_INFEASIBLE = 2
RELATIVE_TOLERANCE = 1e-6
"""How far a programme's optimum may be from the true one: the solver's tolerances, with room."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Constraints `matrix @ x` = or <= `values`."""

    matrix: csr_array
    values: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """An optimum."""

    x: FloatArray
    value: float
    equal_prices: FloatArray
    """Change of the optimum per unit of each right-hand side."""
    most_prices: FloatArray
    """The same for the rows with an upper bound, never above 0."""


def outputs(activities: Activities, num_groups: int) -> csr_array:
    """Return the units per device-second of each group by each activity, [num_groups, num_activities]."""
    columns = np.arange(len(activities))
    shared = activities.partner >= 0
    values = np.concatenate([activities.rate, activities.partner_rate[shared]])
    rows = np.concatenate([activities.group, activities.partner[shared]])
    place = (rows, np.concatenate([columns, columns[shared]]))
    return csr_array(coo_array((values, place), shape=(num_groups, len(activities))))


def devices_used(activities: Activities, num_pools: int) -> csr_array:
    """Return which pool each activity takes a device of, [num_pools, num_activities]."""
    place = (activities.pool, np.arange(len(activities)))
    return csr_array(coo_array((np.ones(len(activities)), place), shape=(num_pools, len(activities))))


def minimise(cost: FloatArray, *, equal: Rows | None = None, most: Rows | None = None) -> Solution | None:
    """Return the x from 0 up of least cost, None when no x satisfies the constraints.

    Raises:
        EvaluationError: the solver gave up.
    """
    if not len(cost):
        return _nothing_to_choose(equal, most)
    arguments: dict[str, Any] = {}
    if equal is not None and len(equal.values):
        arguments |= {"A_eq": equal.matrix, "b_eq": equal.values}
    if most is not None and len(most.values):
        arguments |= {"A_ub": most.matrix, "b_ub": most.values}
    result = linprog(cost, bounds=(0.0, None), method="highs", **arguments)
    if result.status == _INFEASIBLE:
        return None
    if result.status != 0:
        raise EvaluationError(f"a linear programme of {len(cost)} variables was not solved: {result.message}")
    return Solution(
        x=np.maximum(result.x, 0.0),
        value=float(result.fun),
        equal_prices=np.asarray(result.eqlin.marginals, dtype=np.float64),
        most_prices=np.asarray(result.ineqlin.marginals, dtype=np.float64),
    )


def _nothing_to_choose(equal: Rows | None, most: Rows | None) -> Solution | None:
    """Return the optimum over no variables at all, which the solver does not take."""
    equal_values = np.zeros(0) if equal is None else equal.values
    most_values = np.zeros(0) if most is None else most.values
    if equal_values.any() or (most_values < 0.0).any():
        return None
    return Solution(
        x=np.zeros(0), value=0.0, equal_prices=np.zeros(len(equal_values)), most_prices=np.zeros(len(most_values))
    )
