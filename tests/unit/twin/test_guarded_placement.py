"""What the guard makes of a rule's answer: every clamping branch, and that it never makes things worse."""

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.policy.placement import Placement
from slurm_energy.twin.engine.scheduler import GuardedPlacement, guarded_placement

COLUMN = {1: 0, 2: 1, 4: 2}
TIMES = [[4.0, 2.0, 1.0], [2.0, 1.0, 0.5], [1.0, 0.5, 0.25]]
"""Seconds per unit of 1, 2 and 4 devices at three clocks."""


@dataclass(kw_only=True)
class Request:
    """What the guard reads of a job: 100 units of estimated work."""

    estimated_units: float = 100.0
    time_limit_seconds: float = inf
    deadline_seconds: float = inf
    max_slowdown: float = inf


def guarded(
    answer: Placement,
    request: Request | None = None,
    *,
    room: int = 4,
    times: list[list[float]] | None = None,
    now: float = 0.0,
    place_limit: float = inf,
) -> GuardedPlacement:
    job = request or Request()
    return guarded_placement(answer, job, room, times or TIMES, COLUMN, now, place_limit)  # type: ignore[arg-type]


def test_an_answer_that_is_possible_is_left_as_it_is() -> None:
    for gpus in COLUMN:
        for clock in range(3):
            assert guarded(Placement(0, gpus, clock)) == (Placement(0, gpus, clock), False)


def test_the_default_clock_is_the_highest_and_no_change() -> None:
    assert guarded(Placement(0, 2, -1)) == (Placement(0, 2, 2), False)


def test_a_place_without_room_lets_the_job_wait() -> None:
    assert guarded(Placement(0, 1, 0), room=0) == (None, True)


@pytest.mark.parametrize(
    ("asked", "room", "given"),
    [(4, 2, 2), (3, 4, 2), (99, 4, 4), (99, 3, 2), (0, 4, 1), (-5, 4, 1), (2, 1, 1)],
)
def test_a_count_that_cannot_be_becomes_the_largest_below_it_or_the_least(asked: int, room: int, given: int) -> None:
    assert guarded(Placement(0, asked, 1), room=room) == (Placement(0, given, 1), True)


def test_a_least_count_above_the_room_lets_the_job_wait() -> None:
    found = guarded_placement(Placement(0, 1, 0), Request(), 1, TIMES, {2: 1, 4: 2}, 0.0)  # type: ignore[arg-type]
    assert found == (None, True)


@pytest.mark.parametrize(("asked", "given"), [(3, 2), (77, 2), (-2, 0), (-9, 0)])
def test_a_clock_beyond_the_grid_becomes_the_nearest_on_it(asked: int, given: int) -> None:
    assert guarded(Placement(0, 1, asked)) == (Placement(0, 1, given), True)


def test_the_grid_ends_where_times_become_infinite() -> None:
    times = [[4.0, 2.0, inf]]
    assert guarded(Placement(0, 1, 2), times=times) == (Placement(0, 1, 1), True)
    assert guarded(Placement(0, 1, -1), times=times) == (Placement(0, 1, 1), False)


def test_a_kind_that_cannot_run_there_lets_the_job_wait() -> None:
    assert guarded(Placement(0, 1, 0), times=[[inf, inf, inf]]) == (None, True)
    assert guarded(Placement(0, 1, -1), times=[[inf, inf, inf]]) == (None, True)


@pytest.mark.parametrize(("bound", "clock"), [(0.0, 2), (0.99, 2), (1.0, 1), (2.99, 1), (3.0, 0), (inf, 0)])
def test_a_slowdown_bound_raises_the_clock(bound: float, clock: int) -> None:
    assert guarded(Placement(0, 1, 0), Request(max_slowdown=bound)) == (Placement(0, 1, clock), clock != 0)


@pytest.mark.parametrize(("limit", "clock"), [(100.0, 2), (199.0, 2), (200.0, 1), (400.0, 0), (99.0, 2)])
def test_a_time_limit_raises_the_clock_to_the_default_if_no_clock_keeps_it(limit: float, clock: int) -> None:
    assert guarded(Placement(0, 1, 0), Request(time_limit_seconds=limit)) == (Placement(0, 1, clock), clock != 0)


@pytest.mark.parametrize(("limit", "clock"), [(100.0, 2), (200.0, 1), (400.0, 0), (99.0, 2)])
def test_the_partition_s_own_limit_holds_as_well(limit: float, clock: int) -> None:
    assert guarded(Placement(0, 1, 0), place_limit=limit) == (Placement(0, 1, clock), clock != 0)
    request = Request(time_limit_seconds=400.0)
    assert guarded(Placement(0, 1, 0), request, place_limit=limit) == (Placement(0, 1, clock), clock != 0)


@pytest.mark.parametrize(("deadline", "clock"), [(1_100.0, 2), (1_200.0, 1), (1_400.0, 0), (1_099.0, 0), (900.0, 0)])
def test_a_deadline_counts_from_now_and_raises_the_clock_unless_it_is_lost(deadline: float, clock: int) -> None:
    found = guarded(Placement(0, 1, 0), Request(deadline_seconds=deadline), now=1_000.0)
    assert found == (Placement(0, 1, clock), clock != 0)


def test_the_strictest_bound_decides() -> None:
    request = Request(max_slowdown=3.0, time_limit_seconds=250.0, deadline_seconds=150.0)
    assert guarded(Placement(0, 1, 0), request) == (Placement(0, 1, 2), True)


def test_bounds_are_those_of_the_count_that_is_given() -> None:
    request = Request(time_limit_seconds=200.0)
    assert guarded(Placement(0, 4, 0), request) == (Placement(0, 4, 0), False)
    assert guarded(Placement(0, 4, 0), request, room=2) == (Placement(0, 2, 0), True)
    assert guarded(Placement(0, 4, 0), request, room=1) == (Placement(0, 1, 1), True)


def test_a_job_of_no_work_breaks_no_limit() -> None:
    request = Request(estimated_units=0.0, time_limit_seconds=1.0, deadline_seconds=1.0)
    assert guarded(Placement(0, 1, 0), request) == (Placement(0, 1, 0), False)


def test_a_partner_stays_in_the_answer() -> None:
    assert guarded(Placement(0, 1, 9, partner=5)).placement == Placement(0, 1, 2, partner=5)


def test_rounding_does_not_raise_a_clock_that_just_fits() -> None:
    times = [[0.3, 0.2, 0.1]]
    assert (
        guarded(Placement(0, 1, 0), Request(time_limit_seconds=0.1 + 0.2, estimated_units=1.0), times=times).clamped
        is False
    )
    assert guarded(Placement(0, 1, 0), Request(max_slowdown=2.0), times=times).clamped is False


bounds = st.one_of(st.just(inf), st.floats(1.0, 500.0))


@given(
    st.builds(Placement, st.just(0), st.integers(-2, 9), st.integers(-3, 6)),
    st.builds(
        Request,
        estimated_units=st.floats(0.0, 300.0),
        time_limit_seconds=bounds,
        deadline_seconds=bounds,
        max_slowdown=st.one_of(st.just(inf), st.floats(0.0, 5.0)),
    ),
    st.integers(0, 5),
    st.floats(0.0, 400.0),
    bounds,
)
def test_what_comes_out_is_possible_keeps_every_bound_that_can_be_kept_and_comes_out_again(
    answer: Placement, request: Request, room: int, now: float, place_limit: float
) -> None:
    placement, clamped = guarded(answer, request, room=room, now=now, place_limit=place_limit)
    if placement is None:
        assert clamped and room == 0
        return
    assert placement.gpus in COLUMN and placement.gpus <= room and 0 <= placement.clock <= 2
    assert clamped == (placement.gpus != answer.gpus or placement.clock != (2 if answer.clock == -1 else answer.clock))
    times = TIMES[COLUMN[placement.gpus]]
    seconds, fastest = (request.estimated_units * times[clock] for clock in (placement.clock, -1))
    assert times[placement.clock] <= times[-1] * (1.0 + request.max_slowdown) * (1.0 + 1e-6)
    for bound in (min(request.time_limit_seconds, place_limit), request.deadline_seconds - now):
        assert seconds <= bound * (1.0 + 1e-6) or fastest > bound
    assert guarded(placement, request, room=room, now=now, place_limit=place_limit) == (placement, False)
