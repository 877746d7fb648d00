"""Run the results page's comparisons and write it.

    python -m research.results --write docs/reference/results.md [--quick] [--policy TEXT] [--only KEY]

Figures go to results.json and plots to SVG files in a folder named like the page beside it. --render writes page and
plots again from results.json, without a run.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from research.results.cases import FULL, QUICK, Candidate, Effort, Section, candidate_of
from research.results.document import Results, read_results, write_results
from research.results.page import results_page
from research.results.plots import write_plots
from research.results.running import run_sections
from research.results.sections import CANDIDATES, SECTIONS
from slurm_energy.errors import EvaluationError, SlurmEnergyError

_DOCUMENT = "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and write; return 1 when something could not be, or a run failed."""
    given = _parser().parse_args(arguments)
    folder = given.write.with_suffix("")
    try:
        sections = selected_sections(SECTIONS, given.only)
        candidates = [candidate_of(text) for text in (*CANDIDATES, *given.policy)]
        results = _known(folder / _DOCUMENT, must=given.render, quick=given.quick)
        if not given.render:
            results = _run(sections, candidates, results, given, folder)
            write_results(folder / _DOCUMENT, results)
        _write(given.write, folder)
    except (SlurmEnergyError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    failures = [f"{key}: {failure}" for key, case in results.cases.items() for failure in case.failures]
    if results.matrix_sizes is not None:
        failures += [f"matrix sizes: {failure}" for failure in results.matrix_sizes.failures]
    sys.stderr.writelines(f"failed: {failure}\n" for failure in failures)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m research.results", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="page to write")
    parser.add_argument("--quick", action="store_true", help="a twelfth of the length, two seeds, fewer cases")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="TEXT", help="judge [LABEL::[WHERE,…::]]POLICY too"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="KEY", help="run only this section or case; the others are kept"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="the first N of each case's seeds")
    parser.add_argument("--reuse", action="store_true", help="keep runs of this revision, with the same inputs")
    parser.add_argument(
        "--same-as",
        action="append",
        default=[],
        metavar="REVISION",
        help="with --reuse: keep runs of this revision too, because nothing since then moves a figure",
    )
    parser.add_argument("--render", action="store_true", help="write the page from what is known, run nothing")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; else one for each CPU")
    return parser


def _effort(given: argparse.Namespace) -> Effort:
    effort = QUICK if given.quick else FULL
    if given.seeds is None:
        return effort
    if given.seeds < 1:
        raise EvaluationError(f"--seeds {given.seeds}: at least 1 is needed")
    return replace(effort, max_seeds=min(effort.max_seeds, given.seeds))


def _known(path: Path, *, must: bool, quick: bool) -> Results:
    """Return what is on disk; long and short runs are not mixed, and a short one never replaces long ones."""
    if not must and not path.exists():
        return Results(is_quick=quick)
    known = read_results(path)
    if must or known.is_quick == quick:
        return known
    if quick:
        raise EvaluationError(f"{path} has long runs, which --quick would replace: --write another page")
    return Results(is_quick=quick)


def _run(
    sections: Sequence[Section],
    candidates: Sequence[Candidate],
    results: Results,
    given: argparse.Namespace,
    folder: Path,
) -> Results:
    started = monotonic()

    def tell(doing: str, done: int, of: int) -> None:
        end = "\n" if done == of else "\r"
        sys.stderr.write(f"{doing}: {done} of {of}, {monotonic() - started:.0f} s {end}")
        sys.stderr.flush()

    return run_sections(
        sections,
        candidates,
        _effort(given),
        results,
        reuse=given.reuse,
        same_revisions=given.same_as,
        workers=given.workers,
        tell=tell,
        save=lambda found: write_results(folder / _DOCUMENT, found),
    )


def _write(page: Path, folder: Path) -> None:
    results = read_results(folder / _DOCUMENT)  # so that a page comes from the document alone, digit for digit
    write_plots(folder, SECTIONS, results)
    page.write_text(results_page(SECTIONS, results, folder.name), encoding="utf-8")


def selected_sections(sections: Sequence[Section], keys: Sequence[str]) -> tuple[Section, ...]:
    """Return the sections, or the parts of them, that keys of sections and cases name; all without a key.

    Raises:
        EvaluationError: a key is unknown.
    """
    if not keys:
        return tuple(sections)
    known = {section.key for section in sections} | {case.key for section in sections for case in section.cases}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise EvaluationError(f"{unknown[0][:64]!r} is no section or case; there are {', '.join(sorted(known))}")
    found = []
    for section in sections:
        cases = section.cases if section.key in keys else tuple(case for case in section.cases if case.key in keys)
        if cases:
            found.append(replace(section, cases=cases))
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
