"""Weights in and out of a checkpoint's folder: tensors only, through safetensors, never through pickle."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from slurm_energy.errors import CheckpointError
from slurm_energy.policy.checkpoint_files import (
    DOCUMENT_FILE,
    MAX_DOCUMENT_BYTES,
    MAX_WEIGHTS_BYTES,
    WEIGHTS_FILE,
    CheckpointMetadata,
    open_folder,
    read_metadata,
    read_weights,
    sha256,
)

DTYPES = (torch.float32, torch.int64, torch.bool)
"""What a network of ours is made of: weights, counts, flags."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A checkpoint that was read: every tensor is of a known kind and finite."""

    metadata: CheckpointMetadata
    tensors: Mapping[str, Tensor]


def save_checkpoint(folder: Path, state_dict: Mapping[str, Tensor], metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Write a checkpoint as a new folder, whole or not at all; return its metadata with the weights' hash.

    It is written beside its place under a hidden name, flushed to the disk and renamed, so that no reader sees half
    of it. A checkpoint is never changed: a folder that exists is refused.

    Raises:
        CheckpointError: the folder exists or cannot be written, or the tensors cannot be saved.
    """
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state_dict.items()}
    _check_tensors(tensors, folder)
    weights = safetensors.torch.save(tensors)
    sealed = replace(metadata, weights_sha256=sha256(weights))
    document = json.dumps(sealed.document(), indent=1, allow_nan=False).encode("ascii")
    for name, data, bound in (
        (WEIGHTS_FILE, weights, MAX_WEIGHTS_BYTES),
        (DOCUMENT_FILE, document, MAX_DOCUMENT_BYTES),
    ):
        if len(data) > bound:
            raise CheckpointError(f"{folder / name} would have {len(data)} bytes, at most {bound} are allowed")
    if os.path.lexists(folder):
        raise CheckpointError(f"checkpoint folder {folder} exists already: choose another name")
    unfinished = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        unfinished.mkdir()
        _write(unfinished / WEIGHTS_FILE, weights)
        _write(unfinished / DOCUMENT_FILE, document)
        _flush_folder(unfinished)
        unfinished.rename(folder)
        _flush_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sealed


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint of a folder.

    Raises:
        CheckpointError: it is missing, damaged, too large, of another version, or holds what is no finite tensor.
    """
    with open_folder(folder) as opened:
        metadata = read_metadata(opened)
        weights = read_weights(opened, metadata)
    file = folder / WEIGHTS_FILE
    try:
        tensors = safetensors.torch.load(weights)
    except (SafetensorError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, MemoryError) as error:
        # safetensors checks length, offsets and overlaps itself; the others are how torch refuses a kind or a shape.
        raise CheckpointError(f"{file} is no safetensors file that can be read: {str(error)[:200]}") from error
    _check_tensors(tensors, folder)
    return Checkpoint(metadata=metadata, tensors=tensors)


def load_into(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Give a module the weights of a checkpoint; nothing is changed unless every tensor fits.

    Raises:
        CheckpointError: a tensor is missing, not the module's, or has another shape or kind.
    """
    name = f"checkpoint {checkpoint.metadata.name} {checkpoint.metadata.version}"
    wanted = module.state_dict()
    missing, extra = (
        sorted(wanted.keys() - checkpoint.tensors.keys()),
        sorted(checkpoint.tensors.keys() - wanted.keys()),
    )
    if missing:
        raise CheckpointError(f"{name} lacks {len(missing)} tensors of the network, the first is {missing[0]!r}")
    if extra:
        raise CheckpointError(f"{name} has {len(extra)} tensors that the network lacks, the first is {extra[0][:80]!r}")
    for key, tensor in wanted.items():
        given = checkpoint.tensors[key]
        if given.shape != tensor.shape:
            raise CheckpointError(
                f"{name}: tensor {key!r} has shape {tuple(given.shape)}, the network needs {tuple(tensor.shape)}"
            )
        if given.dtype != tensor.dtype:
            raise CheckpointError(f"{name}: tensor {key!r} is of {given.dtype}, the network needs {tensor.dtype}")
    module.load_state_dict(dict(checkpoint.tensors))


def _check_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            known = ", ".join(map(str, DTYPES))
            raise CheckpointError(f"checkpoint {folder}: tensor {name[:80]!r} is of {tensor.dtype}, allowed: {known}")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"checkpoint {folder}: tensor {name[:80]!r} has {bad} of {tensor.numel()} values that are not finite"
            )


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
