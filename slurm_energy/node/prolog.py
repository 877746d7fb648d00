"""Before a job: put right what earlier jobs left, save the settings, lock the clocks, read the counters.

The state is in its file before anything is changed. Whatever ends the prolog afterwards - a deadline, kill -9 - the
epilog, the next prolog or repair finds it there and puts everything back. A power cut takes the locks with it.
"""

from dataclasses import replace

from slurm_energy.device.gpu import Gpu, SavedSettings, lock_clock, read_counter, reading, save_settings
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.allocation import Allocation, find_gpus, gpu_mapping
from slurm_energy.node.clock_plan import entry_for_count, plan_clock, plan_trials, read_entry, site_clock_mhz
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.gpu_order import GpuOrder
from slurm_energy.node.lock_records import LockRecord
from slurm_energy.node.recovery import (
    Newcomer,
    give_shared_back,
    held_alone,
    lost_locks,
    newly_shared,
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
    if not hook.has_gpus:
        return
    context.spool.prepare()
    context.spool.forget_reported(hook.job_id)  # before anything that can hang or fail
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
            job = _plan(context, hook, allocation, machine, shared, events)
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


def _plan(
    context: HookContext,
    hook: HookEnvironment,
    allocation: Allocation,
    machine: Machine,
    shared: frozenset[GpuUuid],
    events: list[str],
) -> ActiveJob:
    """Return the state to save: settings as they are, clocks as they are to be. Reads only."""
    context.stage("saving the settings")
    settings = context.settings
    entry = None if settings.node.fetch_decisions else read_entry(hook.entry, events)
    if settings.node.fetch_decisions and hook.on_one_node:
        from slurm_energy.node.newest import entry_of_job  # noqa: PLC0415  # few sites have no compiled plugin

        context.stage("asking the daemon for the job's decision")
        entry = entry_of_job(hook.job_id, settings, events)
    elif entry is not None and entry.may_change and hook.on_one_node:
        from slurm_energy.node.newest import newest_entry  # noqa: PLC0415  # few jobs are decided again

        context.stage("asking the daemon for the newest decision")
        entry = newest_entry(entry, settings, events)
    held = len(allocation.gpus) + len(allocation.unknown_names)
    entry = entry_for_count(entry, held, events, on_one_node=hook.on_one_node)
    asked = entry if settings.node.set_clocks else None
    gpus = []
    for identity in allocation.gpus:
        mig, is_shared = identity.uuid in allocation.mig, identity.uuid in shared
        site_clock = site_clock_mhz(settings.node.site_locked_clocks_mhz, identity.gpu_type)
        saved = _plan_gpu(asked, machine.gpus[identity.uuid], site_clock, mig=mig, shared=is_shared, events=events)
        gpus.append(replace(saved, mig_share=_slice_share(hook, identity.uuid, machine)) if mig else saved)
    if not hook.on_one_node or len({(gpu.gpu_type, gpu.target_clock_mhz) for gpu in gpus}) > 1:
        gpus = [replace(gpu, trial_bound=None) for gpu in gpus]  # its nodes, or its GPUs, wait for each other
    gpus += (_unidentified(GpuUuid(name), allocation.unknown) for name in allocation.unknown_names)
    return ActiveJob(
        job_id=hook.job_id,
        sluid=hook.sluid,
        restart_count=hook.restart_count,
        cluster=hook.cluster or settings.cluster,
        node=settings.node_name,
        boot_id=context.boot_id,
        started_at_seconds=context.now(),
        started_monotonic_seconds=context.monotonic(),
        time_scale=settings.node.time_scale,
        gpus=tuple(gpus),
        user_id=hook.user_id,
        partition=hook.partition,
        decision_id=None if entry is None else entry.decision_id,
        time_limit_minutes=None if entry is None else entry.time_limit_minutes,
        events=tuple(events),
    )


def _plan_gpu(
    entry: DecisionEntry | None, device: Gpu, site_clock_mhz: int | None, *, mig: bool, shared: bool, events: list[str]
) -> SavedGpu:
    identity = device.identity
    supported = reading(device.supported_sm_clocks_mhz) or ()
    saved = save_settings(device, supported, site_clock_mhz)
    plan = plan_clock(entry, identity, supported, saved, mig=mig, shared=shared)
    if plan.event is not None:
        events.append(plan.event)
    trial_bound = None if not supported or mig or shared or plan.flags else plan_trials(entry, identity)
    flags = (*plan.flags, *((QualityFlag.MIG,) if mig else ()), *((QualityFlag.SHARED_GPU,) if shared else ()))
    return SavedGpu(
        uuid=identity.uuid,
        name=identity.name,
        gpu_type=identity.gpu_type,
        mig=mig,
        shared=shared,
        saved=saved,
        asked_clock_mhz=plan.asked_mhz,
        target_clock_mhz=plan.target_mhz,
        trial_bound=trial_bound,
        flags=flags,
    )


def _slice_share(hook: HookEnvironment, uuid: GpuUuid, machine: Machine) -> float | None:
    """Return which share of a board the job's slices are, None unless all of them are named and the driver tells."""
    if len(hook.gpu_uuids) < max(hook.visible_count or 0, len(hook.gpu_numbers)):
        return None
    try:
        slices = [text for text in hook.gpu_uuids if text.startswith("MIG-") and machine.mig_parent(text) == uuid]
        return min(1.0, sum(machine.mig_share(text) for text in slices)) if slices else None
    except DeviceError:
        return None


def _unidentified(name: GpuUuid, why: str) -> SavedGpu:
    """Return what stands for a GPU that the job holds and that cannot be identified: it gets no clock and no joules."""
    return SavedGpu(
        uuid=name,
        name="",
        gpu_type=None,
        saved=SavedSettings(
            power_limit_watts=None,
            application_clock_mhz=None,
            lowest_clock_mhz=None,
            highest_clock_mhz=None,
            site_clock_mhz=None,
        ),
        flags=(QualityFlag.GPU_IDENTITY_UNKNOWN,),
        counter_problem=why,
    )


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
