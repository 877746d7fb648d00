"""The clock of a trial: set and given back as hooks do it, with a mark that says until when it is in force at most.

The sampler writes the mark before a clock changes. Whatever becomes of the sampler, repair ends what is past its time.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum

from slurm_energy.device.gpu import Gpu, lock_clock, restore_settings
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import SpoolError, WireError
from slurm_energy.files import read_whole, remove, write_atomically
from slurm_energy.node.context import HookContext, Machine
from slurm_energy.node.lock_records import LockRecord
from slurm_energy.node.state import ActiveJob, SavedGpu
from slurm_energy.wire.fields import Fields, loads

MARK_SECONDS = 30.0
"""Wall time after a window's end when repair takes the sampler as stuck or dead."""


class LockResult(Enum):
    """What became of an order to set a clock on all GPUs of a job."""

    SET = "every GPU has the clock"
    BUSY = "a hook is at work on a GPU: nothing was changed, it may be tried again"
    NOT_OURS = "the job ends, or shares a GPU: a hook restores what was changed"
    FAILED = "a GPU did not take it: all of them were put back"


def set_trial_clock(
    context: HookContext,
    job: ActiveJob,
    gpus: Mapping[GpuUuid, Gpu],
    clock_mhz: int | None,
    back_mhz: int | None,
    events: list[str],
) -> tuple[LockResult, int | None]:
    """Lock a clock on all of a job's GPUs, None gives it back; where one does not take it, all are put back.

    Args:
        context: The doors.
        job: The job.
        gpus: Its devices.
        clock_mhz: The clock; None: the default.
        back_mhz: What holds between trials; None: the default.
        events: What goes wrong is added here.

    Returns:
        What became of it, and where it was set or failed the clock that is in force now.
    """
    with context.spool.try_locks(gpus) as held:
        if not held:
            return LockResult.BUSY, None
        before = own = _own_state(context, job)
        if before is None or own is None:
            return LockResult.NOT_OURS, None
        if clock_mhz is not None:
            own = _note_lock(context, before, clock_mhz, events)
            if own is None:
                return LockResult.FAILED, None  # no trial has changed a clock before
        changed: list[SavedGpu] = []
        for gpu in own.gpus:
            # A call of the driver may take long, and an epilog that waits for these locks may begin in that time.
            if _own_state(context, job) is None:
                return LockResult.NOT_OURS, None
            done, may_hold = _set_one(context, gpu, gpus[gpu.uuid], clock_mhz)
            if may_hold or clock_mhz == back_mhz:
                changed.append(gpu)
            if not done:
                break
        else:
            return LockResult.SET, clock_mhz
        if not changed:
            _take_note_back(context, before, events)
            return LockResult.FAILED, back_mhz
        if clock_mhz != back_mhz and all(_set_one(context, gpu, gpus[gpu.uuid], back_mhz)[0] for gpu in changed):
            return LockResult.FAILED, back_mhz
        for gpu in own.gpus if clock_mhz == back_mhz else changed:
            _set_one(context, gpu, gpus[gpu.uuid], None)
    return LockResult.FAILED, None


def _note_lock(context: HookContext, own: ActiveJob, clock_mhz: int, events: list[str]) -> ActiveJob | None:
    """Note before a clock is locked that it may be: durably in the state, and outside the spool; None if it cannot be.

    Until then the job's end leaves alone the clock of a GPU that had no decided one.
    """
    if not all(gpu.clock_changed for gpu in own.gpus):
        own = replace(own, gpus=tuple(replace(gpu, tried=True) for gpu in own.gpus))
        try:
            context.spool.write_state(own)
        except SpoolError as error:
            events.append(f"clock trial not noted: {error}")
            return None
    try:
        records = [LockRecord(uuid=gpu.uuid, job_id=own.job_id, clock_mhz=clock_mhz) for gpu in own.gpus]
        context.lock_records.write(records, context.boot_id)
    except SpoolError as error:
        events.append(f"second record of the lock: {error}")
    return own


def _take_note_back(context: HookContext, before: ActiveJob, events: list[str]) -> None:
    """Note that no clock was changed after all, where none was before: the device refuses it."""
    if any(gpu.clock_changed for gpu in before.gpus):
        return
    try:
        context.spool.write_state(before)
    except SpoolError as error:
        events.append(f"clock trial still noted: {error}")
        return
    for gpu in before.gpus:
        context.lock_records.forget(gpu.uuid)


def _set_one(context: HookContext, gpu: SavedGpu, device: Gpu, clock_mhz: int | None) -> tuple[bool, bool]:
    """Set one GPU's clock; return whether it has it, and whether it may have it."""
    if clock_mhz is None:
        outcome = restore_settings(device, gpu.saved, clock_changed=gpu.clock_changed, pause=context.pause)
        return outcome.restored, True
    locked = lock_clock(device, gpu.saved.lowest_clock_mhz or clock_mhz, clock_mhz, context.pause)
    return locked.applied_clock_mhz is not None, locked.in_force


def mark_trial(
    context: HookContext, job: ActiveJob, ends_seconds: float, events: list[str], *, default_after: bool
) -> bool:
    """Note until when a trial's clock is in force at the latest; return whether it is noted.

    Args:
        context: The doors.
        job: The job.
        ends_seconds: Monotonic time of the window's end.
        events: What goes wrong is added here.
        default_after: Whether the default clock is to come back, since the decided one was found to break the bound.
    """
    until_seconds = ends_seconds + MARK_SECONDS
    content = json.dumps({"boot_id": context.boot_id, "until_seconds": until_seconds, "default_after": default_after})
    try:
        write_atomically(context.spool.trial_path(job.job_id), content.encode("ascii"), durable=False)
    except SpoolError as error:
        events.append(f"clock trial not marked: {error}")
        return False
    return True


def forget_mark(context: HookContext, job: ActiveJob) -> None:
    """Note that the clock which holds between trials is in force, or the default clock was given back for good."""
    with suppress(SpoolError):
        remove(context.spool.trial_path(job.job_id))


def trial_is_late(context: HookContext, job: ActiveJob) -> bool:
    """Return whether a clock that was tried is past its time: the job's sampler is dead, or hangs in the driver."""
    try:
        mark = _read_mark(context, job)
        if mark is None:
            return False
        until_seconds = mark.number("until_seconds", 0, 1e11)
        return mark.text("boot_id", 64) != context.boot_id or context.monotonic() > until_seconds
    except (SpoolError, WireError):
        return True


def end_late_trial(context: HookContext, job: ActiveJob, machine: Machine) -> bool:
    """Put back what is to hold on the GPUs of a job whose sampler left another clock; the caller holds their locks.

    That is the decided clock, and the default one where the job was rescued, its GPUs are perhaps not its own, or the
    decided clock was found to break the bound.
    """
    now = context.spool.read_state(job.job_id)
    if now is None or now != job or not trial_is_late(context, job):
        return True
    done, default = True, _default_is_due(context, job)
    for gpu in now.gpus:
        device = machine.gpus.get(gpu.uuid)
        is_lowered = gpu.trial_bound is not None or now.follows_budget
        if device is None or not is_lowered or gpu.uuid in context.spool.shared_uuids(job.job_id):
            continue
        clock = None if default else gpu.target_clock_mhz
        if clock is None:
            outcome = restore_settings(device, gpu.saved, clock_changed=gpu.clock_changed, pause=context.pause)
            done = outcome.restored and done
        else:
            low = gpu.saved.lowest_clock_mhz or clock
            done = lock_clock(device, low, clock, context.pause).applied_clock_mhz is not None and done
    if done:
        forget_mark(context, job)
    what = "default" if default else "decided"
    context.log.write(f"job {job.job_id}: a clock that was tried was past its time; {what} clock back={done}")
    return done


def _default_is_due(context: HookContext, job: ActiveJob) -> bool:
    heartbeat = context.spool.read_heartbeat(job)
    if heartbeat is not None and (heartbeat.rescued or heartbeat.contradicted):
        return True
    try:
        mark = _read_mark(context, job)
    except (SpoolError, WireError):
        return False
    return mark is not None and mark.get("default_after") is True


def _read_mark(context: HookContext, job: ActiveJob) -> Fields | None:
    content = read_whole(context.spool.trial_path(job.job_id))
    return None if content is None else Fields(loads(content, "mark of a trial", 4096), "mark of a trial")


def _own_state(context: HookContext, job: ActiveJob) -> ActiveJob | None:
    """Return the job's state while it holds its GPUs alone and no epilog has begun; the caller holds their locks."""
    spool = context.spool
    if spool.ending_path(job.job_id).exists() or spool.shared_uuids(job.job_id):
        return None
    try:
        now = spool.read_state(job.job_id)
    except SpoolError:
        return None
    return now if now is not None and now.started_at_seconds == job.started_at_seconds else None
