"""Networks that choose among options, as policies and as checkpoints, and what they are told of a job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from served_cluster import SMALL, guarded, lab

from slurm_energy.config import Config
from slurm_energy.domain.job import JobRequest
from slurm_energy.graph import schema
from slurm_energy.graph.blocks import Floats
from slurm_energy.graph.cluster_graph import ClusterGraph
from slurm_energy.graph.options import RunOption
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.chooser import Choice
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork, create_network
from slurm_energy.policy.gnn.policy import GnnPolicy, load_policy


def policy_of(config: NetworkConfig = SMALL, seed: int = 1, **changes: Any) -> GnnPolicy:
    return GnnPolicy(create_network(config, seed), ClusterGraph(), version="1", **changes)


def options_policy(config: Config) -> GnnPolicy:
    policy = load_policy(config)
    assert isinstance(policy, GnnPolicy)
    return policy


def saved(folder: Path, network: HierarchicalNetwork, **changes: Any) -> Path:
    values: dict[str, Any] = {
        "name": "gnn",
        "version": "2026.11-a",
        "architecture": network.config,
        "training_data_sha256": "ab" * 32,
        "created_at_seconds": 1_795_800_000.0,
    }
    save_checkpoint(folder, network.state_dict(), CheckpointMetadata(**{**values, **changes}))
    return folder


def job_columns(
    policy: GnnPolicy, monkeypatch: pytest.MonkeyPatch, job: JobRequest, config: Config
) -> dict[str, float]:
    """Return the columns of the submitted job as the network is given them."""
    given: list[Floats] = []
    chooser = policy._chooser
    original = chooser.choose

    def listened(job_x: Floats, options: Sequence[RunOption]) -> Choice | None:
        given.append(job_x)
        return original(job_x, options)

    with monkeypatch.context() as patch:
        patch.setattr(chooser, "choose", listened)
        guarded(policy, job, lab(), config)
    return {feature.name: float(value) for feature, value in zip(schema.TASK, given[-1], strict=True)}
