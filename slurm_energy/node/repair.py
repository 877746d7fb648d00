"""At boot, and now and then: put back what crashed hooks and dead nodes left."""

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import SpoolError
from slurm_energy.node.closing import close_stale, restore_pending
from slurm_energy.node.context import HookContext, reach_gpus
from slurm_energy.node.stale import why_abandoned, why_over


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
    live = context.live_jobs() if everything else frozenset()
    over = {}
    for job in spool.active_jobs(events):
        why = why_abandoned(context, job, live) if everything else why_over(context, job)
        if why is not None:
            over[job.job_id] = (job, why)
    pending = spool.pending_jobs(events)
    for event in events:
        context.log.write(event)
    if not over and not pending:
        return not events
    clean = True
    uuids = frozenset[GpuUuid]().union(*(job.uuids for job, _ in over.values()), *(job.uuids for _, job in pending))
    with reach_gpus(context) as machine, spool.gpu_locks(uuids):
        for job, why in over.values():
            if spool.read_state(job.job_id) != job:
                continue  # a hook closed it or began a new attempt while this waited for the locks
            try:
                clean = close_stale(context, job, machine, why) and clean
            except SpoolError as error:
                clean = False
                context.log.write(f"job {job.job_id} could not be closed: {error}")
        busy = frozenset[GpuUuid]().union(*(job.uuids for job in spool.active_jobs([])))
        return restore_pending(context, machine, uuids, busy) and clean
