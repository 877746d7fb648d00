"""The score sheet of a candidate policy: text of 80 columns, and a page with plots."""

import time
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from markupsafe import Markup

from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import page_template
from slurm_energy.reporting.visible import visible

if TYPE_CHECKING:  # a sheet is shown where the gate's libraries are not installed
    from slurm_energy.evaluation.gate.sheet import FigureInterval, ScoreSheet, StageResult

_WIDTH = 80
_RATIOS = ("saving", "error", "longer")
"""First words of intervals that are ratios."""


def score_sheet_text(sheet: "ScoreSheet") -> str:
    """Return a sheet as lines of at most 80 columns."""
    return "\n".join(_lines(sheet)) + "\n"


def _lines(sheet: "ScoreSheet") -> Iterator[str]:
    stopped = sheet.stopped_by
    yield f"Candidate {visible(sheet.candidate_id)}"
    yield f"against   {visible(sheet.incumbent_id)}, judged {moment_text(sheet.judged_at_seconds)}"
    yield ""
    yield "PASSED" if sheet.passed else f"STOPPED by stage {'none' if stopped is None else stopped.stage}"
    if sheet.hyperscore is not None:
        yield f"value {sheet.value:.3f}, HyperScore {sheet.hyperscore:.1f}"
    if sheet.needs_person:
        yield "very different: a person must approve it"
    for stage in sheet.stages:
        yield ""
        weight = sheet.weights.get(stage.stage)
        score = "" if stage.score is None else f"score {stage.score:.2f}"
        counted = "" if weight is None else f"counts {weight:.0%}"
        yield f"{stage.stage:<16}{stage.verdict.value:<12}{score:<12}{counted:<12}{stage.seconds:>8.1f} s"
        yield from _wrapped(stage.summary)
        for name, interval in stage.intervals.items():
            yield from _wrapped(f"{name}: {interval_words(name, interval)}")
        for note in stage.notes:
            yield from _wrapped(note)
    if sheet.review:
        yield ""
        yield "Decisions to look at"
        for item in sheet.review:
            yield from _wrapped(f"[{item.why}] {item.job}: {item.incumbent} -> {item.candidate}")


def _wrapped(text: str) -> list[str]:
    return wrap(str(visible(text)), _WIDTH, initial_indent="    ", subsequent_indent="      ")


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
