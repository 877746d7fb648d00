"""From a checkpoint's folder to a network at work."""

from dataclasses import replace
from pathlib import Path

import torch

from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import load_into, read_checkpoint
from slurm_energy.policy.gnn.chooser import NetworkChooser
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.pricing import NetworkPrices


def load_network(folder: Path, sampling_rate: float | None = None) -> tuple[HierarchicalNetwork, CheckpointMetadata]:
    """Return the network of a checkpoint, and what the checkpoint says of itself.

    Args:
        folder: Of the checkpoint.
        sampling_rate: Share of the nodes to work out, whatever the checkpoint says; None leaves it to that. Weights do
            not depend on it.

    Raises:
        CheckpointError: it cannot be used.
        ConfigError: the sampling rate is out of its bounds.
    """
    checkpoint = read_checkpoint(folder)
    config: NetworkConfig = checkpoint.metadata.architecture
    if sampling_rate is not None:
        config = replace(config, sampling="sampled", sampling_rate=sampling_rate)
    network = create_network(config, seed=0)
    load_into(network, checkpoint)
    return network.eval(), checkpoint.metadata


def use_threads(threads: int) -> None:
    """Let torch use so many CPU threads in this process; runs side by side are best off with one each."""
    torch.set_num_threads(threads)


def chooser_of(network: HierarchicalNetwork) -> NetworkChooser:
    """Return the network at work on an empty graph; of a sampled one, draws begin anew."""
    return NetworkChooser(network, ClusterGraph())


def prices_of(network: HierarchicalNetwork) -> NetworkPrices:
    """Return a network of prices at work on an empty graph."""
    return NetworkPrices(network)
