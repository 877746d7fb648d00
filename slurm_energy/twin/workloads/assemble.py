"""Jobs of a file to a workload: unique ids, dependencies that can be met, the order of submission."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from slurm_energy.errors import ValueRangeError
from slurm_energy.twin.engine.job import Job, Workload, check_job
from slurm_energy.twin.workloads.bad_rows import BadRows, BadValue

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
