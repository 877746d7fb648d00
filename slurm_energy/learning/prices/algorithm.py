"""Learning prices, as the training command knows it."""

from dataclasses import replace

from slurm_energy.learning.algorithms import Algorithm, CollectorParts, LearnerParts
from slurm_energy.learning.experience import Collector, Learner
from slurm_energy.learning.prices.collector import PriceCollector
from slurm_energy.learning.prices.learner import PriceLearner
from slurm_energy.learning.prices.settings import PriceEpisodeSettings, PriceLearnerSettings


def _collector(parts: CollectorParts) -> Collector:
    return PriceCollector(config=parts.network, settings=parts.episodes)


def _learner(parts: LearnerParts) -> Learner:
    return PriceLearner(
        parts.network, parts.settings, noise=parts.episodes.noise, seed=parts.seed, average=parts.averaging
    )


ALGORITHM = Algorithm(
    name="prices",
    episode_settings=PriceEpisodeSettings,
    learner_settings=PriceLearnerSettings,
    network=lambda config: replace(config, policy="prices"),
    collector=_collector,
    learner=_learner,
)
