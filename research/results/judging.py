"""Means, intervals, paired differences, the strongest rule, and whether goals are met: all from the numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from research.results.cases import Case, Goal, Section
from research.results.document import CaseResult
from slurm_energy.evaluation.arena.summary import Estimate, estimate, paired_difference_percent

_MAX_GROWTH_PERCENT = 1.0
_EQUAL = 1e-6
"""Differences below it, in per cent, are those of rounding."""
Verdict = Literal["met", "missed", "missed: no policy can", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A goal held against one policy."""

    goal: Goal
    label: str
    against: str
    """The policy that it was held against; empty for none."""
    found: Estimate | None
    least: float | None
    """What no policy could go below, in the goal's own terms; None where that is not known."""
    verdict: Verdict


def mean_of(result: CaseResult, label: str, figure: str) -> float | None:
    """Return the mean of a figure over seeds, None where no run has it."""
    values = [figures[figure] for figures in result.runs.get(label, {}).values() if figure in figures]
    return sum(values) / len(values) if values else None


def estimate_of(result: CaseResult, label: str, figure: str) -> Estimate | None:
    """Return mean and interval of a figure over seeds."""
    return estimate([figures[figure] for figures in result.runs.get(label, {}).values() if figure in figures])


def difference_of(
    result: CaseResult, label: str, other: str, figure: str, *, percent: bool = True, base: CaseResult | None = None
) -> Estimate | None:
    """Return the mean paired difference of a figure between two policies over the seeds that both have.

    Args:
        result: The case.
        label: The policy.
        other: The one that it is held against.
        figure: Name of the figure.
        percent: In per cent of the other's; else as it is.
        base: The case from which the other's runs are taken; None for the same.
    """
    pairs = _pairs(result, label, result if base is None else base, other, figure)
    mine, theirs = [one for one, _ in pairs], [two for _, two in pairs]
    if percent:
        return paired_difference_percent(mine, theirs)
    return estimate([one - two for one, two in zip(mine, theirs, strict=True)])


def strongest_rule(section: Section, case: Case, result: CaseResult) -> str | None:
    """Return the rule with the least mean of the section's figure; one whose queue grows counts only if all do."""
    candidates = [rule for rule in case.compared_rules if mean_of(result, rule, section.figure) is not None]
    steady = [
        rule for rule in candidates if (mean_of(result, rule, "queue_growth_percent") or 0.0) <= _MAX_GROWTH_PERCENT
    ]
    return min(steady or candidates, key=lambda rule: mean_of(result, rule, section.figure) or 0.0, default=None)


def ranked_policies(section: Section, result: CaseResult, labels: Iterable[str]) -> list[str]:
    """Return policies by their mean of the section's figure, the least first, those without it last."""
    return sorted(labels, key=lambda label: (mean_of(result, label, section.figure) or inf, label))


def learned_policies(result: CaseResult) -> tuple[str, ...]:
    """Return the labels of the policies that are no rules and have runs, sorted."""
    return tuple(sorted(label for label in result.learned if label in result.runs))


def judged_policies(section: Section, case: Case, result: CaseResult) -> tuple[str, ...]:
    """Return who is judged: the policies that are no rules, or the strongest rule where there are none."""
    strongest = strongest_rule(section, case, result)
    return learned_policies(result) or (() if strongest is None else (strongest,))


def judgements(
    section: Section, case: Case, result: CaseResult, undisturbed: CaseResult | None = None
) -> tuple[Judgement, ...]:
    """Return every goal of a case for every policy that it concerns."""
    strongest = strongest_rule(section, case, result) or ""
    found = []
    for label in judged_policies(section, case, result):
        for goal in case.goals:
            against = "" if goal.kind in {"value", "largest", "undisturbed"} else goal.against or strongest
            if against != label and goal.of in {"", label}:
                found.append(judged(goal, label, against, result, undisturbed))
    return tuple(found)


def judged(
    goal: Goal, label: str, against: str, result: CaseResult, undisturbed: CaseResult | None = None
) -> Judgement:
    """Return a goal held against a policy."""
    least: float | None = None
    if goal.within_interval:
        goal = _within_interval(goal, against, result)
    if goal.kind == "value":
        found = estimate_of(result, label, goal.figure)
    elif goal.kind == "largest":
        found = _largest(result, label, goal.figure)
    elif goal.kind == "undisturbed":
        found = None if undisturbed is None else difference_of(result, label, label, goal.figure, base=undisturbed)
    else:
        found = difference_of(result, label, against, goal.figure, percent=goal.kind == "percent")
        least = _least_percent(goal, label, against, result)
    whole = has_every_seed(result, label) and (not against or has_every_seed(result, against))
    verdict = _verdict(goal, found, least) if whole else "open"
    return Judgement(goal=goal, label=label, against=against, found=found, least=least, verdict=verdict)


def has_every_seed(result: CaseResult, label: str) -> bool:
    """Return whether a policy has a run of every seed of the case: a mean without those that failed would flatter."""
    every = {seed for by_seed in result.runs.values() for seed in by_seed}
    failed = any(failure.startswith((f"{label}, seed ", f"{label}: ")) for failure in result.failures)
    return not failed and every <= result.runs.get(label, {}).keys()


def _within_interval(goal: Goal, against: str, result: CaseResult) -> Goal:
    """Return the goal with half of the other policy's own interval as its limit, which it tells."""
    own = estimate_of(result, against, goal.figure)
    if own is None or own.low is None or own.high is None:
        return goal
    half = 0.5 * (own.high - own.low)
    return replace(goal, most=half, text=f"{goal.text} ({half:.3f})")


def _largest(result: CaseResult, label: str, figure: str) -> Estimate | None:
    """Return the largest value of all seeds, which is a fact and no estimate: its interval is itself."""
    values = [figures[figure] for figures in result.runs.get(label, {}).values() if figure in figures]
    return Estimate(mean=max(values), low=max(values), high=max(values), seeds=len(values)) if values else None


def _verdict(goal: Goal, found: Estimate | None, least: float | None) -> Verdict:
    if found is None or found.high is None:
        return "open"  # one seed has no interval
    if found.high < goal.most - _EQUAL if goal.is_strict else found.high <= goal.most:
        return "met"
    return "missed: no policy can" if least is not None and least > goal.most else "missed"


def _least_percent(goal: Goal, label: str, against: str, result: CaseResult) -> float | None:
    """Return the difference from the other policy that the bound for the judged policy's own work leaves."""
    if not goal.bound_figure or goal.kind != "percent":
        return None
    mine, theirs = result.runs.get(label, {}), result.runs.get(against, {})
    pairs = [
        (mine[seed][goal.bound_figure], theirs[seed][goal.figure])
        for seed in mine
        if seed in theirs and goal.bound_figure in mine[seed] and goal.figure in theirs[seed]
    ]
    found = paired_difference_percent([one for one, _ in pairs], [two for _, two in pairs]) if pairs else None
    return None if found is None else found.mean


def _pairs(result: CaseResult, label: str, base: CaseResult, other: str, figure: str) -> Sequence[tuple[float, float]]:
    mine, theirs = result.runs.get(label, {}), base.runs.get(other, {})
    return [
        (mine[seed][figure], theirs[seed][figure])
        for seed in mine
        if seed in theirs and figure in mine[seed] and figure in theirs[seed]
    ]
