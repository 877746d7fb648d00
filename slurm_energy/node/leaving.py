"""Leave a node: put back every clock that is still ours, close each job's report, and say what is left in the spool."""

import shutil
from contextlib import suppress
from pathlib import Path

from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import SpoolError
from slurm_energy.node.closing import close_stale
from slurm_energy.node.context import HookContext, reach_gpus
from slurm_energy.node.gpu_order import ORDER_NAME
from slurm_energy.node.restoring import lost_locks, restore_lost, restore_pending
from slurm_energy.node.status import SEEN_NAME, SENT_NAME

REASON = "slurm-energy was uninstalled while the job ran"


def close_every_job(context: HookContext) -> bool:
    """Restore the GPUs of every job, running ones too, and write the reports; return whether all settings are back.

    The caller has taken the hooks away: no epilog will do it, and no prolog changes another clock.

    Raises:
        SpoolError: the spool cannot be read or written.
    """
    spool = context.spool
    if not spool.root.is_dir() and not context.lock_records.read(context.boot_id, []):
        return True
    spool.prepare()
    events: list[str] = []
    jobs = spool.active_jobs(events)
    pending = [job for _, job in spool.pending_jobs(events)]
    lost = lost_locks(context, events)
    for event in events:
        context.log.write(event)
    if not jobs and not pending and not lost:
        return not events
    uuids = frozenset[GpuUuid]().union(*(job.uuids for job in (*jobs, *pending)), (record.uuid for record in lost))
    clean = not events
    with reach_gpus(context) as machine, spool.try_locks(uuids) as held:
        if not held:
            context.log.write("a hook holds a GPU at this moment: try again")
            return False
        for job in jobs:
            try:
                # Unless its epilog, which had begun before the hooks went, has closed it meanwhile.
                if spool.read_state(job.job_id) == job:
                    clean = close_stale(context, job, machine, REASON) and clean
            except SpoolError as error:
                context.log.write(f"job {job.job_id} could not be closed: {error}")
                clean = False
        said: list[str] = []
        clean = restore_lost(context, machine, lost, said) and clean
        for event in said:
            context.log.write(event)
        return restore_pending(context, machine, uuids, frozenset()) and clean


def left_in(context: HookContext) -> tuple[Path, ...]:
    """Return the files in the spool that nobody may delete before somebody has looked at them."""
    spool = context.spool
    folders = ((spool.active, "*.json"), (spool.pending, "*.json"), (spool.reports, "*"), (spool.rejected, "*"))
    found = [path for folder, pattern in folders for path in sorted(folder.glob(pattern))]
    return tuple(path for path in found if not path.name.startswith("."))


def remove_spool(context: HookContext) -> None:
    """Remove the spool's own folders, and the folder above them when nothing else is there."""
    spool = context.spool
    for folder in (spool.active, spool.pending, spool.done, spool.reports, spool.rejected, spool.locks):
        if not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
    for name in (SEEN_NAME, SENT_NAME, ORDER_NAME):
        with suppress(OSError):
            (spool.root / name).unlink()
    with suppress(OSError):
        spool.root.rmdir()
    context.lock_records.remove_folder()
