"""Beside a job: integrate power, note clocks, leave heartbeats, and rescue a slowed job from its time limit."""

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.device.gpu import Gpu, restore_settings
from slurm_energy.domain.ids import GpuUuid, JobId
from slurm_energy.errors import DeviceError, SpoolError
from slurm_energy.node.context import HookContext, reach_gpus
from slurm_energy.node.energy import GpuSamples, Heartbeat, HostSamples
from slurm_energy.node.processes import PROC, ProcessIdentity, read_identity, write_identity
from slurm_energy.node.samples import GpuHolders, SamplerState, add_counter, add_host, add_power, add_use
from slurm_energy.node.state import ActiveJob
from slurm_energy.node.steps import DEVICES_ROOT, Presence, StepWatch, cgroup_minors
from slurm_energy.node.trials.progress_file import ProgressFile, StepCounter

if TYPE_CHECKING:
    pass

HEARTBEAT_SAMPLES = 5
HEARTBEAT_SECONDS = 1.0
"""No heartbeat follows another sooner, however short the sample interval."""
PROLOG_SECONDS = 10.0
"""How long the start waits for the prolog's end."""
LONGEST_JOB_SECONDS = 60 * 86_400.0
DEVICE_CHECK_SAMPLES = 10
"""A cgroup that limits nothing by then does not limit devices."""
NO_STEP_SECONDS = 60.0
"""A job without a batch step that has had no step for this long is taken as over, until it has one again."""
Sleep = Callable[[float], bool]
"""Waits the given seconds; returns True when the process was asked to end."""


def run_sampler(context: HookContext, job_id: JobId, sleep: Sleep, proc: Path = PROC) -> None:
    """Sample until the job is over, another sampler takes over, or the process is asked to end.

    The end of the batch step and the beginning of the epilog end the job. The last heartbeat is final then: an epilog
    that never comes, or comes to nothing, must not bill idle time or the next job's energy to this one.
    """
    spool = context.spool
    spool.require_private()
    write_identity(spool.sampler_path(job_id), context.boot_id)
    own = read_identity(spool.sampler_path(job_id))
    job = _await_prolog(context, job_id, sleep)
    if job is None:
        return
    state = SamplerState(job=job, heartbeat=Heartbeat(job_id=job_id, started_at_seconds=job.started_at_seconds))
    jobs = GpuHolders(spool)
    interval = context.settings.node.sample_interval_seconds
    with reach_gpus(context) as machine:
        gpus = {uuid: machine.gpus[uuid] for uuid in job.uuids if uuid in machine.gpus}
        steps = StepWatch(job_id, proc, job.sluid)
        state.counter = _step_counter(context, job)
        _follow_power(context, state, machine.gpus.values())
        if any(gpu.trial_bound is not None for gpu in job.gpus):
            from slurm_energy.node.trials.run import make_trials  # noqa: PLC0415  # few jobs have any

            state.trials = make_trials(context, job, gpus, state.counter)
        if context.settings.node.follow_power_budget:
            from slurm_energy.node.power_budget import make_follower  # noqa: PLC0415  # few sites have a budget

            state.budget = make_follower(context, job, gpus)
        next_seconds = context.monotonic()
        while _belongs(context, state, own):
            presence = steps.look(context.monotonic())
            if presence is Presence.OVER or spool.ending_path(job_id).exists():
                state.heartbeat.over = presence is Presence.OVER
                _end(context, state, gpus, jobs)
                return
            take_sample(context, state, gpus, jobs)
            _follow_trials(state, jobs, presence)
            _follow_budget(state, jobs)
            _freeze(context, state, gpus, presence)
            if presence is Presence.RUNNING:
                _check_devices(context, state, gpus)
            next_seconds = max(next_seconds + interval, context.monotonic())
            if _wait(context, state, next_seconds, sleep):
                _note_trials(state, stop="")
                if state.counter is not None:
                    state.counter.file.remove()
                take_sample(context, state, gpus, jobs, last=True)
                if spool.state_path(job_id).exists():
                    closing = not spool.ending_path(job_id).exists()  # by another hook than the epilog
                    _write_heartbeat(context, state, durable=False, frozen_after_seconds=0.0 if closing else math.inf)
                return


def take_sample(
    context: HookContext, state: SamplerState, gpus: Mapping[GpuUuid, Gpu], jobs: GpuHolders, *, last: bool = False
) -> None:
    """Add one sample of every GPU and of the processors; every few samples, leave a heartbeat.

    The last sample adds power alone: the epilog has given the clock back by then.
    """
    holders = jobs.holders()
    count_counter = state.heartbeat.final or state.ticks % HEARTBEAT_SAMPLES == 0
    for gpu in state.job.gpus:
        device = gpus.get(gpu.uuid)
        if device is None or gpu.mig:
            continue
        sums = state.heartbeat.gpus.setdefault(gpu.uuid, GpuSamples())
        add_power(context, state, device, sums, max(holders.get(gpu.uuid, 1), 1))
        if not last:
            given_back = state.heartbeat.rescued or sums.shared_seconds > 0.0 or holders.get(gpu.uuid, 1) > 1
            locked_mhz = gpu.applied_clock_mhz if state.trials is None else state.trials.locked_mhz
            if state.budget is not None and state.budget.lowered_mhz is not None:
                locked_mhz = state.budget.lowered_mhz
            add_use(device, sums, None if given_back else locked_mhz)
        if count_counter:
            add_counter(context, device, sums, state.job.time_scale)
    add_host(context, state, max(jobs.count, 1))
    state.heartbeat.at_seconds = context.now()
    state.heartbeat.at_monotonic_seconds = context.monotonic()
    if state.counter is not None:
        state.counter.look(context.monotonic())
        watts = [sums.mean_watts for sums in state.heartbeat.gpus.values()]
        known = [value * state.job.time_scale for value in watts if value is not None]
        state.heartbeat.progress = state.counter.note(sum(known) if known and len(known) == len(watts) else None)
    if state.heartbeat.final:
        return
    _rescue(context, state, gpus)
    state.ticks += 1
    if count_counter and context.monotonic() - state.beat_seconds >= HEARTBEAT_SECONDS:
        state.beat_seconds = context.monotonic()
        _write_heartbeat(context, state, durable=True)


def _follow_power(context: HookContext, state: SamplerState, gpus: Iterable[Gpu]) -> None:
    """Take the node's power for its host, where the site chose one."""
    if context.settings.node.host_power == "rapl":
        return
    from slurm_energy.node.host_power import HostPower, find_reader  # noqa: PLC0415  # few nodes have no counter

    try:
        reader = find_reader(context)
    except DeviceError as error:
        state.heartbeat.host = HostSamples(problem=str(error))
        return
    state.host_power = None if reader is None else HostPower(context, reader, gpus)


def _step_counter(context: HookContext, job: ActiveJob) -> StepCounter | None:
    folder = context.settings.node.progress_directory
    if not folder or job.user_id is None:
        return None
    return StepCounter(file=ProgressFile(folder, job.job_id, job.user_id))


def _wait(context: HookContext, state: SamplerState, until_seconds: float, sleep: Sleep) -> bool:
    """Wait for the next sample, with trials in between; return True when the process was asked to end."""
    while True:
        wanted = math.inf if state.trials is None else state.trials.step()
        left = max(until_seconds - context.monotonic(), 0.0)
        if sleep(min(left, wanted)):
            return True
        if context.monotonic() >= until_seconds or wanted >= left:
            return False


def _follow_trials(state: SamplerState, jobs: GpuHolders, presence: Presence) -> None:
    """End trials that may not continue, and keep what they found in the heartbeat."""
    if state.trials is None:
        return
    if state.heartbeat.rescued or state.heartbeat.contradicted:
        state.trials.stop("the default clock was given back", given_back=True)
    why = ""
    if any(jobs.holders().get(uuid, 1) > 1 for uuid in state.job.uuids):
        why = "another job holds one of its GPUs too"
    elif presence is Presence.ABSENT:
        why = "no step of the job runs"
    if not state.is_lowered:
        state.trials.follow_load(state.heartbeat.gpus)
    _note_trials(state, stop=why)


def _follow_budget(state: SamplerState, jobs: GpuHolders) -> None:
    """Follow the cluster's power budget; no clock is tried in a job from which it takes some."""
    if state.budget is None or state.heartbeat.final:
        return
    shared = any(jobs.holders().get(uuid, 1) > 1 for uuid in state.job.uuids)
    stays = state.heartbeat.rescued or bool(state.heartbeat.contradicted) or shared
    if state.trials is not None and not state.trials.ended and state.budget.is_ordered:
        state.trials.stop("the power budget is short")
        _note_trials(state)
    state.budget.step(state.heartbeat, state.own_clock_mhz, stays=stays)


def _note_trials(state: SamplerState, *, stop: str | None = None) -> None:
    """Write down what trials found; with `stop` end them, empty: since the job is over."""
    trials = state.trials
    if trials is None:
        return
    if stop is not None and (stop or state.heartbeat.final):
        trials.stop(stop)
    state.heartbeat.trials = trials.trials
    state.heartbeat.kept_clock_mhz = trials.kept_clock_mhz
    state.heartbeat.decided_clock_left = trials.decided_clock_left
    state.heartbeat.events.extend(trials.events)
    trials.events.clear()


def _await_prolog(context: HookContext, job_id: JobId, sleep: Sleep) -> ActiveJob | None:
    """Return the state as the prolog finished it; one that was cut off is taken as it is."""
    end = context.monotonic() + PROLOG_SECONDS
    while True:
        job = context.spool.read_state(job_id)
        if job is None or job.ready or context.monotonic() > end:
            return job
        if sleep(0.02):
            return None


def _belongs(context: HookContext, state: SamplerState, own: ProcessIdentity | None) -> bool:
    """Return whether the job is still here and this is its sampler."""
    job_id = state.job.job_id
    if read_identity(context.spool.sampler_path(job_id)) != own:
        return False
    if context.monotonic() - state.job.started_monotonic_seconds > LONGEST_JOB_SECONDS:
        return False
    try:
        job = context.spool.read_state(job_id)
    except SpoolError:
        return False
    if job is None or job.started_at_seconds != state.job.started_at_seconds:
        return False
    state.job = job
    return True


def _end(context: HookContext, state: SamplerState, gpus: Mapping[GpuUuid, Gpu], jobs: GpuHolders) -> None:
    """Take the last sample of a job that is over, counters too, and leave the final heartbeat."""
    state.heartbeat.final, state.frozen = True, None
    _note_trials(state, stop="")
    if state.counter is not None:
        state.counter.file.remove()
    take_sample(context, state, gpus, jobs, last=True)
    if context.spool.state_path(state.job.job_id).exists():
        _write_heartbeat(context, state, durable=True)


def _freeze(context: HookContext, state: SamplerState, gpus: Mapping[GpuUuid, Gpu], presence: Presence) -> None:
    """Keep the sums of the moment when the last step ended, until there is a step again."""
    if presence is not Presence.ABSENT:
        state.frozen = None
    elif state.frozen is None:
        for uuid, sums in state.heartbeat.gpus.items():
            add_counter(context, gpus[uuid], sums, state.job.time_scale)
        state.frozen = deepcopy(state.heartbeat)


def _check_devices(context: HookContext, state: SamplerState, gpus: Mapping[GpuUuid, Gpu]) -> None:
    """Compare the job's GPUs with what its cgroup lets it open; give back the clock of one that is not its own."""
    if state.devices_checked:
        return
    allowed = cgroup_minors(state.job.job_id, context.devices_root or DEVICES_ROOT)
    state.devices_checked = allowed is not None or state.ticks > DEVICE_CHECK_SAMPLES
    if not allowed:
        return
    found = {gpu.identity.minor_number for gpu in gpus.values()}
    if found <= allowed:
        return
    lists = (", ".join(f"nvidia{minor}" for minor in sorted(minors, key=str)) for minors in (allowed, found))
    state.heartbeat.contradicted = "the job's cgroup holds {}, Slurm's numbers led to {}".format(*lists)
    state.heartbeat.events.append(f"gpu identity unknown: {state.heartbeat.contradicted}")
    context.log.write(f"job {state.job.job_id}: {state.heartbeat.events[-1]}")
    slowed = [gpu for gpu in state.job.gpus if gpu.clock_changed and gpu.uuid in gpus]
    with context.spool.try_locks(gpu.uuid for gpu in slowed) as held:
        # Without the locks a hook is at work on these GPUs, and puts them back itself.
        if held and context.spool.state_path(state.job.job_id).exists():
            for gpu in slowed:
                restore_settings(gpus[gpu.uuid], gpu.saved, clock_changed=True, pause=context.pause)
    _write_heartbeat(context, state, durable=True)


def _rescue(context: HookContext, state: SamplerState, gpus: Mapping[GpuUuid, Gpu]) -> None:
    """Give a slowed job its default clock back when it comes near its time limit: a TIMEOUT wastes every joule."""
    job, share = state.job, context.settings.node.rescue_share
    if state.heartbeat.rescued or share >= 1.0 or job.time_limit_minutes is None:
        return
    # Monotonic: a clock that is set must not raise clocks.
    elapsed_seconds = context.monotonic() - job.started_monotonic_seconds
    if elapsed_seconds < share * job.time_limit_minutes * 60.0:
        return
    is_tried = state.is_lowered or (state.trials is not None and state.trials.locked_mhz is not None)
    slowed = [gpu for gpu in job.gpus if (gpu.target_clock_mhz is not None or is_tried) and gpu.uuid in gpus]
    if not slowed:
        return
    with context.spool.try_locks(gpu.uuid for gpu in slowed) as held:
        # Without the locks a hook is at work on these GPUs: it may be the epilog. Try again at the next sample.
        if not held or not context.spool.state_path(job.job_id).exists():
            return
        outcomes = [
            restore_settings(gpus[gpu.uuid], gpu.saved, clock_changed=True, pause=context.pause) for gpu in slowed
        ]
    if all(outcome.restored for outcome in outcomes):
        state.heartbeat.rescued = True
        state.heartbeat.events.append(
            f"rescued after {elapsed_seconds / 60.0:.1f} of {job.time_limit_minutes} minutes: "
            f"default clock on {len(slowed)} GPUs"
        )
        context.log.write(f"job {job.job_id}: {state.heartbeat.events[-1]}")
        _write_heartbeat(context, state, durable=True)


def _write_heartbeat(
    context: HookContext, state: SamplerState, *, durable: bool, frozen_after_seconds: float = NO_STEP_SECONDS
) -> None:
    heartbeat, frozen = state.heartbeat, state.frozen
    if frozen is not None and context.monotonic() - frozen.at_monotonic_seconds >= frozen_after_seconds:
        heartbeat = replace(frozen, final=True, rescued=heartbeat.rescued, events=heartbeat.events)
    try:
        context.spool.write_heartbeat(heartbeat, durable=durable)
    except SpoolError as error:
        if not any("heartbeat" in event for event in state.heartbeat.events):
            state.heartbeat.events.append(f"heartbeat not written: {error}")
