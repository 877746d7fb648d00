"""The policy gradient as an algorithm that learns in rounds."""

from slurm_energy.learning.algorithms import Algorithm, CollectorParts, LearnerParts
from slurm_energy.learning.episodes import EpisodeCollector, SpreadEpisodeSettings
from slurm_energy.learning.experience import Collector, Learner
from slurm_energy.learning.policy_gradient.learner import PolicyGradientLearner
from slurm_energy.learning.policy_gradient.settings import PolicyGradientSettings


def _collector(parts: CollectorParts) -> Collector:
    return EpisodeCollector(config=parts.network, settings=parts.episodes)


def _learner(parts: LearnerParts) -> Learner:
    return PolicyGradientLearner(parts.network, parts.settings, seed=parts.seed, averaging=parts.averaging)


ALGORITHM = Algorithm(
    name="policy-gradient",
    episode_settings=SpreadEpisodeSettings,
    learner_settings=PolicyGradientSettings,
    collector=_collector,
    learner=_learner,
)
