"""Which saved states belong to jobs that are surely over."""

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.domain.ids import GpuUuid, JobId, Sluid
from slurm_energy.node.context import HookContext
from slurm_energy.node.state import ActiveJob

LOST_EPILOG_SECONDS = 60.0
"""An epilog that began this long ago and left its state was cut off: hooks end within seconds."""
YOUNG_SECONDS = 600.0
"""A younger state is kept by `repair --all`: its job may not have a process yet."""
STARTING_SECONDS = 10.0
"""Until then repair does not wonder that a job has no process."""
ABSENT_SECONDS = 240.0
"""A job that is ending by Slurm's account, without a process for this long, will not have an epilog."""
UNANSWERED_SECONDS = 900.0
"""A job without a process for this long is over where Slurm cannot be asked."""
_ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """The job whose prolog is running."""

    job_id: JobId
    uuids: frozenset[GpuUuid]
    shares_gpus: bool
    """Whether Slurm lets several jobs hold one of these GPUs (shard, MPS, MIG)."""


def held_alone(live: Iterable[ActiveJob]) -> frozenset[GpuUuid]:
    """Return the GPUs whose settings belong to a live job: an older job's are not put back there before it ends."""
    return frozenset[GpuUuid]().union(*(job.alone_uuids for job in live))


def why_over(context: HookContext, job: ActiveJob, newcomer: Newcomer | None = None) -> str | None:
    """Return why a saved job is surely over, None when it may still run."""
    if job.boot_id != context.boot_id:
        return "the node was booted since"
    age = context.spool.ending_age_seconds(job.job_id, context.moment())
    if age is not None and age > LOST_EPILOG_SECONDS:
        return "its epilog was cut off"
    if newcomer is None:
        return None
    if job.job_id == newcomer.job_id:
        return f"job {job.job_id} starts again"
    if not newcomer.shares_gpus and job.uuids & newcomer.uuids and not job.is_among(context.live_jobs()):
        return f"its GPU was given to job {newcomer.job_id}"
    return None


def why_abandoned(
    context: HookContext, job: ActiveJob, live: frozenset[JobId | Sluid], *, everything: bool
) -> str | None:
    """Return why repair takes a job as over, None when it may still run.

    That a job has no process here does not end it: between its steps, or while it computes on other nodes, it has none.
    So its own sampler's word counts, else Slurm's, and only where neither can be had the time.

    Args:
        context: The doors.
        job: The job.
        live: The jobs that have a process here.
        everything: Whether an administrator says that no job without a process is alive.
    """
    why, spool = why_over(context, job), context.spool
    if why is not None:
        return why
    age_seconds = context.monotonic() - job.started_monotonic_seconds
    if job.is_among(live) or age_seconds < STARTING_SECONDS:
        spool.forget_absent(job.job_id)
        return None
    if everything and age_seconds >= YOUNG_SECONDS:
        return "no process of the job is alive"
    heartbeat = spool.read_heartbeat(job)
    if heartbeat is not None and heartbeat.over:
        since_seconds = context.monotonic() - heartbeat.at_monotonic_seconds
        if since_seconds > LOST_EPILOG_SECONDS:
            return f"its batch step ended {since_seconds:.0f} s ago and no epilog came"
    context.stage(f"asking Slurm for job {job.job_id}")
    state = context.job_state(job.job_id, job.node)
    if state == "" or state in _ENDED:
        return f"no process of it is alive, and by Slurm it is {state or 'not here'}"
    if state is not None and state != "COMPLETING":
        spool.forget_absent(job.job_id)
        return None
    absent_seconds = spool.absent_age_seconds(job.job_id, context.moment())
    if absent_seconds >= (UNANSWERED_SECONDS if state is None else ABSENT_SECONDS):
        return f"no process of it was alive for {absent_seconds:.0f} s, and by Slurm it is {state or 'unknown'}"
    return None
