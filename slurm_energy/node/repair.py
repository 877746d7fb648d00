"""Put back what crashed hooks and dead nodes left, at boot and every few minutes; leave a node when uninstalled.

`repair` does not touch the GPUs of live jobs; leaving closes every job's report and puts back every clock of ours.
"""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from slurm_energy.domain.ids import GpuUuid, JobId, Sluid
from slurm_energy.errors import SpoolError
from slurm_energy.node.closing import close_stale
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.gpu_order import ORDER_NAME
from slurm_energy.node.recovery import (
    give_shared_back,
    held_alone,
    lost_locks,
    restore_lost,
    restore_pending,
    why_abandoned,
)
from slurm_energy.node.state import ActiveJob
from slurm_energy.node.trials.clock import end_late_trial, trial_is_late

REASON = "slurm-energy was uninstalled while the job ran"


def run_repair(context: HookContext, *, everything: bool) -> bool:
    """Close every job that is surely over, and give back every clock that is locked for no live job.

    Args:
        context: The doors.
        everything: Also take jobs as over that have no process here and are older than ten minutes.

    Returns:
        Whether nothing is left to do.

    Raises:
        SpoolError: the spool cannot be used; clocks that are recorded outside it are given back anyway.
    """
    spool = context.spool
    try:
        spool.prepare()
    except SpoolError:
        _repair_without_jobs(context)
        raise
    spool.sweep()
    events: list[str] = []
    active = spool.active_jobs(events)
    alive = context.live_jobs() if active or context.lock_records.read(context.boot_id, []) else frozenset()
    over = _over(context, active, alive, everything=everything)
    pending = [job for _, job in spool.pending_jobs(events)]
    lost = [record for record in lost_locks(context, events) if record.job_id not in alive]
    for event in events:
        context.log.write(event)
    # What a live job holds is not even locked, so that its epilog never waits for a driver call of ours.
    live = _live(context, over)
    held, busy, sharing = held_alone(live), _all_uuids(live), _sharing(context, live)
    free = [job for job, _ in over if not job.alone_uuids & held]
    free += [job for job in pending if not job.uuids & busy]
    clean = not events and len(free) == len(over) + len(pending)
    late = [job for job in live if trial_is_late(context, job)]
    if not free and not lost and not sharing and not late:
        return clean
    uuids = _all_uuids(free)
    locked = uuids.union((record.uuid for record in lost), *(shared for _, shared in sharing), _all_uuids(late))
    with reach_gpus(context) as machine, spool.gpu_locks(locked):
        for job, why in over:
            if job in free:
                clean = _close(context, job, why, machine, held_alone(_live(context, over))) and clean
        for job in late:
            clean = end_late_trial(context, job, machine) and clean
        busy = _all_uuids(spool.active_jobs([]))
        clean = restore_pending(context, machine, uuids, busy) and clean
        return _restore_rest(context, machine, locked, alive, _live(context, over)) and clean


def _repair_without_jobs(context: HookContext) -> None:
    alive = context.live_jobs()
    events: list[str] = []
    lost = [record for record in lost_locks(context, events) if record.job_id not in alive]
    if lost:
        with reach_gpus(context) as machine:
            restore_lost(context, machine, lost, events)
    for event in events:
        context.log.write(event)


def _restore_rest(
    context: HookContext,
    machine: Machine,
    locked: frozenset[GpuUuid],
    alive: frozenset[JobId | Sluid],
    live: list[ActiveJob],
) -> bool:
    """Give back clocks of which no state is left, and those of GPUs that came to be shared."""
    events: list[str] = []
    lost = [record for record in lost_locks(context, events) if record.uuid in locked and record.job_id not in alive]
    clean = restore_lost(context, machine, lost, events)
    sharing = [(job, uuids & locked) for job, uuids in _sharing(context, live)]
    clean = give_shared_back(context, machine, sharing, events) and clean
    for event in events:
        context.log.write(event)
    return clean


def _sharing(context: HookContext, live: Sequence[ActiveJob]) -> list[tuple[ActiveJob, frozenset[GpuUuid]]]:
    """Return the live jobs whose locked clocks another live job has to bear: its prolog was cut off."""
    recorded = {(record.job_id, record.uuid) for record in context.lock_records.read(context.boot_id, [])}
    found = []
    for job in live:
        others = _all_uuids(other for other in live if other is not job)
        uuids = frozenset(
            gpu.uuid
            for gpu in job.gpus
            if gpu.clock_changed and gpu.uuid in others and (job.job_id, gpu.uuid) in recorded
        )
        if uuids:
            found.append((job, uuids))
    return found


def _over(
    context: HookContext, active: Sequence[ActiveJob], alive: frozenset[JobId | Sluid], *, everything: bool
) -> list[tuple[ActiveJob, str]]:
    """Return the jobs that are over, each with the reason."""
    over = []
    for job in active:
        why = why_abandoned(context, job, alive, everything=everything)
        if why is not None:
            over.append((job, why))
    return over


def _close(context: HookContext, job: ActiveJob, why: str, machine: Machine, held: frozenset[GpuUuid]) -> bool:
    """Close one job, unless a hook did so or started a job on its GPUs while this waited for the locks."""
    if job.alone_uuids & held:
        return False
    try:
        now = context.spool.read_state(job.job_id)
        if now is None or now != job:
            return True
        return close_stale(context, now, machine, why)
    except SpoolError as error:
        context.log.write(f"job {job.job_id} could not be closed: {error}")
        return False


def _live(context: HookContext, over: Iterable[tuple[ActiveJob, str]]) -> list[ActiveJob]:
    """Return the active jobs that are not over; a new attempt of such a job is another one."""
    ended = [job for job, _ in over]
    return [job for job in context.spool.active_jobs([]) if job not in ended]


def _all_uuids(jobs: Iterable[ActiveJob]) -> frozenset[GpuUuid]:
    return frozenset[GpuUuid]().union(*(job.uuids for job in jobs))


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
                # Unless its epilog, which had begun before the hooks went, has closed it since.
                now = spool.read_state(job.job_id)
                if now is not None and now == job:
                    clean = close_stale(context, now, machine, REASON) and clean
            except SpoolError as error:
                context.log.write(f"job {job.job_id} could not be closed: {error}")
                clean = False
        said: list[str] = []
        clean = restore_lost(context, machine, lost, said) and clean
        for event in said:
            context.log.write(event)
        return restore_pending(context, machine, uuids, frozenset()) and clean


def left_in(context: HookContext) -> tuple[Path, ...]:
    """Return the files in the spool that an administrator should look at before they are deleted."""
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
    host = (spool.host_meter, spool.host_meter_lock, spool.host_power, spool.host_power_lock)
    for path in (spool.seen_status, spool.sent_status, spool.root / ORDER_NAME, *host):
        with suppress(OSError):
            path.unlink()
    with suppress(OSError):
        spool.root.rmdir()
    context.lock_records.remove_folder()
