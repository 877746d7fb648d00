"""What earlier hooks left: which saved jobs are surely over, and putting clocks back.

Clocks are put back of a job that ended, of one that must share its GPU, and of one of which no state is left.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from slurm_energy.device.gpu import reading, restore_settings, save_settings
from slurm_energy.domain.ids import GpuUuid, JobId, Sluid
from slurm_energy.errors import SpoolError
from slurm_energy.node.context import HookContext, Machine
from slurm_energy.node.lock_records import LockRecord
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """GPUs whose settings could not be put back, and what was said about it."""

    failed: frozenset[GpuUuid]
    events: tuple[str, ...]


def restore_job(context: HookContext, job: ActiveJob, machine: Machine) -> Restoration:
    """Put back the clock of each of the job's GPUs that was changed, and of no other."""
    failed: set[GpuUuid] = set()
    events: list[str] = []
    for gpu in job.gpus:
        if not gpu.identified:
            continue
        device = machine.gpus.get(gpu.uuid)
        if device is None:
            if machine.problem is None and job.boot_id != context.boot_id:
                events.append(f"GPU {gpu.uuid} is gone; a lock does not survive a boot")
                context.lock_records.forget(gpu.uuid)
            elif gpu.clock_changed:
                # One that the driver lost for a moment comes back with its lock.
                failed.add(gpu.uuid)
                events.append(f"GPU {gpu.uuid} cannot be restored: {machine.problem or 'it is gone'}")
            continue
        context.stage(f"restoring GPU {gpu.uuid}")
        outcome = restore_settings(device, gpu.saved, clock_changed=gpu.clock_changed, pause=context.pause)
        events.extend(outcome.events)
        if not outcome.restored:
            failed.add(gpu.uuid)
        elif gpu.clock_changed:
            context.lock_records.forget(gpu.uuid)
    return Restoration(failed=frozenset(failed), events=tuple(events))


def restore_pending(
    context: HookContext, machine: Machine, locked: frozenset[GpuUuid], busy: frozenset[GpuUuid]
) -> bool:
    """Try again to restore what earlier hooks could not.

    Args:
        context: The doors.
        machine: The GPUs.
        locked: GPUs whose locks the caller holds; others are left for later.
        busy: GPUs that an active job holds; they are left for later too.

    Returns:
        Whether nothing is pending any more.
    """
    events: list[str] = []
    clean = True
    for path, job in context.spool.pending_jobs(events):
        if job.uuids & busy or not job.uuids <= locked:
            clean = False
            continue
        restoration = restore_job(context, job, machine)
        if restoration.failed:
            clean = False
            context.log.write(f"job {job.job_id}: still not restored: {'; '.join(restoration.events)}")
            continue
        with suppress(OSError):
            path.unlink()
        context.log.write(f"job {job.job_id}: settings of {len(job.gpus)} GPUs are back")
    for event in events:
        context.log.write(event)
    return clean


def lost_locks(context: HookContext, events: list[str]) -> tuple[LockRecord, ...]:
    """Return the locked clocks of which the spool knows nothing: its files, or the spool itself, were lost."""
    records = context.lock_records.read(context.boot_id, events)
    if not records:
        return ()
    try:
        context.spool.require_private()
    except SpoolError:
        return records  # nothing in it is to be believed
    jobs = [*context.spool.active_jobs(events), *(job for _, job in context.spool.pending_jobs(events))]
    known = {(job.job_id, gpu.uuid) for job in jobs for gpu in job.gpus if gpu.clock_changed}
    return tuple(record for record in records if (record.job_id, record.uuid) not in known)


def restore_lost(context: HookContext, machine: Machine, records: Iterable[LockRecord], events: list[str]) -> bool:
    """Give back clocks of which no state is left; the caller holds the GPUs' locks. Return whether all are back."""
    clean = True
    for record in records:
        device = machine.gpus.get(record.uuid)
        for_whom = "" if record.job_id is None else f" for job {record.job_id}"
        if device is None:
            events.append(f"GPU {record.uuid} cannot be restored: {machine.problem or 'it is gone'}")
            clean = False
            continue
        from slurm_energy.node.clock_plan import site_clock_mhz  # noqa: PLC0415  # rarely needed

        site_clock = site_clock_mhz(context.settings.node.site_locked_clocks_mhz, device.identity.gpu_type)
        saved = save_settings(device, reading(device.supported_sm_clocks_mhz) or (), site_clock)
        outcome = restore_settings(device, saved, clock_changed=True, pause=context.pause)
        events.extend(outcome.events)
        clean = clean and outcome.restored
        if outcome.restored:
            context.lock_records.forget(record.uuid)
            events.append(
                f"GPU {record.uuid}: its clock was locked{for_whom} and no state of that was left; given back"
            )
    return clean


def newly_shared(context: HookContext, job: ActiveJob, uuids: frozenset[GpuUuid]) -> frozenset[GpuUuid]:
    """Return those of a live job's GPUs which it now has to share, and whose clocks were not given back before."""
    before = context.spool.shared_uuids(job.job_id)
    if not job.uuids & uuids & before:
        return job.uuids & uuids
    recorded = {record.uuid for record in context.lock_records.read(context.boot_id, [])}
    return frozenset(uuid for uuid in job.uuids & uuids if uuid not in before or uuid in recorded)


def give_shared_back(
    context: HookContext, machine: Machine, sharing: Sequence[tuple[ActiveJob, frozenset[GpuUuid]]], events: list[str]
) -> bool:
    """Give back the clocks of live jobs' GPUs that another job now holds too: it did not agree to them.

    Args:
        context: The doors.
        machine: The GPUs.
        sharing: Each job, and its GPUs whose clocks may still be locked; the caller holds the GPUs' locks.
        events: What happened is added here.

    Returns:
        Whether none of them is locked any more.
    """
    clean = True
    for job, uuids in sharing:
        gpus = tuple(gpu for gpu in job.gpus if gpu.uuid in uuids and gpu.clock_changed)
        restoration = restore_job(context, replace(job, gpus=gpus), machine)
        events.extend(restoration.events)
        clean = clean and not restoration.failed
        for gpu in gpus:
            if gpu.uuid not in restoration.failed:
                events.append(f"GPU {gpu.uuid} is shared with job {job.job_id}: that job's clock was given back")
    return clean
