"""Moments as records: arrays of the graph as compressed bytes, kept once for all moments that share them."""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, fields
from math import prod
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import TrainingError
from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, QueueBlock, TopBlock
from slurm_energy.learning.experience import DecisionMoment
from slurm_energy.policy.gnn.network import Blocks

_LEVEL = 1
_MAX_BYTES = 1 << 30
"""Of one record when it is unpacked: what a hostile file can make of a few bytes has an end."""
_KINDS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("float16", "bool", "int8", "int16", "int32", "int64")
)
_DECODED: dict[str, Any] = {"f": np.float32, "b": np.bool_, "i": np.int64}


class Record:
    """The compressed bytes of some arrays."""

    __slots__ = ("__weakref__", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays.

        Raises:
            TrainingError: the bytes are not those of a record.
        """
        try:
            return _arrays(_unzipped(self.packed))
        except (zlib.error, ValueError, IndexError, OverflowError, MemoryError) as error:
            raise TrainingError(f"a record of the replay cannot be read: {error}") from error


class RecordPool:
    """Gives the same record for the same arrays for as long as anything holds it.

    Most of a state is the same from one decision to the next, and its wiring is the same for ever.
    """

    def __init__(self) -> None:
        self._known: WeakValueDictionary[bytes, Record] = WeakValueDictionary()

    def record(self, arrays: Sequence[NDArray[Any]]) -> Record:
        """Return a record of some arrays; features are rounded to half precision, which has 3 digits."""
        raw = _raw(arrays)
        key = hashlib.blake2b(raw, digest_size=16).digest()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Record(zlib.compress(raw, _LEVEL))
        return found

    def __len__(self) -> int:
        return len(self._known)


def _raw(arrays: Sequence[NDArray[Any]]) -> bytes:
    """Return a header of kinds and shapes, and the arrays behind it, tables by column: columns repeat themselves."""
    header, parts = [len(arrays)], []
    for array in arrays:
        narrow = _narrow(array)
        header += [_KINDS.index(narrow.dtype), narrow.ndim, *narrow.shape]
        parts.append(np.ascontiguousarray(narrow.T).tobytes())
    return b"".join([np.array([len(header), *header], dtype=np.int32).tobytes(), *parts])


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "f":
        return array.astype(np.float16)
    if array.dtype.kind == "b":
        return array
    farthest = int(np.abs(array).max()) if array.size else 0
    return array.astype(np.min_scalar_type(-1 - farthest))


def _unzipped(packed: bytes) -> bytes:
    decoder = zlib.decompressobj()
    raw = decoder.decompress(packed, _MAX_BYTES)
    if not decoder.eof:
        raise ValueError(f"it is cut short, or longer than {_MAX_BYTES} bytes")
    return raw


def _arrays(raw: bytes) -> list[NDArray[Any]]:
    entries = int(np.frombuffer(raw, np.int32, 1)[0])
    header = np.frombuffer(raw, np.int32, entries, 4).tolist()
    at, place, found = 4 * (1 + entries), 1, []
    for _ in range(header[0]):
        kind, dimensions = _KINDS[header[place]], header[place + 1]
        shape = tuple(header[place + 2 : place + 2 + dimensions])
        if min(shape, default=0) < 0:
            raise ValueError(f"an array has shape {shape}")
        size = prod(shape)
        flat = np.frombuffer(raw, kind, size, at).astype(_DECODED[kind.kind])
        at, place = at + size * kind.itemsize, place + 2 + dimensions
        found.append(np.ascontiguousarray(flat.reshape(shape[::-1]).T) if dimensions > 1 else flat)
    return found


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

    def blocks(self, unpacked: Unpacked, *, links: bool = True) -> Blocks:
        """Return the state.

        Args:
            unpacked: Grows by what had to be unpacked: moments of one batch share most of their records.
            links: Whether those between devices are wanted, by far the largest part of a batch: some tens for each.
        """
        wiring, devices = _fields(_WIRING, self.wiring, unpacked), _fields(_DEVICES, self.devices, unpacked)
        if not links:
            wiring = {**wiring, "link_index": wiring["link_index"][:, :0], "link_x": wiring["link_x"][:0]}
        return Blocks(
            devices=DeviceBlock(**wiring, **devices),
            fabric=FabricBlock(**_fields(_FABRIC, self.fabric, unpacked)),
            queue=QueueBlock(**_fields(_QUEUE, self.queue, unpacked)),
            top=TopBlock(**_fields(_TOP, self.top, unpacked)),
        )

    def block(self) -> DecisionBlock:
        """Return the job with its options."""
        return DecisionBlock(**_fields(_DECISION, self.decision, {}))


def pack(moment: DecisionMoment, pool: RecordPool) -> PackedMoment:
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
