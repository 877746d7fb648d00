"""A comparison as one HTML file that needs nothing else; jinja2 escapes every text."""

from markupsafe import Markup

from slurm_energy.evaluation.arena.comparison import ArenaResult
from slurm_energy.evaluation.arena.summary import ArenaSummary
from slurm_energy.reporting.arena_cells import arena_tables
from slurm_energy.reporting.arena_context import RunContext
from slurm_energy.reporting.arena_plots import frontier_figure, power_figure, queue_figure, svg_text
from slurm_energy.reporting.arena_table import LEGEND
from slurm_energy.reporting.html import page_template
from slurm_energy.reporting.quantities import moment_text

_MOST_SEEDS_SHOWN = 12
_FRONTIER_CAPTION = (
    "Left and down is better. Points: means over seeds with 95 % intervals. Line: the least energy at which anybody "
    "could carry the load of the first seed, for each mean run time."
)


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
    seeds = ", ".join(map(str, plan.seeds[:_MOST_SEEDS_SHOWN])) + (", …" if len(plan.seeds) > _MOST_SEEDS_SHOWN else "")
    first = result.runs[0] if result.runs else None
    jobs = "none" if first is None else f"{first.workload_name}; {first.workload_source or 'no source noted'}"
    if plan.is_generated and first is not None:
        jobs = f"{first.workload_name}, made anew for every seed"
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
