"""Energy reports as tables in a terminal."""

import time

from rich.console import Console
from rich.text import Text

from slurm_energy.domain.report import EnergyReport
from slurm_energy.reporting.cells import NAME_WIDTH, Column, report_cells
from slurm_energy.reporting.fitted import FittedColumn, FittedTable, print_fitted
from slurm_energy.reporting.visible import visible

_SHORTEST = 8


def render_table(report: EnergyReport, console: Console, now_seconds: float | None = None) -> None:
    """Print the report; texts of users are shown as they are, without markup or control characters."""
    cells = report_cells(report, time.time() if now_seconds is None else now_seconds)
    if not cells.rows:
        console.print(Text("No jobs match."))
        return
    table = FittedTable(
        title=cells.title,
        columns=[_column(column) for column in cells.columns],
        rows=[[visible(cell, NAME_WIDTH) for cell in row] for row in cells.rows],
        total=cells.total if len(cells.rows) > 1 else None,
    )
    print_fitted(table, console)
    for note in cells.notes:
        console.print(Text(visible(note), style="dim"))


def _column(column: Column) -> FittedColumn:
    # A job's number must stay whole: `12345_678` cut short is another job's.
    shortest = None if column.is_number or column.heading == "Job" else _SHORTEST
    return FittedColumn(heading=column.heading, is_number=column.is_number, rank=column.rank, shortest=shortest)
