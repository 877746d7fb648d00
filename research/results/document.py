"""The results as JSON: every run's figures, so that the page can be written again without a run."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from research.results.cases import Case
from slurm_energy.errors import EvaluationError
from slurm_energy.evaluation.arena.plan import world_of_plan
from slurm_energy.twin.world.writer import world_to_toml

FORMAT, FORMAT_VERSION = "slurm-energy-results", 2
Figures = Mapping[str, float]


@dataclass(kw_only=True)
class CaseResult:
    """What was found in one case."""

    fingerprint: str
    """Version of the data: of the world, its jobs, length and figure of merit."""
    texts: dict[str, str] = field(default_factory=dict)
    """What made each policy, by its label; of a sweep, with the clocks that it found."""
    learned: list[str] = field(default_factory=list)
    """Labels of the policies that are judged against the rules."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Declared inputs of the runs beside case and text, by label: see provenance."""
    runs: dict[str, dict[int, Figures]] = field(default_factory=dict)
    """Figures by label and seed."""
    failures: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class MatrixSizes:
    """What policies did with matrix products of each size, in one run of each."""

    fingerprint: str
    seed: int
    hours: float
    """Of arrivals."""
    texts: dict[str, str] = field(default_factory=dict)
    """What made each policy, by its label, rules first."""
    inputs: dict[str, str] = field(default_factory=dict)
    """As those of a case."""
    sizes: dict[str, dict[int, Figures]] = field(default_factory=dict)
    """Figures by label and size."""
    failures: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Results:
    """All cases by key."""

    cases: dict[str, CaseResult] = field(default_factory=dict)
    matrix_sizes: MatrixSizes | None = None
    """None where they were never run."""
    wall_seconds: float = 0.0
    """Of the last run that added to them."""
    is_quick: bool = False


def fingerprint_of(case: Case) -> str:
    """Return a digest of a case's world, jobs, length and figure of merit."""
    plan = case.plan
    parts = (
        world_to_toml(replace(world_of_plan(plan), source="")),
        repr((plan.horizon_seconds, plan.warm_up_seconds, plan.drain, plan.generator, plan.settings)),
        *([repr(plan.history_days)] if plan.history_days else []),
        repr((case.merit, case.frontier)),
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def write_results(path: Path, results: Results) -> None:
    """Write the results, a line for each run; the same results give the same bytes. There is never half a file."""
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "is_quick": results.is_quick,
        "wall_seconds": round(results.wall_seconds, 1),
    }
    cases = ",\n".join(_case_text(key, case) for key, case in sorted(results.cases.items()))
    sizes = "" if results.matrix_sizes is None else f',\n "matrix_sizes": {_sizes_text(results.matrix_sizes)}'
    text = json.dumps(head, indent=1)[:-2] + f',\n "cases": {{\n{cases}\n }}{sizes}\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _case_text(key: str, case: CaseResult) -> str:
    lines = [
        f'  "fingerprint": {json.dumps(case.fingerprint)}',
        f'  "texts": {json.dumps(case.texts)}',
        f'  "learned": {json.dumps(case.learned)}',
        f'  "inputs": {json.dumps(case.inputs)}',
        f'  "failures": {json.dumps(case.failures)}',
        f'  "runs": {_labels_text(case.runs)}',
    ]
    return f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }"


def _sizes_text(sizes: MatrixSizes) -> str:
    lines = [
        f'  "fingerprint": {json.dumps(sizes.fingerprint)}',
        f'  "seed": {sizes.seed}',
        f'  "hours": {json.dumps(sizes.hours)}',
        f'  "texts": {json.dumps(sizes.texts)}',
        f'  "inputs": {json.dumps(sizes.inputs)}',
        f'  "failures": {json.dumps(sizes.failures)}',
        f'  "sizes": {_labels_text(sizes.sizes)}',
    ]
    return "{\n" + ",\n".join(lines) + "\n }"


def _labels_text(figures: Mapping[str, Mapping[int, Figures]]) -> str:
    """Return figures by label and seed or size, a line for each of these."""
    rows = [
        f"   {json.dumps(label)}: {{\n{_rows_text(by_number)}\n   }}" for label, by_number in sorted(figures.items())
    ]
    return "{\n" + ",\n".join(rows) + "\n  }"


def _rows_text(by_number: Mapping[int, Figures]) -> str:
    return ",\n".join(f'    "{number}": {_figures_text(figures)}' for number, figures in sorted(by_number.items()))


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
        sizes = document.get("matrix_sizes")
        return Results(
            cases=cases,
            matrix_sizes=None if sizes is None else _matrix_sizes(sizes),
            wall_seconds=document["wall_seconds"],
            is_quick=document["is_quick"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(f"{path}: cannot be read as results: {error}") from error


def _case_result(value: Mapping[str, Any]) -> CaseResult:
    return CaseResult(
        fingerprint=str(value["fingerprint"]),
        texts=_texts(value["texts"]),
        runs=_figures_by_label(value["runs"]),
        failures=[str(text) for text in value["failures"]],
        learned=[str(label) for label in value.get("learned", ())],
        inputs=_texts(value["inputs"]),
    )


def _matrix_sizes(value: Mapping[str, Any]) -> MatrixSizes:
    return MatrixSizes(
        fingerprint=str(value["fingerprint"]),
        seed=int(value["seed"]),
        hours=float(value["hours"]),
        texts=_texts(value["texts"]),
        inputs=_texts(value["inputs"]),
        sizes=_figures_by_label(value["sizes"]),
        failures=[str(text) for text in value["failures"]],
    )


def _texts(value: Mapping[str, Any]) -> dict[str, str]:
    return {str(label): str(text) for label, text in value.items()}


def _figures_by_label(value: Mapping[str, Any]) -> dict[str, dict[int, Figures]]:
    return {
        str(label): {
            int(number): {str(name): float(figure) for name, figure in figures.items()}
            for number, figures in by_number.items()
        }
        for label, by_number in value.items()
    }
