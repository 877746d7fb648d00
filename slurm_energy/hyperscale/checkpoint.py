"""The state of a training between two epochs in one safetensors file: weights and moments, and what they are of."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Adam

from slurm_energy.errors import CheckpointError
from slurm_energy.hyperscale.part_files import write_tensors

FORMAT = "slurm-energy hyperscale checkpoint 1"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheckpoint:
    """What is beside the tensors."""

    epoch: int
    """That are done."""
    settings: Mapping[str, Any]
    """That must be the same to resume."""
    best: tuple[int, float, float]
    """Epoch of the highest accuracy on val_mask, that accuracy, and that on test_mask then."""
    graph: str
    """Its size."""


def write_checkpoint(path: Path, model: nn.Module, optimizer: Adam, found: TrainingCheckpoint) -> None:
    """Replace the checkpoint by one of this state.

    Raises:
        DataFileError: it cannot be written.
    """
    tensors: dict[str, Tensor] = {f"model.{name}": one for name, one in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state}
    steps = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    header = {
        "format": FORMAT,
        "epoch": str(found.epoch),
        "steps": str(max(steps, default=0)),
        "settings": json.dumps(dict(found.settings)),
        "best": json.dumps([None if one != one else one for one in found.best]),  # noqa: PLR0124  # JSON has no NaN
        "graph": found.graph,
    }
    write_tensors(path, tensors, header)


def read_checkpoint(path: Path, model: nn.Module, optimizer: Adam) -> TrainingCheckpoint:
    """Load a checkpoint into model and optimiser, and return what is beside its tensors.

    Raises:
        CheckpointError: it is missing, is none of ours, or does not fit the model.
    """
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of `slurm-energy hyperscale train`")
            epoch, steps = int(header["epoch"]), int(header["steps"])
            settings, best = json.loads(header["settings"]), json.loads(header["best"])
            names = set(file.keys())
            _load(path, model, optimizer, {name: file.get_tensor(name) for name in names}, steps)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: the checkpoint cannot be read: {error}") from error
    plain = isinstance(settings, dict) and isinstance(best, list) and len(best) == 3 and epoch >= 0 and steps >= 0
    if not plain or not isinstance(best[0], int) or not all(one is None or isinstance(one, float) for one in best[1:]):
        raise CheckpointError(f"{path}: the header of the checkpoint is damaged: train from the start")
    rest = [nan if one is None else float(one) for one in best[1:]]
    return TrainingCheckpoint(
        epoch=epoch, settings=settings, best=(best[0], rest[0], rest[1]), graph=header.get("graph", "")
    )


def _load(path: Path, model: nn.Module, optimizer: Adam, tensors: Mapping[str, Tensor], steps: int) -> None:
    for name, own in model.state_dict().items():
        found = tensors.get(f"model.{name}")
        if found is None or found.shape != own.shape:
            shape = None if found is None else list(found.shape)
            raise CheckpointError(f"{path}: {name} has the shape {shape}, the model needs {list(own.shape)}")
        own.copy_(found)
    for name, parameter in model.named_parameters():
        moments = {moment: tensors.get(f"{moment}.{name}") for moment in _MOMENTS}
        if any(one is None or one.shape != parameter.shape for one in moments.values()):
            if steps:
                raise CheckpointError(f"{path}: the moments of {name} are missing or have another shape")
            continue
        optimizer.state[parameter] = {
            "step": torch.tensor(float(steps)),
            **{moment: one.to(parameter.device) for moment, one in moments.items() if one is not None},
        }
