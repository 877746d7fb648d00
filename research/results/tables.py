"""Tables of the results page as Markdown: the places of policies, verdicts on goals, and the figures of a case."""

from collections.abc import Iterator, Sequence

from research.results.cases import Case, Column, Section
from research.results.document import CaseResult, Results
from research.results.judging import (
    Judgement,
    difference_of,
    estimate_of,
    has_every_seed,
    judgements,
    learned_policies,
    mean_of,
    ranked_policies,
    strongest_rule,
)
from slurm_energy.evaluation.arena.summary import Estimate

NONE = "-"
"""A cell without a figure."""
_AGAINST = "against_undisturbed_percent"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" + "---:|" * (len(heads) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def overview(section: Section, cases: Sequence[Case], results: Results) -> Iterator[str]:
    """Yield the strongest rule of each case and the best learned policy beside it."""
    column = section.columns[0]
    rows = []
    for case in cases:
        result = results.cases[case.key]
        rule = strongest_rule(section, case, result)
        best = next(iter(ranked_policies(section, result, learned_policies(result))), None)
        rows.append(
            [
                f"`{case.key}`",
                NONE if rule is None else f"`{rule}`",
                NONE if rule is None else _cell(column, result, rule, with_interval=True),
                NONE if best is None else f"`{best}`",
                NONE if best is None else _cell(column, result, best, with_interval=True),
                NONE
                if best is None or rule is None
                else interval_text(
                    difference_of(result, best, rule, section.figure, percent=section.is_relative), 2, sign=True
                ),
            ]
        )
    heads = [
        "case",
        "strongest rule",
        column.heading,
        "best learned",
        column.heading,
        f"against the rule, {_unit(section)}",
    ]
    if all(row[3] == NONE for row in rows):
        heads, rows = heads[:3], [row[:3] for row in rows]
    yield from table(heads, rows)


def goal_table(section: Section, cases: Sequence[Case], results: Results) -> Iterator[str]:
    """Yield the verdict on each goal, and why goals are missed."""
    found = [
        (case, judgement)
        for case in cases
        for judgement in judgements(section, case, results.cases[case.key], results.cases.get(case.undisturbed))
    ]
    if found:
        rows = [_goal_row(case, judgement) for case, judgement in found]
        yield from table(["case", "goal", "policy", "found", "least possible", "verdict"], rows)
        yield from _reasons(found)


def _reasons(found: Sequence[tuple[Case, Judgement]]) -> Iterator[str]:
    """Yield why goals are missed: each reason once, with the goals and cases that it is of."""
    goals_by_reason: dict[str, dict[str, list[str]]] = {}
    for case, judgement in found:
        goal = judgement.goal
        if goal.why and judgement.verdict.startswith("missed"):
            cases = goals_by_reason.setdefault(goal.why, {}).setdefault(goal.text, [])
            if case.key not in cases:
                cases.append(case.key)
    if not goals_by_reason:
        return
    yield ""
    yield "Why goals are missed:"
    yield ""
    for why, cases_by_goal in goals_by_reason.items():
        where = "; ".join(f"*{text}* ({', '.join(f'`{key}`' for key in keys)})" for text, keys in cases_by_goal.items())
        yield f"- {where}: {' '.join(why.split())}"


def _goal_row(case: Case, judgement: Judgement) -> list[str]:
    goal = judgement.goal
    unit = " %" if goal.kind in {"percent", "undisturbed"} or goal.figure.endswith("_percent") else ""
    if unit and goal.kind == "difference":
        unit = " points"
    against = f" ({judgement.against})" if judgement.against and not goal.against else ""
    found = interval_text(judgement.found, 2, sign=goal.kind != "value")
    return [
        f"`{case.key}`",
        goal.text + against,
        f"`{judgement.label}`",
        found if found == NONE else found + unit,
        NONE if judgement.least is None else f"{judgement.least:+.1f} %",
        judgement.verdict,
    ]


def case_table(section: Section, case: Case, results: Results) -> Iterator[str]:
    """Yield every policy's figures in a case, the least first."""
    result = results.cases[case.key]
    yield f"### {case.title} (`{case.key}`)"
    seeds = sorted({seed for by_seed in result.runs.values() for seed in by_seed})
    merit = "" if case.merit is None else f" Cost = {case.merit.formula}."
    yield f"World `{case.plan.world}`, {len(seeds)} seed{'' if len(seeds) == 1 else 's'}.{_knowledge(case)}{merit}"
    yield ""
    strongest = strongest_rule(section, case, result)
    columns = [column for column in section.columns if _says_something(column, case, result, results)]
    rows = []
    for label in ranked_policies(section, result, result.runs):
        cells = [_shown(column, case, label, results) for column in columns]
        difference = (
            None
            if label == case.reference
            else difference_of(result, label, case.reference, section.figure, percent=section.is_relative)
        )
        name = f"**`{label}`**" if label == strongest else f"`{label}`"
        if not has_every_seed(result, label):
            name += f" ({len(result.runs[label])} of {len(seeds)} seeds)"
        rows.append([name, *cells, interval_text(difference, 2, sign=True)])
    yield from table(
        ["policy", *(column.heading for column in columns), f"against {case.reference}, {_unit(section)}"], rows
    )
    swept = [f"`{label}` = `{text}`" for label, text in result.texts.items() if label != text and label in case.rules]
    named = [f"`{label}` = `{result.texts[label]}`" for label in case.all_rules if label in result.texts]
    if swept:
        yield ""
        yield "Clocks found by sweeps: " + ", ".join(swept) + "."
    if case.labelled:
        yield ""
        yield "Policies: " + ", ".join(text for text in named if text not in swept) + "."
    for failure in result.failures:
        yield ""
        yield f"Failed: {failure}"


def _knowledge(case: Case) -> str:
    """Return what policies know, where it is less than everything."""
    if not case.yardsticks:
        return ""
    days = f"{case.plan.history_days:g} day{'' if case.plan.history_days == 1.0 else 's'}"
    order = ", ".join(f"`{name}`" for name in case.plan.partition_order)
    listed = f" Slurm's list: {order}." if order else ""
    return f" Policies know what a site knows, with {days} of history.{listed}"


def _unit(section: Section) -> str:
    return "%" if section.is_relative else "points"


def _says_something(column: Column, case: Case, result: CaseResult, results: Results) -> bool:
    """Return whether a column says anything in a case: a policy has the figure, and not all have 0."""
    if column.figure == _AGAINST:
        return case.undisturbed in results.cases
    means = [mean_of(result, label, column.figure) for label in result.runs]
    return any(means)


def _shown(column: Column, case: Case, label: str, results: Results) -> str:
    result = results.cases[case.key]
    if column.figure == _AGAINST:
        base = results.cases[case.undisturbed]
        figure = "energy_time_product_joule_seconds"
        return interval_text(difference_of(result, label, label, figure, base=base), column.digits, sign=True)
    return _cell(column, result, label, with_interval=column.interval)


def _cell(column: Column, result: CaseResult, label: str, *, with_interval: bool) -> str:
    if with_interval:
        found = estimate_of(result, label, column.figure)
        return interval_text(_scaled(found, column.per), column.digits)
    mean = mean_of(result, label, column.figure)
    return NONE if mean is None else f"{mean / column.per:,.{column.digits}f}"


def _scaled(found: Estimate | None, per: float) -> Estimate | None:
    if found is None:
        return None
    low, high = (None if value is None else value / per for value in (found.low, found.high))
    return Estimate(mean=found.mean / per, low=low, high=high, seeds=found.seeds)


def interval_text(found: Estimate | None, digits: int, *, sign: bool = False) -> str:
    """Return mean and interval as they stand in a cell."""
    if found is None:
        return NONE
    form = f"{'+' if sign else ''},.{digits}f"
    if found.low is None or found.high is None:
        return format(found.mean, form)
    return f"{format(found.mean, form)} [{format(found.low, form)}, {format(found.high, form)}]"
