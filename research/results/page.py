"""The results page as Markdown, from the results alone."""

from collections.abc import Iterator, Sequence
from math import inf

from research.results.cases import FIRST_SEED, Case, Column, Section
from research.results.document import CaseResult, Results
from research.results.judging import (
    Judgement,
    difference_of,
    estimate_of,
    has_every_seed,
    judgements,
    learned_policies,
    mean_of,
    strongest_rule,
)
from research.results.matrix_sizes import KEY as MATRIX_KEY
from research.results.plots import plot_names
from research.results.program import program_of
from research.results.tables import NONE, matrix_size_tables, table
from slurm_energy.evaluation.intervals import Estimate
from slurm_energy.policy.checkpoint_files import check_files
from slurm_energy.policy.shipped import shipped_folder

_AGAINST = "against_undisturbed_percent"

_HEAD = """# Results

Policies of the arena on fixed scenarios, each on the same arrivals as the others, with 95 % bootstrap intervals over
seeds in brackets ([how](arena.md#over-seeds)) and bounds that no policy can pass. Figures are defined in
[arena.md](arena.md), rules in [policies.md](policies.md), worlds in [worlds.md](worlds.md). Written by `make results`;
every figure, verdict and name of a strongest rule on it is worked out from [results.json](results/results.json).
*Against* a policy is the mean paired difference in per cent (of a figure in per cent: in points), seed by seed. Seeds
are {first_seed} and the following, as many as were fixed for a case before anybody ran one of them.

**The strongest rule** of a case, in bold, is the rule with the least mean of the section's figure among those whose
queue does not grow, chosen after the fact on the very arrivals that are shown: a policy that is to beat it gets no
favour from the choice. It is offered under the name that stands here: `slurm-energy arena run --policy NAME` and
`slurm-energy twin replay` take it, for a site to see whether it is the strongest there too; what the daemon can be told
to run is in [policies.md](policies.md). **Goals** are held against
learned policies, where there are none against the strongest rule. A goal is met if the whole interval is on its side,
and open without an interval or where a run of either failed; *no policy can* says that even the bound is on the other
side.

A policy is added by one line in `CANDIDATES` (`research/results/sections.py`) or for one run by
`--policy`, as `POLICY`, `LABEL::POLICY` or `LABEL::WHERE,…::POLICY` with keys of sections or cases:

    python -m research.results --write docs/reference/results.md --reuse \\
        --policy 'net::wakeup,misled::gnn:checkpoint=FOLDER'
"""
_QUICK = """> **A short run**: a twelfth of the length, two seeds, the first cases of each section. It shows that
> everything works; its figures say little.
"""


def results_page(sections: Sequence[Section], results: Results, folder: str) -> str:
    """Return the page.

    Args:
        sections: In the page's order; cases without results are left out.
        results: Everything that was found.
        folder: Where the plots lie, seen from the page.
    """
    parts = [_HEAD.format(first_seed=FIRST_SEED), _programs(results), _shipped()]
    if results.is_quick:
        parts.append(_QUICK)
    for section in sections:
        cases = [case for case in section.cases if case.key in results.cases]
        if cases:
            parts.append("\n".join(_section(section, cases, results, folder)))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _programs(results: Results) -> str:
    """Return who made the runs, and which of them another program than the rest."""
    made: dict[str, list[str]] = {}
    runs = 0
    for key, case in sorted(results.cases.items()):
        for label, by_seed in sorted(case.runs.items()):
            made.setdefault(program_of(case.makers.get(label, "")) or "an older one", []).append(f"{key}: {label}")
            runs += len(by_seed)
    if not made:
        return ""
    main = max(made, key=lambda program: len(made[program]))
    others = [f"`{name}` by {program}" for program, names in sorted(made.items()) if program != main for name in names]
    told = f"{runs:,} runs, all by one program (digest of its files: {main})."
    return told if not others else told.replace("all by", "most by") + f" By others: {', '.join(others)}."


def _shipped() -> str:
    """Return what the policy is that comes with the package."""
    folder = shipped_folder()
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return (
        f"`checkpoint=shipped` is {check_files(folder).version}, {megabytes:.2f} MB (asked: at most 5), made by one "
        "command ([how, and how long it took](../explanation/learning.md#the-shipped-policy)) on worlds without "
        "disturbances, deadlines, power budgets and wrong estimates. What it does with GPU types that no training has "
        "met is in the section of `gavel-shared`; under Slurm it serves any number of partitions and types, and leaves "
        "jobs on types of which nobody has measured anything as they are (`tests/unit/policy/gnn/test_shipped.py`)."
    )


def _section(section: Section, cases: Sequence[Case], results: Results, folder: str) -> Iterator[str]:
    yield f"## {section.title}"
    yield " ".join(section.text.split())
    yield ""
    for name in plot_names(section):
        yield f"![{section.title}]({folder}/{name})"
        yield ""
    yield from _overview(section, cases, results)
    yield ""
    yield from _goals(section, cases, results)
    for case in cases:
        yield ""
        yield from _case(section, case, results)
    if section.key == MATRIX_KEY and results.matrix_sizes is not None:
        yield ""
        yield from matrix_size_tables(results.matrix_sizes, folder)


def _overview(section: Section, cases: Sequence[Case], results: Results) -> Iterator[str]:
    """Yield the strongest rule of each case and everybody else's place."""
    column = section.columns[0]
    rows = []
    for case in cases:
        result = results.cases[case.key]
        rule = strongest_rule(section, case, result)
        learned = learned_policies(result)
        ranked = sorted(learned, key=lambda label: (mean_of(result, label, section.figure) or inf, label))
        best = ranked[0] if ranked else None
        rows.append(
            [
                f"`{case.key}`",
                NONE if rule is None else f"`{rule}`",
                NONE if rule is None else _cell(column, result, rule, with_interval=True),
                NONE if best is None else f"`{best}`",
                NONE if best is None else _cell(column, result, best, with_interval=True),
                NONE
                if best is None or rule is None
                else _interval(
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


def _goals(section: Section, cases: Sequence[Case], results: Results) -> Iterator[str]:
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
    found = _interval(judgement.found, 2, sign=goal.kind != "value")
    return [
        f"`{case.key}`",
        goal.text + against,
        f"`{judgement.label}`",
        found if found == NONE else found + unit,
        NONE if judgement.least is None else f"{judgement.least:+.1f} %",
        judgement.verdict,
    ]


def _case(section: Section, case: Case, results: Results) -> Iterator[str]:
    result = results.cases[case.key]
    yield f"### {case.title} (`{case.key}`)"
    seeds = sorted({seed for by_seed in result.runs.values() for seed in by_seed})
    merit = "" if case.merit is None else f" Cost = {case.merit.formula}."
    yield f"World `{case.plan.world}`, {len(seeds)} seed{'' if len(seeds) == 1 else 's'}.{merit}"
    yield ""
    strongest = strongest_rule(section, case, result)
    columns = [column for column in section.columns if _is_told(column, case, result, results)]
    labels = sorted(result.runs, key=lambda label: (mean_of(result, label, section.figure) or inf, label))
    rows = []
    for label in labels:
        cells = [_shown(column, case, label, results) for column in columns]
        difference = (
            None
            if label == case.reference
            else difference_of(result, label, case.reference, section.figure, percent=section.is_relative)
        )
        name = f"**`{label}`**" if label == strongest else f"`{label}`"
        if not has_every_seed(result, label):
            name += f" ({len(result.runs[label])} of {len(seeds)} seeds)"
        rows.append([name, *cells, _interval(difference, 2, sign=True)])
    yield from table(
        ["policy", *(column.heading for column in columns), f"against {case.reference}, {_unit(section)}"], rows
    )
    swept = [f"`{label}` = `{text}`" for label, text in result.texts.items() if label != text and label in case.rules]
    if swept:
        yield ""
        yield "Clocks found by sweeps: " + ", ".join(swept) + "."
    for failure in result.failures:
        yield ""
        yield f"Failed: {failure}"


def _unit(section: Section) -> str:
    return "%" if section.is_relative else "points"


def _is_told(column: Column, case: Case, result: CaseResult, results: Results) -> bool:
    """Return whether a column says anything in a case: somebody has the figure, and not all have 0."""
    if column.figure == _AGAINST:
        return case.undisturbed in results.cases
    means = [mean_of(result, label, column.figure) for label in result.runs]
    return any(means)


def _shown(column: Column, case: Case, label: str, results: Results) -> str:
    result = results.cases[case.key]
    if column.figure == _AGAINST:
        base = results.cases[case.undisturbed]
        figure = "energy_time_product_joule_seconds"
        return _interval(difference_of(result, label, label, figure, base=base), column.digits, sign=True)
    return _cell(column, result, label, with_interval=column.interval)


def _cell(column: Column, result: CaseResult, label: str, *, with_interval: bool) -> str:
    if with_interval:
        found = estimate_of(result, label, column.figure)
        return _interval(_scaled(found, column.per), column.digits)
    mean = mean_of(result, label, column.figure)
    return NONE if mean is None else f"{mean / column.per:,.{column.digits}f}"


def _scaled(found: Estimate | None, per: float) -> Estimate | None:
    if found is None:
        return None
    low, high = (None if value is None else value / per for value in (found.low, found.high))
    return Estimate(mean=found.mean / per, low=low, high=high, seeds=found.seeds)


def _interval(found: Estimate | None, digits: int, *, sign: bool = False) -> str:
    if found is None:
        return NONE
    form = f"{'+' if sign else ''},.{digits}f"
    if found.low is None or found.high is None:
        return format(found.mean, form)
    return f"{format(found.mean, form)} [{format(found.low, form)}, {format(found.high, form)}]"
