"""The weights' file of a checkpoint, checked without torch and safetensors, as far as that is quick.

The form is that of safetensors: 8 bytes that say how long the header is, a JSON header that says of each tensor kind,
shape and place, and the tensors' bytes without a gap.
"""

import json
from collections.abc import Iterator, Mapping
from math import isfinite, prod
from typing import Any, NamedTuple, TypeGuard

from slurm_energy.errors import CheckpointError

MAX_HEADER_BYTES = 4 * 1024 * 1024
"""Some ten thousand tensors; the format itself would allow 100 MB of names."""
MAX_SUMMED_BYTES = 16 * 1024 * 1024
"""Values of a larger file are checked where it is loaded: the daemon checks at a reload while jobs are submitted."""
MAX_LIST_LENGTH = 16
"""Numbers in a shape: the product of thousands of them would take long."""
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F32": 4, "I64": 8, "BOOL": 1}
"""What a network of ours is made of: weights, counts, flags."""
_DESCRIPTION = "__metadata__"
"""Key of the header that is no tensor."""


class _Place(NamedTuple):
    """Where a tensor's bytes are, from the end of the header on."""

    begin: int
    end: int
    name: str
    kind: str


def check_weights(data: bytes) -> None:
    """Refuse a file that is cut off, is none, or has a value that is not finite.

    Args:
        data: The whole file.

    Raises:
        CheckpointError: with what is wrong; names of tensors and values are cut to a length for a message.
    """
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(f"says that its header has {header_bytes} bytes, at most {MAX_HEADER_BYTES} are read")
    begin = _LENGTH_BYTES + header_bytes
    if len(data) < begin:
        raise CheckpointError(f"has {len(data)} bytes, its header alone has {begin}")
    end = 0
    values = memoryview(data)[begin:]
    for place in sorted(_places(_header(data[_LENGTH_BYTES:begin]))):
        if place.begin != end:
            raise CheckpointError(f"has tensor {place.name[:80]!r} at byte {place.begin}, the one before ends at {end}")
        end = place.end
        is_whole = end <= len(values)
        if (
            place.kind == "F32"
            and is_whole
            and len(data) <= MAX_SUMMED_BYTES
            and not _is_finite(values[place.begin : end])
        ):
            raise CheckpointError(f"has values in tensor {place.name[:80]!r} that are not finite")
    if end != len(values):
        raise CheckpointError(f"has {len(values)} bytes of tensors, its header says {end}")


def _is_finite(values: memoryview) -> bool:
    """Return whether 32-bit floats are: no sum of so many finite ones overflows, and none comes back from infinity."""
    return isfinite(sum(values.cast("f")))


def _header(text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"has a header that cannot be read: {str(error)[:80]}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"has a header that is no table but a {type(header).__name__}")
    return header


def _places(header: Mapping[str, Any]) -> Iterator[_Place]:
    for name, entry in header.items():
        if name == _DESCRIPTION:
            continue
        form = entry if isinstance(entry, dict) else {}
        kind, shape, offsets = form.get("dtype"), form.get("shape"), form.get("data_offsets")
        if not (isinstance(kind, str) and kind in _ITEM_BYTES):
            known = ", ".join(_ITEM_BYTES)
            raise CheckpointError(f"has tensor {name[:80]!r} of the kind {repr(kind)[:40]}, allowed: {known}")
        if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
            raise CheckpointError(f"has tensor {name[:80]!r} without a shape or a place that can be read")
        begin, end = offsets
        if end - begin != prod(shape) * _ITEM_BYTES[kind]:
            raise CheckpointError(f"has tensor {name[:80]!r} with other bytes than its shape needs")
        yield _Place(begin, end, name, kind)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    """Return whether a value is a short list of whole numbers that a size can be."""
    return (
        isinstance(value, list)
        and len(value) <= MAX_LIST_LENGTH
        and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 2**63 for one in value)
    )
