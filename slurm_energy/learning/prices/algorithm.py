"""Learning prices, as the training command knows it."""

from collections.abc import Sequence
from dataclasses import replace

from slurm_energy.errors import ConfigError
from slurm_energy.learning.algorithms import Algorithm, CollectorParts, LearnerParts
from slurm_energy.learning.experience import Collector, Learner
from slurm_energy.learning.prices.collector import PriceCollector
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceEpisodeSettings, PriceLearnerSettings
from slurm_energy.twin.world.file import find_world


def _collector(parts: CollectorParts) -> Collector:
    return PriceCollector(config=parts.network, settings=parts.episodes)


def _learner(parts: LearnerParts) -> Learner:
    return PriceLearner(
        parts.network, parts.settings, noise=parts.episodes.noise, seed=parts.seed, average=parts.averaging
    )


def _worlds(episodes: PriceEpisodeSettings) -> Sequence[str]:
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


ALGORITHM = Algorithm(
    name="prices",
    episode_settings=PriceEpisodeSettings,
    learner_settings=PriceLearnerSettings,
    network=lambda config: replace(config, policy="prices"),
    collector=_collector,
    learner=_learner,
    worlds=_worlds,
    options_first=PriceEpisodeSettings.options_first,
)
