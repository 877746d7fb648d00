"""Which GPUs of this machine a job holds, by the driver's UUIDs: proven, or none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_energy.device.base import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.node.gpu_mapping import GpuMapping
from slurm_energy.slurm.hook_env import HookEnvironment

UNKNOWN = "gpu identity unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job's GPUs; `problems` names every one that could not be found, none is ever guessed."""

    gpus: tuple[GpuIdentity, ...] = ()
    mig: frozenset[GpuUuid] = frozenset()
    """GPUs of which the job holds a slice only."""
    problems: tuple[str, ...] = ()
    unknown: str = ""
    """Why it is not proven which GPUs the job holds; then `gpus` is empty."""
    unknown_names: tuple[str, ...] = ()
    """A name for each GPU that the job holds in that case, out of what Slurm calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """GPUs that CUDA_VISIBLE_DEVICES names by identifier."""

    gpus: dict[GpuUuid, GpuIdentity]
    slices: frozenset[GpuUuid]
    """Boards that a MIG identifier led to."""
    unfound: tuple[str, ...]


def find_gpus(
    hook: HookEnvironment,
    devices: Sequence[GpuIdentity],
    mapping: GpuMapping,
    mig_parent: Callable[[str], GpuUuid],
) -> Allocation:
    """Return the GPUs that the hook's job holds, where that is proven.

    Identifiers prove themselves. Numbers are positions in slurmd's list and need a proven mapping; where there are
    identifiers too, both must lead to the same GPUs.

    Args:
        hook: The job as slurmd describes it.
        devices: Every GPU of the machine.
        mapping: Slurm's positions, see `gpu_mapping`.
        mig_parent: Finds the GPU of a MIG device; may raise DeviceError.
    """
    named = _named(hook, devices, mig_parent)
    if not hook.gpu_numbers:
        if named.unfound:
            return _unknown(hook, *named.unfound)
        return _found(named.gpus, named.slices)
    counted, why = _by_position(hook, devices, mapping)
    # CUDA opens one MIG device per process: a job can be given more slices than it can see.
    fewer_visible = _complete(hook) and len(hook.gpu_uuids) < len(hook.gpu_numbers) and bool(named.slices)
    if named.gpus and _complete(hook) and not named.unfound and (len(hook.gpu_uuids) == len(hook.gpu_numbers)):
        if not why and set(counted) != set(named.gpus):
            return _unknown(hook, _contradiction(counted, named.gpus))
        return _found(named.gpus, named.slices, *(() if not why else (f"by CUDA_VISIBLE_DEVICES alone: {why}",)))
    if named.gpus and fewer_visible:
        note = (
            f"SLURM_JOB_GPUS names {len(hook.gpu_numbers)} devices, CUDA_VISIBLE_DEVICES {hook.visible_count} with MIG "
            "devices among them: what is visible counts"
        )
        return _found(named.gpus, named.slices, note)
    if why:
        return _unknown(hook, why, *named.unfound)
    if not set(named.gpus) <= set(counted):
        return _unknown(hook, _contradiction(counted, named.gpus))
    unfound = () if any(gpu.mig_enabled for gpu in counted.values()) else named.unfound
    return _found(counted, named.slices, *unfound)


def _named(hook: HookEnvironment, devices: Sequence[GpuIdentity], mig_parent: Callable[[str], GpuUuid]) -> _Named:
    by_uuid = {device.uuid: device for device in devices}
    found: dict[GpuUuid, GpuIdentity] = {}
    slices: set[GpuUuid] = set()
    unfound: list[str] = []
    for text in hook.gpu_uuids:
        uuid = GpuUuid(text)
        if text.startswith("MIG-"):
            try:
                uuid = mig_parent(text)
            except DeviceError as error:
                unfound.append(f"MIG device {text} is on no known GPU: {error}")
                continue
            slices.add(uuid)
        if uuid in by_uuid:
            found[uuid] = by_uuid[uuid]
        else:
            unfound.append(f"GPU {text} is not on this machine")
    return _Named(gpus=found, slices=frozenset(slices), unfound=tuple(unfound))


def _by_position(
    hook: HookEnvironment, devices: Sequence[GpuIdentity], mapping: GpuMapping
) -> tuple[dict[GpuUuid, GpuIdentity], str]:
    """Return the GPUs at the job's positions, or why they are not proven."""
    by_uuid = {device.uuid: device for device in devices}
    if mapping.problem:
        return {}, mapping.problem
    positions = mapping.positions
    found: dict[GpuUuid, GpuIdentity] = {}
    for number in hook.gpu_numbers:
        gpu = positions.get(number)
        if gpu is None:
            return {}, f"position {number} of SLURM_JOB_GPUS is none of the {len(positions)} that Slurm counts here"
        if not gpu.proven or gpu.uuid is None:
            return {}, f"position {number} of SLURM_JOB_GPUS: {gpu.problem or 'nothing proves which GPU it is'}"
        found[gpu.uuid] = by_uuid[gpu.uuid]
    return found, ""


def _complete(hook: HookEnvironment) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES holds identifiers only."""
    return bool(hook.gpu_uuids) and len(hook.gpu_uuids) == hook.visible_count


def _contradiction(counted: dict[GpuUuid, GpuIdentity], named: dict[GpuUuid, GpuIdentity]) -> str:
    return (
        f"SLURM_JOB_GPUS leads to {', '.join(counted)}, CUDA_VISIBLE_DEVICES to {', '.join(named)}: "
        "the order of Slurm's GPUs is another than was learned"
    )


def _found(gpus: dict[GpuUuid, GpuIdentity], slices: frozenset[GpuUuid], *problems: str) -> Allocation:
    mig = slices | {gpu.uuid for gpu in gpus.values() if gpu.mig_enabled}
    return Allocation(gpus=tuple(gpus.values()), mig=frozenset(mig), problems=problems)


def _unknown(hook: HookEnvironment, why: str, *more: str) -> Allocation:
    names = hook.gpu_numbers or hook.gpu_uuids
    return Allocation(
        unknown=f"{UNKNOWN}: {why}",
        unknown_names=tuple(f"unknown-{name}" for name in names),
        problems=(f"{UNKNOWN}: {why}", *more),
    )
