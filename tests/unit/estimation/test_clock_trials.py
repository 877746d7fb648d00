"""The ladder of trials against programs whose slowdown and power are simple functions of the clock."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.clock_response import ClockAnswer
from slurm_energy.estimation.clock_trials import MAX_COST_SHARE, MAX_TRIALS, ClockTrials

CLOCKS = tuple(range(210, 1411, 15))
DAY = 86_400.0


def trials(table_mhz: int = 1305, bound: float = 0.05) -> ClockTrials:
    return ClockTrials(clocks_mhz=CLOCKS, table_clock_mhz=table_mhz, max_slowdown=bound)


def play(
    ladder: ClockTrials,
    sensitivity: float,
    *,
    seconds: float = 4 * 3600.0,
    left: Callable[[float], float] = lambda _: DAY,
    reached_mhz: float = 1410.0,
    error: float = 0.003,
    known: bool = True,
) -> list[int | None]:
    """Run a job whose slowdown is `sensitivity` times that of the clock; return the clocks that were measured."""
    now, measured = 0.0, []
    while now < seconds:
        order = ladder.order(now, left(now))
        now += order.measure_seconds or 60.0
        if not order.measure_seconds:
            continue
        measured.append(order.sm_clock_mhz)
        real = min(order.sm_clock_mhz or reached_mhz, reached_mhz)
        watts = 100.0 + 300.0 * (real / 1410.0) ** 2
        if order.sm_clock_mhz is None:
            ladder.measured_default(now, watts, reached_mhz)
        else:
            answer = ClockAnswer(slowdown=sensitivity * (reached_mhz / real - 1.0), error=error)
            ladder.measured(order.sm_clock_mhz, now, watts, answer if known else None)
    return measured


def test_a_memory_bound_job_ends_far_below_the_table_and_inside_the_bound() -> None:
    ladder = trials()
    play(ladder, 0.2)

    assert ladder.kept_clock_mhz is not None
    assert ladder.kept_clock_mhz < 1200
    assert 0.2 * (1410 / ladder.kept_clock_mhz - 1.0) <= 0.05


def test_every_trial_is_preceded_by_the_default_clock() -> None:
    measured = play(trials(), 0.2)

    assert measured[0] is None
    assert all(before is None for before, here in pairwise(measured) if here is not None)


def test_a_job_that_the_clock_paces_leaves_a_table_that_breaks_its_bound() -> None:
    ladder = trials()
    play(ladder, 1.0)

    assert ladder.running_clock_mhz is None or ladder.running_clock_mhz >= 1345


def test_without_answers_the_table_stays_and_trials_end() -> None:
    ladder = trials()
    play(ladder, 0.2, known=False)

    assert (ladder.running_clock_mhz, len(ladder.trials), ladder.done) == (1305, 2, True)


def test_no_trial_near_the_limit() -> None:
    assert play(trials(), 0.2, left=lambda _: 600.0) == []


def test_a_capped_board_begins_below_the_clock_that_it_reaches() -> None:
    measured = play(trials(table_mhz=1380), 0.5, reached_mhz=1200.0)

    assert all(clock < 1200 for clock in measured if clock is not None)
    assert any(clock is not None for clock in measured)


def test_a_job_that_changed_begins_again_with_the_table() -> None:
    ladder = trials()
    play(ladder, 0.2)
    assert ladder.kept_clock_mhz is not None

    ladder.measured_default(20_000.0, 150.0, 1410.0)

    assert ladder.running_clock_mhz == 1305


def test_a_job_that_the_clock_does_not_slow_at_all_is_not_taken_below_half_of_it() -> None:
    ladder = trials()
    play(ladder, 0.0, seconds=DAY)

    assert ladder.kept_clock_mhz is not None and ladder.kept_clock_mhz >= 705


def test_a_trial_waits_until_its_worst_is_inside_the_share_though_others_cost_little() -> None:
    ladder = trials(bound=0.2)
    ladder.measured_default(1000.0, 400.0, 1410.0)
    ladder.measured(1305, 1000.0, 350.0, ClockAnswer(slowdown=0.0, error=0.001))
    ladder.measured(1110, 1000.0, 300.0, ClockAnswer(slowdown=0.0, error=0.001))
    spent, running = ladder.cost_seconds, ladder.running_clock_mhz
    ladder.measured_default(1000.0, 400.0, 1410.0)
    order = ladder.order(100_000.0 - 1.0, DAY)
    assert running == 1110
    ladder.measured_default(100_000.0 - 1.0, 400.0, 1410.0)
    order = ladder.order(100_000.0 - 1.0, DAY)
    assert order.sm_clock_mhz is not None and order.sm_clock_mhz < 1110
    # It costs at most what work loses that the clock alone paces, beyond what it loses at the running clock.
    worst = 65.0 * (1410 / order.sm_clock_mhz - 1410 / running)
    earliest = (spent + worst) / MAX_COST_SHARE
    assert ladder.order(earliest - 1.0, DAY).measure_seconds == 0.0
    assert ladder.order(earliest - 1.0, DAY).not_before_seconds == pytest.approx(earliest)
    assert ladder.order(earliest + 1.0, DAY).measure_seconds > 0.0
    assert ladder.order(earliest + 1.0, DAY, idle_seconds=300.0).measure_seconds == 0.0


def test_a_window_where_the_job_runs_anyway_costs_nothing() -> None:
    ladder = trials()
    ladder.measured_default(1000.0, 400.0, 1410.0)
    ladder.measured(1305, 1000.0, 350.0, None)
    assert ladder.cost_seconds == 0.0


def test_a_clock_of_which_one_window_is_not_sure_is_measured_again_until_it_is() -> None:
    ladder = trials()
    measured = play(ladder, 0.2, error=0.015, seconds=DAY)
    lower = [clock for clock in measured if clock is not None and clock < 1305]
    assert len(lower) > len(set(lower))
    assert ladder.kept_clock_mhz is not None and ladder.kept_clock_mhz < 1305


def test_no_lower_clock_is_tried_once_the_window_at_the_default_one_is_gone() -> None:
    ladder = trials()
    ladder.measured_default(10_000.0, 400.0, 1410.0)
    assert ladder.order(10_001.0, DAY).sm_clock_mhz is not None

    ladder.lost_reference()
    order = ladder.order(10_001.0, DAY)
    assert (order.sm_clock_mhz, order.measure_seconds) == (None, 60.0)


def test_a_window_that_lasted_longer_costs_its_whole_time() -> None:
    ladder = trials()
    ladder.measured_default(10_000.0, 400.0, 1410.0)
    ladder.measured(1200, 10_300.0, 0.0, None, seconds=300.0)
    assert ladder.cost_seconds == pytest.approx(300.0 * (1410 / 1200 - 1410 / 1305))


def test_other_work_at_a_kept_clock_costs_and_trials_begin_again() -> None:
    ladder = trials()
    play(ladder, 0.2)
    kept, cost, number = ladder.kept_clock_mhz, ladder.cost_seconds, len(ladder.trials)
    assert kept is not None and ladder.done

    ladder.changed(60.0)

    assert (ladder.running_clock_mhz, ladder.done) == (1305, False)
    assert ladder.cost_seconds == pytest.approx(cost + 60.0 * (1410 / kept - 1.0))
    assert ladder.order(DAY, DAY).sm_clock_mhz is None
    assert len(ladder.trials) == number


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.0, 0.02), st.sampled_from([1260, 1305, 1410]), st.floats(0.01, 0.2))
def test_trials_cost_little_and_what_is_kept_keeps_the_bound(
    sensitivity: float, error: float, table_mhz: int, bound: float
) -> None:
    ladder = trials(table_mhz, bound)
    play(ladder, sensitivity, error=error)

    assert len(ladder.trials) <= MAX_TRIALS
    assert ladder.cost_seconds <= MAX_COST_SHARE * 4 * 3600.0
    kept = ladder.kept_clock_mhz
    assert kept is None or kept == table_mhz or sensitivity * (1410 / kept - 1.0) <= bound


@pytest.mark.parametrize(("clocks", "bound"), [((), 0.05), ((300, 200), 0.05), ((200, 300), 1.5), ((200,), -0.1)])
def test_clocks_and_bounds_that_mean_nothing_are_refused(clocks: tuple[int, ...], bound: float) -> None:
    with pytest.raises(ValueRangeError):
        ClockTrials(clocks_mhz=clocks, table_clock_mhz=200, max_slowdown=bound)
