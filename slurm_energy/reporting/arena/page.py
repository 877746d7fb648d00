"""A comparison as one HTML file that needs nothing else, with its plots as SVG; jinja2 escapes every text."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.run import RunRecord
from slurm_energy.evaluation.arena.summary import ArenaSummary, PolicySummary
from slurm_energy.reporting.arena.document import RunContext
from slurm_energy.reporting.arena.tables import LEGEND, arena_tables
from slurm_energy.reporting.plots import COLOURS, plain_axes, svg_text
from slurm_energy.reporting.quantities import moment_text
from slurm_energy.reporting.templates import page_template
from slurm_energy.reporting.visible import visible

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
_STYLES = ("-", "--", "-.", ":")
_NAME_WIDTH = 34
_MAX_LINES = 12
_MAX_STRETCHES = 72
_LINE_WIDTH = 1.4
_MAX_SEEDS_SHOWN = 12
_FRONTIER_CAPTION = (
    "Left and down is better. Points: means over seeds with 95 % intervals. Line: the least energy at which any policy "
    "could carry the load of the first seed, for each mean run time."
)


def frontier_figure(result: ArenaResult, summary: ArenaSummary) -> Figure | None:
    """Return energy per unit against mean turnaround, the policies as points and the bound as a line; None for none."""
    points = [
        found for found in summary.policies if {"joules_per_unit", "mean_turnaround_seconds"} <= set(found.figures)
    ]
    if not points:
        return None
    figure, axes = plain_axes(5.2)
    line = next((record.frontier for record in result.runs if record.frontier is not None), None)
    bound = summary.bound_joules_per_unit
    energies = [found.figures["joules_per_unit"].mean for found in points]
    if line is not None:
        # Beyond its last turn the frontier is flat: it continues for as long as policies take.
        slowest = max(found.figures["mean_turnaround_seconds"].mean for found in points) * 1.3
        x = [*line.mean_run_seconds, max(line.mean_run_seconds[-1], slowest)]
        y = [*line.joules_per_unit, line.joules_per_unit[-1]]
        axes.plot(x, y, color="black", linewidth=1.4, label="no policy below this line", zorder=1)
        axes.fill_between(x, y, 0.0, color="black", alpha=0.06, linewidth=0, zorder=0)
    elif bound is not None:
        axes.axhline(bound.mean, color="black", linewidth=1.4, label="no policy below this line", zorder=1)
    for index, found in enumerate(points):
        _point(axes, found, index)
    lowest = min(energies) if bound is None else min(bound.mean, *energies)
    span = max(energies) - lowest or lowest
    axes.set_ylim(lowest - 0.12 * span, max(energies) + 0.08 * span)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    _plain_log_ticks(axes)
    axes.set_xlabel("mean turnaround of finished jobs (wait and run), s")
    axes.set_ylabel("total energy per unit of work, J/unit")
    _legend(figure, axes)
    return figure


def power_figure(result: ArenaResult) -> Figure | None:
    """Return power over time of the first seed's runs; None for none."""
    runs = _first_seed(result)
    if not runs:
        return None
    figure, axes = plain_axes(3.8)
    scale, unit = _power_unit(max(max(record.samples.mean_watts, default=0.0) for record in runs))
    for index, record in enumerate(runs):
        edges, watts = _coarse_power(record)
        colour, style = _line(index)
        axes.stairs(
            [value / scale for value in watts],
            _hours(edges),
            baseline=None,
            label=_name(record.policy),
            color=colour,
            linestyle=style,
            linewidth=_LINE_WIDTH,
        )
    axes.set_xlabel("time, h")
    axes.set_ylabel(f"cluster power, {unit}")
    axes.set_ylim(bottom=0.0)
    _legend(figure, axes)
    return figure


def queue_figure(result: ArenaResult) -> Figure | None:
    """Return waiting jobs over time of the first seed's runs; None when no job ever waited at a sample."""
    runs = _first_seed(result)
    if not any(any(record.samples.waiting_jobs) for record in runs):
        return None
    figure, axes = plain_axes(3.8)
    for index, record in enumerate(runs):
        times = _hours([0.0, *record.samples.seconds])
        colour, style = _line(index)
        axes.plot(
            times,
            [0, *record.samples.waiting_jobs],
            label=_name(record.policy),
            color=colour,
            linestyle=style,
            linewidth=_LINE_WIDTH,
        )
    axes.set_xlabel("time, h")
    axes.set_ylabel("jobs that wait")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _legend(figure, axes)
    return figure


def _point(axes: Axes, found: PolicySummary, index: int) -> None:
    x, y = found.figures["mean_turnaround_seconds"], found.figures["joules_per_unit"]
    errors = [
        None if item.low is None or item.high is None else [[item.mean - item.low], [item.high - item.mean]]
        for item in (x, y)
    ]
    unfinished = found.figures["unfinished_jobs"].mean
    waiting = found.waiting_at_day_end[-1] if found.waiting_at_day_end else 0.0
    note = f" ({waiting:,.0f} wait at the end)" if waiting >= 0.5 and unfinished else ""
    colour = COLOURS[index % len(COLOURS)]
    axes.errorbar([x.mean], [y.mean], xerr=errors[0], yerr=errors[1], fmt="none", ecolor=colour, capsize=3, zorder=3)
    axes.plot(
        [x.mean],
        [y.mean],
        marker=MARKERS[index % len(MARKERS)],
        # Smaller and smaller, so that of points in one place the lower ones show around the upper.
        markersize=max(8.0, 13.0 - 1.5 * index),
        markeredgecolor="white",
        markeredgewidth=0.8,
        linestyle="none",
        color=colour,
        label=_name(found.policy) + note,
        zorder=4,
    )


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend beside the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)


def _line(index: int) -> tuple[str, str]:
    """Return colour and style of a policy's line."""
    return COLOURS[index % len(COLOURS)], _STYLES[index // len(COLOURS) % len(_STYLES)]


def _coarse_power(record: RunRecord) -> tuple[list[float], list[float]]:
    """Return edges in s and mean power of stretches, so few that lines of several policies can be distinguished."""
    edges = np.array([0.0, *record.samples.seconds])
    joules = np.concatenate([[0.0], np.cumsum(np.array(record.samples.mean_watts) * np.diff(edges))])
    step = max(1, -(-len(record.samples.seconds) // _MAX_STRETCHES))
    kept = np.unique(np.append(np.arange(0, len(edges), step), len(edges) - 1))
    watts = np.diff(joules[kept]) / np.diff(edges[kept])
    return edges[kept].tolist(), watts.tolist()


def _plain_log_ticks(axes: Axes) -> None:
    """Write ticks of a logarithmic axis as plain numbers, more of them when it spans little."""
    low, high = axes.get_xlim()
    steps = (
        (1.0,) if high / low > 300.0 else (1.0, 2.0, 5.0) if high / low > 8.0 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    )
    axes.xaxis.set_major_locator(LogLocator(base=10.0, subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1.0 else f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _power_unit(max_watts: float) -> tuple[float, str]:
    return (1e6, "MW") if max_watts >= 1e6 else (1e3, "kW") if max_watts >= 1e3 else (1.0, "W")


def _hours(seconds: Sequence[float]) -> list[float]:
    return [second / 3600.0 for second in seconds]


def _first_seed(result: ArenaResult) -> list[RunRecord]:
    """Return the runs of the first seed that every policy has, at most as many as can be distinguished."""
    if not result.runs:
        return []
    seed = result.runs[0].seed
    return [record for record in result.runs if record.seed == seed][:_MAX_LINES]


def _name(text: str) -> str:
    # matplotlib reads $…$ as mathematics, and hides labels with a leading underscore.
    return visible(text, _NAME_WIDTH).replace("$", r"\$").lstrip("_")


def render_arena_page(result: ArenaResult, summary: ArenaSummary, context: RunContext) -> str:
    """Return the page: plots, tables, what was run."""
    return page_template("arena.html.j2").render(
        title=f"Policies on {result.world_name}",
        plots=_plots(result, summary),
        tables=arena_tables(summary),
        legend=LEGEND.format(reference=summary.reference),
        failed=result.failed,
        facts=_facts(result, context),
        notes=context.notes,
    )


def _plots(result: ArenaResult, summary: ArenaSummary) -> list[dict[str, object]]:
    seed = result.runs[0].seed if result.runs else 0
    figures = (
        ("frontier", "Energy against time", _FRONTIER_CAPTION, frontier_figure(result, summary)),
        ("power", "Power over time", f"Seed {seed}.", power_figure(result)),
        ("queue", "Queue over time", f"Seed {seed}.", queue_figure(result)),
    )  # fmt: skip
    return [
        # The text inside comes from matplotlib, which escapes the labels it is given.
        {"title": title, "caption": caption, "svg": Markup(svg_text(figure, name))}  # noqa: S704  # see above
        for name, title, caption, figure in figures
        if figure is not None
    ]


def _facts(result: ArenaResult, context: RunContext) -> list[tuple[str, str]]:
    plan = result.plan
    seeds = ", ".join(map(str, plan.seeds[:_MAX_SEEDS_SHOWN])) + (", …" if len(plan.seeds) > _MAX_SEEDS_SHOWN else "")
    first = result.runs[0] if result.runs else None
    jobs = "none" if first is None else f"{first.workload_name}; {first.workload_source or 'no source noted'}"
    if plan.is_generated and first is not None:
        jobs = f"{first.workload_name}, made again for every seed"
    length = "until no job is left"
    if first is not None and not plan.drain:
        length = f"{first.metrics.end_seconds / 3600.0:,.4g} h"
    return [
        (
            "World",
            result.world_name if plan.world in {None, result.world_name} else f"{result.world_name} ({plan.world})",
        ),
        ("Jobs", jobs),
        ("Length of a run", length),
        ("Seeds", seeds),
        ("Command", context.command),
        ("Made at", moment_text(context.created_at_seconds)),
        ("Took", f"{context.wall_seconds:,.1f} s"),
        ("Versions", ", ".join(f"{name} {number}" for name, number in context.versions.items())),
    ]
