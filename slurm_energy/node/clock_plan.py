"""What a prolog is to do: which clock a decision means for the GPUs that were really allocated. Changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_energy.device.gpu import Gpu, GpuIdentity, SavedSettings, reading, save_settings
from slurm_energy.domain.decision import DecisionEntry
from slurm_energy.domain.energy import QualityFlag
from slurm_energy.domain.ids import GpuTypeName, GpuUuid
from slurm_energy.domain.job import EnergyMode
from slurm_energy.energy_model.catalog import LIMIT_TOLERANCE, gpu_type_from_slurm_type
from slurm_energy.errors import DeviceError, ValueRangeError
from slurm_energy.node.allocation import Allocation
from slurm_energy.node.context import HookContext, Machine
from slurm_energy.node.state import ActiveJob, SavedGpu
from slurm_energy.slurm.hook_env import HookEnvironment

_CHANGING_MODES = frozenset({EnergyMode.BALANCED, EnergyMode.SAVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockPlan:
    """What to lock. `target_mhz` is None to leave the clock alone; `event` says why when something was asked."""

    asked_mhz: int | None = None
    target_mhz: int | None = None
    flags: tuple[QualityFlag, ...] = ()
    event: str | None = None


def plan_job(
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
        follows_budget=settings.node.follow_power_budget and entry is not None and entry.mode in _CHANGING_MODES,
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


def read_entry(text: str | None, events: list[str]) -> DecisionEntry | None:
    """Return the decision that travelled with the job, None when there is none or it is malformed."""
    if text is None:
        return None
    try:
        return DecisionEntry.decode(text)
    except ValueRangeError as error:
        events.append(f"decision entry refused: {error}")
        return None


def entry_for_count(
    entry: DecisionEntry | None, gpus: int, events: list[str], *, on_one_node: bool
) -> DecisionEntry | None:
    """Return the entry without clocks and trials where it was made for another number of GPUs than the job has.

    Args:
        entry: The decision, None for none.
        gpus: Of the job on this node.
        events: Why clocks were left out is added.
        on_one_node: Whether these are all GPUs of the job.
    """
    if entry is None or entry.gpus is None or entry.gpus == gpus or (gpus < entry.gpus and not on_one_node):
        return entry
    if entry.clocks_mhz or entry.trial_bounds:
        events.append(f"decided for {entry.gpus} GPUs, the job has {gpus}: default clock kept")
    return entry.without_clocks()


def plan_clock(
    entry: DecisionEntry | None,
    gpu: GpuIdentity,
    supported_mhz: Sequence[int],
    saved: SavedSettings,
    *,
    mig: bool,
    shared: bool,
) -> ClockPlan:
    """Return the clock for one GPU.

    Args:
        entry: The decision, None for none.
        gpu: The GPU that was allocated; its own type picks the row.
        supported_mhz: Its settable clocks, ascending.
        saved: What it is set to; a site's own lock is never exceeded, and the power limit must fit the decision.
        mig: Whether the job holds a slice only: MIG devices refuse clocks.
        shared: Whether another job holds the GPU too: its clock is not this job's alone.
    """
    if entry is None or entry.mode not in _CHANGING_MODES or not entry.clocks_mhz:
        return ClockPlan()
    if gpu.gpu_type is None or gpu.gpu_type not in entry.clocks_mhz:
        return ClockPlan(event=f"the decision has no clock for {gpu.name!r} (type {gpu.gpu_type or 'unknown'})")
    asked = entry.clocks_mhz[gpu.gpu_type]
    if mig:
        return ClockPlan(asked_mhz=asked, event=f"GPU {gpu.uuid} is in MIG mode: its clock stays as it is")
    if shared:
        return ClockPlan(asked_mhz=asked, event=f"GPU {gpu.uuid} is shared with another job: its clock stays as it is")
    refused = (QualityFlag.CLOCK_REFUSED,)
    if not supported_mhz:
        return ClockPlan(asked_mhz=asked, flags=refused, event=f"GPU {gpu.uuid} names no supported clock")
    if not supported_mhz[0] <= asked <= supported_mhz[-1]:
        return ClockPlan(
            asked_mhz=asked,
            flags=refused,
            event=f"clock {asked} MHz is not supported by GPU {gpu.index} ({gpu.name}): "
            f"{supported_mhz[0]} to {supported_mhz[-1]} MHz",
        )
    target = nearest_clock(asked, supported_mhz)
    if target >= (supported_mhz[-1] if saved.site_clock_mhz is None else saved.site_clock_mhz):
        return ClockPlan(asked_mhz=asked)  # already what the GPU does by default
    return _for_this_board(target, asked, entry.assumed_watts.get(gpu.gpu_type), saved.power_limit_watts, gpu)


def plan_trials(entry: DecisionEntry | None, gpu: GpuIdentity) -> float | None:
    """Return the slowdown that trials of clocks may come up to on a GPU; None: none are made."""
    if entry is None or entry.mode not in _CHANGING_MODES or gpu.gpu_type is None:
        return None
    return entry.trial_bounds.get(gpu.gpu_type)


def _for_this_board(
    target_mhz: int, asked_mhz: int, assumed_watts: int | None, limit_watts: float | None, gpu: GpuIdentity
) -> ClockPlan:
    """Return the plan to lock the clock, unless the board has a higher limit than the slowdown bound rests on.

    Such a board runs faster at its default clock than the decision took for granted, so the same clock slows it more.
    One with a lower limit runs slower there and is slowed less.
    """
    if assumed_watts is None or limit_watts is None:
        return ClockPlan(asked_mhz=asked_mhz, target_mhz=target_mhz)
    if limit_watts > assumed_watts * (1.0 + LIMIT_TOLERANCE):
        return ClockPlan(
            asked_mhz=asked_mhz,
            flags=(QualityFlag.CLOCK_REFUSED,),
            event=f"{gpu.uuid}: board limit {limit_watts:g} W is above the {assumed_watts} W that the decision "
            "assumed: default clock kept; set gpu_power_limits_watts",
        )
    event = None
    if limit_watts < assumed_watts * (1.0 - LIMIT_TOLERANCE):
        event = (
            f"{gpu.uuid}: board limit {limit_watts:g} W is below the {assumed_watts} W that the decision assumed: "
            "the saving was predicted for another board"
        )
    return ClockPlan(asked_mhz=asked_mhz, target_mhz=target_mhz, event=event)


def site_clock_mhz(locked_mhz: Mapping[str, int], gpu_type: GpuTypeName | None) -> int | None:
    """Return the clock that the site has locked for a type, None for none; keys are catalogue names or GRES types."""
    for key, clock in locked_mhz.items():
        if gpu_type is not None and gpu_type in (key, gpu_type_from_slurm_type(key)):
            return clock
    return None


def nearest_clock(asked_mhz: int, supported_mhz: Sequence[int]) -> int:
    """Return the supported clock nearest to the one asked for; of two equally near, the faster."""
    return min(supported_mhz, key=lambda clock: (abs(clock - asked_mhz), -clock))
