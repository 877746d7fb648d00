"""The algorithms that learn in rounds, by name: what each is made of, imported only when it is asked for."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.forms import did_you_mean
from slurm_energy.learning.experience import Averaging, Collector, Learner, Weights
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork

ALGORITHMS: dict[str, str] = {
    "chsac": "slurm_energy.learning.soft_actor_critic.algorithm",
    "policy-gradient": "slurm_energy.learning.policy_gradient.algorithm",
    "prices": "slurm_energy.learning.prices.algorithm",
}
"""Where the constant ALGORITHM of each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorParts:
    """What a collector is made of."""

    network: NetworkConfig
    episodes: Any
    """Of the algorithm's `episode_settings`, with the world in `world`."""
    learner: Any
    """Of the algorithm's `learner_settings`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParts:
    """What a learner is made of."""

    network: HierarchicalNetwork
    """With the weights to begin from, on the device to learn on; the learner's own to change."""
    settings: Any
    """Of the algorithm's `learner_settings`."""
    episodes: Any
    """Of the algorithm's `episode_settings`."""
    seed: int
    """Of everything random in the learner; the same on all ranks, so that what it makes begins equal."""
    averaging: Averaging
    """To be called between `backward()` and `step()`, equally often on all ranks."""


Saving = Callable[[Path, Weights, CheckpointMetadata], CheckpointMetadata]


def _as_it_is(network: NetworkConfig) -> NetworkConfig:
    return network


def _its_world(episodes: Any) -> Sequence[str]:
    return (episodes.world,)


def _no_parts(episodes: Any, _: Set[str]) -> Any:
    return episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One way to learn in rounds.

    The figure `score` of a learner, if there is one, is of the weights that acted in the round; higher is better.
    """

    name: str
    episode_settings: type[Any]
    """Frozen dataclass of the table [episodes]; every field but `world`, which the training fills in, has a default."""
    learner_settings: type[Any]
    """Frozen dataclass of the table [learner]; every field has a default."""
    collector: Callable[[CollectorParts], Collector]
    learner: Callable[[LearnerParts], Learner]
    network: Callable[[NetworkConfig], NetworkConfig] = _as_it_is
    """Sets what the algorithm itself needs of a network."""
    worlds: Callable[[Any], Sequence[str]] = _its_world
    """Names or files of the worlds that episodes of these settings run in: they are looked at before the work begins,
    and a training goes on only in the same ones. Raises ConfigError for one that no episode can run in."""
    options_first: Callable[[Any, Set[str]], Any] = _no_parts
    """Returns settings of episodes in which the named ones, which were given as options, go for every episode, too
    where parts of the settings say otherwise."""
    save: Saving = save_checkpoint
    """Writes what `Learner.acting` gave as a checkpoint."""
    saves_network: bool = True
    """Whether `Learner.acting` is the state of the whole network, as `save_checkpoint` needs it."""


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"no algorithm {name[:64]!r} learns in rounds; {did_you_mean(name, ALGORITHMS)}")
    found: Algorithm = import_module(ALGORITHMS[name]).ALGORITHM
    return found
