"""The text of `sacct -P` to job states; what a row lacks or says wrongly costs only that row.

Columns are known by their header: any `--format` will do that has JobID, State, Submit and Start, and Elapsed or End.
JobIDRaw, AllocTRES, Timelimit, Partition, User, Account, JobName, NNodes and Suspended are used if there; AllocGRES,
ReqTRES and ReqGRES stand in for an AllocTRES that lacks GPUs. Files that hold several exports, one behind the other,
and exports that a spreadsheet or --delimiter made CSV, are read as well.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.units import minutes_from_slurm_time, slurm_joules
from slurm_energy.errors import SlurmError, ValueRangeError
from slurm_energy.slurm.conversion import (
    MAX_UNIX_SECONDS,
    BadRow,
    Converted,
    long_text,
    names,
    positive,
    text,
    whole,
    words,
)
from slurm_energy.slurm.convert_accounting import REQUEUED, without_repeats
from slurm_energy.slurm.convert_job import LIVE_STATES, job_id, job_state
from slurm_energy.slurm.gres import known_types, parse_gpus

OnBad = Callable[[int, str, str, str], None]
"""Called for each bad row: line from 1, column, value, reason."""
_JOB = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\[[^\]]{0,1000}\]))?(?:\+(\d{1,6}))?\Z", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,10})?)([KMGTPE]?)\Z", re.ASCII | re.IGNORECASE)
_POWERS = {unit: power for power, unit in enumerate(["", "K", "M", "G", "T", "P", "E"])}
_TRES_ITEM = re.compile(r"([a-z]+(?:/[A-Za-z0-9._:+-]+)?)=[0-9.]+[A-Za-z]?\Z", re.ASCII)
DELIMITERS = "|,;\t"
"""What may stand between cells: sacct's own, and those of CSV."""
MAX_CELL_LINES = 100
"""Lines over which one row may run: a job's name may hold line breaks, and sacct prints them as they are."""
_NEEDED = ("jobid", "state", "submit", "start")
_FREE_TEXTS = frozenset({"jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir"})
_ENDS = frozenset({"elapsed", "elapsedraw", "end"})
_UNKNOWN = frozenset({"", "unknown", "none", "n/a", "invalid"})
_Cells = Mapping[str, str]


class _BadCell(Exception):  # control flow, never seen outside
    """A row cannot be used because of one cell; arguments: column, value, reason."""


class _Number(NamedTuple):
    """What a JobID says."""

    job: JobId
    array: JobId | None
    task: str | None
    het: JobId | None


class _Line(NamedTuple):
    """A row, cut into cells, with the number of its first line."""

    number: int
    cells: list[str]


def header_delimiter(line: str) -> str | None:
    """Return what stands between the names of sacct's header, None where the line is no such header."""
    return next((mark for mark in DELIMITERS if _is_header(_names(line.split(mark)))), None)


def convert_parsable(
    output: str, *, zone: tzinfo = UTC, delimiter: str | None = None, on_bad: OnBad | None = None
) -> Converted[JobState]:
    """Return the jobs of a `sacct -P` text with its header line, steps left aside; bad rows are counted by reason.

    Args:
        output: What sacct printed, once or several times.
        zone: Where its times are local; times with an offset and Unix seconds need none.
        delimiter: As given to --delimiter; None for what the header shows.
        on_bad: Called for each bad row.

    Raises:
        SlurmError: there is no header, or it lacks a column that is needed.
    """
    text_without_mark = output.removeprefix("\ufeff").lstrip("\r\n")
    first = text_without_mark.partition("\n")[0]
    mark = delimiter or header_delimiter(first) or "|"
    header: list[str] = []
    items: list[JobState] = []
    skipped: Counter[str] = Counter()
    for number, found in _rows(text_without_mark, mark):
        names_here = _names(found)
        if not header or _is_header(names_here):
            header = names_here
            _check_header(header)
            continue
        try:
            cells = _cells(header, found, mark)
            if "." not in cells["jobid"]:
                items.append(_job(cells, zone))
        except _BadCell as error:
            column, value, reason = error.args
            skipped[f"column {column} {reason}"] += 1
            if on_bad is not None:
                on_bad(number, column, value, reason)
    if not header:
        _check_header([])
    return Converted(items=without_repeats(items), skipped=dict(skipped))


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.strip().strip('"').lower() for cell in cells]


def _is_header(header: Sequence[str]) -> bool:
    return bool({"jobid", "jobidraw"} & set(header)) and len(set(_NEEDED) & set(header)) >= 2


def _check_header(header: Sequence[str]) -> None:
    missing = [name for name in _NEEDED if name not in header and not (name == "jobid" and "jobidraw" in header)]
    if not missing and not _ENDS & set(header):
        missing = ["elapsed"]
    if missing:
        raise SlurmError(
            f"the text of sacct -P has no column {missing[0]!r} in its first line; "
            "it needs JobID, State, Submit, Start, and Elapsed or End, and no --noheader"
        )


def _rows(text_of_file: str, delimiter: str) -> Iterator[_Line]:
    """Yield rows, headers among them; a file with quotes is CSV, sacct itself never quotes."""
    if delimiter != "|" and '"' in text_of_file:
        reader = csv.reader(io.StringIO(text_of_file, newline=""), delimiter=delimiter)
        number = 1
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield _Line(number, cells)
                number = reader.line_num + 1
        except csv.Error as error:
            raise SlurmError(f"line {reader.line_num} of the export is no CSV: {error}") from error
        return
    yield from _unquoted_rows(text_of_file, delimiter)


def _unquoted_rows(text_of_file: str, delimiter: str) -> Iterator[_Line]:
    """Yield rows of lines; a line that begins no row continues the one before: its job's name holds a line break."""
    header: list[str] = []
    pending: _Line | None = None
    lines = 0
    for number, line in enumerate(text_of_file.split("\n"), start=1):
        cells = line.removesuffix("\r").split(delimiter)
        is_header = _is_header(_names(cells))
        if (
            pending is not None
            and not is_header
            and lines < MAX_CELL_LINES
            and _continues(header, pending.cells, cells)
        ):
            joined = [*pending.cells[:-1], f"{pending.cells[-1]}\n{cells[0]}", *cells[1:]]
            pending, lines = _Line(pending.number, joined), lines + 1
            continue
        if pending is not None:
            yield pending
        pending, lines = (_Line(number, cells), 1) if line.strip() else (None, 0)
        if is_header or not header:
            header = _names(cells)
    if pending is not None:
        yield pending


def _continues(header: Sequence[str], row: Sequence[str], cells: Sequence[str]) -> bool:
    """Return whether a line is the rest of the row before it, and no row by itself."""
    at = next((header.index(name) for name in ("jobid", "jobidraw") if name in header), None)
    if at is None or len(row) > len(header) or (len(row) == len(header) and header[-1] not in _FREE_TEXTS):
        return False
    return len(cells) < len(header) or _JOB.match(cells[at].strip().partition(".")[0]) is None


def _cells(header: Sequence[str], cells: Sequence[str], delimiter: str) -> _Cells:
    """Return cells by column; what is too much in a row without quotes belongs to the job name, the one free text."""
    found = _joined_tres(cells) if delimiter == "," and len(cells) > len(header) else list(cells)
    extra = len(found) - len(header)
    if extra > 0 and "jobname" in header:
        place = header.index("jobname")
        found[place : place + extra + 1] = [delimiter.join(found[place : place + extra + 1])]
    if len(found) != len(header):
        advice = "; cells that hold commas need quotes, or sacct -P without --delimiter" if delimiter == "," else ""
        raise _BadCell(
            "JobID", found[0], f"begins a row of another length than the header's {len(header)} cells{advice}"
        )
    row = dict(zip(header, found, strict=True))
    row.setdefault("jobid", row.get("jobidraw", ""))
    return row


def _joined_tres(cells: Sequence[str]) -> list[str]:
    """Return cells with the items of each TRES list put together; a resource that comes again begins a new list."""
    joined: list[str] = []
    seen: set[str] = set()
    for cell in cells:
        match = _TRES_ITEM.match(cell)
        if match is not None and seen and match.group(1) not in seen:
            joined[-1] += f",{cell}"
        else:
            joined.append(cell)
            seen = set()
        if match is not None:
            seen.add(match.group(1))
    return joined


def _job(cells: _Cells, zone: tzinfo) -> JobState:
    number = _number(cells)
    submitted = _moment(cells, "Submit", zone)
    if submitted is None:
        raise _BadCell("Submit", cells["submit"], "is needed")
    state = _state(cells)
    pending, live = state == "PENDING", state in LIVE_STATES
    started = None if pending else _moment(cells, "Start", zone)
    suspended = _seconds(cells, "Suspended") or 0.0
    tres = _first(cells, "alloctres", "reqtres")
    node_count = positive(_first(cells, "nnodes", "allocnodes")) or 0
    gpus = _gpus(cells, node_count)
    return JobState(
        job_id=number.job,
        user_name=text(cells.get("user")),
        user_id=_user_id(cells),
        name=text(cells.get("jobname")),
        state=state,
        partitions=tuple(PartitionName(name) for name in names(cells.get("partition"))),
        submitted_at_seconds=submitted,
        started_at_seconds=started,
        ended_at_seconds=None if live or started is None else _ended(cells, started, suspended, zone),
        account=text(cells.get("account")) or None,
        qos=text(cells.get("qos")) or None,
        array_job_id=number.array,
        array_task=number.task,
        het_job_id=number.het,
        restart_count=positive(cells.get("restarts")) or 0,
        time_limit_minutes=_limit(cells),
        suspended_seconds=suspended,
        nodes="" if pending else long_text(cells.get("nodelist")),
        node_count=node_count,
        gpu_count=None if gpus is None else sum(demand.count for demand in gpus),
        cpus=positive(_first(cells, "alloccpus", "ncpus")) or _tres_count(tres, "cpu"),
        priority=whole(cells.get("priority")),
        exit_code=None if live else _exit_code(cells.get("exitcode", "")),
        admin_comment=text(cells.get("admincomment")),
        energy_joules=_energy(cells, tres),
        gpu_types=known_types(gpus or ()),
    )


def _number(cells: _Cells) -> _Number:
    match = _JOB.match(cells["jobid"].strip())
    if match is None:
        raise _BadCell("JobID", cells["jobid"], "is not a job, array task or component of a heterogeneous job")
    base, task, component = match.groups()
    try:
        leader = job_id(base)
        raw = cells.get("jobidraw", "").strip()
        own = job_id(raw) if raw.isdecimal() else JobId(leader + int(component or 0))
    except BadRow:
        raise _BadCell("JobID", cells["jobid"], "is no job number") from None
    return _Number(
        job=own,
        array=leader if task else None,
        task=task.strip("[]") if task else None,
        het=leader if component else None,
    )


def _user_id(cells: _Cells) -> int:
    found = whole(cells.get("uid"))
    return -1 if found is None else found


def _state(cells: _Cells) -> str:
    found = words(cells["state"])
    try:
        return REQUEUED if found[:1] == (REQUEUED,) else job_state(cells["state"])
    except BadRow:
        raise _BadCell("State", cells["state"], "is no state of a job") from None


def _moment(cells: _Cells, column: str, zone: tzinfo) -> float | None:
    """Return Unix seconds of local time, of time with an offset, or of Unix seconds (SLURM_TIME_FORMAT=%s)."""
    cell = cells.get(column.lower(), "").strip()
    if cell.lower() in _UNKNOWN:
        return None
    try:
        if cell.isascii() and cell.isdecimal():
            seconds = float(cell)
        else:
            moment = datetime.fromisoformat(cell)
            seconds = moment.replace(tzinfo=moment.tzinfo or zone).timestamp()
    except (ValueError, OverflowError):
        raise _BadCell(column, cell, "is not a time such as 2026-03-01T12:00:00") from None
    if not 0.0 < seconds < MAX_UNIX_SECONDS:
        raise _BadCell(column, cell, "is out of its bound")
    return seconds


def _seconds(cells: _Cells, column: str) -> float | None:
    """Return a duration, of Slurm's time text or, from the column with Raw in its name, of seconds."""
    raw = cells.get(f"{column.lower()}raw", "").strip()
    if raw.isascii() and raw.isdecimal() and len(raw) < 16:
        return float(raw)
    cell = cells.get(column.lower(), "").strip()
    if cell.lower() in _UNKNOWN:
        return None
    try:
        return float(round((minutes_from_slurm_time(cell.split(".")[0]) or 0.0) * 60.0))
    except (ValueRangeError, OverflowError):
        raise _BadCell(column, cell, "is not a duration such as 1-02:03:04") from None


def _ended(cells: _Cells, started: float, suspended: float, zone: tzinfo) -> float | None:
    """Return the end: the start and the time since, which no change of the clock moves, or else End."""
    elapsed = _seconds(cells, "Elapsed")
    return _moment(cells, "End", zone) if elapsed is None else started + elapsed + suspended


def _limit(cells: _Cells) -> float | None:
    raw = positive(cells.get("timelimitraw"))
    cell = cells.get("timelimit", "").strip()
    if raw is not None or not cell:
        return None if raw is None else float(raw)
    try:
        return minutes_from_slurm_time(cell)
    except ValueRangeError:
        raise _BadCell("Timelimit", cell, "is not a time limit") from None


def _first(cells: _Cells, *columns: str) -> str:
    return next((cells[column] for column in columns if cells.get(column, "").strip()), "")


def _gpus(cells: _Cells, node_count: int) -> tuple[GpuDemand, ...] | None:
    """Return the GPUs held, or asked for where nothing was allocated; None where no column tells.

    AllocTRES has GPUs only where AccountingStorageTRES names them; AllocGRES of older releases has the job's total, and
    ReqGRES what was asked for on each node.
    """
    allocated, requested = cells.get("alloctres", "").strip(), cells.get("reqtres", "").strip()
    texts = (
        ("AllocTRES", allocated, 1),
        ("AllocGRES", cells.get("allocgres", ""), 1),
        ("ReqTRES", "" if allocated else requested, 1),
        ("ReqGRES", cells.get("reqgres", ""), max(1, node_count)),
    )
    for column, cell, times in texts:
        try:
            found = parse_gpus(cell)
        except ValueRangeError:
            raise _BadCell(column, cell, "has a GPU count that cannot be read") from None
        if found:
            return tuple(GpuDemand(count=demand.count * times, slurm_type=demand.slurm_type) for demand in found)
    return () if allocated or requested or {"allocgres", "reqgres"} & cells.keys() else None


def _tres_count(tres: str, kind: str) -> int | None:
    cell = next((item.partition("=")[2] for item in tres.split(",") if item.startswith(f"{kind}=")), "")
    amount = _amount(cell, 1024)
    return None if amount is None else int(amount)


def _amount(cell: str, base: int) -> float | None:
    """Return a number with a unit: `4.19G`, `418.52M`, `12`."""
    match = _AMOUNT.match(cell.strip())
    return None if match is None else float(match.group(1)) * float(base) ** _POWERS[match.group(2).upper()]


def _energy(cells: _Cells, tres: str) -> float | None:
    """Return joules; Slurm's marks of no value are None. ConsumedEnergy's units are powers of 1000."""
    raw = _first(cells, "consumedenergyraw")
    if raw:
        return slurm_joules(whole(raw)) or None
    shown = _amount(_first(cells, "consumedenergy"), 1000)
    amount = _tres_count(tres, "energy") if shown is None else int(shown)
    return slurm_joules(amount) or None


def _exit_code(cell: str) -> int | None:
    """Return the exit code of `code:signal`; 128 + signal for a signal."""
    code, _, signal = cell.partition(":")
    if not (code.isascii() and code.isdecimal() and (not signal or signal.isdecimal()) and len(cell) < 12):
        return None
    return 128 + int(signal) if signal and int(signal) else int(code)
