"""The algorithms that learn in rounds, by name, and what each is made of."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import ConfigError
from slurm_energy.forms import did_you_mean
from slurm_energy.learning.episodes import EpisodeCollector, EpisodeSettings, SpreadEpisodeSettings
from slurm_energy.learning.experience import Averaging, Collector, Learner, Weights
from slurm_energy.learning.policy_gradient.learner import PolicyGradientLearner
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings
from slurm_energy.learning.prices.collector import PriceCollector
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceEpisodeSettings, PriceLearnerSettings
from slurm_energy.learning.soft_actor_critic.learner import SoftActorCritic
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings
from slurm_energy.policy.checkpoint_files import CheckpointMetadata
from slurm_energy.policy.gnn.checkpoint import save_checkpoint
from slurm_energy.policy.gnn.configuration import NetworkConfig
from slurm_energy.policy.gnn.network import HierarchicalNetwork
from slurm_energy.twin.world.file import find_world

Saving = Callable[[Path, Weights, CheckpointMetadata], CheckpointMetadata]


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
    and a training resumes only in the same ones. Raises ConfigError for one that no episode can run in."""
    options_first: Callable[[Any, Set[str]], Any] = _no_parts
    """Returns settings of episodes in which the named ones, which were given as options, go for every episode, too
    where parts of the settings say otherwise."""
    save: Saving = save_checkpoint
    """Writes what `Learner.acting` gave as a checkpoint."""
    saves_network: bool = True
    """Whether `Learner.acting` is the state of the whole network, as `save_checkpoint` needs it."""


def _episode_collector(parts: CollectorParts) -> Collector:
    return EpisodeCollector(config=parts.network, settings=parts.episodes)


def _gradient_learner(parts: LearnerParts) -> Learner:
    return PolicyGradientLearner(parts.network, parts.settings, seed=parts.seed, averaging=parts.averaging)


POLICY_GRADIENT = Algorithm(
    name="policy-gradient",
    episode_settings=SpreadEpisodeSettings,
    learner_settings=PolicyGradientSettings,
    collector=_episode_collector,
    learner=_gradient_learner,
)


def _prices_collector(parts: CollectorParts) -> Collector:
    return PriceCollector(config=parts.network, settings=parts.episodes)


def _prices_learner(parts: LearnerParts) -> Learner:
    return PriceLearner(
        parts.network, parts.settings, noise=parts.episodes.noise, seed=parts.seed, average=parts.averaging
    )


def _prices_worlds(episodes: PriceEpisodeSettings) -> Sequence[str]:
    """Return the worlds of all turns; each needs a generator of its own."""
    found = tuple(dict.fromkeys(episodes.in_turn(turn).world for turn in range(max(1, len(episodes.worlds)))))
    where = "setting episodes.worlds" if episodes.worlds else "setting training.world"
    for name in found:
        try:
            world = find_world(name)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if not world.workload:
            raise ConfigError(f"{where}: world {name} has no workload of its own, and prices need one that makes jobs")
    return found


PRICES = Algorithm(
    name="prices",
    episode_settings=PriceEpisodeSettings,
    learner_settings=PriceLearnerSettings,
    network=lambda config: replace(config, policy="prices"),
    collector=_prices_collector,
    learner=_prices_learner,
    worlds=_prices_worlds,
    options_first=PriceEpisodeSettings.options_first,
)


def _critic_learner(parts: LearnerParts) -> Learner:
    return SoftActorCritic(parts.network, parts.settings, seed=parts.seed, averaging=parts.averaging)


CHSAC = Algorithm(
    name="chsac",
    episode_settings=EpisodeSettings,
    learner_settings=SoftActorCriticSettings,
    collector=_episode_collector,
    learner=_critic_learner,
)
ALGORITHMS = {one.name: one for one in (CHSAC, POLICY_GRADIENT, PRICES)}


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"no algorithm {name[:64]!r} learns in rounds; {did_you_mean(name, ALGORITHMS)}")
    return ALGORITHMS[name]
