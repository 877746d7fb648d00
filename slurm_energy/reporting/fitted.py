"""Tables that fit a terminal: texts are shortened, columns left out and named; a number is never broken or cut."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from slurm_energy.reporting.visible import visible

GAP = "  "
MAX_CELL_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """One column of a table."""

    heading: str
    is_number: bool = False
    rank: int = 0
    """0 stays at any width; of the others, the highest goes first."""
    shortest: int | None = None
    """Width down to which its texts may be shortened; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table before it is known how wide it may be."""

    columns: Sequence[FittedColumn]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None = None
    title: str = ""
    styles: Sequence[str | None] = ()
    """Of each row."""


def print_fitted(table: FittedTable, console: Console) -> None:
    """Print a table in the console's width, and which columns had no room."""
    columns = table.columns
    rows = [[visible(cell, MAX_CELL_CHARACTERS) for cell in row] for row in table.rows]
    total = [] if table.total is None else [[visible(cell, MAX_CELL_CHARACTERS) for cell in table.total]]
    kept, widths = _fitted(columns, [*rows, *total], console.width)
    if table.title:
        _put(console, visible(table.title), "italic")
    _put(console, _line([column.heading for column in columns], columns, kept, widths), "bold")
    rule = "─" * (sum(widths[index] for index in kept) + len(GAP) * (len(kept) - 1))
    _put(console, f" {rule}")
    styles = [*table.styles, *[None] * (len(rows) - len(table.styles))]
    for row, style in zip(rows, styles, strict=True):
        _put(console, _line(row, columns, kept, widths), style)
    for row in total:
        _put(console, f" {rule}")
        _put(console, _line(row, columns, kept, widths), "bold")
    left_out = [column.heading for index, column in enumerate(columns) if index not in kept and column.heading]
    if left_out:
        console.print(Text(f"No room for: {', '.join(left_out)} (a wider terminal, a pipe or --json has them).", "dim"))


def _fitted(
    columns: Sequence[FittedColumn], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[int], dict[int, int]]:
    """Return the columns that are shown, and the width of each."""
    natural = {
        index: max(cell_len(column.heading), *(cell_len(row[index]) for row in rows), 0)
        for index, column in enumerate(columns)
    }
    min_widths = {
        index: min(natural[index], max(column.shortest, cell_len(column.heading)))
        if column.shortest is not None
        else natural[index]
        for index, column in enumerate(columns)
    }
    kept = list(range(len(columns)))
    for index in sorted((at for at in kept if columns[at].rank), key=lambda at: -columns[at].rank):
        if _needed(kept, min_widths) <= width:
            break
        kept.remove(index)
    widths = {index: natural[index] for index in kept}
    while (excess := _needed(kept, widths) - width) > 0:
        widest = max(kept, key=lambda index: widths[index] - min_widths[index])
        room = widths[widest] - min_widths[widest]
        if room <= 0:
            break  # the terminal is narrower than what must be there: lines run over, whole
        widths[widest] -= min(room, excess, max(1, room // 2))
    return kept, widths


def _needed(kept: Sequence[int], widths: dict[int, int]) -> int:
    return 2 + sum(widths[index] for index in kept) + len(GAP) * (len(kept) - 1)


def _line(cells: Sequence[str], columns: Sequence[FittedColumn], kept: Sequence[int], widths: dict[int, int]) -> str:
    parts = (_sized(cells[index], widths[index], right=columns[index].is_number) for index in kept)
    return f" {GAP.join(parts)} "


def _sized(cell: str, width: int, *, right: bool) -> str:
    missing = width - cell_len(cell)
    if missing < 0:
        return f"{set_cell_size(cell, width - 1)}…"
    return " " * missing + cell if right else cell + " " * missing


def _put(console: Console, line: str, style: str | None = None) -> None:
    console.print(Text(line.rstrip(), style=style or ""), no_wrap=True, overflow="ignore", crop=False)
