"""Close a job's record: shared by the epilog, the next prolog and repair."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from slurm_energy.device.gpu import GpuIdentity, read_counter
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import DecisionId, GpuUuid
from slurm_energy.errors import SlurmEnergyError
from slurm_energy.node.allocation import UNKNOWN, Allocation, find_gpus, gpu_mapping
from slurm_energy.node.clock_plan import read_entry
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.energy import STUCK_SECONDS, Ending, GpuSamples, Heartbeat, board_watts, gpu_energy, host_energy
from slurm_energy.node.processes import read_identity, stop
from slurm_energy.node.recovery import Restoration, lost_locks, restore_job, restore_lost
from slurm_energy.node.state import ActiveJob, SavedGpu
from slurm_energy.slurm.hook_env import HookEnvironment


def stop_sampler(context: HookContext, job: ActiveJob) -> None:
    """End the job's own sampler, and no other process; it writes its last sums before it goes."""
    context.stage("stopping the sampler")
    identity = read_identity(context.spool.sampler_path(job.job_id))
    if identity is not None and not stop(identity, context.boot_id, context.pause):
        context.log.write(f"job {job.job_id}: sampler {identity.pid} did not end by itself")


def energies(
    context: HookContext,
    job: ActiveJob,
    endings: Mapping[GpuUuid, Ending],
    heartbeat: Heartbeat | None,
    unrestored: frozenset[GpuUuid],
) -> tuple[GpuEnergy, ...]:
    """Return the energy of each of the job's GPUs."""
    late_shared = context.spool.shared_uuids(job.job_id)
    rows = []
    for saved in job.gpus:
        gpu = _as_trials_left(saved, heartbeat)
        samples = None if heartbeat is None else heartbeat.gpus.get(gpu.uuid)
        if samples is not None and _stood_to_the_end(job, gpu, endings[gpu.uuid], samples):
            samples = replace(samples, counter_stood=True)
        flags = [*endings[gpu.uuid].flags]
        if gpu.uuid in unrestored:
            flags.append(QualityFlag.RESTORE_FAILED)
        if heartbeat is not None and heartbeat.rescued and gpu.clock_changed:
            flags.append(QualityFlag.RESCUED)
        if heartbeat is not None and heartbeat.budget_seconds > 0.0:
            flags.append(QualityFlag.POWER_BUDGET)
        seen = _lock_seen(gpu, samples) if gpu.uuid not in late_shared else {}
        kept = tuple(flag for flag in gpu.flags if seen.get(flag, True))
        flags += [flag for flag, holds in seen.items() if holds]
        held = replace(
            gpu,
            shared=gpu.shared or gpu.uuid in late_shared,
            applied_clock_mhz=None if seen.get(QualityFlag.CLOCK_IGNORED) else gpu.applied_clock_mhz,
            flags=kept,
        )
        if heartbeat is not None and heartbeat.contradicted and gpu.identified:
            flags.append(QualityFlag.GPU_IDENTITY_UNKNOWN)
            why = f"{UNKNOWN}: {heartbeat.contradicted}"
            held = replace(held, flags=(*held.flags, QualityFlag.GPU_IDENTITY_UNKNOWN), counter_problem=why)
        ending = _until_final(job, gpu, endings[gpu.uuid], heartbeat)
        rows.append(_row(held, replace(ending, flags=tuple(flags)), samples))
    return tuple(rows)


def _as_trials_left(gpu: SavedGpu, heartbeat: Heartbeat | None) -> SavedGpu:
    """Return a GPU with the clock that trials led to as the applied one; None is the default clock."""
    if heartbeat is None or gpu.trial_bound is None:
        return gpu
    if heartbeat.kept_clock_mhz is None and not heartbeat.decided_clock_left:
        return gpu
    return replace(gpu, applied_clock_mhz=heartbeat.kept_clock_mhz)


def make_report(  # noqa: PLR0913, PLR0917  # each is one part of the report
    job: ActiveJob,
    gpus: tuple[GpuEnergy, ...],
    host: HostEnergy | None,
    ended_at_seconds: float,
    exit_code: int | None,
    events: tuple[str, ...],
    heartbeat: Heartbeat | None = None,
) -> NodeReport:
    """Return the report of one attempt, with the restart count that its prolog saw."""
    if heartbeat is not None and heartbeat.progress:
        events = (*events, heartbeat.progress)
    if heartbeat is not None and heartbeat.budget_seconds > 0.0:
        lowest = heartbeat.budget_clock_mhz
        events = (
            *events,
            f"power budget: {heartbeat.budget_seconds:.0f} s at a lowered clock, {lowest} MHz the lowest",
        )
    return NodeReport(
        cluster=job.cluster,
        job_id=job.job_id,
        restart_count=job.restart_count,
        node=job.node,
        user_id=job.user_id,
        partition=job.partition,
        decision_id=job.decision_id,
        started_at_seconds=job.started_at_seconds,
        ended_at_seconds=max(ended_at_seconds, job.started_at_seconds),
        time_scale=job.time_scale,
        gpus=gpus,
        host=host,
        exit_code=exit_code,
        events=events,
        trials=() if heartbeat is None else tuple(heartbeat.trials),
    )


def file_away(context: HookContext, job: ActiveJob, report: NodeReport, unrestored: frozenset[GpuUuid]) -> None:
    """Write the report, remember what is still to be restored, and forget the job.

    Raises:
        SpoolError: the disk is full; the state then stays, for the next prolog or repair.
    """
    context.stage("writing the report")
    if unrestored:
        # First, because only this file knows that a clock is still low.
        context.spool.keep_pending(replace(job, gpus=tuple(gpu for gpu in job.gpus if gpu.uuid in unrestored)))
    if not context.spool.is_reported(job):  # a hook that was killed after its report read the counters in time
        context.spool.write_report(report, job.boot_id, job.started_monotonic_seconds)
    with suppress(SlurmEnergyError):
        context.spool.mark_done(job.job_id, job.started_at_seconds)
    context.spool.forget(job.job_id)


def close_stale(context: HookContext, job: ActiveJob, machine: Machine, why: str) -> bool:
    """Restore a job that is surely over and close its report from the last heartbeat; never a guess.

    The caller holds the locks of the job's GPUs. Returns whether all its settings are back.
    """
    restoration = restore_job(context, job, machine)
    stop_sampler(context, job)
    heartbeat = context.spool.read_heartbeat(job)
    endings = {gpu.uuid: _last_seen(job, gpu, heartbeat) for gpu in job.gpus}
    gpus = energies(context, job, endings, heartbeat, restoration.failed)
    seconds = 0.0 if heartbeat is None else heartbeat.at_monotonic_seconds - job.started_monotonic_seconds
    host = host_energy(None if heartbeat is None else heartbeat.host, max(seconds, 0.0), gpus, truncated=True)
    said = () if heartbeat is None else tuple(heartbeat.events)
    events = (
        *job.events,
        *said,
        *clock_notes(context, job, heartbeat),
        f"closed without an epilog: {why}",
        *restoration.events,
    )
    if heartbeat is not None and heartbeat.final:
        events = (*events, "measured until its processes were gone or its epilog began")
    ended = job.started_at_seconds + max(seconds, 0.0)
    file_away(context, job, make_report(job, gpus, host, ended, None, events, heartbeat), restoration.failed)
    context.log.write(f"job {job.job_id} repaired: {why}; restored={not restoration.failed}")
    return not restoration.failed


def clock_notes(context: HookContext, job: ActiveJob, heartbeat: Heartbeat | None) -> tuple[str, ...]:
    """Return what is to be said of clocks that were not in force to the job's end."""
    shared = context.spool.shared_uuids(job.job_id)
    notes = []
    for saved in job.gpus:
        gpu = _as_trials_left(saved, heartbeat)
        samples = None if heartbeat is None else heartbeat.gpus.get(gpu.uuid)
        if gpu.uuid in shared and gpu.clock_changed:
            notes.append(f"GPU {gpu.uuid}: another job came to share it, and the clock was given back")
        elif samples is not None and _lock_seen(gpu, samples).get(QualityFlag.CLOCK_IGNORED):
            notes.append(
                f"GPU {gpu.uuid}: the lock at {gpu.applied_clock_mhz} MHz had no effect: the clock was above it in "
                f"{samples.above_lock_samples} of {samples.locked_samples} samples under load"
            )
    return tuple(notes)


def _lock_seen(gpu: SavedGpu, samples: GpuSamples | None) -> dict[QualityFlag, bool]:
    """Return which flags hold of a lock by what was seen of the GPU at work; that it is slow when idle says nothing."""
    if gpu.applied_clock_mhz is None:
        return {}
    if samples is None or samples.locked_samples == 0:
        return {QualityFlag.CLOCK_UNVERIFIED: True}
    if 2 * samples.above_lock_samples > samples.locked_samples:
        return {QualityFlag.CLOCK_IGNORED: True}
    return {QualityFlag.CLOCK_UNVERIFIED: samples.above_lock_samples > 0}


def _row(gpu: SavedGpu, ending: Ending, samples: GpuSamples | None) -> GpuEnergy:
    return gpu_energy(gpu, ending, samples, board_watts(gpu))


def _stood_to_the_end(job: ActiveJob, gpu: SavedGpu, ending: Ending, samples: GpuSamples) -> bool:
    """Return whether the counter still is, at the end, where the sampler last saw it too long before."""
    start, seen, seconds = gpu.counter_at_seconds, samples.counter_at_seconds, ending.counter_seconds
    if ending.truncated or start is None or seen is None or seconds is None:
        return False
    since = seconds - (seen - start) * job.time_scale
    return ending.counter_joules == samples.counter_joules and since > STUCK_SECONDS


def _until_final(job: ActiveJob, gpu: SavedGpu, ending: Ending, heartbeat: Heartbeat | None) -> Ending:
    """Return the ending with the window that samples can cover: those of a final heartbeat end with the job."""
    if heartbeat is None or not heartbeat.final:
        return ending
    start = job.started_monotonic_seconds if gpu.counter_at_seconds is None else gpu.counter_at_seconds
    seconds = max(heartbeat.at_monotonic_seconds - start, 0.0) * job.time_scale
    return replace(ending, window_seconds=min(ending.window_seconds, seconds))


def _last_seen(job: ActiveJob, gpu: SavedGpu, heartbeat: Heartbeat | None) -> Ending:
    """Return the ending of a GPU whose end was not seen: the last heartbeat, else nothing."""
    if heartbeat is None:
        return Ending(window_seconds=0.0, truncated=True)
    samples = heartbeat.gpus.get(gpu.uuid) or GpuSamples()
    window = max(heartbeat.at_monotonic_seconds - job.started_monotonic_seconds, 0.0) * job.time_scale
    start, end = gpu.counter_at_seconds, samples.counter_at_seconds
    return Ending(
        window_seconds=window,
        counter_joules=samples.counter_joules,
        counter_seconds=None if start is None or end is None else max(end - start, 0.0) * job.time_scale,
        truncated=True,
    )


def read_end(context: HookContext, job: ActiveJob, gpu: SavedGpu, machine: Machine) -> Ending:
    """Return where a GPU's counter is now, at the job's end."""
    counter = read_counter(machine.gpus.get(gpu.uuid), machine.problem)
    now = context.monotonic()
    start = gpu.counter_at_seconds
    window = max(now - (job.started_monotonic_seconds if start is None else start), 0.0) * job.time_scale
    return Ending(
        window_seconds=window,
        counter_joules=counter.joules,
        counter_seconds=None if start is None else window,
        counter_problem=counter.problem,
        flags=counter.flags,
    )


def end_notes(job: ActiveJob, restoration: Restoration) -> tuple[str, ...]:
    """Return what is to be said of a prolog that was cut off, and of settings that were put back."""
    cut = () if job.ready else ("the prolog was cut off before its end",)
    return (*cut, *restoration.events)


def shown_energy(gpu: GpuEnergy) -> str:
    """Return a GPU's energy, or why it is not known, for the log."""
    amount = f"{gpu.joules:.1f} J ({gpu.source})" if gpu.joules is not None else f"unknown ({gpu.reason})"
    return f"{gpu.gpu_uuid}={amount}" + (f" [{' '.join(gpu.flags)}]" if gpu.flags else "")


def close_without_state(context: HookContext, hook: HookEnvironment) -> None:
    """Report unknown energy for a job whose prolog left nothing, once; invent nothing."""
    if not hook.has_gpus:
        return
    context.spool.prepare()
    if context.spool.is_done(hook.job_id):
        context.log.write(f"job {hook.job_id}: was closed before")
        return

    events = list(hook.problems)
    settings = context.settings
    with reach_gpus(context) as machine:
        events.extend(restore_lost_locks(context, hook, machine))
        devices = [gpu.identity for gpu in machine.gpus.values()]
        order = context.gpu_order(hook.slurm_conf)
        mapping = gpu_mapping(devices, order, settings.node.gpu_numbering, context.device_minor)
        broken = machine.problem is not None and not devices
        allocation = Allocation() if broken else find_gpus(hook, devices, mapping, machine.mig_parent)
    events.extend((*allocation.problems, "there is no state of this job's prolog"))
    now = context.now()
    report = NodeReport(
        cluster=hook.cluster or settings.cluster,
        job_id=hook.job_id,
        restart_count=hook.restart_count,
        node=settings.node_name,
        user_id=hook.user_id,
        partition=hook.partition,
        decision_id=_decision_id(hook, events),
        started_at_seconds=now,
        ended_at_seconds=now,
        time_scale=settings.node.time_scale,
        gpus=(
            *(_unknown(gpu, mig=gpu.uuid in allocation.mig) for gpu in allocation.gpus),
            *(_unidentified(GpuUuid(name), allocation.unknown) for name in allocation.unknown_names),
        ),
        host=HostEnergy(joules=None, reason="there is no start reading", coverage_seconds=0.0),
        exit_code=hook.exit_code,
        events=tuple(events),
    )
    context.spool.write_report(report, context.boot_id, context.monotonic())
    context.spool.mark_done(hook.job_id, now)
    context.log.write(f"job {hook.job_id}: no state of its prolog; energy unknown")


def _decision_id(hook: HookEnvironment, events: list[str]) -> DecisionId | None:

    entry = read_entry(hook.entry, events)
    return None if entry is None else entry.decision_id


def _unknown(gpu: GpuIdentity, *, mig: bool) -> GpuEnergy:
    return GpuEnergy(
        gpu_uuid=gpu.uuid,
        gpu_name=gpu.name,
        gpu_type=gpu.gpu_type,
        joules=None,
        reason="there is no start reading",
        source=EnergySource.NONE,
        scope=EnergyScope.MIG_ESTIMATE if mig else EnergyScope.GPU,
        coverage_seconds=0.0,
        flags=(QualityFlag.INCOMPLETE, *((QualityFlag.MIG,) if mig else ())),
    )


def _unidentified(name: GpuUuid, why: str) -> GpuEnergy:
    return GpuEnergy(
        gpu_uuid=name,
        gpu_name="",
        gpu_type=None,
        joules=None,
        reason=why,
        source=EnergySource.NONE,
        scope=EnergyScope.GPU,
        coverage_seconds=0.0,
        flags=(QualityFlag.INCOMPLETE, QualityFlag.GPU_IDENTITY_UNKNOWN),
    )


def restore_lost_locks(context: HookContext, hook: HookEnvironment, machine: Machine) -> list[str]:
    """Give back the clocks that were locked for the job, of whose state nothing is left; return what was done."""
    events: list[str] = []
    uuids = {record.uuid for record in lost_locks(context, events) if record.job_id == hook.job_id}
    if uuids:
        context.stage("waiting for another hook on the same GPU")
        with context.spool.gpu_locks(uuids):
            # Another hook may have done it while this one waited, and the next job have its own lock by now.
            lost = [record for record in lost_locks(context, []) if record.job_id == hook.job_id]
            restore_lost(context, machine, lost, events)
    for event in events:
        context.log.write(f"job {hook.job_id}: {event}")
    return events
