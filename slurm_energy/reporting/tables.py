"""Energy reports as tables in a terminal."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_energy.domain.report import EnergyReport
from slurm_energy.reporting.cells import NAME_WIDTH, Cells, report_cells
from slurm_energy.reporting.visible import visible


def render_table(report: EnergyReport, console: Console) -> None:
    """Print the report; texts of users are shown as they are, without markup or control characters."""
    cells = report_cells(report)
    if not cells.rows:
        console.print(Text("No jobs match."))
        return
    console.print(_table(cells))
    for note in cells.notes:
        console.print(Text(visible(note), style="dim"))


def _table(cells: Cells) -> Table:
    table = Table(title=cells.title, title_justify="left", box=box.SIMPLE_HEAD, show_footer=len(cells.rows) > 1)
    for column, footer in zip(cells.columns, cells.total, strict=True):
        table.add_column(column.heading, Text(footer), justify="right" if column.is_number else "left", overflow="fold")
    for row in cells.rows:
        table.add_row(*(Text(visible(cell, NAME_WIDTH)) for cell in row))
    return table
