"""From the rows of a CSV file to a workload: unique ids, dependencies that can be met, the order of submission.

Whatever a file may hold, a row is read or is a bad row.
"""

import csv
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TextIO

from slurm_energy.errors import ValueRangeError, WorkloadError
from slurm_energy.forms import did_you_mean
from slurm_energy.twin.engine.job import Job, Workload, check_job
from slurm_energy.twin.workloads.values import BadRows, BadValue

NumberedJob = tuple[int, Job]
"""Line of the file, job."""


def assembled_workload(
    name: str, path: PurePath, numbered: Iterable[NumberedJob], bad: BadRows, *, from_first: bool = False
) -> Workload:
    """Return the workload of a file's jobs.

    Args:
        name: Of the workload.
        path: Where the jobs come from.
        numbered: Jobs with their lines.
        bad: What to do with jobs that cannot be.
        from_first: Count time from the first submission.

    Raises:
        WorkloadError: a job cannot be, and bad rows are not skipped.
    """
    lines: dict[int, int] = {}
    jobs: dict[int, Job] = {}
    for line, job in numbered:
        try:
            check_job(job)
        except ValueRangeError as error:
            bad.add(line, BadValue("(all)", str(job.job_id), f"cannot be: {error}"))
            continue
        if job.job_id in jobs:
            bad.add(line, BadValue("job_id", str(job.job_id), f"is the job of line {lines[job.job_id]} too"))
            continue
        lines[job.job_id], jobs[job.job_id] = line, job
    for job_id, reason in _unmet(jobs):
        others = ",".join(map(str, (*jobs[job_id].after_ok, *jobs[job_id].after_any)))
        bad.add(lines[job_id], BadValue("after_ok, after_any", others, reason))
        del jobs[job_id]
    bad.close()
    ordered = sorted(jobs.values(), key=lambda job: job.submitted_seconds)
    if from_first and ordered:
        first = ordered[0].submitted_seconds
        for job in ordered:
            job.submitted_seconds -= first
            job.deadline_seconds -= first
    return Workload(name=name, jobs=tuple(ordered), source=str(path), bad_rows=bad.count)


def renamed(workload: Workload, name: str, note: str) -> Workload:
    """Return the workload under another name, with a note about what was left aside added to its source."""
    return replace(workload, name=name, source=f"{workload.source} ({note})" if note else workload.source)


def _unmet(jobs: dict[int, Job]) -> list[tuple[int, str]]:
    """Return the jobs whose dependencies can never be met, with the reason, by peeling off those that can (Kahn)."""
    waits = {job_id: {*job.after_ok, *job.after_any} for job_id, job in jobs.items() if job.after_ok or job.after_any}
    if not waits:
        return []
    followers: dict[int, list[int]] = {}
    left: dict[int, int] = {}
    for job_id, others in waits.items():
        left[job_id] = len(others)
        for other in others:
            followers.setdefault(other, []).append(job_id)
    ready = deque(job_id for job_id in jobs if job_id not in waits)
    while ready:
        for follower in followers.get(ready.popleft(), ()):
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return [(job_id, _reason(waits[job_id], jobs)) for job_id, count in left.items() if count]


def _reason(others: set[int], jobs: dict[int, Job]) -> str:
    unknown = sorted(other for other in others if other not in jobs)
    return f"job {unknown[0]} is unknown" if unknown else "is part of a cycle, or waits for a job that can never start"


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
            hint = did_you_mean(name, known)
            raise WorkloadError(f"{str(path)!r}, line 1: column {number}, {name[:64]!r}, is unknown; {hint}")
        if header.index(name) != number - 1:
            raise WorkloadError(f"{str(path)!r}, line 1: column {name!r} is there twice")
    missing = [name for name in required if name not in header]
    if missing:
        raise WorkloadError(f"{str(path)!r}, line 1: column {missing[0]!r} is missing")
