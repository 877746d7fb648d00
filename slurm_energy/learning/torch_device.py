"""Where a learner works, on a GPU or on the CPU, and how states are moved there. Episodes run on the CPU either way."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from slurm_energy.errors import ConfigError
from slurm_energy.graph.blocks import (
    DecisionBlock,
    DeviceBlock,
    FabricBlock,
    QueueBlock,
    TopBlock,
    batch_devices,
    batch_fabrics,
    batch_queues,
    batch_tops,
)
from slurm_energy.policy.gnn.network import Blocks

CPU = torch.device("cpu")
AUTO = "auto"
_FORM = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
_Block = TypeVar("_Block", DeviceBlock, FabricBlock, QueueBlock, TopBlock, DecisionBlock)


def check_device_name(name: str) -> None:
    """Raise ConfigError for what is no name of a device."""
    if not _FORM.fullmatch(name):
        raise ConfigError(
            f"setting training.device is {name[:64]!r}, it must be auto, cpu, cuda or cuda:N with N from 0 to 999"
        )


def torch_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name on this machine.

    Args:
        name: `auto`: a GPU if there is one, else the CPU; `cpu`; `cuda`; or `cuda:N`.
        local_rank: Of this process among those of the training on this machine. Each takes the next GPU where no number
            says which; when there are more of them than GPUs, they share.

    Raises:
        ConfigError: it is no name of a device, or there is no such GPU.
    """
    check_device_name(name)
    gpus = torch.cuda.device_count() if name != "cpu" and torch.cuda.is_available() else 0
    if name == "cpu" or (name == AUTO and not gpus):
        return CPU
    if not gpus:
        raise ConfigError(
            f"setting training.device is {name!r}, but torch {torch.__version__} finds no GPU here: ask Slurm for one "
            "(--gpus-per-task=1), install a torch that is built for CUDA, or give --device auto or cpu"
        )
    device = torch.device(name) if ":" in name else torch.device("cuda", local_rank % gpus)
    if device.index >= gpus:
        raise ConfigError(
            f"setting training.device is {name!r}, but this process sees {gpus} GPUs, cuda:0 to cuda:{gpus - 1}: give "
            "one of them, or cuda for any"
        )
    return device


def device_words(device: torch.device) -> str:
    """Return a device with its model, as people read it: `cuda:0 (NVIDIA H200)`."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def batched_states(states: Sequence[Blocks], device: torch.device) -> Blocks:
    """Return states as one whose numbers do not meet, on a device."""
    tops = [state.top for state in states]
    return Blocks(
        devices=on_device(batch_devices([state.devices for state in states]), device),
        fabric=on_device(batch_fabrics([state.fabric for state in states], tops), device),
        queue=on_device(batch_queues([state.queue for state in states], tops), device),
        top=on_device(batch_tops(tops), device),
    )


def state_of_cluster(states: Sequence[Blocks], device: torch.device) -> Tensor:
    """Return the number of the state that each cluster of `batched_states` is from, [clusters]."""
    counts = [len(state.top.cluster_x) for state in states]
    return torch.from_numpy(np.repeat(np.arange(len(states)), counts)).to(device)


def on_device(block: _Block, device: torch.device) -> _Block:
    """Return a block with a tensor on the device in the place of each array, for `floats`, `indices` and `flags`.

    On the CPU the tensors share the memory of the arrays.
    """
    arrays = {item.name: getattr(block, item.name) for item in fields(block)}
    # Any: a block's fields are declared as the arrays that the graph makes.
    moved: dict[str, Any] = {
        name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None
    }
    return replace(block, **moved)
