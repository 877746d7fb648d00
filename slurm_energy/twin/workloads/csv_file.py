"""The workload file of this package: a CSV with one job per row, documented in docs/reference/workloads.md.

Columns are the fields of `Job` that a user would give; an empty cell stands for the field's default, and a column that
is left out for empty cells. Writing and reading returns equal jobs, to the last bit.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.rows import MAX_CELL, NumberedJob, Row, assembled_workload, read_rows
from slurm_energy.twin.workloads.values import BadRows, BadValue


@dataclass(frozen=True, slots=True)
class _Column:
    read: Callable[[str, str], Any]
    """From column name and cell."""
    write: Callable[[Any], str]


def _comma_list(items: tuple[object, ...]) -> str:
    return ",".join(map(str, items))


def _counts_text(counts: tuple[int, ...]) -> str:
    if len(counts) > 2 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]}-{counts[-1]}"
    return _comma_list(counts)


def _truth_word(value: bool) -> str:
    return "true" if value else "false"


def _exact(value: float) -> str:
    return repr(float(value))


_SECONDS = _Column(partial(values.number, high=values.MAX_SECONDS), _exact)
_UNITS = _Column(partial(values.number, high=values.MAX_UNITS), _exact)
_TEXT = _Column(values.text, str)
_NAMES = _Column(values.names, _comma_list)
_IDS = _Column(values.ids, _comma_list)
_TRUTH = _Column(values.truth, _truth_word)
_ID = _Column(values.whole, str)

COLUMNS: dict[str, _Column] = {
    "job_id": _ID,
    "submitted_seconds": _SECONDS,
    "true_units": _UNITS,
    "kind": _TEXT,
    "gpu_counts": _Column(values.counts, _counts_text),
    "estimated_units": _UNITS,
    "time_limit_seconds": _Column(partial(values.number, high=values.MAX_SECONDS, above=True), _exact),
    "deadline_seconds": _SECONDS,
    "max_slowdown": _Column(partial(values.number, high=1e6), _exact),
    "priority": _Column(partial(values.number, low=-1e15, high=1e15), _exact),
    "partitions": _NAMES,
    "devices": _NAMES,
    "cpus": _Column(partial(values.whole, high=10**9), str),
    "memory_gib": _Column(partial(values.number, high=1e12), _exact),
    "exclusive": _TRUTH,
    "spread": _TRUTH,
    "shareable": _TRUTH,
    "after_ok": _IDS,
    "after_any": _IDS,
    "input_gigabytes": _Column(partial(values.number, high=1e12), _exact),
    "array_id": _ID,
    "array_limit": _Column(partial(values.whole, high=10**9), str),
    "requeue": _TRUTH,
    "fails_after_units": _UNITS,
    "checkpoint_units": _Column(partial(values.number, high=values.MAX_UNITS, above=True), _exact),
    "user": _TEXT,
    "account": _TEXT,
    "name": _TEXT,
    "ingress": _Column(partial(values.whole, high=10_000), str),
}
REQUIRED = ("submitted_seconds", "true_units")
_SPECIAL = re.compile(r'[,"\r\n]')
_ALWAYS_WRITTEN = ("job_id", *REQUIRED, "kind", "gpu_counts")
_DEFAULTS = {field.name: field.default for field in fields(Job) if field.default is not MISSING}


def read_csv(path: Path, *, skip_bad: bool = False) -> Workload:
    """Return the workload of a file; without a column `job_id` rows are numbered from 1.

    Args:
        path: The file; its stem names the workload.
        skip_bad: Count rows that cannot be used instead of refusing the file.

    Raises:
        WorkloadError: the file is empty or cannot be read, its columns are wrong, or a row cannot be used; the message
            names file, line, column, value and reason.
    """
    bad = BadRows(path, skip=skip_bad)
    return assembled_workload(path.stem, path, _jobs(path, bad), bad)


def write_csv(workload: Workload, path: Path) -> None:
    """Write a workload; columns in which every job has the default are left out.

    Raises:
        WorkloadError: a job has a value that the file cannot hold, or the file cannot be written.
    """
    rows = [_cells(job) for job in workload.jobs]
    used = [name for name in COLUMNS if name in _ALWAYS_WRITTEN or any(row[name] for row in rows)]
    try:
        with path.open("w", encoding="utf-8", newline="") as stream:
            stream.write(",".join(used) + "\n")
            stream.writelines(",".join(_quoted(row[name]) for name in used) + "\n" for row in rows)
    except OSError as error:
        raise WorkloadError(f"workload {str(path)!r} cannot be written: {error}") from error


def _jobs(path: Path, bad: BadRows) -> Iterator[NumberedJob]:
    optional = [name for name in COLUMNS if name not in REQUIRED]
    for number, row in enumerate(read_rows(path, bad, REQUIRED, optional), start=1):
        try:
            yield row.line, _job(row, number)
        except BadValue as error:
            bad.add(row.line, error)


def _job(row: Row, number: int) -> Job:
    for name in REQUIRED:
        if not row.cells[name]:
            raise BadValue(name, "", "is needed")
    given: dict[str, Any] = {"job_id": number}
    for name, cell in row.cells.items():
        if cell:
            given[name] = COLUMNS[name].read(name, cell)
    return Job(**given)


def _quoted(cell: str) -> str:
    """Return a cell in quotes if it needs them; csv.writer leaves a lone carriage return without."""
    return '"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell


def _cells(job: Job) -> dict[str, str]:
    """Return a job's cells; read back they give the same job, else the file cannot hold it."""
    cells = {}
    for name, column in COLUMNS.items():
        value = getattr(job, name)
        default = job.true_units if name == "estimated_units" else _DEFAULTS.get(name)
        cells[name] = column.write(value) if name in _ALWAYS_WRITTEN or value not in (None, default) else ""
    try:
        back = _job(Row(0, cells), 0)
    except BadValue as error:
        raise WorkloadError(f"job {job.job_id} cannot be written, {error.message}") from None
    for name in COLUMNS:
        value = getattr(job, name)
        if len(cells[name]) > MAX_CELL or getattr(back, name) != value:
            raise WorkloadError(f"job {job.job_id} cannot be written, column {name}: {str(value)[:64]!r} has no text")
    return cells
