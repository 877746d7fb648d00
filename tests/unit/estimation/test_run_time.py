"""Run times as distributions: censored runs, outliers, names that say nothing."""

import random

import pytest

from slurm_energy.estimation.job_history import runtime_estimate
from slurm_energy.estimation.run_time import EndedRun, quantiles, run_times

HOUR = 3600.0


def runs(seconds: list[float], name: str = "train", **more: float | bool) -> list[EndedRun]:
    return [EndedRun(user=1, name=name, seconds=one, limit_seconds=24 * HOUR, **more) for one in seconds]  # type: ignore[arg-type]


def test_the_upper_end_is_passed_by_at_most_one_run_in_ten_and_seldomer_than_the_longest_seen() -> None:
    rng = random.Random(5)
    passed = longest_passed = asked = 0
    history = run_times([])
    own: dict[str, list[float]] = {}
    for _ in range(3_000):
        name = f"job{rng.randrange(40)}"
        seconds = 600.0 * (1 + int(name[3:])) * rng.lognormvariate(0.0, 0.8)
        found = history.estimate(1, name, 48 * HOUR)
        if len(own.get(name, [])) >= 3:
            asked += 1
            passed += seconds > found.upper_seconds
            longest_passed += seconds > runtime_estimate(own[name][-20:]).upper_seconds
        history.add(EndedRun(user=1, name=name, seconds=seconds, limit_seconds=48 * HOUR))
        own.setdefault(name, []).append(seconds)
    assert passed / asked <= 0.10
    assert passed < longest_passed


def test_a_job_that_hung_for_three_days_does_not_move_the_middle() -> None:
    history = run_times(runs([HOUR] * 12 + [72 * HOUR] + [HOUR] * 12))
    found = history.estimate(1, "train")
    assert found.seconds == HOUR
    assert found.runs == 20


def test_runs_cut_off_at_their_limit_are_longer_than_they_look() -> None:
    whole, cut = run_times(runs([HOUR] * 10)), run_times([*runs([HOUR] * 5), *runs([HOUR] * 5, cut_off=True)])
    assert cut.estimate(1, "train").upper_seconds > whole.estimate(1, "train").upper_seconds
    assert quantiles([(1.0, 1.0, False), (2.0, 1.0, True), (3.0, 1.0, False)], (0.5, 0.95)) == [3.0, 3.0]
    assert quantiles([(1.0, 1.0, True)], (0.5,)) == [2.0]


def test_the_limit_is_evidence_and_a_bound() -> None:
    history = run_times(runs([HOUR] * 3))
    for limit in (60.0, HOUR, 400 * HOUR):
        found = history.estimate(1, "train", limit)
        assert 0.0 < found.lower_seconds <= found.seconds <= found.upper_seconds <= limit


def test_a_new_name_is_known_from_its_user_and_less_from_the_site() -> None:
    history = run_times([*runs([10 * HOUR] * 50), *[EndedRun(user=2, name="x", seconds=60.0) for _ in range(50)]])
    assert history.estimate(1, "new").seconds > 5 * HOUR
    assert history.estimate(2, "new").seconds < HOUR


@pytest.mark.parametrize("name", ["", "x" * 10_000, "名前 \x00"])
@pytest.mark.parametrize("limit", [None, 0.0, -1.0, float("nan"), float("inf"), 60.0])
def test_strange_names_and_limits_are_borne(name: str, limit: float | None) -> None:
    bad = [EndedRun(user=1, name=name, seconds=seconds) for seconds in (0.0, -1.0, float("nan"), float("inf"), 1e300)]
    found = run_times([*bad, *runs([5.0, 5e6], name=name)]).estimate(1, name, limit)
    assert 0.0 < found.lower_seconds <= found.seconds <= found.upper_seconds < float("inf")
    assert run_times([]).estimate("nobody", name, limit).runs == 0


def test_an_empty_name_is_no_name() -> None:
    assert run_times(runs([HOUR] * 5, name="")).estimate(1, "").runs == 0
