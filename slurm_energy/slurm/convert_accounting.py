"""Rows of `sacct --json`, 22.05 to 25.11, to job states: pure and total."""

from collections.abc import Iterable, Mapping
from typing import cast

from slurm_energy.domain.cluster import JobState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import GpuDemand
from slurm_energy.domain.units import slurm_joules
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.conversion import (
    BadRow,
    Converted,
    convert_rows,
    exit_status,
    long_text,
    minutes,
    names,
    positive,
    rows_of,
    text,
    unix_seconds,
    whole,
    words,
)
from slurm_energy.slurm.convert_job import LIVE_STATES, job_id, job_state, optional_job_id
from slurm_energy.slurm.gres import known_types, parse_gpus

REQUEUED = "REQUEUED"


def convert_accounting(document: object) -> Converted[JobState]:
    """Return the jobs of a `sacct --json` answer, steps left aside; bad rows are counted by reason.

    Raises:
        SlurmError: the answer as a whole is not one of sacct.
    """
    return convert_rows(rows_of(document, "jobs"), convert_accounted_job)


def without_repeats(jobs: Iterable[JobState]) -> tuple[JobState, ...]:
    """Return jobs of which each attempt is there once: exports overlap, and a later one knows more of a job.

    Attempts are known by number, task, submit time and start; one that still waited or ran in an earlier export is left
    out where another row says how it ended.
    """
    rows = {(job.job_id, job.array_task, job.submitted_at_seconds, job.started_at_seconds): job for job in jobs}
    ended = {(job.job_id, job.array_task, job.submitted_at_seconds) for job in rows.values() if not _is_live(job)}
    return tuple(
        job
        for job in rows.values()
        if not _is_live(job) or (job.job_id, job.array_task, job.submitted_at_seconds) not in ended
    )


def _is_live(job: JobState) -> bool:
    return job.state in LIVE_STATES


def convert_accounted_job(row: Mapping[str, object]) -> JobState:
    """Return one job; accounting names users, not their numbers: `user_id` is -1."""
    times, array, het = _object(row, "time"), _object(row, "array"), _object(row, "het")
    submitted = unix_seconds(times.get("submission"))
    if submitted is None:
        raise BadRow("no submit time")
    state_row = row.get("state")
    state = _state(state_row.get("current") if isinstance(state_row, dict) else state_row)
    array_job_id = optional_job_id(array.get("job_id"))
    task = whole(array.get("task_id"))
    pending, live = state == "PENDING", state in LIVE_STATES
    allocated = _tres(row, "allocated") or _tres(row, "requested")
    gpus = _gpus(allocated)
    return JobState(
        job_id=job_id(row.get("job_id")),
        user_name=text(row.get("user")) or text(_object(row, "association").get("user")),
        user_id=-1,
        name=text(row.get("name")),
        state=state,
        partitions=tuple(PartitionName(name) for name in names(row.get("partition"))),
        submitted_at_seconds=submitted,
        started_at_seconds=None if pending else unix_seconds(times.get("start")),
        ended_at_seconds=None if live else unix_seconds(times.get("end")),
        account=text(row.get("account")) or None,
        qos=text(row.get("qos")) or None,
        array_job_id=array_job_id,
        array_task=None if array_job_id is None or task is None else str(task),
        het_job_id=optional_job_id(het.get("job_id")),
        restart_count=positive(row.get("restart_cnt")) or 0,
        time_limit_minutes=minutes(times.get("limit")),
        suspended_seconds=float(positive(times.get("suspended")) or 0),
        nodes="" if pending else long_text(row.get("nodes")),
        node_count=positive(row.get("allocation_nodes")) or 0,
        gpu_count=None if gpus is None else sum(demand.count for demand in gpus),
        cpus=_count(allocated, "cpu"),
        priority=whole(row.get("priority")),
        exit_code=None if live else exit_status(row.get("exit_code")),
        admin_comment=text(_object(row, "comment").get("administrator")),
        energy_joules=slurm_joules(_count(_tres(row, "allocated"), "energy")) or None,
        gpu_types=known_types(gpus or ()),
    )


def _state(value: object) -> str:
    """Return the base state; a requeued attempt has ended here, and is another record than the next attempt."""
    return REQUEUED if words(value)[:1] == (REQUEUED,) else job_state(value)


def _object(row: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = row.get(key)
    return cast(Mapping[str, object], found) if isinstance(found, dict) else {}


def _tres(row: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    found = _object(row, "tres").get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _count(tres: list[Mapping[str, object]], kind: str) -> int | None:
    return next((whole(item.get("count")) for item in tres if item.get("type") == kind), None)


def _gpus(tres: list[Mapping[str, object]]) -> tuple[GpuDemand, ...] | None:
    """Return the GPUs by type, None where the row has none or their count cannot be read."""
    items = [
        f"gres/{text(item.get('name'))}={whole(item.get('count')) or 0}" for item in tres if item.get("type") == "gres"
    ]
    try:
        return parse_gpus(",".join(items)) or None
    except ValueRangeError:
        return None
