"""Jobs without GPUs, where the site wants their host energy (`node.cpu_jobs`): two readings of the node's own count.

No process watches such a job, no GPU is looked at for it, and nothing is set. What was not read at its end stays
unknown.
"""

from slurm_energy.domain.energy import HostEnergy
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.closing import file_away, make_report
from slurm_energy.node.context import HookContext
from slurm_energy.node.energy import HostSamples, host_energy
from slurm_energy.node.host_meter import read_meter
from slurm_energy.node.state import ActiveJob, MeterReading
from slurm_energy.slurm.hook_env import HookEnvironment


def note_start(context: HookContext, hook: HookEnvironment) -> None:
    """Save the job with the count at its start.

    Raises:
        SpoolError: the state cannot be saved.
    """
    events = list(hook.problems)
    start: MeterReading | None = None
    try:
        context.stage("reading the processors' counters")
        start = read_meter(context)
    except (DeviceError, SpoolError) as error:
        events.append(f"host: {error}")
    settings = context.settings
    context.spool.clear_attempt(hook.job_id)
    context.spool.write_state(
        ActiveJob(
            job_id=hook.job_id,
            sluid=hook.sluid,
            restart_count=hook.restart_count,
            cluster=hook.cluster or settings.cluster,
            node=settings.node_name,
            boot_id=context.boot_id,
            started_at_seconds=context.now(),
            started_monotonic_seconds=context.monotonic(),
            time_scale=settings.node.time_scale,
            gpus=(),
            user_id=hook.user_id,
            partition=hook.partition,
            ready=True,
            events=tuple(events),
            host_start=start,
        )
    )


def close(context: HookContext, job: ActiveJob, exit_code: int | None) -> None:
    """Report the job's host energy at its epilog.

    Raises:
        SpoolError: the report cannot be written; the state stays for the next hook.
    """
    context.stage("reading the processors' counters")
    host = _since_start(context, job)
    seconds = max(context.monotonic() - job.started_monotonic_seconds, 0.0)
    report = make_report(job, (), host, job.started_at_seconds + seconds, exit_code, job.events)
    file_away(context, job, report, frozenset())
    found = f"{host.joules:.1f} J" if host.joules is not None else f"unknown ({host.reason})"
    context.log.write(f"job {job.job_id}: closed seconds={seconds:.1f} host: {found}")


def _since_start(context: HookContext, job: ActiveJob) -> HostEnergy:
    """Return the host's energy since the job's start; its equal part is by the jobs that are known at the end."""
    start = job.host_start
    if job.boot_id != context.boot_id:
        return _unknown("the node was booted since the job's start")
    if start is None:
        return _unknown("there is no start reading")
    try:
        end = read_meter(context)
    except (DeviceError, SpoolError) as error:
        return _unknown(str(error))
    if end is None:
        return _unknown("another process holds the node's count")
    if end.meter_id != start.meter_id:
        return _unknown("the node's count was begun again during the job")
    jobs = max(len(context.spool.active_jobs([])), 1)
    samples = HostSamples(
        joules=(end.joules - start.joules) / jobs,
        node_joules=end.joules - start.joules,
        sampled_seconds=end.at_seconds - start.at_seconds,
        shared=jobs > 1,
        wrap_unobserved=end.doubtful_steps > start.doubtful_steps,
        meter_id=start.meter_id,
        meter_start_joules=start.joules,
        meter_end_joules=end.joules,
    )
    return host_energy(samples, end.at_seconds - start.at_seconds, (), truncated=False)


def _unknown(reason: str) -> HostEnergy:
    return HostEnergy(joules=None, reason=reason, coverage_seconds=0.0)
