"""States side by side on a learner's device: the one place where those of a batch are moved there."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from slurm_energy.graph.batch import batch_devices, batch_fabrics, batch_queues, batch_tops
from slurm_energy.policy.gnn.block_tensors import on_device
from slurm_energy.policy.gnn.network import Blocks


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
