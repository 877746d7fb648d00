"""After a job: restore first, then stop the sampler, read the counters and write the report."""

from slurm_energy.device.base import GpuIdentity
from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import DecisionId, GpuUuid
from slurm_energy.errors import SpoolError
from slurm_energy.node.allocation import Allocation, find_gpus
from slurm_energy.node.clock_plan import read_entry
from slurm_energy.node.closing import (
    Restoration,
    close_stale,
    energies,
    file_away,
    make_report,
    restore_job,
    stop_sampler,
)
from slurm_energy.node.context import HookContext, Machine, reach_gpus
from slurm_energy.node.energy import Ending, host_energy
from slurm_energy.node.gpu_mapping import gpu_mapping
from slurm_energy.node.readings import read_counter
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
        job = spool.read_state(hook.job_id)
    except SpoolError as error:
        context.log.write(f"job {hook.job_id}: {error}; put aside")
        spool.reject(spool.state_path(hook.job_id))
        job = None
    if job is None:
        _without_state(context, hook)
        return
    spool.mark_ending(job.job_id)
    with reach_gpus(context) as machine:
        context.stage("waiting for another hook on the same GPU")
        with spool.gpu_locks(job.uuids):
            # Another epilog or the next job's prolog may have closed it meanwhile: then its GPUs are not ours to set.
            if spool.read_state(hook.job_id) != job:
                context.log.write(f"job {hook.job_id}: was closed by another hook")
            elif job.boot_id != context.boot_id:
                close_stale(context, job, machine, "the node was booted since")
            else:
                _close(context, hook, job, machine)


def _close(context: HookContext, hook: HookEnvironment, job: ActiveJob, machine: Machine) -> None:
    restoration = restore_job(context, job, machine)
    stop_sampler(context, job)
    context.stage("reading the energy counters")
    endings = {gpu.uuid: _read_end(context, job, gpu, machine) for gpu in job.gpus}
    # By the clock of this boot: the wall clock may have been set meanwhile.
    ended = job.started_at_seconds + context.monotonic() - job.started_monotonic_seconds
    heartbeat = context.spool.read_heartbeat(job)
    gpus = energies(context, job, endings, heartbeat, restoration.failed)
    wall_seconds = max(context.monotonic() - job.started_monotonic_seconds, 0.0)
    host = host_energy(None if heartbeat is None else heartbeat.host, wall_seconds, gpus, truncated=False)
    events = (*job.events, *(() if heartbeat is None else heartbeat.events), *_notes(job, restoration))
    report = make_report(job, gpus, host, ended, hook.exit_code, events)
    file_away(context, job, report, restoration.failed)
    joules = ", ".join(_told(gpu) for gpu in gpus)
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


def _told(gpu: GpuEnergy) -> str:
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
