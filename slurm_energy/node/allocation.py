"""Which GPUs of this machine a job holds: Slurm's positions and names to the driver's UUIDs.

A GPU is named only where it is known which it is; nothing is guessed.
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_energy.device.gpu import GpuIdentity
from slurm_energy.domain.ids import GpuUuid
from slurm_energy.errors import DeviceError
from slurm_energy.node.gpu_order import GpuOrder, SlurmGpu
from slurm_energy.slurm.hook_env import HookEnvironment

NVIDIA_MAJOR = 195
"""Of /dev/nvidiaN; its device number says the minor, whatever the file is called."""
GRES_CONF_SILENT = "node.gpu_numbering is gres-conf, and slurm.conf and gres.conf do not state the order"
_TRAILING_NUMBER = r"([0-9]{1,4})\Z"
UNKNOWN = "gpu identity unknown"
Numbering = Literal["auto", "gres-conf", "minor", "index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedGpu:
    """One GPU as Slurm counts it and as the driver knows it; what one side does not know is None."""

    position: int | None
    """Number in SLURM_JOB_GPUS; None for a GPU that Slurm does not count."""
    slurm_type: str | None
    device_file: str | None
    minor_number: int | None
    index: int | None
    """The driver's own order."""
    uuid: GpuUuid | None
    pci_bus_id: str | None
    name: str | None
    is_slice: bool = False
    ways: tuple[str, ...] = ()
    """What proves it; nothing while `problem` says why it must not be used."""
    problem: str = ""

    @property
    def proven(self) -> bool:
        """Whether clocks may be set and energy be billed by this position."""
        return self.position is not None and self.uuid is not None and bool(self.ways) and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMapping:
    """Every position of Slurm with its GPU, then the GPUs that Slurm does not count."""

    gpus: tuple[MappedGpu, ...]
    problem: str = ""
    """Why no position is proven."""

    @property
    def positions(self) -> dict[int, MappedGpu]:
        """The GPUs that Slurm counts."""
        return {gpu.position: gpu for gpu in self.gpus if gpu.position is not None}


def gpu_mapping(
    devices: Sequence[GpuIdentity],
    order: GpuOrder,
    numbering: Numbering = "auto",
    minor_of: Callable[[str], int | None] | None = None,
) -> GpuMapping:
    """Return every position of Slurm with its GPU, then the GPUs that Slurm does not count.

    Args:
        devices: Every GPU of the machine.
        order: The GPUs in Slurm's order, see `gpu_order`.
        numbering: What the site says the positions are; `auto`: only what is proven counts.
        minor_of: Minor number of a device file; None: asked of the file itself.
    """
    read_minor, problem = minor_of or device_minor, ""
    if numbering in {"minor", "index"}:
        mapped = _as_site_says(devices, order, numbering, read_minor)
    else:
        counted = _counted(order, numbering)
        mapped = [
            _mapped(position, gpu, counted, devices, read_minor(gpu.device_file))
            for position, gpu in enumerate(counted.gpus)
        ]
        problem = counted.problem
    known = {gpu.uuid for gpu in mapped}
    others = (_uncounted(device) for device in devices if device.uuid not in known)
    return GpuMapping(gpus=(*mapped, *others), problem=problem)


def device_minor(path: str) -> int | None:
    """Return N of the NVIDIA device that the file is, None when the file does not tell."""
    try:
        status = os.stat(path)  # noqa: PTH116  # a text from another program, and a hook's time
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    minor = os.minor(status.st_rdev)
    if os.major(status.st_rdev) == NVIDIA_MAJOR:
        return minor
    # Another kind of device stands for the GPU: then its name must say the same.
    match = re.search(_TRAILING_NUMBER, path)
    return minor if match is not None and int(match[1]) == minor else None


def _counted(order: GpuOrder, numbering: Numbering) -> GpuOrder:
    """Return the order that counts: slurmd's, or by node.gpu_numbering that of the files."""
    if numbering != "gres-conf":
        return order
    if order.stated is None:
        return GpuOrder(problem=GRES_CONF_SILENT)
    answered = bool(order.ways)  # then what slurmd says must not contradict the files
    return GpuOrder(
        gpus=order.stated, ways=("node.gpu_numbering = 'gres-conf'",), problem=order.problem if answered else ""
    )


def _as_site_says(
    devices: Sequence[GpuIdentity], order: GpuOrder, numbering: Numbering, read_minor: Callable[[str], int | None]
) -> list[MappedGpu]:
    """Return the mapping that node.gpu_numbering states; slurmd's own order, where known, must not contradict."""
    mapped = []
    for device in sorted(devices, key=lambda device: device.index):
        position = device.index if numbering == "index" else device.minor_number
        if position is None:
            continue
        counted = order.gpus[position] if not order.problem and position < len(order.gpus) else None
        minor = None if counted is None else read_minor(counted.device_file)
        problem = ""
        if minor is not None and minor != device.minor_number:
            problem = (
                f"node.gpu_numbering = {numbering!r} makes position {position} minor {device.minor_number}, "
                f"slurmd -G counts {counted.device_file if counted else ''} there"
            )
        mapped.append(
            MappedGpu(
                position=position,
                slurm_type=None if counted is None else counted.gpu_type,
                device_file=None if counted is None else counted.device_file,
                minor_number=device.minor_number,
                index=device.index,
                uuid=device.uuid,
                pci_bus_id=device.pci_bus_id,
                name=device.name,
                ways=(f"node.gpu_numbering = {numbering!r}",),
                problem=problem,
            )
        )
    return sorted(mapped, key=lambda gpu: gpu.position or 0)


def _mapped(
    position: int, gpu: SlurmGpu, order: GpuOrder, devices: Sequence[GpuIdentity], minor: int | None
) -> MappedGpu:
    found = [device for device in devices if minor is not None and device.minor_number == minor]
    device = found[0] if len(found) == 1 else None
    problem = order.problem
    if not problem and minor is None:
        problem = f"{gpu.device_file} does not tell which GPU it is"
    elif not problem and device is None:
        problem = f"the driver shows no GPU with minor number {minor} ({gpu.device_file})"
    return MappedGpu(
        position=position,
        slurm_type=gpu.gpu_type,
        device_file=gpu.device_file,
        minor_number=minor,
        index=None if device is None else device.index,
        uuid=None if device is None else device.uuid,
        pci_bus_id=None if device is None else device.pci_bus_id,
        name=None if device is None else device.name,
        is_slice=gpu.is_slice,
        ways=order.ways,
        problem=problem,
    )


def _uncounted(device: GpuIdentity) -> MappedGpu:
    return MappedGpu(
        position=None,
        slurm_type=None,
        device_file=None,
        minor_number=device.minor_number,
        index=device.index,
        uuid=device.uuid,
        pci_bus_id=device.pci_bus_id,
        name=device.name,
        problem="Slurm does not count this GPU",
    )


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
