"""The two hooks of a job.

Before it: put right what earlier jobs left, save the settings, lock the clocks, read the counters. The state is in its
file before anything is changed. Whatever ends the prolog afterwards - a deadline, kill -9 - the epilog, the next prolog
or repair finds it there and puts everything back. A power cut takes the locks with it.

After it: restore first, then stop the sampler, read the counters and write the report.
"""

from dataclasses import replace

from slurm_energy.device.gpu import Gpu, lock_clock, read_counter
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.errors import SpoolError
from slurm_energy.node.allocation import Allocation, find_gpus, gpu_mapping
from slurm_energy.node.clock_plan import plan_job
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.gpu_order import GpuOrder
from slurm_energy.node.lock_records import LockRecord
from slurm_energy.node.recovery import (
    Newcomer,
    give_shared_back,
    held_alone,
    lost_locks,
    newly_shared,
    restore_job,
    restore_lost,
    restore_pending,
    why_over,
)
from slurm_energy.node.state import ActiveJob, SavedGpu
from slurm_energy.slurm.hook_env import HookEnvironment


def run_prolog(context: HookContext, hook: HookEnvironment) -> None:
    """Prepare the GPUs of the hook's job; a job without GPUs costs nothing.

    Raises:
        SpoolError: the state cannot be saved; then nothing was changed, or what was is in the saved state.
    """
    if not hook.has_gpus and not context.settings.node.cpu_jobs:
        return
    context.spool.prepare()
    context.spool.forget_reported(hook.job_id)  # before anything that can hang or fail
    if not hook.has_gpus:
        from slurm_energy.node.cpu_jobs import note_start  # noqa: PLC0415  # not everywhere

        note_start(context, hook)
        return
    with reach_gpus(context) as machine:
        events = list(hook.problems)
        context.stage("finding the job's GPUs")
        order = context.gpu_order(hook.slurm_conf)
        allocation = _allocate(context, hook, machine, order, events)
        if not allocation.gpus and not allocation.unknown:
            context.log.write(f"job {hook.job_id}: nothing to do: {'; '.join(events) or 'no GPU was found'}")
            return
        newcomer = Newcomer(
            job_id=hook.job_id,
            uuids=frozenset(gpu.uuid for gpu in allocation.gpus).union(map(GpuUuid, allocation.unknown_names)),
            shares_gpus=bool(allocation.mig) or order.shares_gpus,
        )
        jobs = context.spool.active_jobs(events)
        over = (job.uuids for job in jobs if why_over(context, job, newcomer) is not None)
        locked = newcomer.uuids.union(*over)
        context.stage("waiting for another hook on the same GPU")
        with context.spool.gpu_locks(locked):
            sharing = _repair(context, newcomer, locked, machine)
            give_back = [(other, newly_shared(context, other, newcomer.uuids)) for other in sharing]
            for other in sharing:
                context.spool.mark_shared(other.job_id, other.uuids & newcomer.uuids)
            give_shared_back(context, machine, give_back, events)
            shared = frozenset[GpuUuid]().union(*(job.uuids for job in sharing))
            job = plan_job(context, hook, allocation, machine, shared, events)
            _change(context, job, machine)


def _allocate(
    context: HookContext, hook: HookEnvironment, machine: Machine, order: GpuOrder, events: list[str]
) -> Allocation:
    if machine.problem is not None:
        events.append(machine.problem)
    devices = [gpu.identity for gpu in machine.gpus.values()]
    if machine.problem is not None and not devices:
        return Allocation()
    mapping = gpu_mapping(devices, order, context.settings.node.gpu_numbering, context.device_minor)
    allocation = find_gpus(hook, devices, mapping, machine.mig_parent)
    events.extend(allocation.problems)
    return allocation


def _repair(
    context: HookContext, newcomer: Newcomer, locked: frozenset[GpuUuid], machine: Machine
) -> tuple[ActiveJob, ...]:
    """Close every job that is surely over; return those that still run and hold one of the new job's GPUs."""
    context.stage("repairing what earlier jobs left")
    events: list[str] = []
    going_on: list[ActiveJob] = []
    over: list[tuple[ActiveJob, str]] = []
    for job in context.spool.active_jobs(events):
        why = why_over(context, job, newcomer)
        if why is None or not job.uuids <= locked:
            going_on.append(job)
        else:
            over.append((job, why))
    held = held_alone(going_on)
    for job, why in over:
        if job.alone_uuids & held:
            continue  # repair closes it when the live job on its GPU has ended
        from slurm_energy.node.closing import close_stale  # noqa: PLC0415  # most prologs find nothing to close

        try:
            close_stale(context, job, machine, why)
        except SpoolError as error:
            events.append(f"job {job.job_id} could not be closed: {error}")
    busy = frozenset[GpuUuid]().union(*(job.uuids for job in going_on))
    restore_pending(context, machine, locked, busy)
    lost = [record for record in lost_locks(context, events) if record.uuid in newcomer.uuids]
    restore_lost(context, machine, lost, events)
    for event in events:
        context.log.write(event)
    return tuple(job for job in going_on if job.uuids & newcomer.uuids)


def _change(context: HookContext, job: ActiveJob, machine: Machine) -> None:
    """Save, lock, read the counters, save again: the order that makes every crash repairable."""
    spool, events = context.spool, list(job.events)
    spool.clear_attempt(job.job_id)
    spool.write_state(job)
    _record_locks(context, job, events)
    _start_sampler(context, job, machine)
    gpus = tuple(_lock(context, gpu, machine, events) for gpu in job.gpus)
    context.stage("reading the energy counters")
    started = context.monotonic()
    gpus = tuple(_read_start(context, gpu, machine.gpus[gpu.uuid]) if gpu.identified else gpu for gpu in gpus)
    ready = replace(job, gpus=gpus, started_monotonic_seconds=started, events=tuple(events), ready=True)
    spool.write_state(ready)
    changed = ", ".join(f"{gpu.uuid}={gpu.applied_clock_mhz}MHz" for gpu in gpus if gpu.applied_clock_mhz)
    context.log.write(
        f"job {job.job_id}: gpus={len(gpus)} decision={job.decision_id or 'none'} clocks={changed or 'default'}"
        + (f" notes: {'; '.join(events)}" if events else "")
    )


def _record_locks(context: HookContext, job: ActiveJob, events: list[str]) -> None:
    """Tell outside the spool too which clocks are about to be locked; a lock is not given up for want of that."""
    records = [
        LockRecord(uuid=gpu.uuid, job_id=job.job_id, clock_mhz=gpu.target_clock_mhz)
        for gpu in job.gpus
        if gpu.target_clock_mhz is not None
    ]
    try:
        context.lock_records.write(records, context.boot_id)
    except SpoolError as error:
        events.append(f"second record of the lock: {error}")


def _lock(context: HookContext, gpu: SavedGpu, machine: Machine, events: list[str]) -> SavedGpu:
    target = gpu.target_clock_mhz
    if target is None:
        return gpu
    context.stage(f"locking the clock of GPU {gpu.uuid}")
    device = machine.gpus[gpu.uuid]
    outcome = lock_clock(device, gpu.saved.lowest_clock_mhz or target, target, context.pause)
    if outcome.event is not None:
        events.append(outcome.event)
    if not outcome.in_force:
        context.lock_records.forget(gpu.uuid)
    return replace(
        gpu,
        target_clock_mhz=target if outcome.in_force else None,
        trial_bound=gpu.trial_bound if outcome.in_force else None,
        applied_clock_mhz=outcome.applied_clock_mhz,
        flags=(*gpu.flags, *outcome.flags),
    )


def _read_start(context: HookContext, gpu: SavedGpu, device: Gpu) -> SavedGpu:
    # Time before the call here and after it at the end: the window is never shorter than what the counter counted.
    before = context.monotonic()
    counter = read_counter(device, None)
    return replace(
        gpu,
        counter_joules=counter.joules,
        counter_at_seconds=before,
        counter_problem=counter.problem,
        flags=(*gpu.flags, *counter.flags),
    )


def _start_sampler(context: HookContext, job: ActiveJob, machine: Machine) -> None:
    """Start the sampler before the clocks change, so that the rescue is there even if the prolog is not."""
    when = context.settings.node.sampler
    if when == "off" or (when == "needed" and not _sampler_needed(job, machine)):
        return
    try:
        context.start_sampler(JobId(job.job_id))
    except SpoolError as error:
        context.log.write(f"job {job.job_id}: {error}")


def _sampler_needed(job: ActiveJob, machine: Machine) -> bool:
    return any(
        not gpu.identified
        or gpu.clock_changed
        or gpu.trial_bound is not None
        or gpu.shared
        or read_counter(machine.gpus[gpu.uuid], None).joules is None
        for gpu in job.gpus
    )


def run_epilog(context: HookContext, hook: HookEnvironment) -> None:
    """Close the job on this node. A second run finds nothing and adds nothing.

    The state is found by job id alone: after a requeue slurmd already tells the epilog the next restart count.

    Raises:
        SpoolError: the report cannot be written; the clocks are back, and the state stays for the next hook.
    """
    from slurm_energy.node import closing  # noqa: PLC0415  # a prolog does not pay for it

    spool = context.spool
    try:
        spool.require_private()
    except SpoolError:
        with reach_gpus(context) as machine:
            closing.restore_lost_locks(context, hook, machine)
        raise
    try:
        job = spool.read_state(hook.job_id)
    except SpoolError as error:
        context.log.write(f"job {hook.job_id}: {error}; put aside")
        spool.reject(spool.state_path(hook.job_id))
        job = None
    if job is None:
        closing.close_without_state(context, hook)
        if hook.has_gpus:
            _deliver_soon(context)
        return
    spool.mark_ending(job.job_id, context.moment())
    if not job.gpus:
        from slurm_energy.node.cpu_jobs import close  # noqa: PLC0415  # not everywhere

        close(context, job, hook.exit_code)
        _deliver_soon(context)
        return
    with reach_gpus(context) as machine:
        context.stage("waiting for another hook on the same GPU")
        with spool.gpu_locks(job.uuids):
            # Another epilog or the next job's prolog may have closed it since: then its GPUs are not ours to set. Its
            # sampler may have noted a trial since.
            now = spool.read_state(hook.job_id)
            if now is None or now != job:
                context.log.write(f"job {hook.job_id}: was closed by another hook")
                return
            job = now
            if job.boot_id != context.boot_id:
                closing.close_stale(context, job, machine, "the node was booted since")
            else:
                _close(context, hook, job, machine)
    _deliver_soon(context)


def _deliver_soon(context: HookContext) -> None:
    """Start the delivery of the report, which the job does not wait for; the timer comes anyway."""
    if not context.settings.node.daemon_address:
        return
    with context.spool.try_turn() as turn:
        if turn is None:  # a delivery waits for its moment already, and has yet to look what there is
            return
    try:
        context.start_flush()
    except SpoolError as error:
        context.log.write(f"{error}; the timer delivers the report")


def _close(context: HookContext, hook: HookEnvironment, job: ActiveJob, machine: Machine) -> None:
    from slurm_energy.node import closing  # noqa: PLC0415
    from slurm_energy.node.energy import host_energy  # noqa: PLC0415

    restoration = restore_job(context, job, machine)
    closing.stop_sampler(context, job)
    context.stage("reading the energy counters")
    endings = {gpu.uuid: closing.read_end(context, job, gpu, machine) for gpu in job.gpus}
    # By the clock of this boot: the wall clock may have been set since.
    ended = job.started_at_seconds + context.monotonic() - job.started_monotonic_seconds
    heartbeat = context.spool.read_heartbeat(job)
    gpus = closing.energies(context, job, endings, heartbeat, restoration.failed)
    wall_seconds = max(context.monotonic() - job.started_monotonic_seconds, 0.0)
    host = host_energy(None if heartbeat is None else heartbeat.host, wall_seconds, gpus, truncated=False)
    said = () if heartbeat is None else heartbeat.events
    events = (*job.events, *said, *closing.clock_notes(context, job, heartbeat), *closing.end_notes(job, restoration))
    report = closing.make_report(job, gpus, host, ended, hook.exit_code, events, heartbeat)
    closing.file_away(context, job, report, restoration.failed)
    joules = ", ".join(closing.shown_energy(gpu) for gpu in gpus)
    context.log.write(f"job {job.job_id}: closed seconds={wall_seconds:.1f} energy: {joules}")
    for event in restoration.events:
        context.log.write(f"job {job.job_id}: {event}")
