"""Verdicts come from the numbers."""

from dataclasses import replace

import pytest
from results_samples import COST, GOALS, make_case, make_result, make_section

from research.results.cases import Goal
from research.results.judging import (
    difference_of,
    estimate_of,
    judged,
    judged_policies,
    judgements,
    strongest_rule,
)

CASE, SECTION = make_case(), make_section()
RULES = {"first": 10.0, "second": 8.0, "third": 9.0}


def test_the_strongest_rule_has_the_least_mean_and_no_growing_queue() -> None:
    assert strongest_rule(SECTION, CASE, make_result(RULES)) == "second"
    growing = make_result(RULES, queue_growth_percent={"second": 4.0})
    assert strongest_rule(SECTION, CASE, growing) == "third"
    all_grow = make_result(RULES, queue_growth_percent=dict.fromkeys(RULES, 4.0))
    assert strongest_rule(SECTION, CASE, all_grow) == "second"
    assert strongest_rule(SECTION, CASE, make_result({})) is None


def test_a_policy_that_is_no_rule_is_never_the_strongest_rule_and_is_the_one_that_is_judged() -> None:
    result = make_result({**RULES, "net": 1.0})
    assert strongest_rule(SECTION, CASE, result) == "second"
    assert judged_policies(SECTION, CASE, result) == ("net",)
    assert judged_policies(SECTION, CASE, make_result(RULES)) == ("second",)


def test_a_goal_of_one_policy_is_held_against_no_other() -> None:
    case = make_case(goals=(replace(GOALS[0], of="net"), GOALS[3]))
    found = judgements(SECTION, case, make_result({**RULES, "net": 1.0, "other": 2.0}))
    assert [(one.label, one.goal.text) for one in found] == [
        ("net", "cheaper than the strongest rule"),
        ("net", "no growth"),
        ("other", "no growth"),
    ]


def test_differences_are_paired_by_seed() -> None:
    result = make_result({"first": 10.0, "second": 8.0})
    percent = difference_of(result, "second", "first", COST)
    assert percent is not None and (percent.mean, percent.low, percent.high) == pytest.approx((-20.0, -20.0, -20.0))
    points = difference_of(result, "second", "first", COST, percent=False)
    assert points is not None and points.mean == pytest.approx(-2.0)
    del result.runs["first"][2]
    fewer = difference_of(result, "second", "first", COST)
    assert fewer is not None and fewer.seeds == 2
    assert difference_of(result, "second", "absent", COST) is None


@pytest.mark.parametrize(("cost", "verdict"), [(7.9, "met"), (8.1, "missed"), (8.0, "met")])
def test_a_goal_is_met_if_the_whole_interval_is_at_or_below_the_limit(cost: float, verdict: str) -> None:
    assert judged(GOALS[0], "net", "second", make_result({**RULES, "net": cost})).verdict == verdict


def test_a_mean_that_may_be_chance_does_not_meet_a_goal() -> None:
    result = make_result({**RULES, "net": 7.9})
    result.runs["net"][3] = {COST: 9.0}
    found = judged(GOALS[0], "net", "second", result)
    assert found.found is not None and found.found.low is not None and found.found.low < 0.0
    assert found.verdict == "missed"


def test_one_seed_leaves_a_goal_open() -> None:
    result = make_result({**RULES, "net": 1.0})
    for by_seed in result.runs.values():
        for seed in (2, 3):
            del by_seed[seed]
    assert judged(GOALS[0], "net", "second", result).verdict == "open"


def test_a_goal_beyond_the_bound_is_seen_as_impossible() -> None:
    possible = make_result({"first": 10.0, "net": 8.0}, floor={"net": 6.0})
    impossible = make_result({"first": 10.0, "net": 8.0}, floor={"net": 8.0})
    assert judged(GOALS[1], "net", "first", possible).verdict == "missed"
    found = judged(GOALS[1], "net", "first", impossible)
    assert found.verdict == "missed: no policy can"
    assert found.least == pytest.approx(100.0 * (8.0 / 10.0 + 8.0 / 11.0 + 8.0 / 9.0) / 3.0 - 100.0)


def test_an_equal_is_not_better() -> None:
    same = make_result({"first": 10.0, "net": 10.0})
    goal = Goal(text="less", figure=COST, kind="percent", most=0.0, against="first")
    assert judged(goal, "net", "first", same).verdict == "met"
    assert judged(replace(goal, is_strict=True), "net", "first", same).verdict == "missed"
    less = make_result({"first": 10.0, "net": 9.0})
    assert judged(replace(goal, is_strict=True), "net", "first", less).verdict == "met"


def test_counts_are_compared_by_their_difference_and_values_as_they_are() -> None:
    result = make_result({"first": 10.0, "net": 8.0}, misses={"first": 0.0, "net": 2.0})
    assert judged(GOALS[2], "net", "first", result).verdict == "missed"
    assert judged(GOALS[3], "net", "", result).verdict == "met"
    assert judged(GOALS[2], "first", "net", result).verdict == "met"


def test_a_disturbance_is_held_against_the_same_policy_without_it() -> None:
    goal = Goal(text="at most 15 % more", figure=COST, kind="undisturbed", most=15.0)
    calm, worse = make_result({"net": 10.0}), make_result({"net": 11.0})
    found = judged(goal, "net", "", worse, calm)
    assert found.verdict == "met" and found.found is not None and found.found.mean > 0.0
    assert judged(goal, "net", "", make_result({"net": 14.0}), calm).verdict == "missed"
    assert judged(goal, "net", "", worse).verdict == "open"
    told = judgements(SECTION, replace(CASE, goals=(goal,)), worse, calm)
    assert [(one.label, one.against, one.verdict) for one in told] == [("net", "", "met")]


def test_what_no_run_says_is_open_and_nobody_is_held_against_himself() -> None:
    assert judged(GOALS[2], "net", "first", make_result({"first": 10.0, "net": 8.0})).verdict == "open"
    told = judgements(SECTION, CASE, make_result(RULES))
    assert [(one.label, one.goal.text) for one in told] == [
        ("second", goal.text) for goal in GOALS if goal is not GOALS[0]
    ]
    assert estimate_of(make_result(RULES), "nobody", COST) is None


@pytest.mark.parametrize(("worst", "verdict"), [(3.0, "met"), (12.0, "missed")])
def test_what_every_run_must_keep_is_judged_by_the_largest_and_not_by_the_mean(worst: float, verdict: str) -> None:
    goal = Goal(text="back in time", figure="decisions", kind="largest", most=3.0)
    result = make_result({**RULES, "net": 1.0}, decisions={"net": 1.0})
    result.runs["net"][3] = {**result.runs["net"][3], "decisions": worst}
    found = judged(goal, "net", "", result)
    assert found.found is not None and found.found.mean == worst
    assert found.verdict == verdict
    result.runs["net"].pop(3)
    assert judged(goal, "net", "", result).verdict == "open"


@pytest.mark.parametrize(("more", "verdict"), [(0.0, "met"), (0.9, "met"), (1.1, "missed")])
def test_a_limit_can_be_half_of_the_interval_of_the_policy_it_is_held_against(more: float, verdict: str) -> None:
    goal = Goal(text="no worse", figure=COST, kind="difference", against="second", within_interval=True)
    result = make_result(RULES)
    own = estimate_of(result, "second", COST)
    assert own is not None and own.low is not None and own.high is not None
    half = 0.5 * (own.high - own.low)
    result.runs["net"] = {seed: {COST: run[COST] + more * half} for seed, run in result.runs["second"].items()}
    found = judged(goal, "net", "second", result)
    assert half > 0.0 and found.goal.most == pytest.approx(half)
    assert found.goal.text == f"no worse ({half:.3f})"
    assert found.verdict == verdict
