"""How near to their limits a site's jobs end, and what room that leaves."""

from dataclasses import replace
from random import Random

import pytest

from slurm_energy.estimation.limit_habits import LimitHabits
from slurm_energy.estimation.run_time import EndedRun


def limited(share: float, *, user: str = "anna", cut_off: bool = False, slowdown: float = 0.0) -> EndedRun:
    return EndedRun(
        user=user,
        name="a",
        seconds=1000.0 * share / (1.0 + slowdown),
        limit_seconds=1000.0,
        cut_off=cut_off,
        real_seconds=1000.0 * share,
        slowdown=slowdown,
    )


def test_a_site_whose_jobs_end_far_from_their_limits_leaves_room() -> None:
    random = Random(1)
    habits = LimitHabits.of(limited(random.uniform(0.2, 0.8)) for _ in range(400))
    assert habits.room(("anna",), 0.02, 0.01) == pytest.approx(0.98 / 0.8 - 1.0, abs=0.02)


def test_a_user_who_ended_near_a_limit_has_the_room_that_was_left() -> None:
    runs = [limited(0.5, user=f"user{number}") for number in range(400)]
    habits = LimitHabits.of([*runs, limited(0.97, user="tight")])
    assert habits.room(("tight",), 0.02, 0.01) == pytest.approx(0.98 / 0.97 - 1.0)
    assert habits.room((7, "user1"), 0.02, 0.01) > 0.5


def test_few_runs_or_none_leave_no_room() -> None:
    assert LimitHabits.of([]).room((None,), 0.02, 0.01) < 0.0
    assert LimitHabits.of(limited(0.1) for _ in range(50)).room((None,), 0.02, 0.01) < 0.0


def test_runs_that_reach_their_limit_anyway_count_for_nothing_and_cancelled_ones_are_left_out() -> None:
    runs = [limited(0.5, user="a") for _ in range(400)] + [limited(1.0, user="b", cut_off=True) for _ in range(40)]
    habits = LimitHabits.of([*runs, limited(0.3, user="c", cut_off=True)])
    assert habits.runs == 440
    assert habits.room(("a",), 0.02, 0.01) > 0.5
    assert habits.room(("b",), 0.02, 0.01) < 0.0


def test_a_run_that_its_limit_cut_off_at_a_lower_clock_shows_how_near_limits_are() -> None:
    runs = [limited(0.5, user=f"user{number}") for number in range(400)]
    cut = [limited(1.0, user="slowed", cut_off=True, slowdown=0.15) for _ in range(8)]
    habits = LimitHabits.of([*runs, *cut])
    assert habits.room(("slowed",), 0.02, 0.01) < 0.0
    # Eight of 408 are more than the share that may be added: the room of all ends where these would still have ended.
    assert habits.room(("user1",), 0.02, 0.01) == pytest.approx(0.98 * 1.15 - 1.0, abs=0.002)
    # A clock that a trial kept is no part of what was predicted: its run stands with the seconds that it took.
    kept = [replace(one, seconds=1000.0) for one in cut]
    assert LimitHabits.of([*runs, *kept]) == habits


def test_limits_are_known_by_thousandths_however_many_runs_there_are() -> None:
    random = Random(1)
    habits = LimitHabits.of(limited(random.random(), user=f"user{number % 7}") for number in range(20_000))
    assert len(habits.counts) <= 500 and len(habits.highest) == 7
    assert LimitHabits.of([limited(0.3)]).highest == {}
