"""A replay of Slurm's accounting: jobs that a cluster ran, as a workload.

Job states come from the converters of `sacct --json` and `sacct -P`; the command line puts the two together.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, inf, nextafter
from pathlib import PurePath

from slurm_energy.domain.cluster import JobState
from slurm_energy.twin.engine.job import Job, Workload
from slurm_energy.twin.workloads import values
from slurm_energy.twin.workloads.replay import LoadOptions
from slurm_energy.twin.workloads.rows import NumberedJob, assembled_workload, renamed
from slurm_energy.twin.workloads.values import BadRows, BadValue

_LIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED"})
_FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "CANCELLED", "DEADLINE"})
_TRIED_AGAIN = frozenset({"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})


@dataclass(frozen=True, slots=True)
class _Attempts:
    """One job of the accounting."""

    first: JobState
    last: JobState


def workload_of_accounting(
    states: Iterable[JobState], options: LoadOptions, *, source: PurePath, bad_rows: int = 0
) -> Workload:
    """Return the jobs that ran and ended, submitted as then; time counts from the first submission.

    Work is elapsed time, without suspensions, on the devices held: by default in seconds at the default clock of one
    reference device. Several attempts of a job (requeued, preempted, node failed) are one job: submitted with the
    first, as long as the last. A job that failed, ran out of memory or was cancelled fails after its run; one that met
    its time limit has a second more to do than the limit allows. Kinds are looked up by job name, partition, account.

    Jobs that have not ended, never ran, or had no GPU (see `processors_per_device`) are left aside, and counted in the
    workload's source.

    Args:
        states: Rows of the accounting.
        options: Kinds, partitions, what to do with bad rows.
        source: Where they come from; its stem names the workload.
        bad_rows: Rows that the converter left out, to be counted too.

    Raises:
        WorkloadError: a job cannot be, and bad rows are not skipped.
    """
    bad = BadRows(source, skip=options.skip_bad, unit="job")
    aside: Counter[str] = Counter()
    numbered = list(_jobs(_attempts(states), options, bad, aside))
    first = min((job.submitted_seconds for _, job in numbered), default=0.0)
    for _, job in numbered:
        job.submitted_seconds -= first
    bad.count += bad_rows
    workload = assembled_workload(source.stem, source, numbered, bad)
    return renamed(workload, workload.name, ", ".join(f"{count} {reason}" for reason, count in aside.items()))


def _attempts(states: Iterable[JobState]) -> list[_Attempts]:
    """Return jobs with their attempts put together, in the order of their first submission.

    A number that comes again after a job that was not tried again is another job: Slurm's numbers wrap.
    """
    jobs: list[_Attempts] = []
    open_jobs: dict[tuple[object, ...], int] = {}
    for state in sorted(states, key=lambda state: (state.submitted_at_seconds, state.started_at_seconds or inf)):
        key = (state.job_id, state.array_task)
        index = open_jobs.get(key)
        if index is not None and jobs[index].last.state in _TRIED_AGAIN:
            jobs[index] = _Attempts(jobs[index].first, state)
        else:
            open_jobs[key] = len(jobs)
            jobs.append(_Attempts(state, state))
    return jobs


def _jobs(jobs: list[_Attempts], options: LoadOptions, bad: BadRows, aside: Counter[str]) -> Iterator[NumberedJob]:
    used: set[int] = set()
    next_id = max((attempts.last.job_id for attempts in jobs), default=0) + 1
    for attempts in jobs:
        state = attempts.last
        gpus = _devices(state, options)
        reason = _why_aside(state, gpus)
        if reason:
            aside[reason] += 1
            continue
        job_id: int = state.job_id
        if job_id in used:
            job_id, next_id = next_id, next_id + 1
        used.add(job_id)
        try:
            yield state.job_id, _job(attempts, job_id, gpus, options)
        except BadValue as error:
            bad.add(state.job_id, error)


def _devices(state: JobState, options: LoadOptions) -> int:
    if state.gpu_count or not options.processors_per_device:
        return state.gpu_count or 0
    return ceil((state.cpus or 0) / options.processors_per_device)


def _why_aside(state: JobState, gpus: int) -> str:
    if state.state in _LIVE:
        return "not ended"
    if state.state == "REVOKED":
        return "ran on another cluster of the federation"
    if state.started_at_seconds is None or state.ended_at_seconds is None:
        return "never ran"
    if state.state == "CANCELLED" and state.ended_at_seconds == state.started_at_seconds:
        return "never ran"
    return "" if gpus else "without GPU"


def _job(attempts: _Attempts, job_id: int, gpus: int, options: LoadOptions) -> Job:
    state = attempts.last
    started, ended = state.started_at_seconds or 0.0, state.ended_at_seconds or 0.0
    elapsed = ended - started - state.suspended_seconds
    if not 0.0 <= elapsed <= values.MAX_SECONDS:
        raise BadValue("elapsed", f"{elapsed:g}", "s is out of its bound: the job ends before it starts, or far beyond")
    if gpus > values.MAX_COUNT:
        raise BadValue("gpus", str(gpus), f"is more than {values.MAX_COUNT}")
    limit = inf if state.time_limit_minutes is None else state.time_limit_minutes * 60.0
    if state.state == "TIMEOUT" and limit < inf:
        elapsed = max(elapsed, limit + 1.0)
    partitions = tuple(str(name) for name in state.partitions)
    gpu_type = state.gpu_types[0] if len(state.gpu_types) == 1 else ""
    kind = options.kind_of(state.name, *partitions, state.account or "", gpu_type=gpu_type)
    units = kind.units(elapsed, gpus)
    failed = state.state in _FAILED
    return Job(
        job_id=job_id,
        submitted_seconds=attempts.first.submitted_at_seconds,
        true_units=nextafter(units, inf) if failed else units,
        fails_after_units=units if failed else inf,
        kind=kind.name,
        gpu_counts=(gpus,),
        time_limit_seconds=limit,
        partitions=partitions if options.keep_partitions else (),
        devices=options.devices_of(state.gpu_types, partitions),
        cpus=state.cpus or 0,
        array_id=state.array_job_id,
        user=state.user_name,
        account=state.account or "",
        name=state.name,
    )
