"""A weights' file is checked to the last byte without torch, and whatever is in it the message stays short."""

import json
import struct
from math import inf, nan
from typing import Any

import pytest
from weights_samples import safetensors_file

from slurm_energy.errors import CheckpointError
from slurm_energy.policy.weights_file import MAX_HEADER_BYTES, MAX_LIST_LENGTH, check_weights

F32: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TWO = struct.pack("<2f", 1.0, 2.0)


def file_of(header: object, data: bytes = TWO, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "data",
    [
        safetensors_file({}),
        safetensors_file({"a": [1.0, -3e38, 3e38], "b": [], "c": [0.0]}),
        file_of({"__metadata__": {"format": "pt"}, "a": F32}),
        file_of({"b": {**F32, "data_offsets": [8, 16]}, "a": F32}, TWO + TWO),
        file_of({"steps": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}}, struct.pack("<q", -1)),
        file_of({"mask": {"dtype": "BOOL", "shape": [2, 1], "data_offsets": [0, 2]}}, b"\1\0"),
        safetensors_file({"large": [3.4e38] * 100_000}),
    ],
)
def test_a_whole_file_passes(data: bytes) -> None:
    check_weights(data)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "has 0 bytes, its header alone has 8"),
        (file_of({"a": F32})[:-1], "has 7 bytes of tensors, its header says 8"),
        (file_of({"a": F32}) + b"x", "has 9 bytes of tensors, its header says 8"),
        (file_of({"a": F32}, length=2**64 - 1), "header has 18446744073709551615 bytes"),
        (file_of(b"{" + b" " * MAX_HEADER_BYTES + b"}"), "at most 4194304 are read"),
        (file_of(b"[" * 100_000), "header that cannot be read"),
        (file_of(b"\xff\xfe"), "header that cannot be read"),
        (file_of([1]), "no table but a list"),
        (file_of({"a": 1}), "of the kind None"),
        (file_of({"a" * 10_000: {**F32, "dtype": "x" * 10_000}}), "of the kind 'xxx"),
        (file_of({"a": {**F32, "dtype": ["F32"]}}), "of the kind"),
        (file_of({"a": {**F32, "dtype": "F64"}}), "of the kind 'F64', allowed: F32, I64, BOOL"),
        (file_of({"a": {**F32, "shape": [3]}}), "other bytes than its shape needs"),
        (file_of({"a": {**F32, "shape": [2**62, 2**62]}}), "other bytes than its shape needs"),
        (file_of({"a": {**F32, "shape": [1] * (MAX_LIST_LENGTH + 1)}}), "without a shape or a place"),
        (file_of({"a": {**F32, "shape": [-2]}}), "without a shape or a place"),
        (file_of({"a": {**F32, "shape": [2.0]}}), "without a shape or a place"),
        (file_of({"a": {**F32, "shape": [True]}}), "without a shape or a place"),
        (file_of({"a": {**F32, "data_offsets": [0]}}), "without a shape or a place"),
        (file_of({"a": {**F32, "data_offsets": [8, 0]}}), "other bytes than its shape needs"),
        (file_of({"a": F32, "b": F32}), "at byte 0, the one before ends at 8"),
        (file_of({"a": {**F32, "data_offsets": [8, 16]}}, TWO + TWO), "at byte 8, the one before ends at 0"),
        (safetensors_file({"a": [1.0], "b": [1.0, nan]}), "values in tensor 'b' that are not finite"),
        (safetensors_file({"a": [inf]}), "not finite"),
        (safetensors_file({"a": [inf, -inf]}), "not finite"),
        (safetensors_file({"a" * 10_000: [nan]}), "not finite"),
    ],
)
def test_a_file_that_is_not_whole_or_not_finite_is_refused_in_few_words(data: bytes, complaint: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        check_weights(data)
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 250
