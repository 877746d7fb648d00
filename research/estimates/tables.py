"""The tables of the page: each question, each estimator, how far it is off."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from research.estimates.baselines import BASELINES
from research.estimates.data import (
    ZEUS_SHEETS,
    read_elasticflow,
    read_h100_neighbours,
    read_neighbours,
    read_pollux,
    read_rates,
    read_tried_pairs,
    read_zeus,
)
from research.estimates.judging import (
    HeldBack,
    Score,
    by_similarity,
    family_never_seen,
    few_pairs_given,
    gpu_type_never_seen,
    judge_left_out_neighbours,
    judge_left_out_rates,
    judge_neighbours,
    judge_rates,
    neighbour_never_seen,
    never_run,
    one_run,
    pair_never_seen,
    type_never_seen,
)
from research.estimates.networks import combined_estimate, corrected_estimate, first_estimate
from research.estimates.run_times import run_times_table
from slurm_energy.estimation.memory import TriedTogether, fit_memory
from slurm_energy.estimation.rates import MeasuredRate, RateModel, fit_neighbours, fit_power, fit_rates
from slurm_energy.estimation.scaling import MeasuredSpeedup, fit_scaling_model

GPU_TYPES = ("k80", "p100", "v100")
GAVEL_MEMORY_GIGABYTES: Mapping[str, float] = {"k80": 12.0, "p100": 16.0, "v100": 16.0}


def rates_table(data: Path) -> str:
    """Return how far rates alone are off."""
    rows = read_rates(data)
    questions: dict[str, Sequence[HeldBack]] = {
        "a job type on a GPU type where it never ran": list(type_never_seen(rows, GPU_TYPES)),
        "the same, V100 only": list(type_never_seen(rows, ["v100"])),
        "a job type measured once, on another GPU type": list(one_run(rows, GPU_TYPES, elsewhere=True)),
        "measured on one GPU of the type, more GPUs asked": list(one_run(rows, GPU_TYPES, elsewhere=False)),
        "a family of which nothing ran on the GPU type": list(family_never_seen(rows, GPU_TYPES)),
        "a job type that never ran anywhere": list(never_run(rows)),
        "a GPU type where nothing ran": list(gpu_type_never_seen(rows, GPU_TYPES)),
    }
    scores = {question: judge_left_out_rates(rows, held_back) for question, held_back in questions.items()}
    zeus, _ = read_zeus(data)
    return _scores(scores | _zeus_scores(zeus, fit_rates(zeus, ZEUS_SHEETS), "Zeus: "))


def power_table(data: Path) -> str:
    """Return how far the mean power of one GPU is off."""
    _, watts = read_zeus(data)
    return _scores(_zeus_scores(watts, fit_power(watts, ZEUS_SHEETS), ""))


def comparison_table(data: Path) -> str:
    """Return how far simpler estimators and neural networks are off, fitted anew for each question."""
    rows = read_rates(data)
    v100 = np.array([row.place.gpu_type == "v100" for row in rows])
    never = list(type_never_seen(rows, ["v100"]))
    once = [
        HeldBack(hidden=one.hidden, asked=one.asked & v100)
        for one in one_run(rows, ["p100"], elsewhere=True)
        if (one.asked & v100).any()
    ]
    lines = [_row(["estimator", "V100, measured on K80 and P100", "V100, one measurement, on P100"]), _rule(3)]
    served = [_percent(judge_rates(rows, questions, by_similarity).mean_error) for questions in (never, once)]
    lines.append(_row(["similarity (this package)", *served]))
    networks = {
        "neural network": first_estimate,
        "neural networks: first estimate and correction": corrected_estimate,
        "combination: similarity and the two networks": combined_estimate,
    }
    for label, estimator in (BASELINES | networks).items():
        figures = [_percent(judge_rates(rows, questions, estimator).mean_error) for questions in (never, once)]
        lines.append(_row([label, *figures]))
    return "\n".join(lines)


def neighbours_table(data: Path) -> str:
    """Return how far speeds beside a neighbour are off."""
    rows, h100 = read_neighbours(data), read_h100_neighbours(data)
    scores: dict[str, Score] = {
        "a pair that ran together nowhere": judge_left_out_neighbours(rows, list(pair_never_seen(rows)))
    }
    for kind in GPU_TYPES:
        scores[f"a job type that shared no {kind.upper()} yet"] = judge_left_out_neighbours(
            rows, list(neighbour_never_seen(rows, [kind]))
        )
    scores["a job type that shared no GPU of the type yet, all types"] = judge_left_out_neighbours(
        rows, list(neighbour_never_seen(rows, GPU_TYPES))
    )
    scores["the same, one of its pairs measured"] = judge_left_out_neighbours(
        rows, list(neighbour_never_seen(rows, GPU_TYPES, known_pairs=1))
    )
    scores["one H100, no pair measured"] = judge_neighbours(h100, list(few_pairs_given(h100, 0, 1)))
    scores["one H100, five of 28 pairs measured (40 draws)"] = judge_neighbours(
        h100, list(few_pairs_given(h100, 5, 40))
    )
    return _scores(scores)


def memory_table(data: Path) -> str:
    """Return how many pairs that did not run are recognised."""
    tried = [
        TriedTogether(
            works=pair.works,
            gpu_type=pair.gpu_type,
            gpu_memory_gigabytes=GAVEL_MEMORY_GIGABYTES[pair.gpu_type],
            fits=pair.fits,
        )
        for pair in read_tried_pairs(data)
    ]
    lines = [_row(["not shown", "pairs that did not fit, recognised", "pairs that fit, called too large"]), _rule(3)]
    names = list(dict.fromkeys(work.name for one in tried for work in one.works))
    for kind in GPU_TYPES:
        cells: list[tuple[str, list[Callable[[TriedTogether], bool]]]] = [
            (f"one job type on {kind.upper()}", [_tried_by(name, kind) for name in names]),
            (f"all pairs on {kind.upper()}", [_tried_on(kind)]),
        ]
        for label, hidden in cells:
            found = missed = alarms = fine = 0
            for is_hidden in hidden:
                asked = [one for one in tried if is_hidden(one)]
                if not asked:
                    continue
                model = fit_memory([one for one in tried if not is_hidden(one)])
                for one in asked:
                    too_large = model.chance_to_fit(one.works, one.gpu_type, one.gpu_memory_gigabytes) < 0.5
                    found, missed = found + (too_large and not one.fits), missed + (not too_large and not one.fits)
                    alarms, fine = alarms + (too_large and one.fits), fine + (not too_large and one.fits)
            lines.append(_row([label, f"{found} of {found + missed}", f"{alarms} of {alarms + fine}"]))
    return "\n".join(lines)


def scaling_table(data: Path) -> str:
    """Return how far speed-ups of held-out applications are off."""
    everything = [*read_elasticflow(data), *read_pollux(data)]
    groups: dict[str, Callable[[MeasuredSpeedup], bool]] = {
        "ElasticFlow, A100, 1 to 64 GPUs": lambda row: row.spread.gpu_type == "a100",
        "ElasticFlow, T4, 1 to 64 GPUs": lambda row: row.spread.gpu_type == "t4" and row.spread.total_batch_fixed,
        "Pollux, GPUs of one node": lambda row: not row.spread.total_batch_fixed and row.spread.nodes == 1,
        "Pollux, several nodes": lambda row: not row.spread.total_batch_fixed and row.spread.nodes > 1,
    }
    lines = [_row(["applications", "nothing measured", "smallest count measured", "four GPUs measured"]), _rule(4)]
    for label, belongs in groups.items():
        rows = [row for row in everything if belongs(row)]
        figures = [_scaling_error(everything, rows, given) for given in (None, 2, 4)]
        lines.append(_row([label, *figures]))
    return "\n".join(lines)


def times_table(data: Path) -> str:
    """Return the CPU time of one estimate and one correction."""
    rates, neighbours = read_rates(data), read_neighbours(data)
    lines = [_row(["model", "entries", "one estimate", "one correction", "fit"]), _rule(5)]
    start = process_time()
    rate_model = fit_rates(rates)
    fit_seconds = process_time() - start
    one = _milliseconds([partial(rate_model.estimate, row.work, row.place) for row in rates[:100]])
    fix = _milliseconds([partial(rate_model.refined, [row]) for row in rates[:20]])
    lines.append(_row(["rates", str(len(rates)), f"{one:.2f} ms", f"{fix:.1f} ms", f"{fit_seconds:.2f} s"]))
    for number in (400, len(neighbours)):
        start = process_time()
        model = fit_neighbours(neighbours[:number])
        fit_seconds = process_time() - start
        one = _milliseconds([partial(model.estimate, row.beside) for row in neighbours[:100]])
        fix = _milliseconds([partial(model.refined, [row]) for row in neighbours[:20]])
        lines.append(_row(["neighbours", str(number), f"{one:.2f} ms", f"{fix:.1f} ms", f"{fit_seconds:.2f} s"]))
    return "\n".join(lines)


def _zeus_scores(rows: Sequence[MeasuredRate], model: RateModel, prefix: str) -> dict[str, Score]:
    types = list(dict.fromkeys(row.place.gpu_type for row in rows))
    questions: dict[str, Sequence[HeldBack]] = {
        f"{prefix}a network and batch on a GPU type where it never ran": list(type_never_seen(rows, types)),
        f"{prefix}a network and batch that never ran anywhere": list(never_run(rows)),
        f"{prefix}a network of which nothing ran on the GPU type": list(family_never_seen(rows, types)),
        f"{prefix}a GPU type where nothing ran": list(gpu_type_never_seen(rows, types)),
    }
    return {question: judge_left_out_rates(rows, held_back, model) for question, held_back in questions.items()}


def _scaling_error(everything: Sequence[MeasuredSpeedup], rows: Sequence[MeasuredSpeedup], given: int | None) -> str:
    """Return mean and median error, and the coverage, of applications of which nothing but `given` GPUs is known."""
    error: list[float] = []
    covered: list[bool] = []
    for family in dict.fromkeys(row.work.family for row in rows):
        model = fit_scaling_model([row for row in everything if row.work.family != family])
        for name in dict.fromkeys(row.work.name for row in rows if row.work.family == family):
            mine = sorted(
                (row for row in rows if row.work.name == name), key=lambda row: (row.spread.gpus, row.spread.nodes)
            )
            known = [] if given is None else mine[:1] if given == 2 else [r for r in mine if r.spread.gpus == given][:1]
            asked = [row for row in mine if row not in known]
            refined = model.refined(known)
            for estimate, row in zip(refined.speedups(mine[0].work, [r.spread for r in asked]), asked, strict=True):
                error.append(abs(estimate.middle / row.speedup - 1.0))
                covered.append(0.96 * estimate.lower <= row.speedup <= 1.04 * estimate.upper)
    mean, median, share = (_percent(float(figure)) for figure in (np.mean(error), np.median(error), np.mean(covered)))
    return f"{mean} (median {median}, covers {share})"


def _tried_on(gpu_type: str) -> Callable[[TriedTogether], bool]:
    return lambda one: one.gpu_type == gpu_type


def _tried_by(name: str, gpu_type: str) -> Callable[[TriedTogether], bool]:
    return lambda one: one.gpu_type == gpu_type and any(work.name == name for work in one.works)


def _milliseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median CPU time of some calls."""
    taken = []
    for call in calls:
        start = process_time()
        call()
        taken.append(process_time() - start)
    return 1e3 * float(np.median(taken))


def _scores(scores: Mapping[str, Score]) -> str:
    lines = [_row(["question", "entries", "mean error", "median", "90 % interval covers"]), _rule(5)]
    for question, one in scores.items():
        lines.append(
            _row([question, str(one.num), _percent(one.mean_error), _percent(one.median_error), _covered(one)])
        )
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(columns: int) -> str:
    return "|---|" + "---:|" * (columns - 1)


def _percent(value: float) -> str:
    return "-" if not np.isfinite(value) else f"{100.0 * value:.1f} %"


def _covered(one: Score) -> str:
    return "-" if one.covered is None else f"{100.0 * one.covered:.0f} %"


PARTS: Mapping[str, Callable[[Path], str]] = {
    "rates": rates_table,
    "comparison": comparison_table,
    "power": power_table,
    "neighbours": neighbours_table,
    "memory": memory_table,
    "scaling": scaling_table,
    "run times": run_times_table,
    "times": times_table,
}


def replaced_tables(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with the tables between `<!-- NAME -->` and `<!-- end -->` replaced."""
    for name, table in tables.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        parts = pattern.split(page)
        page = page if len(parts) == 1 else parts[0] + parts[1] + table + "\n" + parts[2] + parts[3]
    return page
