"""The table with which the page opens: kind of site by what is installed; energy, turnaround, jobs beyond the bound."""

from collections.abc import Iterator, Sequence

from research.results.cases import Case
from research.results.document import CaseResult, Results
from research.results.judging import difference_of, estimate_of, has_every_seed, mean_of
from research.results.sections.hidden_site import (
    HIDDEN,
    KIND_TITLES,
    KNOWING_RULE,
    MEAN,
    MEAN_FAIR,
    NOTHING,
    PRODUCT,
    RULE,
    STATIC,
    STATIC_EACH,
    TRIALS,
)
from research.results.sections.reasons import BEHIND_STATIC_CLOCKS
from research.results.tables import NONE, interval_text, table

_ENERGY, _TURNAROUND, _BEYOND = "joules_per_unit", "mean_turnaround_seconds", "jobs_beyond_bound_percent"
_SLOWDOWN = "slurm_place_slowdown_percent"
_HEADS = (
    "kind of site",
    "nothing: energy",
    "**installed**: energy",
    "turnaround",
    "beyond bound",
    "static clocks under the same rules: energy",
    "trials: energy",
    "**mean profile**: energy",
    "turnaround",
    "slowdown, %",
    "beyond bound",
    "mean profile, fair exchange: energy",
    "beyond bound",
    "tuned rule: energy",
    "knowing the truth: energy",
    "least possible",
)


def site_table(results: Results) -> Iterator[str]:
    """Yield the table; nothing where none of its cases was run."""
    cases = [case for case in HIDDEN.cases if case.key in results.cases]
    rows = [row for case in cases if (row := _row(case, results.cases[case.key]))]
    if not rows:
        return
    seeds = sorted({len(by_seed) for case in cases for by_seed in results.cases[case.key].runs.values()})
    yield f"""## What is installed, and what it is worth

Energy per unit of work and mean turnaround in per cent against `static-best`, the best that an administrator can set
once without any program; a minus is a saving. *Beyond bound* is the share of jobs that ran more than 5 % longer than
at the default clock where Slurm would have started them. *Installed* is policy `auto` with what the daemon serves;
*trials* and the *[mean profile](../explanation/clocks.md#the-mean-profile)* are what a site may switch on; *static
clocks under the same rules* keep each job's bound and the fair exchange, as the product does as it is installed;
*nothing* is Slurm at default clocks with the same list of partitions. The tuned rule knows what the product knows, but
chooses starts too, which Slurm does not let a policy do; *knowing the truth* is the same rule with every job's kind,
length and curves. Kinds of site that were not run are left out. Brackets: 95 % intervals over {_span(seeds)} seeds
([columns](#{anchor(HIDDEN.title)})).
"""
    yield from table(_HEADS, rows)
    yield ""
    yield f"Why the installed product is where it is: {' '.join(BEHIND_STATIC_CLOCKS.split())}"
    yield ""


def _row(case: Case, result: CaseResult) -> list[str] | None:
    if not all(result.runs.get(label) for label in (STATIC, PRODUCT)):
        return None
    title = KIND_TITLES[case.key]
    partial = "" if has_every_seed(result, PRODUCT) else f" ({len(result.runs[PRODUCT])} seeds)"
    return [
        f"{title}{partial}",
        _against(result, NOTHING, _ENERGY),
        _against(result, PRODUCT, _ENERGY, with_interval=True),
        _against(result, PRODUCT, _TURNAROUND, with_interval=True),
        interval_text(estimate_of(result, PRODUCT, _BEYOND), 1),
        _against(result, STATIC_EACH, _ENERGY, with_interval=True),
        _against(result, TRIALS, _ENERGY, with_interval=True),
        _against(result, MEAN, _ENERGY, with_interval=True),
        _against(result, MEAN, _TURNAROUND, with_interval=True),
        _value(result, MEAN, _SLOWDOWN),
        _value(result, MEAN, _BEYOND),
        _against(result, MEAN_FAIR, _ENERGY, with_interval=True),
        _value(result, MEAN_FAIR, _BEYOND),
        _against(result, RULE, _ENERGY, with_interval=True),
        _against(result, KNOWING_RULE, _ENERGY),
        _least(result),
    ]


def _value(result: CaseResult, label: str, figure: str) -> str:
    return interval_text(estimate_of(result, label, figure), 1) if result.runs.get(label) else NONE


def _against(result: CaseResult, label: str, figure: str, *, with_interval: bool = False) -> str:
    found = difference_of(result, label, STATIC, figure)
    if found is None:
        return NONE
    return interval_text(found, 1, sign=True) if with_interval else f"{found.mean:+.1f}"


def _least(result: CaseResult) -> str:
    """Return how far the least energy for the static clocks' own work is below what they take."""
    gap = mean_of(result, STATIC, "bound_gap_percent")
    return NONE if gap is None else f"{100.0 * (1.0 / (1.0 + gap / 100.0) - 1.0):+.1f}"


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def anchor(title: str) -> str:
    """Return the name by which a link finds a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")
