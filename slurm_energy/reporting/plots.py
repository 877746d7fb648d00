"""Plots of pages: what they have in common, and those of energy reports."""

import io
import re

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slurm_energy.domain.report import EnergyReport, GroupEnergyRecord
from slurm_energy.domain.units import JOULES_PER_KWH
from slurm_energy.reporting.energy_table import TITLES, period_text
from slurm_energy.reporting.visible import visible

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666", "#8c564b", "#17becf")
"""Okabe and Ito (2008) first: distinguished by people who do not see red and green."""
MAX_BARS = 60
MAX_GROUPS = 9
"""In one plot; the others are one colour or bar together."""
_NAME_WIDTH = 28
OTHERS = "others"


def energy_plots(report: EnergyReport) -> list[dict[str, str | Markup]]:
    """Return the plots of a report: energy of each period, and of each group; none where there is only one of them."""
    plots: list[dict[str, str | Markup]] = []
    if report.kind == "job" or not report.groups:
        return plots
    largest = _largest(report)
    if report.groups[0].since_seconds is not None:
        plots.append(_plot("periods", "Energy by period", _by_period(report, largest)))
    if len(largest) > 1:
        plots.append(_plot("groups", TITLES[report.kind], _by_group(largest)))
    return plots


def _plot(name: str, title: str, figure: Figure) -> dict[str, str | Markup]:
    # The text inside comes from matplotlib, which escapes the labels it is given.
    return {"title": title, "svg": Markup(svg_text(figure, name))}  # noqa: S704  # see above


def _kwh(group: GroupEnergyRecord) -> float:
    return ((group.gpu.joules or 0.0) + (group.host.joules or 0.0)) / JOULES_PER_KWH


def _largest(report: EnergyReport) -> dict[str, float]:
    """Return the groups with most energy over all periods, the largest first."""
    sums: dict[str, float] = {}
    for group in report.groups:
        sums[group.group] = sums.get(group.group, 0.0) + _kwh(group)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _by_period(report: EnergyReport, largest: dict[str, float]) -> Figure:
    begins = sorted({group.since_seconds or 0.0 for group in report.groups})[-MAX_BARS:]
    place = {begin: index for index, begin in enumerate(begins)}
    labels = {group.since_seconds: period_text(group) for group in report.groups}
    shown = list(largest)[:MAX_GROUPS]
    heights = {name: [0.0] * len(begins) for name in (*shown, *([OTHERS] if len(largest) > len(shown) else []))}
    for group in report.groups:
        index = place.get(group.since_seconds or 0.0)
        if index is not None:
            heights[group.group if group.group in shown else OTHERS][index] += _kwh(group)
    figure, axes = plain_axes(4.2)
    bottom = [0.0] * len(begins)
    for index, (name, values) in enumerate(heights.items()):
        colour = "#bbbbbb" if name == OTHERS and name not in shown else COLOURS[index % len(COLOURS)]
        axes.bar(range(len(begins)), values, bottom=bottom, color=colour, label=_label(name), width=0.8)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    step = max(1, len(begins) // 12)
    axes.set_xticks(range(0, len(begins), step), [labels[begin] for begin in begins[::step]], rotation=30, ha="right")
    axes.set_ylabel("kWh")
    if len(heights) > 1:
        figure.legend(loc="outside right upper", frameon=False)
    return figure


def _by_group(largest: dict[str, float]) -> Figure:
    shown = dict(list(largest.items())[: 2 * MAX_GROUPS])
    rest = sum(largest.values()) - sum(shown.values())
    if len(largest) > len(shown):
        shown[OTHERS] = rest
    figure, axes = plain_axes(1.0 + 0.28 * len(shown))
    axes.barh(range(len(shown)), list(shown.values()), color=COLOURS[0])
    axes.set_yticks(range(len(shown)), [_label(name) for name in shown])
    axes.invert_yaxis()
    axes.set_xlabel("kWh")
    return figure


def _label(name: str) -> str:
    # matplotlib reads $...$ as mathematics, and hides labels with a leading underscore.
    text = visible(name, _NAME_WIDTH).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def svg_text(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element; the same figure gives the same text.

    Args:
        figure: The plot.
        name: In front of the ids inside, so that several plots can stand in one page.
    """
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    found = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert found is not None
    # Ids such as axes_1 come in every figure; a page may hold each once. Quotes in labels are entities, or not in ids.
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\1{name}-", found.group())
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', svg, count=1)


def plain_axes(height_inches: float) -> tuple[Figure, Axes]:
    """Return a figure of a page's width with one pair of axes."""
    figure = Figure(figsize=(9.6, height_inches), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
