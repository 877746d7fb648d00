"""Blocks whose arrays are tensors on the device of a network: moved once, then read as often as the network likes."""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from slurm_energy.graph.blocks import DecisionBlock, DeviceBlock, FabricBlock, QueueBlock, TopBlock

_Block = TypeVar("_Block", DeviceBlock, FabricBlock, QueueBlock, TopBlock, DecisionBlock)


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
