"""The results as JSON: every run's figures, so that the page can be written again without a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena_plan import world_of_plan
from slurm_energy.evaluation.results.cases import Case
from slurm_energy.twin.world_writer import world_to_toml

FORMAT, FORMAT_VERSION = "slurm-energy-results", 1
Figures = Mapping[str, float]


@dataclass(kw_only=True)
class CaseResult:
    """What was found in one case."""

    fingerprint: str
    """Of the world and everything else that figures depend on but policies and the program."""
    texts: dict[str, str] = field(default_factory=dict)
    """What made each policy, by its label; of a sweep, with the clocks that it found."""
    learned: list[str] = field(default_factory=list)
    """Labels of the policies that are judged against the rules."""
    runs: dict[str, dict[int, Figures]] = field(default_factory=dict)
    """Figures by label and seed."""
    failures: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Results:
    """All cases by key."""

    cases: dict[str, CaseResult] = field(default_factory=dict)
    wall_seconds: float = 0.0
    """Of the last run that added to them."""
    is_quick: bool = False


def fingerprint_of(case: Case) -> str:
    """Return a digest of a case's world, jobs, length and figure of merit."""
    plan = case.plan
    parts = (
        world_to_toml(replace(world_of_plan(plan), source="")),
        repr((plan.horizon_seconds, plan.warm_up_seconds, plan.drain, plan.generator, plan.settings)),
        repr((case.merit, case.frontier)),
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def write_results(path: Path, results: Results) -> None:
    """Write the results, a line for each run; the same results give the same bytes."""
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "is_quick": results.is_quick,
        "wall_seconds": round(results.wall_seconds, 1),
    }
    cases = ",\n".join(_case_text(key, case) for key, case in sorted(results.cases.items()))
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": {{\n{cases}\n }}\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _case_text(key: str, case: CaseResult) -> str:
    runs = [f"   {json.dumps(label)}: {{\n{_runs_text(by_seed)}\n   }}" for label, by_seed in sorted(case.runs.items())]
    lines = [
        f'  "fingerprint": {json.dumps(case.fingerprint)}',
        f'  "texts": {json.dumps(case.texts)}',
        f'  "learned": {json.dumps(case.learned)}',
        f'  "failures": {json.dumps(case.failures)}',
        '  "runs": {\n' + ",\n".join(runs) + "\n  }",
    ]
    return f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }"


def _runs_text(by_seed: Mapping[int, Figures]) -> str:
    return ",\n".join(f'    "{seed}": {_figures_text(figures)}' for seed, figures in sorted(by_seed.items()))


def _figures_text(figures: Figures) -> str:
    """Return figures with 7 significant digits: what is beyond them is rounding of sums, and makes files change."""
    rounded = {name: float(f"{value:.7g}") for name, value in sorted(figures.items())}
    return json.dumps(rounded, allow_nan=False)


def read_results(path: Path) -> Results:
    """Return results that were written.

    Raises:
        EvaluationError: the file cannot be read, or is none of these.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["format_version"] != FORMAT_VERSION:
            raise EvaluationError(f"{path}: format {document['format']!r} {document['format_version']!r} is another")
        cases = {key: _case_result(value) for key, value in document["cases"].items()}
        return Results(cases=cases, wall_seconds=document["wall_seconds"], is_quick=document["is_quick"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(f"{path}: cannot be read as results: {error}") from error


def _case_result(value: Mapping[str, Any]) -> CaseResult:
    runs: dict[str, dict[int, Figures]] = {
        str(label): {
            int(seed): {str(name): float(number) for name, number in figures.items()}
            for seed, figures in by_seed.items()
        }
        for label, by_seed in value["runs"].items()
    }
    return CaseResult(
        fingerprint=str(value["fingerprint"]),
        texts={str(label): str(text) for label, text in value["texts"].items()},
        runs=runs,
        failures=[str(text) for text in value["failures"]],
        learned=[str(label) for label in value.get("learned", ())],
    )
