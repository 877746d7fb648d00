"""Settings with which each algorithm learns something in seconds."""

from pathlib import Path
from typing import Any

import tiny_learner

from slurm_energy.settings import toml_text

LEARNERS: dict[str, dict[str, Any]] = {
    "chsac": {"batch_size": 4, "warm_up_transitions": 3, "updates_per_transition": 1.5, "actor_learning_rate": 0.3},
    "policy-gradient": {"epochs": 1, "minibatches": 2},
    "prices": {"epochs": 1, "states_per_batch": 2},
}
HOURS = {"prices": 1.0}
"""Others take 0.2: of prices, jobs that ended are learned from."""


def write_config(folder: Path, name: str) -> Path:
    """Write a file of settings for this algorithm and return its path."""
    path = folder / "train.toml"
    tables = {
        "training": {"algorithm": name, "world": "lab", "rounds": 3},
        "network": tiny_learner.NETWORK,
        "episodes": {"hours": HOURS.get(name, 0.2)},
        "learner": LEARNERS[name],
    }
    path.write_text(toml_text(tables), encoding="utf-8")
    return path
