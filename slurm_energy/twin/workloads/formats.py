"""Formats of workload files, how to recognise them, and the reader of the Standard Workload Format.

That is version 2: 18 numbers per job, -1 for what is not known (Feitelson and others).
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, inf, nextafter
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from slurm_energy.errors import WorkloadError
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import csv_file, traces, values
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.rows import MAX_CELL, NumberedJob, assembled_workload, open_text, read_header, renamed
from slurm_energy.twin.workloads.values import BadRows, BadValue

_FAILED, _PARTS = 0, (2, 3, 4)
_KIB_PER_GIB = 1024.0**2
_MAX_STATUS = 5


class SwfRow(NamedTuple):
    """The fields of one line, in the format's order; -1 is unknown."""

    job_number: float
    submit_seconds: float
    wait_seconds: float
    run_seconds: float
    allocated_processors: float
    average_cpu_seconds: float
    used_memory_kib: float
    requested_processors: float
    requested_seconds: float
    requested_memory_kib: float
    status: float
    user: float
    group: float
    executable: float
    queue: float
    partition: float
    preceding_job: float
    think_seconds: float


def load_swf(path: Path, options: LoadOptions) -> Workload:
    """Return the jobs that ran: work = run time on the allocated processors, limit = requested time.

    Jobs without a run time or processors, and lines that are parts of a job (status 2 to 4), are left aside and counted
    in the workload's source. A failed job (0) fails after its run time; a cancelled one (5) does what it did. A
    preceding job becomes `after_any` if it is there; the think time after it is not kept. Kinds are looked up by
    `queue<n>`, `partition<n>`, `app<n>`.

    Raises:
        WorkloadError: the file or a line of it cannot be used.
    """
    bad = BadRows(path, skip=options.skip_bad)
    aside: Counter[str] = Counter()
    numbered = list(_jobs(path, options, bad, aside))
    known = {job.job_id for _, job in numbered}
    for _, job in numbered:
        if job.after_any and job.after_any[0] not in known:
            job.after_any = ()
            aside["dependencies on jobs that are not there"] += 1
    workload = assembled_workload(path.stem, path, numbered, bad)
    return renamed(workload, workload.name, ", ".join(f"{count} {reason}" for reason, count in aside.items()))


def swf_row(line: str) -> SwfRow:
    """Return the fields of a line.

    Raises:
        BadValue: there are not 18, or one is not a number from 0 up or -1.
    """
    cells = line.split()
    if len(cells) != len(SwfRow._fields):
        raise BadValue("(all)", line.strip(), f"has {len(cells)} fields instead of {len(SwfRow._fields)}")
    row = SwfRow._make(
        values.number(name, cell, -1.0, values.MAX_UNITS) for name, cell in zip(SwfRow._fields, cells, strict=True)
    )
    for name, value in zip(SwfRow._fields, row, strict=True):
        if -1.0 < value < 0.0:
            raise BadValue(name, str(value), "is out of its bound: from 0, or -1 for unknown")
    return row


def _jobs(path: Path, options: LoadOptions, bad: BadRows, aside: Counter[str]) -> Iterator[NumberedJob]:
    lines = 0
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            lines += 1
            if not line.strip() or line.lstrip().startswith(";"):
                continue
            try:
                if len(line) > MAX_CELL:
                    raise BadValue("(all)", line, "is too long")
                row = swf_row(line)
                reason = _why_aside(row)
                if reason:
                    aside[reason] += 1
                else:
                    yield number, _job(row, options)
            except BadValue as error:
                bad.add(number, error)
    if not lines:
        raise WorkloadError(f"workload {str(path)!r} is empty")


def _why_aside(row: SwfRow) -> str:
    if row.status in _PARTS:
        return "parts of jobs"
    if row.run_seconds < 0.0 or max(row.allocated_processors, row.requested_processors) <= 0.0:
        return "never ran"
    return ""


def _job(row: SwfRow, options: LoadOptions) -> Job:
    if row.status > _MAX_STATUS:
        raise BadValue("status", f"{row.status:g}", f"is out of its bound: -1 to {_MAX_STATUS}")
    job_id = _whole("job_number", row.job_number)
    if row.submit_seconds < 0.0:
        raise BadValue("submit_seconds", f"{row.submit_seconds:g}", "is needed")
    processors = row.allocated_processors if row.allocated_processors > 0.0 else row.requested_processors
    gpus = ceil(_whole("allocated_processors", processors) / max(1, options.processors_per_device))
    if gpus > values.MAX_COUNT:
        raise BadValue("allocated_processors", f"{processors:g}", f"makes {gpus} devices, more than {values.MAX_COUNT}")
    labels = {name: f"{name}{int(row_value)}" for name, row_value in _named(row) if row_value >= 0.0}
    kind = options.kind_of(*(labels.get(name, "") for name in ("queue", "partition", "app")))
    units = kind.units(row.run_seconds, gpus)
    job = Job(
        job_id=job_id,
        submitted_seconds=row.submit_seconds,
        true_units=units,
        kind=kind.name,
        gpu_counts=(gpus,),
        time_limit_seconds=row.requested_seconds if row.requested_seconds > 0.0 else inf,
        partitions=(labels["partition"],) if options.keep_partitions and "partition" in labels else (),
        memory_gib=max(0.0, row.requested_memory_kib) * processors / _KIB_PER_GIB,
        after_any=(_whole("preceding_job", row.preceding_job),) if row.preceding_job > 0.0 else (),
        user=labels.get("user", ""),
        account=labels.get("group", ""),
        name=labels.get("app", ""),
    )
    if row.status == _FAILED:
        job = replace(job, true_units=nextafter(units, inf), fails_after_units=units)
    return job


def _named(row: SwfRow) -> tuple[tuple[str, float], ...]:
    return (
        ("user", row.user),
        ("group", row.group),
        ("app", row.executable),
        ("queue", row.queue),
        ("partition", row.partition),
    )


def _whole(name: str, value: float) -> int:
    if value != int(value) or value < 0.0:
        raise BadValue(name, f"{value:g}", "is not a whole number from 0 up")
    return int(value)


Format = Literal["csv", "philly", "gavel", "elasticflow", "pollux", "alibaba", "swf", "sacct-json", "sacct-text"]
FORMATS: tuple[Format, ...] = get_args(Format)
_READERS: dict[Format, Callable[[Path, LoadOptions], Workload]] = {
    "csv": lambda path, options: csv_file.read_csv(path, skip_bad=options.skip_bad),
    "philly": traces.load_philly,
    "gavel": traces.load_gavel,
    "elasticflow": traces.load_elasticflow,
    "pollux": traces.load_pollux,
    "alibaba": traces.load_alibaba,
    "swf": load_swf,
}
_REQUIRED: dict[Format, tuple[str, ...]] = {
    "csv": csv_file.REQUIRED,
    "philly": traces.PHILLY.required,
    "gavel": traces.GAVEL.required,
    "elasticflow": traces.ELASTICFLOW.required,
    "pollux": traces.POLLUX.required,
    "alibaba": traces.ALIBABA.required,
}
_PEEKED_CHARACTERS = 65_536
_NEAR = 0.5


def load_workload(
    path: Path,
    format: Format | Literal["auto"] = "auto",  # noqa: A002  # the word that its users know
    skip_bad: bool | None = None,
    options: LoadOptions | None = None,
) -> Workload:
    """Return the workload of a file.

    Args:
        path: The file.
        format: `auto` recognises it by its first lines.
        skip_bad: Count rows that cannot be used instead of refusing the file; None leaves it to the options.
        options: Options of the format's loader.

    Raises:
        WorkloadError: the format is unknown, or is accounting, which has to be converted first; the file or a row of
            it cannot be used.
    """
    chosen = options or LoadOptions()
    if skip_bad is not None:
        chosen = replace(chosen, skip_bad=skip_bad)
    name = recognised_format(path) if format == "auto" else format
    reader = _READERS.get(name)
    if reader is not None:
        return reader(path, chosen)
    if name in FORMATS:
        raise WorkloadError(
            f"workload {str(path)!r} is Slurm's accounting ({name}): replay it (twin replay --sacct FILE)"
        )
    raise WorkloadError(f"there is no workload format {name[:64]!r}; there are auto, {', '.join(FORMATS)}")


def recognised_format(path: Path) -> Format:
    """Return a file's format, recognised by its first lines.

    Raises:
        WorkloadError: the file cannot be read, is empty, or is of no known format.
    """
    with open_text(path) as stream:
        head = stream.read(_PEEKED_CHARACTERS)
    if not head.strip():
        raise WorkloadError(f"workload {str(path)!r} is empty")
    if head.lstrip().startswith("{"):
        return "sacct-json"
    first = head.lstrip("\r\n").splitlines()[0]
    if "jobid" in first.lower().split("|") or any(_is_accounting(first.lower().split(mark)) for mark in "|,;\t"):
        return "sacct-text"
    if _is_swf(head):
        return "swf"
    return _csv_format(path, first)


def _is_accounting(names: list[str]) -> bool:
    """Tell whether column names are those of sacct."""
    found = {name.strip().strip('"') for name in names}
    return bool({"jobid", "jobidraw"} & found) and bool({"state", "elapsed", "elapsedraw", "alloctres"} & found)


def _csv_format(path: Path, first: str) -> Format:
    """Return the format whose required columns the header has; else the nearest, whose reader tells what is missing."""
    header = set(read_header(path))
    found = {name: len(header & set(required)) / len(required) for name, required in _REQUIRED.items()}
    best = max(found, key=lambda name: found[name])
    if found[best] < _NEAR:
        raise WorkloadError(
            f"workload {str(path)!r} is of no known format; it begins {first[:64]!r}. Known are {', '.join(FORMATS)}; "
            f"the CSV of this package needs the columns {', '.join(csv_file.REQUIRED)}"
        )
    return best


def _is_swf(head: str) -> bool:
    """Tell whether the first line that is no comment has the format's 18 numbers."""
    lines = (line for line in head.splitlines() if line.strip() and not line.lstrip().startswith(";"))
    first = next(lines, None)
    if first is None:
        return head.lstrip().startswith(";")
    try:
        swf_row(first)
    except BadValue:
        return False
    return True
