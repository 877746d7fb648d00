"""Plots of the results page as SVG files; the same results give the same bytes."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from research.results.cases import Case, Section
from research.results.document import MatrixSizes, Results
from research.results.judging import difference_of, estimate_of, learned_policies, strongest_rule
from research.results.matrix_sizes import KEY as MATRIX_KEY
from research.results.matrix_sizes import LIMITS
from research.results.matrix_sizes import PLOT as MATRIX_SIZES_PLOT
from slurm_energy.evaluation.arena.summary import Estimate

_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f3c8d",
    "#666666",
    "#8c564b",
    "#17becf",
)
"""Okabe and Ito (2008) first: distinguishable without seeing red and green."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
_MAX_PERCENT = 60.0
"""Farther to the right a point is drawn at the edge."""


def plot_name(section: Section) -> str:
    """Return the file name of a section's plot."""
    return f"{section.key}.svg"


def write_plots(folder: Path, sections: Sequence[Section], results: Results) -> None:
    """Write the plots of every section that has results."""
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        cases = [case for case in section.cases if case.key in results.cases]
        if not cases:
            continue
        with rc_context({"svg.hashsalt": section.key, "font.size": 9.0}):
            figure = _lines(section, cases, results) if cases[0].frontier else _points(section, cases, results)
            _save(figure, folder / plot_name(section))
            if section.key == MATRIX_KEY and results.matrix_sizes is not None and results.matrix_sizes.sizes:
                _save(_sizes(results.matrix_sizes), folder / MATRIX_SIZES_PLOT)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")


def _labels(cases: Sequence[Case], results: Results) -> list[str]:
    rules = (rule for case in cases for rule in case.all_rules if rule in results.cases[case.key].runs)
    learned = (label for case in cases for label in learned_policies(results.cases[case.key]))
    return list(dict.fromkeys((*rules, *learned)))


def _lines(section: Section, cases: Sequence[Case], results: Results) -> Figure:
    """Return the section's figure over its cases, a line for each policy."""
    figure = Figure(figsize=(7.5, 4.2))
    axes = figure.add_subplot()
    for index, label in enumerate(_labels(cases, results)):
        found = [(x, estimate_of(results.cases[case.key], label, section.figure)) for x, case in enumerate(cases)]
        points = [(x, estimate) for x, estimate in found if estimate is not None]
        axes.errorbar(
            [x for x, _ in points],
            [max(estimate.mean, 0.01) for _, estimate in points],
            yerr=_spans([estimate for _, estimate in points]),
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)],
            markersize=4.0,
            linewidth=1.0,
            capsize=2.0,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(cases)), [case.key.partition("-")[2] for case in cases])
    axes.set_xlabel("arrivals at each ingress, 1/s")
    axes.set_ylabel(section.columns[0].heading)
    axes.grid(visible=True, axis="y", linewidth=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _points(section: Section, cases: Sequence[Case], results: Results) -> Figure:
    """Return for every case how far each policy is above its strongest rule."""
    figure = Figure(figsize=(7.5, 0.9 + 0.75 * len(cases)))
    axes = figure.add_subplot()
    labels = _labels(cases, results)
    for index, label in enumerate(labels):
        places, found = [], []
        for row, case in enumerate(cases):
            result = results.cases[case.key]
            rule = strongest_rule(section, case, result)
            difference = None if rule is None else difference_of(result, label, rule, section.figure)
            if difference is not None:
                places.append(row + 0.7 * (index / max(1, len(labels) - 1) - 0.5))
                found.append(difference)
        axes.errorbar(
            [min(difference.mean, _MAX_PERCENT) for difference in found],
            places,
            xerr=_spans(found),
            color=_COLOURS[index % len(_COLOURS)],
            marker=_MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)],
            markersize=4.0,
            linestyle="none",
            elinewidth=0.8,
            label=label,
        )
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlim(right=_MAX_PERCENT * 1.05)
    axes.set_yticks(range(len(cases)), [case.key for case in cases])
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlabel(f"{section.columns[0].heading.split(',')[0]} above the strongest rule's, %")
    axes.grid(visible=True, axis="x", linewidth=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _sizes(found: MatrixSizes) -> Figure:
    """Return the share of jobs on CPUs and the mean relative clock on GPUs over the matrix size."""
    figure = Figure(figsize=(7.5, 3.2))
    panels = figure.subplots(1, 2)
    labels = [label for label in found.texts if label in found.sizes]
    for axes, name, per, heading in zip(
        panels,
        ("cpu_share", "relative_clock"),
        (0.01, 1.0),
        ("jobs on CPUs, %", "mean relative clock on GPUs"),
        strict=True,
    ):
        for index, label in enumerate(labels):
            points = [(size, row[name] / per) for size, row in sorted(found.sizes[label].items()) if name in row]
            axes.plot(
                [size for size, _ in points],
                [value for _, value in points],
                color=_COLOURS[index % len(_COLOURS)],
                marker=_MARKERS[(index + index // len(_COLOURS)) % len(_MARKERS)],
                markersize=10.0 - 6.0 * index / max(1, len(labels) - 1),  # ever smaller, so that equal points show
                markerfacecolor="none",
                linewidth=1.0,
                label=label,
            )
        for size in LIMITS:
            axes.axvline(size, color="black", linewidth=0.8, linestyle=":")
        axes.set_xticks(sorted({size for by_size in found.sizes.values() for size in by_size})[::2])
        axes.set_xlabel("matrix size")
        axes.set_ylabel(heading)
        axes.grid(visible=True, axis="y", linewidth=0.3)
    figure.tight_layout()
    panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _spans(found: Sequence[Estimate]) -> list[list[float]]:
    """Return distances from mean to low and high, [2][points], 0 where there is no interval."""
    return [
        [0.0 if one.low is None else max(0.0, one.mean - one.low) for one in found],
        [0.0 if one.high is None else max(0.0, one.high - one.mean) for one in found],
    ]
