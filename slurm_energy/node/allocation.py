"""Which GPUs of this machine a job holds: from Slurm's numbers or identifiers to the driver's UUIDs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slurm_energy.device.base import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.node.gres_conf import NodeGres, parse_gres_conf
from slurm_energy.slurm.hook_env import HookEnvironment

Numbering = Literal["auto", "gres-conf", "minor", "index"]
DEFAULT_SLURM_CONF = Path("/etc/slurm/slurm.conf")
MAX_GRES_CONF_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job's GPUs; `problems` names every one that could not be found, none is ever guessed."""

    gpus: tuple[GpuIdentity, ...]
    mig: frozenset[GpuUuid] = frozenset()
    """GPUs of which the job holds a slice only."""
    problems: tuple[str, ...] = ()


def read_node_gres(slurm_conf: str | None, node: str) -> NodeGres:
    """Return what gres.conf beside slurm.conf says of the node; nothing when there is no such file."""
    path = (Path(slurm_conf) if slurm_conf else DEFAULT_SLURM_CONF).parent / "gres.conf"
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return parse_gres_conf(file.read(MAX_GRES_CONF_BYTES), node)
    except OSError:
        return NodeGres()


def find_gpus(
    hook: HookEnvironment,
    devices: Sequence[GpuIdentity],
    gres: NodeGres,
    numbering: Numbering,
    mig_parent: Callable[[str], GpuUuid],
) -> Allocation:
    """Return the GPUs that the hook's job holds.

    Args:
        hook: The job as slurmd describes it.
        devices: Every GPU of the machine.
        gres: The node's part of gres.conf.
        numbering: Meaning of the numbers in SLURM_JOB_GPUS.
        mig_parent: Finds the GPU of a MIG device; may raise DeviceError.
    """
    found: dict[GpuUuid, GpuIdentity] = {}
    mig: set[GpuUuid] = set()
    problems: list[str] = []
    for number in hook.gpu_numbers:
        device = _by_number(number, devices, gres, numbering)
        if device is None:
            problems.append(f"GPU number {number} of SLURM_JOB_GPUS is none of this machine's {len(devices)} GPUs")
        else:
            found[device.uuid] = device
    by_uuid = {device.uuid: device for device in devices}
    visible: dict[GpuUuid, GpuIdentity] = {}
    for text in hook.gpu_uuids:
        if text.startswith("MIG-"):
            try:
                uuid = mig_parent(text)
            except DeviceError as error:
                if not any(device.mig_enabled for device in found.values()):
                    problems.append(f"MIG device {text} is on no known GPU: {error}")
                continue
            mig.add(uuid)
        else:
            uuid = GpuUuid(text)
        if uuid in by_uuid:
            visible[uuid] = by_uuid[uuid]
        else:
            problems.append(f"GPU {text} is not on this machine")
    # Slurm's numbers say what the job holds; identifiers fill in when it gives none, or some slices are out of reach.
    if not hook.gpu_numbers:
        found = visible
    elif visible and _fewer_slices_visible(hook):
        found = visible
        problems.append(
            f"SLURM_JOB_GPUS names {len(hook.gpu_numbers)} devices, CUDA_VISIBLE_DEVICES {hook.visible_count} with MIG "
            "devices among them: what is visible counts"
        )
    mig.update(device.uuid for device in found.values() if device.mig_enabled)
    return Allocation(gpus=tuple(found.values()), mig=frozenset(mig), problems=tuple(problems))


def _fewer_slices_visible(hook: HookEnvironment) -> bool:
    """Return whether a job can reach fewer devices than it was given: CUDA opens one MIG device per process."""
    slices = any(text.startswith("MIG-") for text in hook.gpu_uuids)
    return slices and len(hook.gpu_uuids) == hook.visible_count and len(hook.gpu_uuids) < len(hook.gpu_numbers)


def _by_number(number: int, devices: Sequence[GpuIdentity], gres: NodeGres, numbering: Numbering) -> GpuIdentity | None:
    if numbering == "index":
        return next((device for device in devices if device.index == number), None)
    if numbering == "minor":
        return _by_minor(number, devices)
    if gres.gpu_files or numbering == "gres-conf":
        minor = gres.minor_of_position(number)
        return None if minor is None else _by_minor(minor, devices)
    # AutoDetect: slurmd sorts the detected GPUs by device file, so positions follow the minor numbers.
    if any(device.minor_number is None for device in devices):
        return next((device for device in devices if device.index == number), None)
    ordered = sorted(devices, key=lambda device: device.minor_number or 0)
    return ordered[number] if number < len(ordered) else None


def _by_minor(minor: int, devices: Sequence[GpuIdentity]) -> GpuIdentity | None:
    return next((device for device in devices if device.minor_number == minor), None)
