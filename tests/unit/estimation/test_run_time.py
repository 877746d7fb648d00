"""Run times as distributions: censored runs, outliers, limits, and names that say nothing."""

import random
from collections.abc import Iterator
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_energy.estimation.run_time import EndedRun, RunTimeModel, RunTimes, quantiles, run_times

HOUR = 3600.0
DAY = 24.0 * HOUR


def runs(seconds: list[float], name: str = "train", user: int = 1, *, cut_off: bool = False) -> list[EndedRun]:
    return [EndedRun(user=user, name=name, seconds=one, limit_seconds=DAY, cut_off=cut_off) for one in seconds]


def names_of(spread: float, seed: int = 5) -> Iterator[EndedRun]:
    """Yield runs of forty names whose runs differ by a spread of the logarithm."""
    rng = random.Random(seed)
    while True:
        number = rng.randrange(40)
        seconds = 600.0 * (1 + number) * rng.lognormvariate(0.0, spread)
        yield EndedRun(user=1, name=f"job{number}", seconds=seconds, limit_seconds=2 * DAY)


@pytest.mark.parametrize(("spread", "room"), [(0.01, 1.1), (0.1, 1.5), (0.8, 8.0)])
def test_the_upper_end_is_passed_by_at_most_one_run_in_ten_and_is_narrow_where_runs_are_alike(
    spread: float, room: float
) -> None:
    history, passed, asked, ratios = RunTimes(), 0, 0, []
    for count, run in zip(range(1_500), names_of(spread), strict=False):
        if count >= 500:
            upper = history.estimate(1, run.name, run.limit_seconds).upper_seconds
            asked, passed = asked + 1, passed + (run.seconds > upper)
            ratios.append(upper / run.seconds)
        history.add(run)
    assert passed / asked <= 0.10
    assert sorted(ratios)[len(ratios) // 2] < room


def test_a_job_that_hung_for_three_days_does_not_move_the_middle() -> None:
    found = RunTimeModel().of_runs(runs([HOUR] * 12 + [72 * HOUR] + [HOUR] * 7))
    hung = found.estimate()
    assert hung.seconds == pytest.approx(HOUR)
    assert found.runs == 20
    assert hung.upper_seconds < 4.0 * HOUR


def test_runs_cut_off_at_their_limit_are_longer_than_they_look() -> None:
    whole = run_times(runs([HOUR] * 10))
    cut = run_times([*runs([0.9 * HOUR, 1.1 * HOUR] * 3), *runs([HOUR] * 6, cut_off=True)])
    assert cut.estimate(1, "train").seconds > whole.estimate(1, "train").seconds
    assert quantiles([(1.0, 1.0, False), (2.0, 1.0, True), (3.0, 1.0, False)], (0.5, 0.95)) == [3.0, 3.0]
    assert quantiles([(1.0, 1.0, True)], (0.5,)) == [1.0]


def test_another_limit_than_before_is_evidence_and_a_bound() -> None:
    found = RunTimeModel().of_runs(runs([HOUR] * 3))
    same, longer, shorter = (found.estimate(limit) for limit in (DAY, 10 * DAY, 0.5 * HOUR))
    assert same.seconds < longer.seconds
    assert longer.upper_seconds / longer.seconds > same.upper_seconds / same.seconds
    assert shorter.seconds <= shorter.upper_seconds <= 0.5 * HOUR


def test_a_new_name_is_known_from_what_its_user_makes_of_limits_and_else_from_the_site() -> None:
    long = [run for number in range(9) for run in runs([0.9 * DAY], name=f"long{number}", user=1)]
    short = [run for number in range(9) for run in runs([0.01 * DAY], name=f"short{number}", user=2)]
    history = run_times([*long, *short])
    assert history.estimate(1, "new", HOUR).seconds > 0.8 * HOUR
    assert history.estimate(2, "new", HOUR).seconds < 0.1 * HOUR
    assert history.estimate(1, "new", HOUR).source == "user"
    other = history.estimate(3, "new", HOUR)
    assert (other.source, other.upper_seconds <= HOUR) == ("site", True)
    assert not other.is_known


def test_what_had_not_ended_when_a_job_was_submitted_is_not_held_against_its_estimate() -> None:
    burst = [
        EndedRun(user=1, name="burst", seconds=seconds, submitted_at_seconds=0.0, ended_at_seconds=seconds)
        for seconds in (60.0, 3600.0, 86_400.0) * 20
    ]
    assert run_times(burst).model().reach == {}


texts = st.text(max_size=40) | st.just("x" * 10_000) | st.just("") | st.just("名前 \x00")
figures = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 1e-300, 1e300, 60.0, 3 * DAY])
limits = st.none() | figures


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), texts, figures, limits, st.booleans()), max_size=30),
    asked=st.tuples(st.integers(0, 3), texts, limits),
)
def test_whatever_the_history_holds_an_estimate_is_a_number_of_seconds_within_the_limit(
    rows: list[tuple[int, str, float, float | None, bool]], asked: tuple[int, str, float | None]
) -> None:
    history = run_times(
        EndedRun(user=user, name=name, seconds=seconds, limit_seconds=limit, cut_off=cut)
        for user, name, seconds, limit, cut in rows
    )
    user, name, limit = asked
    found = history.estimate(user, name, limit)
    assert 0.0 < found.seconds <= found.upper_seconds and isfinite(found.upper_seconds)
    if limit is not None and 0.0 < limit < float("inf"):
        assert found.upper_seconds <= max(limit, 0.01)


def test_contradictory_rows_make_the_interval_wider() -> None:
    alike, apart = (RunTimeModel().of_runs(runs(seconds)) for seconds in ([HOUR] * 6, [60.0, DAY] * 3))
    assert apart.spread > 1.5 * alike.spread


def test_an_empty_name_is_no_name() -> None:
    assert run_times(runs([HOUR] * 5, name="")).estimate(1, "", DAY).runs == 0
