"""The results page as Markdown, from the results alone: a summary on one screen, then every table."""

from collections.abc import Iterator, Sequence

from research.results.cases import FIRST_SEED, Case, Section
from research.results.document import Results
from research.results.judging import difference_of, judgements, learned_policies, ranked_policies, strongest_rule
from research.results.matrix_sizes import KEY as MATRIX_KEY
from research.results.matrix_sizes import matrix_size_tables
from research.results.plots import plot_name
from research.results.provenance import UNKNOWN, revision_of
from research.results.site_table import anchor, site_table
from research.results.tables import NONE, case_table, goal_table, overview, table
from slurm_energy.policy.automatic import shipped_folder
from slurm_energy.policy.checkpoint_files import check_files

_HEAD = """# Results

Policies on fixed scenarios in simulation, each on the same arrivals as the others. Written by `make results`; every
figure and verdict comes from [results.json](results/results.json).
"""
_SUMMARY = """## Summary

How learned policies compare in the first figure of each section below: with the case's reference, which its table
names, and with the strongest rule, chosen after the fact. In all sections but the last, rules know each job's kind,
length and own curves, which no site knows, and `the daemon` knew the length. Each is the mean over cases
of the paired difference, and its range; a minus is a saving. A goal is met if the whole 95 % interval is on its side.
`the daemon` is what is installed under Slurm; the other policies also choose nodes and later starts, which the
simulated scheduler carries out.
"""
_MAX_POLICIES = 2
"""Of a section that have a line of their own in the summary."""
_READING = """## How to read the tables

Intervals in brackets are 95 % bootstrap intervals over seeds ([how](arena.md#over-seeds)); bounds are values that no
policy can pass. Figures are defined in [arena.md](arena.md), rules in [policies.md](policies.md), worlds in
[worlds.md](worlds.md). *Against* a policy is the mean paired difference in per cent (of a figure in per cent: in
points), seed by seed. Seeds are {first_seed} and the following, as many as were fixed for a case before the first run.

**The strongest rule** of a case, in bold, is the rule with the least mean of the section's figure among those whose
queue does not grow, chosen after the fact on the very arrivals that are shown: a policy that is compared with it gets
no favour from the choice. It is offered under the name that stands here: `slurm-energy arena run --policy NAME` and
`slurm-energy twin replay` take it, for a site to see whether it is the strongest there too; what the daemon can run is
in [policies.md](policies.md). **Goals** are for learned policies, where there are none for the strongest rule. A goal
is met if the whole interval is on its side, and open without an interval or where a run of either failed; *no policy
can* says that even the bound is on the other side.

A policy is added by one line in `CANDIDATES` (`research/results/sections/__init__.py`) or for one run by
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
    cases_by_section = [
        (section, [case for case in section.cases if case.key in results.cases]) for section in sections
    ]
    shown = [(section, cases) for section, cases in cases_by_section if cases]
    parts = [_HEAD, *([_QUICK] if results.is_quick else []), "\n".join(site_table(results))]
    parts += ["\n".join(_summary(shown, results))]
    parts += [_READING.format(first_seed=FIRST_SEED), _shipped()]
    parts += ["\n".join(_section(section, cases, results, folder)) for section, cases in shown]
    return "\n".join(part.rstrip() + "\n" for part in parts if part)


def _summary(shown: Sequence[tuple[Section, Sequence[Case]]], results: Results) -> Iterator[str]:
    yield _SUMMARY
    rows = [row for section, cases in shown for row in _summary_rows(section, cases, results)]
    heads = ["section", "figure", "policy", "cases", "against the reference", "against the strongest rule", "goals met"]
    yield from table(heads, rows)
    yield ""
    yield _revisions(results)


def _summary_rows(section: Section, cases: Sequence[Case], results: Results) -> Iterator[list[str]]:
    """Yield a row for each of a few policies that run in every case, else one of the best policy of each case."""
    learned = [set(learned_policies(results.cases[case.key])) for case in cases]
    in_all = sorted(set.intersection(*learned))
    link = f"[{section.title}](#{anchor(section.title)})"
    for label in in_all if 0 < len(in_all) <= _MAX_POLICIES else [None]:
        yield [link, section.columns[0].heading.split(",")[0], *_summary_cells(section, cases, results, label)]


def _summary_cells(section: Section, cases: Sequence[Case], results: Results, label: str | None) -> list[str]:
    against_reference: list[float] = []
    against_strongest: list[float] = []
    verdicts: list[bool] = []
    names: set[str] = set()
    for case in cases:
        result = results.cases[case.key]
        rule = strongest_rule(section, case, result)
        policy = label or next(iter(ranked_policies(section, result, learned_policies(result))), rule)
        if policy is None:
            continue
        names.add(policy)
        for differences, other in ((against_reference, case.reference), (against_strongest, rule)):
            if other is not None and policy != other:
                found = difference_of(result, policy, other, section.figure, percent=section.is_relative)
                differences.extend([] if found is None else [found.mean])
        every = judgements(section, case, result, results.cases.get(case.undisturbed))
        verdicts += [judgement.verdict == "met" for judgement in every if judgement.label == policy]
    unit = "%" if section.is_relative else "points"
    return [
        f"`{names.pop()}`" if len(names) == 1 else "best of each case",
        str(len(cases)),
        _range(against_reference, unit),
        _range(against_strongest, unit),
        f"{sum(verdicts)} of {len(verdicts)}" if verdicts else NONE,
    ]


def _range(values: Sequence[float], unit: str) -> str:
    if not values:
        return NONE
    mean = f"{sum(values) / len(values):+.1f} {unit}"
    return mean if len(values) == 1 else f"{mean} ({min(values):+.1f} to {max(values):+.1f})"


def _revisions(results: Results) -> str:
    """Return at which revision runs were made, and which of them at another than the rest."""
    made: dict[str, dict[str, list[str]]] = {}
    runs = 0
    for key, case in sorted(results.cases.items()):
        for label, by_seed in sorted(case.runs.items()):
            revision = revision_of(case.inputs.get(label, UNKNOWN))
            made.setdefault(revision, {}).setdefault(key, []).append(label)
            runs += len(by_seed)
    if not made:
        return ""
    main = max(made, key=lambda revision: sum(map(len, made[revision].values())))
    others = [
        f"`{key}` at {other}" if len(labels) == len(results.cases[key].runs) else f"`{key}: {label}` at {other}"
        for other, cases in sorted(made.items())
        if other != main
        for key, labels in sorted(cases.items())
        for label in (labels if len(labels) < len(results.cases[key].runs) else labels[:1])
    ]
    if not others:
        return f"{runs:,} runs, all at revision {main}."
    return f"{runs:,} runs, most at revision {main}. At others: {', '.join(others)}."


def _shipped() -> str:
    """Return what the policy is that comes with the package."""
    folder = shipped_folder()
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return (
        f"`checkpoint=shipped` is {check_files(folder).version}, {megabytes:.2f} MB (asked: at most 5), made by one "
        "command ([how, and how long it took](../explanation/learning.md#the-shipped-policy)) on worlds without "
        "disturbances, deadlines, power budgets and wrong estimates. What it does with GPU types that no training has "
        "met is in the section of `gavel-shared`; under Slurm it serves any number of partitions and types, and leaves "
        "jobs on types that were never measured as they are (`tests/unit/policy/gnn/test_shipped.py`)."
    )


def _section(section: Section, cases: Sequence[Case], results: Results, folder: str) -> Iterator[str]:
    yield f"## {section.title}"
    yield " ".join(section.text.split())
    yield ""
    yield f"![{section.title}]({folder}/{plot_name(section)})"
    yield ""
    yield from overview(section, cases, results)
    yield ""
    yield from goal_table(section, cases, results)
    for case in cases:
        yield ""
        yield from case_table(section, case, results)
    if section.key == MATRIX_KEY and results.matrix_sizes is not None:
        yield ""
        yield from matrix_size_tables(results.matrix_sizes, folder)
