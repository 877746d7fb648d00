"""A comparison of policies in a terminal."""

from rich.console import Console
from rich.text import Text

from slurm_energy.evaluation.arena.summary import ArenaSummary
from slurm_energy.reporting.arena_cells import BOUND_NAME, ArenaTable, arena_tables
from slurm_energy.reporting.arena_context import RunContext
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.visible import visible

NAME_WIDTH = 24
WIDTH = 120
LEGEND = (
    "Means over seeds ± the longer arm of the 95 % interval. Done: completed. Open: unfinished at the end. Other: "
    "timed out, failed, cancelled or refused. Active: energy charged to jobs, per unit. vs ref: difference in J/unit "
    "from {reference}, same seeds. >bound: above the least energy for the work that was done. >front: above the "
    "energy-latency frontier at the policy's own mean turnaround. Wait all: unfinished jobs' wait until the end "
    "counted in. Slowdn: mean bounded slowdown, against the run at the default clock."
)


def print_arena(summary: ArenaSummary, context: RunContext, console: Console) -> None:
    """Print tables, failures and notes; texts of users are shown as they are."""
    for table in arena_tables(summary):
        console.print(Text(table.title, style="bold"))
        print_fitted(_fitted_table(table), console)
        console.print()
    if summary.policies:
        console.print(Text(visible(LEGEND.format(reference=summary.reference)), style="dim"))
    for note in context.notes:
        console.print(Text(visible(note), style="dim"))


def _fitted_table(table: ArenaTable) -> FittedTable:
    """Return a table whose last columns go first where a terminal has no room."""
    first, *numbers = table.headings
    columns = [
        FittedColumn(heading=first, shortest=14),
        *(FittedColumn(heading=heading, is_number=True, rank=at) for at, heading in enumerate(numbers)),
    ]
    styles = [
        "bold" if is_reference else "italic" if row[0] == BOUND_NAME else None
        for row, is_reference in zip(table.rows, table.is_reference, strict=True)
    ]
    rows = [(visible(row[0], NAME_WIDTH), *row[1:]) for row in table.rows]
    return FittedTable(columns=columns, rows=rows, styles=styles)
