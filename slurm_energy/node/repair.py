"""At boot, and every few minutes: put back what crashed hooks and dead nodes left. Live jobs' GPUs are not touched."""

from collections.abc import Iterable

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import SpoolError
from slurm_energy.node.closing import close_stale, restore_pending
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.stale import held_alone, why_abandoned, why_over
from slurm_energy.node.state import ActiveJob


def run_repair(context: HookContext, *, everything: bool) -> bool:
    """Close every job that is surely over and restore what is pending; return whether nothing is left to do.

    Args:
        context: The doors.
        everything: Also take jobs as over that have no process here and are older than ten minutes.
    """
    spool = context.spool
    spool.prepare()
    spool.sweep(context.now())
    events: list[str] = []
    over = _over(context, everything, events)
    pending = [job for _, job in spool.pending_jobs(events)]
    for event in events:
        context.log.write(event)
    # What a live job holds is not even locked, so that its epilog never waits for a driver call of ours.
    live = _live(context, over)
    held, busy = held_alone(live), _all_uuids(live)
    free = [job for job, _ in over if not job.alone_uuids & held]
    free += [job for job in pending if not job.uuids & busy]
    clean = not events and len(free) == len(over) + len(pending)
    if not free:
        return clean
    uuids = _all_uuids(free)
    with reach_gpus(context) as machine, spool.gpu_locks(uuids):
        for job, why in over:
            if job in free:
                clean = _close(context, job, why, machine, held_alone(_live(context, over))) and clean
        busy = _all_uuids(spool.active_jobs([]))
        return restore_pending(context, machine, uuids, busy) and clean


def _over(context: HookContext, everything: bool, events: list[str]) -> list[tuple[ActiveJob, str]]:
    """Return the jobs that are over, each with the reason."""
    alive = context.live_jobs() if everything else frozenset()
    over = []
    for job in context.spool.active_jobs(events):
        why = why_abandoned(context, job, alive) if everything else why_over(context, job)
        if why is not None:
            over.append((job, why))
    return over


def _close(context: HookContext, job: ActiveJob, why: str, machine: Machine, held: frozenset[GpuUuid]) -> bool:
    """Close one job, unless a hook did so or started a job on its GPUs while this waited for the locks."""
    if job.alone_uuids & held:
        return False
    try:
        if context.spool.read_state(job.job_id) != job:
            return True
        return close_stale(context, job, machine, why)
    except SpoolError as error:
        context.log.write(f"job {job.job_id} could not be closed: {error}")
        return False


def _live(context: HookContext, over: Iterable[tuple[ActiveJob, str]]) -> list[ActiveJob]:
    """Return the active jobs that are not over; a new attempt of such a job is another one."""
    ended = [job for job, _ in over]
    return [job for job in context.spool.active_jobs([]) if job not in ended]


def _all_uuids(jobs: Iterable[ActiveJob]) -> frozenset[GpuUuid]:
    return frozenset[GpuUuid]().union(*(job.uuids for job in jobs))
