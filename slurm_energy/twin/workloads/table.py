"""A CSV file with a header, row by row; whatever a file may hold, a row is read or is a bad row."""

import csv
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TextIO

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue

MAX_CELL = 131_072
"""csv's own limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `line` is where it begins in the file, from 1."""

    line: int
    cells: Mapping[str, str]
    """By column; only columns that the file has."""


def open_text(path: Path) -> TextIO:
    """Open a file as text; bytes that are not UTF-8 become surrogates, a byte order mark goes.

    Raises:
        WorkloadError: there is no such file, or it cannot be opened.
    """
    try:
        if path.exists() and not path.is_file():
            raise WorkloadError(f"workload {str(path)!r} is not a regular file")
        return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
    except (OSError, ValueError) as error:
        raise WorkloadError(f"workload {str(path)!r} cannot be read: {error}") from error


def read_header(path: Path) -> tuple[str, ...]:
    """Return the column names of a CSV file, empty when its first line is none of CSV.

    Raises:
        WorkloadError: the file cannot be read.
    """
    with open_text(path) as stream:
        try:
            return tuple(next(csv.reader(stream), ()))
        except csv.Error:
            return ()


def read_rows(path: Path, bad: BadRows, required: Collection[str], optional: Collection[str] = ()) -> Iterator[Row]:
    """Yield the rows of a CSV file; rows with too few or too many cells are bad.

    Raises:
        WorkloadError: the file cannot be read, its header lacks a required column or has one that is unknown or twice.
    """
    with open_text(path) as stream:
        reader = csv.reader(stream, strict=True)
        header: list[str] | None = None
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                break
            except OSError as error:
                raise WorkloadError(f"workload {str(path)!r} cannot be read: {error}") from error
            except csv.Error as error:
                bad.add(line, BadValue("(all)", "", f"cannot be read as CSV: {error}"))
                continue
            if not cells:
                continue
            if header is None:
                header = cells
                _check_header(path, header, required, optional)
            elif len(cells) != len(header):
                bad.add(line, BadValue(header[0], cells[0], f"begins {len(cells)} cells under {len(header)} columns"))
            else:
                yield Row(line, dict(zip(header, cells, strict=True)))
        if header is None:
            raise WorkloadError(f"workload {str(path)!r} is empty: a header is needed")


def _check_header(path: Path, header: list[str], required: Collection[str], optional: Collection[str]) -> None:
    known = [*required, *optional]
    for number, name in enumerate(header, start=1):
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise WorkloadError(f"{str(path)!r}, line 1: column {number}, {name[:64]!r}, is unknown; {hint}")
        if header.index(name) != number - 1:
            raise WorkloadError(f"{str(path)!r}, line 1: column {name!r} is there twice")
    missing = [name for name in required if name not in header]
    if missing:
        raise WorkloadError(f"{str(path)!r}, line 1: column {missing[0]!r} is missing")
