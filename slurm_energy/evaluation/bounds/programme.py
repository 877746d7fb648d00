"""Linear programmes over activities: their matrices, and the one door to the solver."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, diags_array

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.bounds.activities import Activities

FloatArray = NDArray[np.float64]
_SOLVED, _INFEASIBLE = 0, 2
_METHODS = ("highs", "highs-ds", "highs-ipm")
"""Tried in turn until one comes to an end."""
_SCALINGS = 8
"""Each halves the orders of magnitude that are left."""
RELATIVE_TOLERANCE = 1e-6
"""How far a programme's optimum may be from the true one: the solver's tolerances, with room."""


class SolverError(EvaluationError):
    """The solver came to no end."""


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
    limit_prices: FloatArray
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

    The solver is given rows and variables of about the same size: amounts of work and device-seconds lie nine orders of
    magnitude apart, at which it gives up.

    Raises:
        SolverError: the solver gave up.
    """
    if not len(cost):
        return _nothing_to_choose(equal, most)
    scales = _Scales.of([rows for rows in (equal, most) if rows is not None and len(rows.values)], cost)
    arguments: dict[str, Any] = {}
    if equal is not None and len(equal.values):
        arguments["A_eq"], arguments["b_eq"] = scales.scaled(equal, 0)
    if most is not None and len(most.values):
        arguments["A_ub"], arguments["b_ub"] = scales.scaled(most, len(scales.rows) - 1)
    for method in _METHODS:
        result = linprog(cost * scales.columns / scales.cost, bounds=(0.0, None), method=method, **arguments)
        if result.status in {_SOLVED, _INFEASIBLE}:
            break
    if result.status == _INFEASIBLE:
        return None
    if result.status != _SOLVED:
        raise SolverError(f"a linear programme of {len(cost)} variables was not solved: {result.message}")
    prices = [np.asarray(part.marginals, dtype=np.float64) * scales.cost for part in (result.eqlin, result.ineqlin)]
    return Solution(
        x=np.maximum(result.x, 0.0) * scales.columns * scales.values,
        value=float(result.fun) * scales.cost * scales.values,
        equal_prices=prices[0] * scales.rows[0] if "A_eq" in arguments else prices[0],
        limit_prices=prices[1] * scales.rows[-1] if "A_ub" in arguments else prices[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scales:
    """Powers of two, so that scaling rounds nothing: what rows and variables are multiplied by, and their units."""

    rows: list[FloatArray]
    """Of each block of constraints."""
    columns: FloatArray
    values: float
    """The unit of right-hand sides, and so of variables."""
    cost: float

    @classmethod
    def of(cls, blocks: list[Rows], cost: FloatArray) -> "_Scales":
        """Return scales that bring every row and column of the constraints to about 1 (Ruiz 2001, in the maximum norm).

        Args:
            blocks: The constraints.
            cost: Of the variables.
        """
        rows, columns = [np.ones(len(block.values)) for block in blocks], np.ones(len(cost))
        sizes = [abs(block.matrix) for block in blocks]
        for _ in range(_SCALINGS if blocks else 0):
            scaled = [diags_array(row) @ size @ diags_array(columns) for row, size in zip(rows, sizes, strict=True)]
            rows = [row / _roots(one.max(axis=1)) for row, one in zip(rows, scaled, strict=True)]
            columns = columns / _roots(np.max([one.max(axis=0).toarray() for one in scaled], axis=0))
        rows, columns = [_power_of_two(row) for row in rows], _power_of_two(columns)
        values = [np.abs(block.values * row).max() for block, row in zip(blocks, rows, strict=True)]
        return cls(
            rows=rows,
            columns=columns,
            values=float(_power_of_two(np.max(values, initial=0.0))),
            cost=float(_power_of_two(np.abs(cost * columns).max())),
        )

    def scaled(self, block: Rows, index: int) -> tuple[csr_array, FloatArray]:
        """Return matrix and right-hand side of a block as the solver gets them."""
        row = self.rows[index]
        return csr_array(diags_array(row) @ block.matrix @ diags_array(self.columns)), block.values * row / self.values


def _roots(values: Any) -> FloatArray:
    """Return square roots, 1 for 0."""
    dense = np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64).ravel()
    return np.sqrt(np.where(dense > 0.0, dense, 1.0))


def _power_of_two(values: Any) -> FloatArray:
    """Return the powers of two nearest to some values from 0 up, 1 for 0."""
    given = np.asarray(values, dtype=np.float64)
    return np.exp2(np.rint(np.log2(np.where(given > 0.0, given, 1.0))))


def _nothing_to_choose(equal: Rows | None, most: Rows | None) -> Solution | None:
    """Return the optimum over no variables at all, which the solver does not take."""
    equal_values = np.zeros(0) if equal is None else equal.values
    max_values = np.zeros(0) if most is None else most.values
    if equal_values.any() or (max_values < 0.0).any():
        return None
    return Solution(
        x=np.zeros(0), value=0.0, equal_prices=np.zeros(len(equal_values)), limit_prices=np.zeros(len(max_values))
    )
