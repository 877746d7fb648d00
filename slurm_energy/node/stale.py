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
    age = context.spool.ending_age_seconds(job.job_id, context.now())
    if age is not None and age > LOST_EPILOG_SECONDS:
        return "its epilog was cut off"
    if newcomer is None:
        return None
    if job.job_id == newcomer.job_id:
        return f"job {job.job_id} starts again"
    if not newcomer.shares_gpus and job.uuids & newcomer.uuids and not job.is_among(context.live_jobs()):
        return f"its GPU was given to job {newcomer.job_id}"
    return None


def why_abandoned(context: HookContext, job: ActiveJob, live: frozenset[JobId | Sluid]) -> str | None:
    """Return why `repair --all` takes a job as over, None when it may still run."""
    if job.is_among(live) or context.now() - job.started_at_seconds < YOUNG_SECONDS:
        return why_over(context, job)
    return why_over(context, job) or "no process of the job is alive"
