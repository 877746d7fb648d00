"""Checkpoints: what goes in comes out, and nothing that a file holds can do harm."""

import json
import os
import pickle
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from slurm_energy.errors import CheckpointError, SlurmEnergyError
from slurm_energy.graph import schema
from slurm_energy.policy import checkpoint_files
from slurm_energy.policy.checkpoint_files import (
    DOCUMENT_FILE,
    MAX_DOCUMENT_BYTES,
    WEIGHTS_FILE,
    CheckpointMetadata,
    check_files,
    feature_widths,
    sha256,
)
from slurm_energy.policy.gnn.checkpoint import load_into, read_checkpoint, save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.weights_file import MAX_HEADER_BYTES


class Toy(nn.Module):
    """A module with every kind of tensor that a network may have."""

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2)
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("empty", torch.zeros(0, 4))


def metadata(**changes: Any) -> CheckpointMetadata:
    values: dict[str, Any] = {
        "name": "gnn",
        "version": "2026.11-a",
        "architecture": NetworkConfig(hidden=12, heads=3),
        "training_data_sha256": "ab" * 32,
        "created_at_seconds": 1_795_800_000.5,
        "metrics": {"energy per job": 0.87, "seeds": 5},
    }
    return CheckpointMetadata(**{**values, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    save_checkpoint(tmp_path / "one", Toy().state_dict(), metadata())
    return tmp_path / "one"


def rewrite_document(folder: Path, change: Callable[[dict[str, Any]], None], *, sealed: bool = True) -> None:
    """Change `checkpoint.json` as somebody would who knows how it is sealed."""
    document = json.loads((folder / DOCUMENT_FILE).read_text())
    del document["document_sha256"]
    change(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["document_sha256"] = sha256(text.encode()) if sealed else "0" * 64
    (folder / DOCUMENT_FILE).write_text(json.dumps(document))


def replace_weights(folder: Path, data: bytes) -> None:
    """Put other bytes in the weights' place, with their right hash."""
    (folder / WEIGHTS_FILE).write_bytes(data)
    rewrite_document(folder, lambda document: document.update(weights_sha256=sha256(data)))


def safetensors_bytes(header: object, data: bytes, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


def test_what_is_saved_is_read_back_in_every_bit(folder: Path) -> None:
    torch.manual_seed(1)
    saved = Toy()
    read = read_checkpoint(folder)
    assert replace(read.metadata, weights_sha256="0" * 64) == metadata()
    assert read.metadata.schema_version == schema.SCHEMA_VERSION
    assert read.metadata.widths == feature_widths()
    assert same(dict(read.tensors), dict(saved.state_dict()))
    torch.manual_seed(2)
    loaded = Toy()
    assert not torch.equal(loaded.linear.weight, saved.linear.weight)
    load_into(loaded, read)
    assert same(dict(loaded.state_dict()), dict(saved.state_dict()))


def test_the_files_are_checked_without_torch(folder: Path) -> None:
    assert check_files(folder) == read_checkpoint(folder).metadata


def test_widths_tell_of_every_feature_list() -> None:
    widths = feature_widths()
    assert widths["gpu"] == len(schema.GPU)
    assert widths["task-option-partition"] == len(schema.OPTION)
    assert widths["clock"] == len(schema.CLOCK)
    assert len(widths) == len(schema.VERTICES) + sum(bool(features) for features in schema.EDGES.values()) + 1


def test_tensors_that_share_memory_or_are_not_contiguous_are_saved_as_they_are(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    save_checkpoint(tmp_path / "x", {"row": whole[0], "turned": whole.T, "whole": whole}, metadata())
    assert same(dict(read_checkpoint(tmp_path / "x").tensors), {"row": whole[0], "turned": whole.T, "whole": whole})


def test_an_existing_folder_is_never_changed(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(CheckpointError, match="exists already"):
        save_checkpoint(folder, Toy().state_dict(), metadata(version="2"))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_disk_that_fills_up_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    with file_size_limit(100), pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(tmp_path / "half", Toy().state_dict(), metadata())
    assert list(tmp_path.iterdir()) == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.tensor([1.0, float("nan"), float("inf")]), "2 of 3 values that are not finite"),
        (torch.tensor([1.0], dtype=torch.float64), "torch.float64, allowed: torch.float32"),
        (torch.tensor([1j]), "torch.complex64"),
    ],
)
def test_what_could_not_be_read_is_not_saved(tmp_path: Path, tensor: Tensor, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        save_checkpoint(tmp_path / "x", {"weight": tensor}, metadata())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "two words"}, "name is 'two words'"),
        ({"version": "\x1b[31m"}, "version is"),
        ({"training_data_sha256": "AB"}, "64 hexadecimal digits"),
        ({"created_at_seconds": -1.0}, "created_at_seconds is -1.0"),
        ({"created_at_seconds": 10**4000}, "Unix time"),
        ({"metrics": {"loss": float("nan")}}, "metric 'loss' is nan"),
        ({"metrics": {"loss": 10**4000}}, "finite"),
        ({"metrics": {str(number): 1.0 for number in range(1001)}}, "up to 1000"),
    ],
)
def test_metadata_of_bad_form_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        metadata(**changes)


def test_a_missing_folder_and_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="none does not exist"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match="cannot be opened: Not a directory"):
        read_checkpoint(folder / DOCUMENT_FILE)
    (folder / WEIGHTS_FILE).unlink()
    for read in (read_checkpoint, check_files):
        with pytest.raises(CheckpointError, match=r"weights\.safetensors does not exist"):
            read(folder)
    (folder / DOCUMENT_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint\.json does not exist"):
        read_checkpoint(folder)


def test_a_folder_may_be_a_link_but_a_file_of_it_may_not(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(folder)
    assert read_checkpoint(tmp_path / "current").metadata.version == "2026.11-a"
    for name in (WEIGHTS_FILE, DOCUMENT_FILE):
        outside = tmp_path / f"outside.{name}"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)
        with pytest.raises(CheckpointError, match=f"{name} cannot be opened as a regular file"):
            read_checkpoint(folder)
        (folder / name).unlink()
        outside.rename(folder / name)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(folder: Path, make: Callable[[Path], None]) -> None:
    (folder / WEIGHTS_FILE).unlink()
    make(folder / WEIGHTS_FILE)
    with pytest.raises(CheckpointError, match="no regular file"):
        read_checkpoint(folder)


def test_files_over_their_bound_are_refused_unread(folder: Path) -> None:
    os.truncate(folder / WEIGHTS_FILE, checkpoint_files.MAX_WEIGHTS_BYTES + 1)  # sparse: takes no room
    for read in (read_checkpoint, check_files):
        with pytest.raises(CheckpointError, match=r"536870913 bytes, at most 536870912"):
            read(folder)
    os.truncate(folder / DOCUMENT_FILE, MAX_DOCUMENT_BYTES + 1)
    with pytest.raises(CheckpointError, match=r"1048577 bytes, at most 1048576"):
        read_checkpoint(folder)


def test_another_schema_version_is_refused_with_both_versions(folder: Path) -> None:
    rewrite_document(folder, lambda document: document.update(schema_version=schema.SCHEMA_VERSION + 1))
    for read in (read_checkpoint, check_files):
        with pytest.raises(CheckpointError, match=rf"schema version {schema.SCHEMA_VERSION + 1} .* has version"):
            read(folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda d: d.update(format=2), "format 2, this code reads 1"),
        (lambda d: d.pop("metrics"), "lacks key 'metrics'"),
        (lambda d: d.update(extra=1), "unknown key 'extra'"),
        (lambda d: d["architecture"].update(layers=3), "network setting 'layers' does not exist"),
        (lambda d: d["architecture"].update(hidden=10**9), "hidden is 1000000000, it must be between"),
        (lambda d: d["architecture"].update(pooling=["mixed"]), "network setting pooling"),
        (lambda d: d.update(architecture=[]), "no table"),
        (lambda d: d["widths"].update(gpu=1), rf"'gpu' has width 1 there and {len(schema.GPU)} here"),
        (lambda d: d["widths"].pop("gpu"), "'gpu' has width None there"),
        (lambda d: d["widths"].update(rack=2), "'rack' has width 2 there and None here"),
        (lambda d: d.update(widths=3), "widths are 3"),
        (lambda d: d.update(metrics=[1]), "no table"),
        (lambda d: d.update(name=["x"]), "name is"),
    ],
)
def test_a_document_that_says_something_else_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    rewrite_document(folder, change)
    with pytest.raises(CheckpointError, match=complaint):
        read_checkpoint(folder)


def test_a_document_that_was_edited_is_refused(folder: Path) -> None:
    rewrite_document(folder, lambda document: document["metrics"].update({"energy per job": 0.1}), sealed=False)
    with pytest.raises(CheckpointError, match="was changed after it was written"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b"\xff\xfe{}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"format": NaN}',
        b'{"format": 1, "format": 1}',
        b'{"format": ' + b"9" * 10_000 + b"}",
        b'{"format": 1, "schema_version": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"format": "\\ud800"}',
    ],
)
def test_a_hostile_document_is_refused(folder: Path, text: bytes) -> None:
    (folder / DOCUMENT_FILE).write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    str(caught.value).encode("utf-8")
    assert len(str(caught.value)) < 1000


def test_weights_that_do_not_belong_to_the_document_are_refused(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(safetensors.torch.save({"a": torch.ones(1)}))
    with pytest.raises(CheckpointError, match="has SHA-256"):
        read_checkpoint(folder)


class Bomb:
    """Unpickled, it makes a file: a trace that code was run."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (os.mkdir, (str(self.trace),))


def test_a_pickle_in_the_weights_place_runs_no_code(folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save({"a": Bomb(trace)}, tmp_path / "archive")
    for data in (pickle.dumps(Bomb(trace)), pickle.dumps(Bomb(trace), protocol=0), (tmp_path / "archive").read_bytes()):
        replace_weights(folder, data)
        with pytest.raises(CheckpointError):
            read_checkpoint(folder)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "the bomb would have left its trace"


F32 = {"dtype": "F32", "shape": [2]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, b"\x00" * 8, length=10**6),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, b"\x00" * 8, length=3),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, b"\x00" * 8, length=2**64 - 1),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [4, 12]}}, b"\x00" * 12),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [0, 8]}}, b"\x00" * 8),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}, "b": {**F32, "data_offsets": [16, 24]}}, b"\x00" * 24),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, b"\x00" * 80),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 16]}}, b"\x00" * 16),
        safetensors_bytes({"a": {**F32, "data_offsets": [8, 0]}}, b"\x00" * 8),
        safetensors_bytes({"a": {**F32, "shape": [2**62, 4], "data_offsets": [0, 8]}}, b"\x00" * 8),
        safetensors_bytes({"a": {**F32, "shape": [-2], "data_offsets": [0, 8]}}, b"\x00" * 8),
        safetensors_bytes({"a": {**F32, "dtype": "F16", "data_offsets": [0, 4]}}, b"\x00" * 4),
        safetensors_bytes({"a": {**F32, "dtype": "F8_E8M0", "data_offsets": [0, 2]}}, b"\x00" * 2),
        safetensors_bytes({"a": {**F32, "dtype": "F64", "data_offsets": [0, 16]}}, b"\x00" * 16),
        safetensors_bytes({"a": {**F32, "dtype": "OBJECT", "data_offsets": [0, 8]}}, b"\x00" * 8),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, struct.pack("<2f", 1.0, float("nan"))),
        safetensors_bytes({"a": {**F32, "data_offsets": [0, 8]}}, struct.pack("<2f", 1.0, float("-inf"))),
        safetensors_bytes(b"[" * 100_000, b""),
        safetensors_bytes(b"{" + b" " * MAX_HEADER_BYTES + b"}", b""),
    ],
)
def test_hostile_weights_with_the_right_hash_are_refused(folder: Path, data: bytes) -> None:
    replace_weights(folder, data)
    for read in (read_checkpoint, check_files):
        with pytest.raises(CheckpointError) as refused:
            read(folder)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("linear.bias"), "lacks 1 tensors of the network, the first is 'linear.bias'"),
        (lambda t: t.update(more=torch.ones(1)), "has 1 tensors that the network lacks, the first is 'more'"),
        (
            lambda t: t.update({"linear.weight": torch.ones(3, 2)}),
            r"'linear.weight' has shape \(3, 2\), the network needs \(2, 3\)",
        ),
        (lambda t: t.update(steps=torch.tensor(7.0)), r"'steps' is of torch.float32, the network needs torch.int64"),
    ],
)
def test_tensors_that_do_not_fit_change_nothing(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], complaint: str
) -> None:
    tensors = dict(Toy().state_dict())
    change(tensors)
    save_checkpoint(tmp_path / "x", tensors, metadata())
    module = Toy()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    with pytest.raises(CheckpointError, match=complaint):
        load_into(module, read_checkpoint(tmp_path / "x"))
    assert same(dict(module.state_dict()), before)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int | None, list[tuple[int, int]]]:
    """A file, where it is cut off, and which bytes are turned: positions as shares of a million."""
    name = draw(st.sampled_from([WEIGHTS_FILE, DOCUMENT_FILE]))
    cut = draw(st.none() | st.integers(0, 999_999))
    flips = draw(st.lists(st.tuples(st.integers(0, 999_999), st.integers(1, 255)), max_size=4))
    return name, cut, flips


@given(damage=damages())
def test_a_damaged_checkpoint_is_refused_or_reads_as_before(
    folder: Path, tmp_path: Path, damage: tuple[str, int | None, list[tuple[int, int]]]
) -> None:
    name, cut, flips = damage
    whole = read_checkpoint(folder)
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    data = bytearray((copy / name).read_bytes())
    for position, change in flips:
        data[position * len(data) // 1_000_000] ^= change
    (copy / name).write_bytes(data if cut is None else data[: cut * len(data) // 1_000_000])
    try:
        read = read_checkpoint(copy)
    except CheckpointError as error:
        assert isinstance(error, SlurmEnergyError)
        return
    assert read.metadata == whole.metadata
    assert same(dict(read.tensors), dict(whole.tensors))


@given(flips=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 255)), min_size=1, max_size=6))
def test_damaged_weights_under_a_forged_hash_give_tensors_or_an_error_of_ours(
    folder: Path, flips: list[tuple[int, int]]
) -> None:
    torch.manual_seed(1)
    data = bytearray(safetensors.torch.save(dict(Toy().state_dict())))
    for position, change in flips:
        data[position % len(data)] ^= change
    replace_weights(folder, bytes(data))
    try:
        read = read_checkpoint(folder)
        load_into(Toy(), read)
    except CheckpointError:
        return
    assert all(bool(torch.isfinite(tensor).all()) for tensor in read.tensors.values())
