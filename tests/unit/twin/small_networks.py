"""Networks small enough to be asked hundreds of times in a test, with random weights, alone or as a checkpoint."""

from pathlib import Path

from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network

SMALL = NetworkConfig(
    hidden=12, heads=3, device_layers=1, task_layers=1, top_layers=1, chebyshev_order=2, pooled_vertices=1, quantiles=4
)


def small_network(seed: int = 0) -> HierarchicalNetwork:
    """Return a network ready to be asked."""
    return create_network(SMALL, seed).eval()


def small_checkpoint(folder: Path, *, seed: int = 0, version: str = "random") -> Path:
    """Write such a network as a checkpoint and return its folder."""
    metadata = CheckpointMetadata(
        name="gnn", version=version, architecture=SMALL, training_data_sha256="0" * 64, created_at_seconds=0.0
    )
    save_checkpoint(folder, create_network(SMALL, seed).state_dict(), metadata)
    return folder
