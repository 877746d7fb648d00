"""The node feature that a job's nodes should have, from the network's probabilities over nodes: a hint, no condition.

The paper assigns tasks to devices (section 3.4). Slurm picks nodes and devices itself; what a submission can do is to
prefer a feature.
"""

import numpy as np
import torch

from slurm_energy.domain.ids import PartitionName
from slurm_energy.domain.job import JobRequest
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import Indices
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.gnn.assignment_head import preferred_feature
from slurm_energy.policy.gnn.cache import EmbeddingCache
from slurm_energy.policy.gnn.chooser import Choice, NetworkChooser

MAX_NODES = 256
"""Nodes that are looked at, spread evenly over those with room: the cost must not grow with the partition."""
_DEVICE_OPTION = schema.width(schema.DEVICE_OPTION)
_IS_FREE = schema.column(schema.DEVICE_OPTION, "is_free")


def node_hint(chooser: NetworkChooser, choice: Choice, job: JobRequest, partition: PartitionName) -> str | None:
    """Return the feature whose nodes the network would take for a job; None where none stands out.

    Args:
        chooser: Keeps the embeddings; without a cache of them there is no hint.
        choice: What it said of the job.
        job: The job.
        partition: Where it goes.
    """
    keeper, graph = chooser.keeper, chooser.graph
    if not isinstance(keeper, EmbeddingCache) or chooser.is_updating:
        return None  # in between slots may stand for other nodes than their embeddings do
    slots = nodes_with_room(graph, partition, max(1, -(-job.gpu_count // max(1, job.nodes_min))))
    if len(slots) < 2 or int(slots.max()) >= len(keeper.node):
        return None
    pair_x = torch.zeros(len(slots), _DEVICE_OPTION)
    pair_x[:, _IS_FREE] = 1.0
    with torch.inference_mode():
        log_prob = chooser.network.assignment(
            choice.decisions.job,
            keeper.node[torch.from_numpy(slots)],
            torch.zeros(len(slots), dtype=torch.int64),
            torch.arange(len(slots)),
            pair_x,
            torch.ones(len(slots), dtype=torch.bool),
        )
        probability = log_prob.exp().tolist()
    states = graph.nodes.states
    return preferred_feature(probability, [states[slot].features for slot in slots.tolist()])


def nodes_with_room(graph: ClusterGraph, partition: PartitionName, gpus: int) -> Indices:
    """Return the slots of at most `MAX_NODES` available nodes of a partition with so many free GPUs."""
    place = graph.partition_index.get(partition)
    if place is None:
        return np.zeros(0, dtype=np.int64)
    nodes, places = graph.members.flat()
    slots: Indices = nodes[places == place]
    store = graph.nodes.store
    slots = slots[(store["free"][slots] >= gpus) & (store["gpus"][slots] > 0) & (store["available"][slots] > 0)]
    if len(slots) > MAX_NODES:
        slots = slots[np.linspace(0, len(slots) - 1, MAX_NODES).astype(np.int64)]
    return slots
