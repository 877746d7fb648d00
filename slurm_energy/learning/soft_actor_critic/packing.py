"""Moments as records: what a decision saw, in as little memory as it takes."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from numpy.typing import NDArray

from slurm_energy.errors import TrainingError
from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.learning.experience import Moment
from slurm_energy.learning.soft_actor_critic.records import Record, RecordPool
from slurm_energy.policy.gnn.network import Blocks

_WIRING = ("gpu_node", "link_index", "link_x")


def _names(block_class: type[Any]) -> tuple[str, ...]:
    """Return the arrays that every block of one moment has."""
    return tuple(item.name for item in fields(block_class) if item.default is MISSING)


_DEVICES = tuple(name for name in _names(DeviceBlock) if name not in _WIRING)
_FABRIC, _QUEUE, _TOP, _DECISION = (_names(kind) for kind in (FabricBlock, QueueBlock, TopBlock, DecisionBlock))
PACKED_RECORDS = 6
Unpacked = dict[Record, list[NDArray[Any]]]
"""Arrays by the record that they came from."""


class PackedMoment(NamedTuple):
    """The state and decision of a moment, by what changes together."""

    wiring: Record
    """Links between devices: the same for ever, and the largest part."""
    devices: Record
    fabric: Record
    queue: Record
    top: Record
    decision: Record
    """Options with the masks of decision time."""

    def blocks(self, unpacked: Unpacked) -> Blocks:
        """Return the state.

        Args:
            unpacked: Grows by what had to be unpacked: moments of one batch share most of their records.
        """
        wiring, devices = _fields(_WIRING, self.wiring, unpacked), _fields(_DEVICES, self.devices, unpacked)
        return Blocks(
            devices=DeviceBlock(**wiring, **devices),
            fabric=FabricBlock(**_fields(_FABRIC, self.fabric, unpacked)),
            queue=QueueBlock(**_fields(_QUEUE, self.queue, unpacked)),
            top=TopBlock(**_fields(_TOP, self.top, unpacked)),
        )

    def block(self) -> DecisionBlock:
        """Return the job with its options."""
        return DecisionBlock(**_fields(_DECISION, self.decision, {}))


def pack(moment: Moment, pool: RecordPool) -> PackedMoment:
    """Return a moment in records of a pool."""
    state = moment.state

    def record(block: object, names: Sequence[str]) -> Record:
        return pool.record([getattr(block, name) for name in names])

    return PackedMoment(
        wiring=record(state.devices, _WIRING),
        devices=record(state.devices, _DEVICES),
        fabric=record(state.fabric, _FABRIC),
        queue=record(state.queue, _QUEUE),
        top=record(state.top, _TOP),
        decision=record(moment.decision, _DECISION),
    )


def restored_moment(records: Sequence[Record]) -> PackedMoment:
    """Return a moment of records that were read from a file.

    Raises:
        TrainingError: they are not those of a moment.
    """
    moment = PackedMoment(*records)
    moment.blocks({})
    if moment.block().job_x.shape[0] != 1:
        raise TrainingError(f"a moment of the replay asks about {moment.block().job_x.shape[0]} jobs, it must be 1")
    return moment


def _fields(names: Sequence[str], record: Record, unpacked: Unpacked) -> dict[str, Any]:
    arrays = unpacked.get(record)
    if arrays is None:
        arrays = unpacked[record] = record.arrays()
    if len(arrays) != len(names):
        raise TrainingError(f"a record of the replay has {len(arrays)} arrays where {', '.join(names)} are needed")
    return dict(zip(names, arrays, strict=True))
