"""The soft actor-critic as an algorithm that learns in rounds."""

from slurm_energy.learning.algorithms import Algorithm, CollectorParts, LearnerParts
from slurm_energy.learning.episodes import EpisodeCollector, EpisodeSettings
from slurm_energy.learning.experience import Collector, Learner
from slurm_energy.learning.soft_actor_critic.learner import SoftActorCritic
from slurm_energy.learning.soft_actor_critic.settings import SoftActorCriticSettings


def _collector(parts: CollectorParts) -> Collector:
    return EpisodeCollector(config=parts.network, settings=parts.episodes)


def _learner(parts: LearnerParts) -> Learner:
    return SoftActorCritic(parts.network, parts.settings, seed=parts.seed, averaging=parts.averaging)


ALGORITHM = Algorithm(
    name="chsac",
    episode_settings=EpisodeSettings,
    learner_settings=SoftActorCriticSettings,
    collector=_collector,
    learner=_learner,
)
