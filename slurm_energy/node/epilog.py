"""After a job: restore first, then stop the sampler, read the counters and write the report."""

from slurm_energy.device.gpu import GpuIdentity, read_counter
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import DecisionId, GpuUuid
from slurm_energy.errors import SpoolError
from slurm_energy.node.allocation import Allocation, find_gpus, gpu_mapping
from slurm_energy.node.clock_plan import read_entry
from slurm_energy.node.closing import clock_notes, close_stale, energies, file_away, make_report, stop_sampler
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.energy import Ending, host_energy
from slurm_energy.node.recovery import Restoration, lost_locks, restore_job, restore_lost
from slurm_energy.node.state import ActiveJob, SavedGpu
from slurm_energy.slurm.hook_env import HookEnvironment


def run_epilog(context: HookContext, hook: HookEnvironment) -> None:
    """Close the job on this node. A second run finds nothing and adds nothing.

    The state is found by job id alone: after a requeue slurmd already tells the epilog the next restart count.

    Raises:
        SpoolError: the report cannot be written; the clocks are back, and the state stays for the next hook.
    """
    spool = context.spool
    try:
        spool.require_private()
    except SpoolError:
        with reach_gpus(context) as machine:
            _restore_lost(context, hook, machine)
        raise
    try:
        job = spool.read_state(hook.job_id)
    except SpoolError as error:
        context.log.write(f"job {hook.job_id}: {error}; put aside")
        spool.reject(spool.state_path(hook.job_id))
        job = None
    if job is None:
        _without_state(context, hook)
        if hook.has_gpus:
            _deliver_soon(context)
        return
    spool.mark_ending(job.job_id, context.moment())
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
                close_stale(context, job, machine, "the node was booted since")
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
    restoration = restore_job(context, job, machine)
    stop_sampler(context, job)
    context.stage("reading the energy counters")
    endings = {gpu.uuid: _read_end(context, job, gpu, machine) for gpu in job.gpus}
    # By the clock of this boot: the wall clock may have been set since.
    ended = job.started_at_seconds + context.monotonic() - job.started_monotonic_seconds
    heartbeat = context.spool.read_heartbeat(job)
    gpus = energies(context, job, endings, heartbeat, restoration.failed)
    wall_seconds = max(context.monotonic() - job.started_monotonic_seconds, 0.0)
    host = host_energy(None if heartbeat is None else heartbeat.host, wall_seconds, gpus, truncated=False)
    said = () if heartbeat is None else heartbeat.events
    events = (*job.events, *said, *clock_notes(context, job, heartbeat), *_notes(job, restoration))
    report = make_report(job, gpus, host, ended, hook.exit_code, events, heartbeat)
    file_away(context, job, report, restoration.failed)
    joules = ", ".join(_shown(gpu) for gpu in gpus)
    context.log.write(f"job {job.job_id}: closed seconds={wall_seconds:.1f} energy: {joules}")
    for event in restoration.events:
        context.log.write(f"job {job.job_id}: {event}")


def _read_end(context: HookContext, job: ActiveJob, gpu: SavedGpu, machine: Machine) -> Ending:
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


def _notes(job: ActiveJob, restoration: Restoration) -> tuple[str, ...]:
    cut = () if job.ready else ("the prolog was cut off before its end",)
    return (*cut, *restoration.events)


def _shown(gpu: GpuEnergy) -> str:
    amount = f"{gpu.joules:.1f} J ({gpu.source})" if gpu.joules is not None else f"unknown ({gpu.reason})"
    return f"{gpu.gpu_uuid}={amount}" + (f" [{' '.join(gpu.flags)}]" if gpu.flags else "")


def _without_state(context: HookContext, hook: HookEnvironment) -> None:
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
        events.extend(_restore_lost(context, hook, machine))
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


def _restore_lost(context: HookContext, hook: HookEnvironment, machine: Machine) -> list[str]:
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
