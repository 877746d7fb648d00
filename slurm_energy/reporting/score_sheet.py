"""The score sheet of a candidate policy as a page with plots."""

import time
from typing import TYPE_CHECKING

from markupsafe import Markup

from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import page_template

if TYPE_CHECKING:  # a sheet is shown where the gate's libraries are not installed
    from slurm_energy.evaluation.gate.sheet import FigureInterval, ScoreSheet, StageResult

_RATIOS = ("saving", "error", "longer")
"""First words of intervals that are ratios."""


def interval_words(name: str, interval: "FigureInterval") -> str:
    """Return a figure with its interval, ratios in per cent."""
    form = "{:+.2%}" if name.split(maxsplit=1)[0] in _RATIOS else "{:,.0f}"
    mean, low, high = (form.format(end) for end in (interval.mean, interval.low, interval.high))
    return f"{mean} ({low} to {high})"


def score_sheet_html(sheet: "ScoreSheet") -> str:
    """Return a sheet as a page; without matplotlib it has no plots."""
    return page_template("score-sheet.html.j2").render(
        sheet=sheet,
        judged_at=moment_text(sheet.judged_at_seconds),
        made_at=moment_text(time.time()),
        stages=[
            (stage, sheet.weights.get(stage.stage), [(n, interval_words(n, i)) for n, i in stage.intervals.items()])
            for stage in sheet.stages
        ],
        plots=_sheet_plots(sheet),
    )


def _sheet_plots(sheet: "ScoreSheet") -> list[dict[str, str | Markup]]:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # no part of the base

        from slurm_energy.reporting.plots import COLOURS, svg_text  # noqa: PLC0415  # it needs matplotlib
    except ImportError:
        return []

    def plot(name: str, title: str, figure: Figure) -> dict[str, str | Markup]:
        # The text inside comes from matplotlib, which escapes the labels it is given.
        return {"title": title, "svg": Markup(svg_text(figure, name))}  # noqa: S704  # see above

    plots = []
    scored = [stage for stage in sheet.stages if stage.score is not None]
    if scored:
        figure = Figure(figsize=(7.0, 0.5 + 0.4 * len(scored)), layout="constrained")
        axes = figure.subplots()
        names = [stage.stage for stage in scored]
        axes.barh(names, [stage.score or 0.0 for stage in scored], color=[_colour(stage, COLOURS) for stage in scored])
        axes.axvline(0.5, color="#666666", linestyle="--", linewidth=1.0)
        axes.set_xlim(0.0, 1.0)
        axes.set_xlabel("score; 0.5: no better and no worse")
        axes.invert_yaxis()
        plots.append(plot("scores", "Scores", figure))
    savings = {
        name: interval for stage in sheet.stages for name, interval in stage.intervals.items() if name[:6] == "saving"
    }
    if savings:
        figure = Figure(figsize=(7.0, 0.9 + 0.4 * len(savings)), layout="constrained")
        axes = figure.subplots()
        for row, (name, one) in enumerate(savings.items()):
            ends = [[100.0 * (one.mean - one.low)], [100.0 * (one.high - one.mean)]]
            axes.errorbar([100.0 * one.mean], [row], xerr=ends, fmt="o", color=COLOURS[row], capsize=4, label=name)
        axes.axvline(0.0, color="#666666", linestyle="--", linewidth=1.0)
        axes.set_yticks(range(len(savings)), list(savings))
        axes.set_ylim(-0.5, len(savings) - 0.5)
        axes.set_xlabel("energy saved, % (95 % interval)")
        plots.append(plot("savings", "Energy saved", figure))
    impact = sheet.stage("impact")
    if impact is not None and impact.series.get("real"):
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        axes = figure.subplots()
        for name, colour in (("real", COLOURS[0]), ("forecast", COLOURS[1])):
            axes.plot(range(1, len(impact.series[name]) + 1), impact.series[name], "o-", color=colour, label=name)
        axes.set_xlabel("past week")
        axes.set_ylabel("GPU-hours a day")
        axes.set_ylim(bottom=0.0)
        axes.legend()
        plots.append(plot("load", "Load of past weeks and its forecast", figure))
    return plots


def _colour(stage: "StageResult", colours: tuple[str, ...]) -> str:
    return colours[1] if stage.verdict.value == "stopped" else colours[0]
