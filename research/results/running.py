"""Runs what the page needs, in processes of their own, and keeps what is there already."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from research.results.cases import Candidate, Case, Effort, Section
from research.results.document import CaseResult, MatrixSizes, Results, fingerprint_of
from research.results.matrix_sizes import sized_case, sized_run
from research.results.measuring import measured_run
from research.results.provenance import are_same, inputs_of
from slurm_energy.evaluation.arena.clock_sweep import swept_rule
from slurm_energy.evaluation.arena.comparison import Tell, WorkerCall, WorkerPool
from slurm_energy.evaluation.arena.plan import SWEPT, checked_plan


def run_sections(  # noqa: PLR0913  # what to run and how
    sections: Sequence[Section],
    candidates: Sequence[Candidate],
    effort: Effort,
    results: Results,
    *,
    reuse: bool = False,
    same_revisions: Sequence[str] = (),
    workers: int | None = None,
    tell: Tell | None = None,
    save: Callable[[Results], None] | None = None,
) -> Results:
    """Run the sections and return the results with theirs in the place of older ones.

    Args:
        sections: What to run.
        candidates: Policies beside the rules.
        effort: How long and how often.
        results: What is known; cases of other sections stay.
        reuse: Keep runs of the same case, policy and seed with the same declared inputs, and all runs of learned
            policies that are not among the candidates.
        same_revisions: Revisions whose runs count as those of this one: nothing since then moves a figure.
        workers: Processes; None for as many as there are CPUs for us.
        tell: Called after every step.
        save: Given the results after every section.

    Raises:
        SlurmEnergyError: a case cannot be. A run that fails is noted in the results, and takes nothing from the others.
    """
    started = monotonic()
    say = tell or (lambda _doing, _done, _of: None)
    with WorkerPool(workers or len(os.sched_getaffinity(0))) as pool:
        for section in sections:
            cases = [effort.of(case) for case in section.cases[: effort.max_cases]]
            labels = {}
            for case in cases:
                texts = _texts(section, case, candidates)
                checked_plan(replace(case.plan, policies=tuple(dict.fromkeys(texts.values()))))
                _prepare(results, case, texts, same_revisions if reuse else None)
                labels[case.key] = tuple(texts)
            _sweep(pool, cases, results, say, section.key)
            _run(pool, cases, labels, results, say, section.key)
            sized = sized_case(section, effort)
            if sized is not None:
                known = results.matrix_sizes if reuse else None
                texts = _texts(section, sized, candidates)
                results.matrix_sizes = _sizes(pool, sized, texts, known, same_revisions, say)
            results.wall_seconds = monotonic() - started
            if save is not None:
                save(results)
    return results


def _texts(section: Section, case: Case, candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return what makes each policy of a case, by its label."""
    chosen = {candidate.label: candidate.text for candidate in candidates if candidate.runs_in(section, case)}
    return case.all_rules | chosen


def _prepare(results: Results, case: Case, texts: dict[str, str], same_revisions: Sequence[str] | None) -> None:
    """Leave in the results of a case what may be kept: nothing without revisions, not even an empty list of them."""
    learned = [label for label in texts if label not in case.all_rules]
    inputs = {label: inputs_of(text) for label, text in texts.items()}
    fresh = CaseResult(fingerprint=fingerprint_of(case), texts=texts, learned=learned, inputs=inputs)
    old = results.cases.get(case.key)
    if same_revisions is not None and old is not None and old.fingerprint == fresh.fingerprint:
        for label, text in texts.items():
            same = old.texts.get(label) == text or (text in SWEPT and old.texts.get(label, "").startswith(text))
            known = old.inputs.get(label, "")
            if same and label in old.runs and are_same(known, inputs[label], same_revisions):
                fresh.texts[label], fresh.inputs[label] = old.texts[label], known
                fresh.runs[label] = {seed: old.runs[label][seed] for seed in case.plan.seeds if seed in old.runs[label]}
        _keep_others(old, fresh)
    results.cases[case.key] = fresh


def _keep_others(old: CaseResult, fresh: CaseResult) -> None:
    """Keep learned policies of another call: who adds one to the page cannot always run all others again."""
    for label in old.learned:
        if label not in fresh.texts and label in old.runs:
            fresh.texts[label] = old.texts[label]
            fresh.runs[label] = old.runs[label]
            fresh.inputs[label] = old.inputs[label]
            fresh.learned.append(label)


def _sweep(pool: WorkerPool, cases: Sequence[Case], results: Results, tell: Tell, section: str) -> None:
    """Find the clocks of rules that have none."""
    wanted = [(case, label) for case in cases for label, text in results.cases[case.key].texts.items() if text in SWEPT]
    steps = [WorkerCall(f"{case.key} {label}", None, swept_rule, (case.plan, label)) for case, label in wanted]
    found, failed = pool.results(steps, tell, f"{section}: clocks")
    for number, sweep in found.items():
        case, label = wanted[number]
        results.cases[case.key].texts[label] = sweep.rule
    for failure in failed:
        key, _, label = failure.policy.partition(" ")
        results.cases[key].failures.append(f"{label}: {failure.error}")
        del results.cases[key].texts[label]


def _run(
    pool: WorkerPool,
    cases: Sequence[Case],
    labels: Mapping[str, Sequence[str]],
    results: Results,
    tell: Tell,
    section: str,
) -> None:
    """Run what is missing, seed by seed, so that a worker meets the arrivals that it has made already."""
    wanted = [
        (case, label, results.cases[case.key].texts[label], seed)
        for case in cases
        for seed in case.plan.seeds
        for label in labels[case.key]
        if label in results.cases[case.key].texts and seed not in results.cases[case.key].runs.get(label, {})
    ]
    steps = [
        WorkerCall(f"{case.key} {label}", seed, measured_run, (case, label, text, seed))
        for case, label, text, seed in wanted
    ]
    found, failed = pool.results(steps, tell, f"{section}: runs")
    for number, figures in found.items():
        case, label, _, seed = wanted[number]
        results.cases[case.key].runs.setdefault(label, {})[seed] = figures
    for failure in failed:
        key, _, label = failure.policy.partition(" ")
        results.cases[key].failures.append(f"{label}, seed {failure.seed}: {failure.error}")


def _sizes(  # as above
    pool: WorkerPool,
    case: Case,
    texts: dict[str, str],
    known: MatrixSizes | None,
    same_revisions: Sequence[str],
    tell: Tell,
) -> MatrixSizes:
    """Return what each policy does with each matrix size; what is known of the same case and policy is kept."""
    (seed,), seconds = case.plan.seeds, case.plan.horizon_seconds
    assert seconds is not None
    inputs = {label: inputs_of(text) for label, text in texts.items()}
    found = MatrixSizes(fingerprint=fingerprint_of(case), seed=seed, hours=seconds / 3600.0, texts=texts, inputs=inputs)
    if known is not None and (known.fingerprint, known.seed) == (found.fingerprint, seed):
        for label, text in texts.items():
            made_with = known.inputs.get(label, "")
            same = known.texts.get(label) == text and are_same(made_with, inputs[label], same_revisions)
            if same and label in known.sizes:
                found.sizes[label], found.inputs[label] = known.sizes[label], made_with
    wanted = [label for label in texts if label not in found.sizes]
    steps = [WorkerCall(label, seed, sized_run, (case.plan, label, texts[label], seed)) for label in wanted]
    runs, failed = pool.results(steps, tell, f"{case.key}: matrix sizes")
    found.sizes |= {wanted[number]: by_size for number, by_size in runs.items()}
    found.failures = [f"{failure.policy}: {failure.error}" for failure in failed]
    return found
