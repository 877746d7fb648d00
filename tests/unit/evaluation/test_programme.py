"""The door to the solver: programmes of any scale, and what happens when it gives up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

from slurm_energy.evaluation.bounds import programme, trace
from slurm_energy.evaluation.bounds.programme import Rows, SolverError, minimise

magnitudes = st.integers(-4, 4)


@pytest.mark.slow
@given(of_x=magnitudes, of_y=magnitudes, of_work=magnitudes, of_room=magnitudes, of_cost=magnitudes)
def test_an_optimum_and_its_prices_do_not_hang_on_the_units(
    of_x: int, of_y: int, of_work: int, of_room: int, of_cost: int
) -> None:
    # Work x + y = 3 with x <= 1 and costs 1 and 2: x = 1, y = 2, cost 5; more work costs 2, more room for x saves 1.
    x, y, work, room, cost = (10.0**power for power in (of_x, of_y, of_work, of_room, of_cost))
    found = minimise(
        np.array([1.0 / x, 2.0 / y]) * cost,
        equal=Rows(matrix=csr_array(np.array([[1.0 / x, 1.0 / y]]) * work), values=np.array([3.0 * work])),
        most=Rows(matrix=csr_array(np.array([[1.0 / x, 0.0]]) * room), values=np.array([room])),
    )
    assert found is not None
    assert found.value == pytest.approx(5.0 * cost, rel=1e-6)
    assert found.x.tolist() == pytest.approx([x, 2.0 * y], rel=1e-6)
    assert found.equal_prices.tolist() == pytest.approx([2.0 * cost / work], rel=1e-6)
    assert found.limit_prices.tolist() == pytest.approx([-cost / room], rel=1e-6)


@pytest.mark.slow
@given(of_work=magnitudes, of_room=magnitudes)
def test_what_cannot_be_is_told_from_what_was_not_solved(of_work: int, of_room: int) -> None:
    work, room = 10.0**of_work, 10.0**of_room
    assert (
        minimise(
            np.ones(1),
            equal=Rows(matrix=csr_array(np.array([[work]])), values=np.array([2.0 * work])),
            most=Rows(matrix=csr_array(np.array([[room]])), values=np.array([room])),
        )
        is None
    )


class GivesUp:
    """A solver that fails a number of times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.solve = linprog

    def __call__(self, cost: Any, **given: Any) -> Any:
        result = self.solve(cost, **given)
        if self.left > 0:
            self.left -= 1
            result.status = 4
        return result


def test_another_method_is_tried_where_one_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows(matrix=csr_array(np.array([[1.0]])), values=np.array([2.0]))
    monkeypatch.setattr(programme, "linprog", GivesUp(2))
    found = minimise(np.ones(1), equal=rows)
    assert found is not None and found.value == pytest.approx(2.0)
    monkeypatch.setattr(programme, "linprog", GivesUp(3))
    with pytest.raises(SolverError, match="of 1 variables was not solved"):
        minimise(np.ones(1), equal=rows)


@pytest.mark.parametrize(("most", "asked"), [(3, [24, 12, 6, 3]), (0, [24, 12, 6, 3, 1, 0])])
def test_a_plan_that_is_not_solved_is_tried_with_fewer_stretches(most: int, asked: list[int]) -> None:
    tried: list[int] = []

    class Plan:
        def __init__(self, stretches: int) -> None:
            self.stretches = stretches

        def solve(self) -> None:
            tried.append(self.stretches)
            if self.stretches > most:
                raise SolverError("gave up")

    trace._solved(Plan, 24)  # type: ignore[arg-type]  # nobody else chooses
    assert tried == asked
    most = -1
    with pytest.raises(SolverError):
        trace._solved(Plan, 24)  # type: ignore[arg-type]
