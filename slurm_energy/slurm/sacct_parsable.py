"""The text of `sacct -P` to job states; what a row lacks or says wrongly costs only that row.

Columns are known by their header: any `--format` will do that has JobID, State, Submit and Start, and Elapsed or End.
JobIDRaw, AllocTRES (or ReqTRES), Timelimit, Partition, User, Account, JobName, NNodes and Suspended are used if there.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import JobId, PartitionName
from slurm_energy.domain.units import minutes_from_slurm_time, slurm_joules
from slurm_energy.errors import SlurmError, ValueRangeError
from slurm_energy.slurm.conversion import BadRow, Converted
from slurm_energy.slurm.convert_accounting import REQUEUED
from slurm_energy.slurm.convert_job import LIVE_STATES, job_id, job_state
from slurm_energy.slurm.gres import parse_gpus
from slurm_energy.slurm.values import MAX_UNIX_SECONDS, long_text, names, positive, text, whole, words

OnBad = Callable[[int, str, str, str], None]
"""Told of each bad row: line from 1, column, value, reason."""
_JOB = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\[[^\]]{0,1000}\]))?(?:\+(\d{1,6}))?\Z", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,10})?)([KMGTPE]?)\Z", re.ASCII | re.IGNORECASE)
_POWERS = {unit: power for power, unit in enumerate(["", "K", "M", "G", "T", "P", "E"])}
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


def convert_parsable(
    output: str, *, zone: tzinfo = UTC, delimiter: str = "|", on_bad: OnBad | None = None
) -> Converted[JobState]:
    """Return the jobs of a `sacct -P` text with its header line, steps left aside; bad rows are counted by reason.

    Args:
        output: What sacct printed.
        zone: Where its times are local; times with an offset and Unix seconds need none.
        delimiter: As given to --delimiter.
        on_bad: Called for each bad row.

    Raises:
        SlurmError: there is no header, or it lacks a column that is needed.
    """
    lines = [line.removesuffix("\r") for line in output.removeprefix("\ufeff").split("\n")]
    header = [name.strip().lower() for name in lines[0].split(delimiter)]
    _check_header(header)
    items: list[JobState] = []
    skipped: Counter[str] = Counter()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            cells = _cells(header, line, delimiter)
            if "." not in cells["jobid"]:
                items.append(_job(cells, zone))
        except _BadCell as error:
            column, value, reason = error.args
            skipped[f"column {column} {reason}"] += 1
            if on_bad is not None:
                on_bad(number, column, value, reason)
    return Converted(items=tuple(items), skipped=dict(skipped))


def _check_header(header: list[str]) -> None:
    needed = ("jobid", "state", "submit", "start")
    missing = [name for name in needed if name not in header]
    if not missing and not {"elapsed", "elapsedraw", "end"} & set(header):
        missing = ["elapsed"]
    if missing:
        raise SlurmError(
            f"the text of sacct -P has no column {missing[0]!r} in its first line; "
            "it needs JobID, State, Submit, Start, and Elapsed or End, and no --noheader"
        )


def _cells(header: list[str], line: str, delimiter: str) -> _Cells:
    """Return cells by column; sacct does not quote, so what is too much belongs to the job name, the one free text."""
    cells = line.split(delimiter)
    extra = len(cells) - len(header)
    if extra > 0 and "jobname" in header:
        place = header.index("jobname")
        cells[place : place + extra + 1] = [delimiter.join(cells[place : place + extra + 1])]
    if len(cells) != len(header):
        raise _BadCell("JobID", cells[0], f"begins a row of another length than the header's {len(header)} cells")
    return dict(zip(header, cells, strict=True))


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
        node_count=positive(_first(cells, "nnodes", "allocnodes")) or 0,
        gpu_count=_gpus(tres),
        cpus=positive(_first(cells, "alloccpus", "ncpus")) or _tres_count(tres, "cpu"),
        priority=whole(cells.get("priority")),
        exit_code=None if live else _exit_code(cells.get("exitcode", "")),
        admin_comment=text(cells.get("admincomment")),
        energy_joules=_energy(cells, tres),
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


def _gpus(tres: str) -> int | None:
    """Return GPUs of a TRES list, None when there is no list."""
    if not tres:
        return None
    try:
        return sum(demand.count for demand in parse_gpus(tres))
    except ValueRangeError:
        raise _BadCell("AllocTRES", tres, "has a GPU count that cannot be read") from None


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
